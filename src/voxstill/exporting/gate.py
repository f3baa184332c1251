"""What an export must pass: the tokens of onnxruntime are those of torch, and int8 costs no accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.monitor import Progress
from voxstill.core.records import ErrorCounts, Hypothesis, Utterance
from voxstill.core.result import NOT_IN_JSON, Result
from voxstill.decoding.loaded import Samples
from voxstill.decoding.recognizer import Recognizer
from voxstill.scoring import stats, words
from voxstill.scoring.words import Scored
from voxstill.text.normalize import normalizer

INT8_MARGIN = 0.003
"""The most word error rate that int8 may cost: the upper end of the interval of the difference is at most this."""
_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAudio:
    """The utterances that an export is compared on; those with a `text` by a human are scored by it."""

    name: str
    """Which they are, for people."""
    utterances: Sequence[Utterance]
    samples: Sequence[Samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Result):
    """What was compared. Without human texts `wer` is None, and `wer_int8` is against the texts of fp32."""

    on: str
    utterances: int
    equal: int
    """Utterances with the same tokens on onnxruntime as in torch."""
    wer: float | None
    wer_int8: float | None = None
    interval: tuple[float, float] | None = None
    """95 % paired bootstrap interval of what int8 costs: its word error rate minus that of fp32."""
    equal_int8: int | None = None
    equal_sherpa: int | None = None
    """Utterances with the same text in sherpa-onnx, of `utterances_sherpa`; None if it is not installed."""
    utterances_sherpa: int | None = None
    texts: Sequence[str] = field(default=(), compare=False, metadata=NOT_IN_JSON)

    @property
    def int8_cost(self) -> str | None:
        """What int8 costs, in words; None if it was not compared."""
        if self.wer_int8 is None or self.interval is None:
            return None
        low, high = (100 * value for value in self.interval)
        rate = f"WER {self.wer_int8:.2%}"
        if self.wer is None:
            rate = f"{self.wer_int8:.2%} of the words differ from fp32"
        return f"{rate}, a difference of {low:+.2f} to {high:+.2f} points (95 %)"

    @property
    def int8_passes(self) -> bool:
        """Whether int8 was compared, and costs too little to be seen."""
        return self.interval is not None and self.interval[1] <= INT8_MARGIN


def parity(
    audio: GateAudio,
    reference: Recognizer,
    exported: Recognizer,
    pieces: tuple[Sequence[str], Sequence[str]],
    cfg: Config,
) -> Gate:
    """Compare the tokens of an exported student with those of torch; DataError if an utterance has others.

    `pieces` are those of the student and those of its export, whose ids may be others.
    """
    ours, theirs = transcribe(reference, audio, "torch"), transcribe(exported, audio, "onnxruntime")
    unequal = [
        (utterance.id, one.text, other.text)
        for utterance, one, other in zip(audio.utterances, ours, theirs, strict=True)
        if [pieces[0][id_] for id_ in one.token_ids] != [pieces[1][id_] for id_ in other.token_ids]
    ]
    if unequal:
        id_, one, other = unequal[0]
        raise DataError(
            "the exported student outputs other tokens than the one in torch, so it is not kept",
            code="export-differs",
            why=f"on {audio.name}: {len(unequal):,} of {len(ours):,} utterances, first `{id_}`: `{one}` in torch,"
            f" `{other}` on onnxruntime",
            fix="report it with the versions of torch, onnx and onnxruntime; the student in torch can be used",
        )
    texts = [hypothesis.text for hypothesis in theirs]
    human = any(utterance.text is not None for utterance in audio.utterances)
    wer = ErrorCounts.sum(row.words for row in _scored(audio, texts, texts, cfg)).rate if human else None
    return Gate(on=audio.name, utterances=len(ours), equal=len(ours), wer=wer, texts=texts)


def int8(gate: Gate, audio: GateAudio, quantized: Recognizer, cfg: Config) -> Gate:
    """The same gate with what int8 costs, by a paired bootstrap over speakers or utterances."""
    texts = [hypothesis.text for hypothesis in transcribe(quantized, audio, "int8")]
    speakers = {utterance.id: utterance.info.speaker for utterance in audio.utterances}
    before, after = (_scored(audio, hypotheses, gate.texts, cfg) for hypotheses in (gate.texts, texts))
    test = stats.paired_test(
        stats.blocks(before, speakers), stats.blocks(after, speakers), cfg.evaluate.bootstrap_draws, cfg.seed
    )
    return dataclasses.replace(
        gate,
        wer_int8=ErrorCounts.sum(row.words for row in after).rate,
        interval=None if test is None else test.interval,
        equal_int8=sum(map(str.__eq__, gate.texts, texts)),
    )


def transcribe(recognizer: Recognizer, audio: GateAudio, name: str) -> list[Hypothesis]:
    """Transcribe all utterances, in order."""
    hypotheses: list[Hypothesis] = []
    with Progress(f"export: {name}", len(audio.samples), "utterances") as bar:
        for start in range(0, len(audio.samples), _AT_ONCE):
            chunk = audio.samples[start : start + _AT_ONCE]
            hypotheses += recognizer.transcribe_batch(chunk)
            bar.advance(len(chunk))
    return hypotheses


def _scored(audio: GateAudio, texts: Sequence[str], fallback: Sequence[str], cfg: Config) -> list[Scored]:
    """The errors of each utterance: against human texts where there are any, else against `fallback`."""
    normalize = normalizer(cfg.evaluate.normalizer)
    human: Mapping[str, str] = {row.id: row.text for row in audio.utterances if row.text is not None}
    return [
        words.score(row.id, normalize(human[row.id] if human else other), normalize(text))
        for row, text, other in zip(audio.utterances, texts, fallback, strict=True)
        if not human or row.id in human
    ]
