"""score: error rates of files that anybody made, each stamped with what counted it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from voxstill.core.config import Config
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import ErrorCounts
from voxstill.scoring import checks, figures, meetings, speakers, words
from voxstill.scoring.figures import Unit
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import shown
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path
from voxstill.text import normalize, rttm, transcripts
from voxstill.text.rttm import Mark, Stretch
from voxstill.text.transcripts import Said

CONFUSIONS = 10
LARGEST = 25_000_000
"""Cells of the table of an alignment: 5,000 words against 5,000, some hundred megabytes."""
Timed = TypeVar("Timed", Mark, Stretch)


def of_words(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    unit: Unit = "words",
    by_speaker: bool = False,
) -> dict[str, Any]:
    """Error rates of two files, matched by id. A reference without a hypothesis counts as if nothing was heard.

    DataError where no id is in both, or where speakers are asked for that nobody named.
    """
    said, heard = both(reference, hypothesis, form)
    name, alike = rules(cfg, language, normalizer)
    pairs = [(alike(each.text), alike(heard.get(id_, ""))) for id_, each in said.items()]
    rows = [words.score(id_, *pair) for id_, pair in zip(said, pairs, strict=True)]
    names = {id_: each.speaker for id_, each in said.items()}
    if by_speaker and not any(names.values()):
        raise DataError(
            f"`{reference}` names no speakers",
            why="Kaldi's text and plain lines cannot",
            fix="give references as JSONL, TRN or STM, or leave out `--by speaker`",
        )
    silence = checks.silence((row.words, duration_ms(each)) for row, each in zip(rows, said.values(), strict=True))
    split = (str.split, list)[unit == "characters"]
    unlike = [(split(ref), split(hyp)) for ref, hyp in pairs if ref != hyp]
    shown = [pair for pair in unlike if len(pair[0]) * len(pair[1]) <= LARGEST]
    aligned = (words.align(*pair)[1] for pair in shown)
    warnings = checks.of_words(pairs, ErrorCounts.sum(row.words for row in rows))
    if len(shown) < len(unlike):
        warnings.append(f"{len(unlike) - len(shown):,} texts are too long to list their errors, which are counted")
    return {
        **figures.figures(rows, names, cfg, unit),
        "unit": unit,
        **({"by_speaker": figures.rates(words.by(rows, lambda row: names[row.id]), unit)} if by_speaker else {}),
        "empty_references": sum(not ref for ref, _ in pairs),
        "empty_hypotheses": sum(not hyp for _, hyp in pairs),
        "without_hypothesis": len(said.keys() - heard.keys()),
        "without_reference": len(heard.keys() - said.keys()),
        "words_in_silence": silence.words,
        "words_per_hour_of_silence": silence.words_per_hour,
        "confusions": [
            {"reference": ref, "hypothesis": hyp, "count": count}
            for (ref, hyp), count in words.confusions(aligned, CONFUSIONS)
        ],
        "warnings": warnings,
        **figures.stamp(name, words.versions()),
    }


def rules(cfg: Config, language: str | None, normalizer: str | None) -> tuple[str, Callable[[str], str]]:
    """The normalizer that was named, else that of the language, else the configured one; its name and itself."""
    name = normalizer or (normalize.name_for(language) if language else cfg.evaluate.normalizer)
    return name, normalize.normalizer(name, language)


def both(reference: str, hypothesis: str, form: str | None) -> tuple[dict[str, Said], dict[str, str]]:
    """The rows of the references and the texts of the hypotheses, by id.

    Words of a CTM go into the segments of an STM. DataError where an id comes twice in a file or none is in both.
    """
    first, second = (transcripts.read(each, form) for each in (reference, hypothesis))
    forms = [form or transcripts.form_of(each) for each in (reference, hypothesis)]
    if forms[0] == "stm":
        ignored = {each.id for each in first if each.text == transcripts.IGNORED}
        second = transcripts.by_segment(first, second) if forms[1] == "ctm" else second
        first, second = ([each for each in some if each.id not in ignored] for some in (first, second))
    elif "ctm" in forms:
        raise DataError(
            "a CTM has words but no utterances", why="only the segments of an STM tell", fix="give references as STM"
        )
    said, heard = by_id(first, reference), {id_: each.text for id_, each in by_id(second, hypothesis).items()}
    if not said.keys() & heard.keys():
        raise DataError(
            f"`{reference}` and `{hypothesis}` have no id in common",
            why=f"{len(said):,} and {len(heard):,} were read, such as {_some(said)} and {_some(heard)}",
            fix="check that they belong together; lines without ids are `--form text`",
        )
    return said, heard


def by_id(rows: Sequence[Said], uri: str) -> dict[str, Said]:
    """The rows by their id, in their order; DataError where one comes twice."""
    found: dict[str, Said] = {}
    for row in rows:
        if found.setdefault(row.id, row) is not row:
            raise DataError(
                f"`{uri}` says `{row.id}` twice",
                why="an id has one line",
                fix="remove one of them; lines without ids are `--form text`",
            )
    return found


def _some(ids: Mapping[str, Any]) -> str:
    return f"`{next(iter(ids))}`" if ids else "none"


def duration_ms(each: Said) -> int | None:
    """How long an utterance is, where its file says."""
    return None if each.start_ms is None or each.end_ms is None else each.end_ms - each.start_ms


def picture(found: Mapping[str, Any]) -> str:
    """The figures of words as people read them."""
    unit = found["unit"]
    span = found["interval"]
    sure = f"  (95 % of draws of {found['interval_over']}: {percent(span[0])} to {percent(span[1])})" if span else ""
    names = (("WER", "wer", "words"), ("CER", "cer", "characters"))
    lines = [f"{name}  {percent(found[key]):>8}{sure if of == unit else ''}" for name, key, of in names]
    lines += [
        f"{found['errors']:,} errors in {found[unit]:,} {unit}: {found['substitutions']:,} substitutions,"
        f" {found['insertions']:,} insertions, {found['deletions']:,} deletions",
        f"{found['utterances']:,} utterances: {found['empty_references']:,} empty references,"
        f" {found['empty_hypotheses']:,} empty hypotheses, {found['without_hypothesis']:,} without a hypothesis;"
        f" {found['without_reference']:,} hypotheses without a reference were left out",
    ]
    if found["empty_references"]:
        hourly = found["words_per_hour_of_silence"]
        told = f", {hourly:,.0f} an hour" if hourly is not None else ""
        lines.append(f"{found['words_in_silence']:,} words where nothing was said{told}")
    for name, row in found.get("by_speaker", {}).items():
        rate = row["wer" if unit == "words" else "cer"]
        lines.append(f"  {name:<24}{percent(rate):>9}  {row['errors']:,} of {row[unit]:,}")
    if found["confusions"]:
        lines.append("most frequent errors:")
        lines += [
            f"  {each['count']:>6,}  {each['reference'] or '(nothing)'} → {each['hypothesis'] or '(nothing)'}"
            for each in found["confusions"]
        ]
    return "\n".join([*lines, *ending(found)])


def ending(found: Mapping[str, Any]) -> list[str]:
    """The warnings and the stamp: the last lines of every picture."""
    made = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    by = f"normalizer {found['normalizer']}; " if found["normalizer"] else ""
    return [*(f"warning: {each}" for each in found["warnings"]), f"scored by {found['scorer']}; {by}{made}"]


def percent(rate: float | None) -> str:
    """A rate as it is read; a stroke where there is none."""
    return "–" if rate is None else f"{100 * rate:.2f} %"


def of_speakers(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    uem: str | None = None,
    collar_s: float = 0.0,
    ignore_overlap: bool = False,
    audio: str | None = None,
) -> dict[str, Any]:
    """The diarization error rate of two RTTMs, as md-eval counts it, over all recordings of the reference.

    `audio`, a folder or a file, tells how long they are; it changes no rate. DataError where they share no recording.
    """
    said, heard = _by_channel(rttm.read(reference)), _by_channel(rttm.read(hypothesis))
    said = {key: marks for key, marks in said.items() if any(each.kind == "SPEAKER" for each in marks)}
    if not said.keys() & heard.keys():
        raise DataError(
            f"`{reference}` and `{hypothesis}` have no recording in common",
            why=f"{_channels(said)} and {_channels(heard)} were read, with their channels",
            fix="give recordings and channels the same names in both",
        )
    judged_in = _by_channel(rttm.read_uem(uem)) if uem else {}
    total, rows = speakers.SpeakerTime(), []
    lengths_ms, warnings = _lengths(cfg, audio, sorted({session for session, _ in said})) if audio else ({}, [])
    for key, marks in sorted(said.items()):
        other, stretches = heard.get(key, []), judged_in.get(key, [])
        judged = speakers.judge(marks, other, stretches, collar_us=round(collar_s * 1e6), ignore_overlap=ignore_overlap)
        total += judged.time
        length_ms = lengths_ms.get(key[0])
        row = {"recording": key[0], "channel": key[1], **_times(judged.time), "mapping": dict(judged.mapping)}
        rows.append({**row, "duration_ms": length_ms} if audio else row)
        warnings += [f"{key[0]}: {each}" for each in checks.of_turns(marks, other, stretches, length_ms)]
    for told, keys in (
        ("are not in the hypothesis, and all their speech is missed", said.keys() - heard.keys()),
        ("of the hypothesis are not in the reference and were left out", heard.keys() - said.keys()),
        ("are not in the UEM and are judged from their first turn to their last", said.keys() - judged_in.keys()),
    ):
        if keys and (uem or "UEM" not in told):
            warnings.append(f"{len(keys)} recordings {told}: {_channels(keys)}")
    return {
        **_times(total),
        "recordings": rows,
        "collar_s": collar_s,
        "ignore_overlap": ignore_overlap,
        "warnings": [*checks.of_times(total), *warnings],
        **figures.stamp(None, {}),
    }


def _lengths(cfg: Config, audio: str, sessions: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """How long each recording is in ms, decoded to its end, and what could not be told.

    Files are named as recordings are, whatever their ending; one file alone is that of a recording alone.
    """
    from voxstill.audio import (
        codec,  # words need none of this
        read_utterances,
    )
    from voxstill.indexing.formats.webdataset import AUDIO

    files: dict[str, list[str]] = {}
    if is_local(audio) and local_path(audio).is_file():
        files[sessions[0] if len(sessions) == 1 else PurePosixPath(audio).stem] = [audio]
    else:
        store = Store(audio)
        for entry in store.list():
            path = PurePosixPath(entry.key)
            if path.suffix[1:].lower() in AUDIO:
                files.setdefault(path.stem, []).append(store.uri(entry.key))
    found, told = {}, []
    with read_utterances.reading(cfg).decoder() as decoder:
        for session in (each for each in sessions if each in files):
            uri = min(files[session])
            if len(files[session]) > 1:
                told.append(f"{session}: {len(files[session])} files are called so, and `{shown(uri)}` was taken")
            try:
                found[session] = codec.samples_to_ms(len(decoder.decode(read_uri(uri)).samples_T))
            except (DataError, StorageError) as error:
                told.append(f"{session}: its audio does not tell how long it is: {error.what}")
    if missing := [each for each in sessions if each not in files]:
        told.append(f"{len(missing)} recordings have no audio in `{shown(audio)}`: {_names(missing)}")
    return found, told


def _by_channel(rows: Sequence[Timed]) -> dict[tuple[str, str], list[Timed]]:
    found: dict[tuple[str, str], list[Timed]] = {}
    for row in rows:
        found.setdefault((row.session, row.channel), []).append(row)
    return found


def _channels(keys: Iterable[tuple[str, str]]) -> str:
    return _names([f"{session} {channel}" for session, channel in sorted(keys)])


def _names(names: Sequence[str]) -> str:
    return ", ".join([*(f"`{each}`" for each in names[:3]), *(["..."] if len(names) > 3 else [])]) or "none"


def _times(time: speakers.SpeakerTime) -> dict[str, float | None]:
    return {
        "der": time.rate,
        "scored_ms": time.scored_us / 1000,
        "missed_ms": time.missed_us / 1000,
        "false_alarm_ms": time.false_alarm_us / 1000,
        "confused_ms": time.confused_us / 1000,
    }


def picture_of_speakers(found: Mapping[str, Any]) -> str:
    """The figures of speakers as people read them."""
    rows = found["recordings"]
    rows = [*rows, {"recording": "all", "channel": "", **found}] if len(rows) > 1 else rows
    width = max(len(f"{each['recording']} {each['channel']}") for each in rows) + 2
    lines = [f"{'':<{width}}{'DER':>10}{'missed':>12}{'false alarm':>13}{'confused':>12}{'scored':>12}"]
    for each in rows:
        parts = (each[f"{name}_ms"] / 1000 for name in ("missed", "false_alarm", "confused", "scored"))
        times = "".join(f"{part:>{size - 2},.2f} s" for part, size in zip(parts, (12, 13, 12, 12), strict=True))
        lines.append(f"{each['recording'] + ' ' + each['channel']:<{width}}{percent(each['der']):>10}{times}")
    overlap = "not judged" if found["ignore_overlap"] else "judged"
    return "\n".join([*lines, f"collar {found['collar_s']} s either side, overlap {overlap}", *ending(found)])


def of_meetings(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    collar_s: float = 5.0,
) -> dict[str, Any]:
    """cpWER over all sessions of the reference, and tcpWER where both files have times.

    DataError where a row names no session or speaker, or where the files share no session.
    """
    name, alike = rules(cfg, language, normalizer)
    said, heard = (_by_session(transcripts.read(each, form), each, alike) for each in (reference, hypothesis))
    if not said.keys() & heard.keys():
        raise DataError(
            f"`{reference}` and `{hypothesis}` have no session in common",
            why=f"{len(said):,} and {len(heard):,} were read, such as {_some(said)} and {_some(heard)}",
            fix="give sessions the same names in both",
        )
    shared = [said, {key: rows for key, rows in heard.items() if key in said}]
    timed = all(duration_ms(row) is not None for some in shared for rows in some.values() for row in rows)
    total, total_in_time, sessions = ErrorCounts(), ErrorCounts(), []
    for key, rows in sorted(said.items()):
        other = heard.get(key, [])
        found = meetings.cp(rows, other)
        in_time = meetings.tcp(rows, other, round(collar_s * 1000)).counts if timed else None
        total += found.counts
        total_in_time += in_time or ErrorCounts()
        sessions.append(
            {
                "session": key,
                **_meeting(found.counts, in_time),
                "speakers": [len({each.speaker for each in some}) for some in (rows, other)],
                "mapping": dict(found.mapping),
            }
        )
    warnings = [] if timed else ["not every row has its times, so that there is no tcpWER"]
    warnings += [f"{each}: the hypothesis has nothing of this session" for each in sorted(said.keys() - heard.keys())]
    warnings += [f"{each}: the reference has no such session: left out" for each in sorted(heard.keys() - said.keys())]
    warnings += [
        f"{each['session']}: {each['speakers'][1]} speakers were heard where {each['speakers'][0]} spoke"
        for each in sessions
        if each["speakers"][0] != each["speakers"][1]
    ]
    return {
        **_meeting(total, total_in_time if timed else None),
        "collar_s": collar_s,
        "sessions": sessions,
        "warnings": warnings,
        **figures.stamp(name, words.versions()),
    }


def _by_session(rows: Sequence[Said], uri: str, alike: Callable[[str], str]) -> dict[str, list[Said]]:
    found: dict[str, list[Said]] = {}
    for row in rows:
        if row.session is None or row.speaker is None:
            raise DataError(
                f"`{uri}` does not name session and speaker of `{row.id}`",
                why="words of meetings are judged by who said them",
                fix="give STM, SegLST, or JSONL with `session` and `speaker`",
            )
        found.setdefault(row.session, []).append(replace(row, text=alike(row.text)))
    return found


def _meeting(counts: ErrorCounts, in_time: ErrorCounts | None) -> dict[str, Any]:
    return {
        "cpwer": counts.rate,
        "tcpwer": None if in_time is None else in_time.rate,
        "errors": counts.errors,
        "errors_in_time": None if in_time is None else in_time.errors,
        "words": counts.reference,
        "substitutions": counts.substitutions,
        "insertions": counts.insertions,
        "deletions": counts.deletions,
    }


def picture_of_meetings(found: Mapping[str, Any]) -> str:
    """The figures of meetings as people read them."""
    rows = [*found["sessions"], *([{"session": "all", **found}] if len(found["sessions"]) > 1 else [])]
    width = max(len(each["session"]) for each in rows) + 2
    lines = [f"{'':<{width}}{'cpWER':>10}{'tcpWER':>10}{'errors':>9}{'words':>9}"]
    for each in rows:
        both_rates = f"{percent(each['cpwer']):>10}{percent(each['tcpwer']):>10}"
        lines.append(f"{each['session']:<{width}}{both_rates}{each['errors']:>9,}{each['words']:>9,}")
    return "\n".join([*lines, f"tcpWER with a collar of {found['collar_s']} s", *ending(found)])
