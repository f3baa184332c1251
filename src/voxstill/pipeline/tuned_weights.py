"""decode.tune: the weights of a language model are searched for on the dev split, and the wanted split is judged with
them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace

from voxstill.core import config
from voxstill.core.config import Config, Decode, changed
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.monitor import log
from voxstill.core.records import Label, Utterance, Verdict, fingerprint
from voxstill.decoding import emissions, lm_weights, recognizer
from voxstill.evaluation import recognition
from voxstill.evaluation.recognition import StudentFigures
from voxstill.evaluation.tuning import DEV, Gain, References, Tuning
from voxstill.pipeline import compare
from voxstill.pipeline.judged_split import of_split
from voxstill.pipeline.recipes import finished_verdicts
from voxstill.scoring.stats import PairedTest
from voxstill.storage import tables, workdir
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer
from voxstill.text.transcripts import TranscriptSegment

MOST = 1000
"""Utterances of the dev split, drawn by their ids, that the weights are tuned on: their log-probabilities stay in
memory, and each of the 48 pairs of weights decodes them all."""


def check(cfg: Config) -> None:
    """Raise ConfigError if weights would be judged on the split that they are tuned on."""
    if cfg.decode.tune and cfg.evaluate.split == DEV:
        raise ConfigError(
            "`decode.tune` and `evaluate.split: dev` cannot be combined",
            code="option-conflict",
            why="the weights are tuned on the dev split, so results there would look too good",
            fix="evaluate another split, or leave `decode.tune` out",
        )


def decoded(cfg: Config, **options: object) -> Config:
    """The configuration with other options of `decode`."""
    tree = cfg.model_dump()
    tree["decode"] |= options
    return config.validated(Config, tree)


def evaluate(cfg: Config, target: str, judged: Sequence[Utterance]) -> StudentFigures:
    """Judge a student; where `decode` has a language model and `tune`, with tuned weights, whose gain is tested.

    Without a language model there is nothing to tune.
    """
    plain = decoded(cfg, tune=False)
    if not cfg.decode.tune or cfg.decode.lm is None:
        return recognition.evaluate(plain, target, judged)
    tuning = tune(cfg, target)
    before = recognition.evaluate(plain, target, judged)
    tuned = decoded(cfg, lm_weight=tuning.lm_weight, word_bonus=tuning.word_bonus)
    after = recognition.evaluate(tuned, target, judged)
    return replace(after, tuning=replace(tuning, gain=_gain(cfg, before, after)))


def tune(cfg: Config, target: str) -> Tuning:
    """Search for the weights of `decode.lm` on the dev split; without their gain on another.

    ConfigError if the student is no CTC model; DataError if the dev split has no words.
    """
    from voxstill.decoding.search import beam_search

    student = recognizer.student(Decode(), target)
    student.load()
    try:
        student.check_alignment()
    except ConfigError as error:
        raise ConfigError(
            "`decode.tune` has no effect",
            code="option-unused",
            why=f"`{target}`: {error.why}, and weights are only tuned for those",
            fix="leave it out; weights can be tried manually with `voxstill evaluate EXP --on dev`",
        ) from None
    search = beam_search(cfg.decode, student.vocabulary.pieces)
    assert search is not None, "a language model needs a beam"
    rows, references = _references(changed(cfg, f"evaluate.split={DEV}"))
    audio, unread = recognition.read_audio(cfg, sorted(rows, key=lambda row: fingerprint(row.id))[:MOST])
    if unread:
        log.warning("tune: %d utterances of the dev split could not be read, and are left out", len(unread))
    tuned = lm_weights.tune(
        emissions.of_utterances(student, [samples_T for _, samples_T in audio], cfg.decode.blank_penalty),
        [row.text or "" for row, _ in audio],
        normalizer(cfg.evaluate.normalizer),
        width=search.width,
        fusion=search.fusion,
        pieces=student.vocabulary.pieces,
        blank_id=student.vocabulary.blank_id,
    )
    if tuned.before.rate is None or tuned.after.rate is None:
        raise DataError(
            "weights cannot be tuned without words",
            code="nothing-to-judge",
            why=f"of the dev split {len(unread):,} utterances cannot be read, and the other {len(audio):,} have none",
            fix="leave `decode.tune` out; or check that the audio is still there, and the dev texts",
        )
    tuning = Tuning(
        split=DEV,
        references=references,
        utterances=len(audio),
        words=tuned.before.reference,
        lm_weight=tuned.weights.lm_weight,
        word_bonus=tuned.weights.word_bonus,
        wer_before=tuned.before.rate,
        wer_after=tuned.after.rate,
    )
    log.info("tune: %s", tuning.to_text())
    return tuning


def _references(cfg: Config) -> tuple[list[Utterance], References]:
    """The utterances of the dev split with their words: of humans where there are any, else of kept labels."""
    utterances = of_split(cfg).utterances
    texts = recognition.hidden_texts(cfg)
    known = [recognition.with_text(utterance, texts) for utterance in utterances]
    if human := [row for row in known if row.text is not None]:
        return human, "human"
    kept = _kept_labels(cfg, {row.id for row in utterances}) if utterances else {}
    if not kept:
        raise DataError(
            "there is nothing to tune weights on",
            code="nothing-to-judge",
            why=f"the dev split of `{cfg.work}` has {len(utterances):,} utterances, none with a human text or a label"
            " that the filter kept",
            fix="set `decode.lm_weight` and `decode.word_bonus` instead of `decode.tune`, or give the dev split texts"
            " in `evaluate.texts`",
        )
    return [replace(row, text=kept[row.id]) for row in utterances if row.id in kept], "labels"


def _kept_labels(cfg: Config, wanted: Collection[str]) -> dict[str, str]:
    """Labels by utterance id, of those wanted, that the filter kept; none where nothing was filtered yet."""
    work = Store(cfg.work)
    try:
        verdicts = finished_verdicts(cfg)
    except DataError as error:
        log.info("tune: no labels: %s", error.what)
        return {}
    judged = tables.read(work, workdir.prefix("verdicts", verdicts.recipe), Verdict)
    kept = {row.utterance_id for row in judged if row.kept and row.utterance_id in wanted}
    labels = tables.read(work, workdir.prefix("labels", verdicts.labels), Label)
    return {row.utterance_id: row.text for row in labels if row.utterance_id in kept}


def _gain(cfg: Config, before: StudentFigures, after: StudentFigures) -> Gain | None:
    """The paired test of two decodings of the same utterances."""
    if not after.errors.rates.counts.reference:
        return None
    normalize = normalizer(cfg.evaluate.normalizer)
    compared = compare.runs(
        cfg,
        compare.Sides(
            runs=("before", "after"),
            references={
                row.id: TranscriptSegment(id=row.id, text=row.text or "", speaker=row.info.speaker)
                for row in after.judged
            },
            texts={row.id: normalize(row.text or "") for row in after.judged},
            hypotheses=tuple(
                {id_: normalize(text) for id_, text in side.hypotheses.items()} for side in (before, after)
            ),
            normalizer=cfg.evaluate.normalizer,
            split=after.split,
        ),
    )
    test = {member.name: getattr(compared, member.name) for member in fields(PairedTest)}
    return Gain(wer_before=compared.runs[0]["wer"], **test)
