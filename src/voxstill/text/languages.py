"""Codes of languages: what manifests write (`en-US`, `english`, `eng`), as the code that a recogniser knows."""

from __future__ import annotations

from collections.abc import Collection

_SYNONYMS = tuple(
    codes.split()
    for codes in """
af afr;am amh;ar ara arb;as asm;az aze azj;ba bak;be bel;bg bul;bn ben;bo bod tib;br bre;bs bos;ca cat;cs ces cze;
cy cym wel;da dan;de deu ger;el ell gre;en eng;es spa;et est ekk;eu eus baq;fa fas per pes prs;fi fin;fo fao;fr fra fre;
gl glg;gu guj;ha hau;haw;he heb iw;hi hin;hr hrv;ht hat;hu hun;hy hye arm;id ind in;is isl ice;it ita;ja jpn;
jw jv jav;ka kat geo;kk kaz;km khm;kn kan;ko kor;la lat;lb ltz;ln lin;lo lao;lt lit;lv lav lvs;mg mlg plt;mi mri mao;
mk mkd mac;ml mal;mn mon khk;mr mar;ms msa may zsm;mt mlt;my mya bur;ne nep npi;nl nld dut;nn nno;no nor nb nob;oc oci;
pa pan;pl pol;ps pus pbt;pt por;ro ron rum mo;ru rus;sa san;sd snd;si sin;sk slk slo;sl slv;sn sna;so som;
sq sqi alb als;sr srp;su sun;sv swe;sw swa swh;ta tam;te tel;tg tgk;th tha;tk tuk;tl tgl fil;tr tur;tt tat;uk ukr;
ur urd;uz uzb uzn;vi vie;yi yid ydd ji;yo yor;yue;zh zho chi cmn
""".replace("\n", "").split(";")
)
"""The codes of each language that Whisper knows: its own, then those of ISO 639-1, 639-2 and 639-3, former ones too."""


def code_of(name: str, known: Collection[str]) -> str | None:
    """The one of the `known` codes that a code or an English name of a language stands for; None if there is none.

    A region or script behind the code (`pt-BR`, `zh_Hans`) is left out where the recogniser does not know it.
    """
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    tag = name.strip().lower().replace("_", "-")
    base = TO_LANGUAGE_CODE.get(tag) or tag.partition("-")[0]
    base = TO_LANGUAGE_CODE.get(base, base)
    synonyms = next((codes for codes in _SYNONYMS if base in codes), [base])
    codes = {code.lower(): code for code in known}
    return next((codes[code] for code in (tag, base, *synonyms) if code in codes), None)
