"""Student and teacher with and without a grammar, on the same utterances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from voxstill.core.config import Config
from voxstill.core.result import Result
from voxstill.evaluation import results
from voxstill.evaluation.results import StoredResult
from voxstill.scoring import figures, words
from voxstill.text.normalize import normalizer

System = Literal["teacher", "student"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarRow(Result):
    """The error rates of one of the two, with the grammar or without."""

    system: System
    grammar: bool
    wer: float
    cer: float | None
    interval: tuple[float, float] | None
    """95 % interval of `wer`."""
    rtfx: float | None
    """Seconds of audio in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarTable(Result):
    """Student and teacher with and without a grammar; what was not judged has no row.

    All rows are of the same utterances. Where the teacher had to transcribe them again, they are a sample.
    """

    utterances: int
    of: int
    """So many were judged in all."""
    rows: Sequence[GrammarRow]

    def to_text(self) -> str:
        """A heading, and a line for each row."""
        lines = [f"{self.title:<46}{'WER':>7}  {'95 % interval':<16}{'CER':>7}{'speed':>9}"]
        for row in self.rows:
            span = f"{row.interval[0]:.1%} to {row.interval[1]:.1%}" if row.interval else ""
            speed = "" if row.rtfx is None else f"{row.rtfx:.1f}x"
            cer = "" if row.cer is None else f"{row.cer:.1%}"
            lines.append(f"{name_of(row.system, row.grammar):<46}{row.wer:>7.1%}  {span:<16}{cer:>7}{speed:>9}")
        return "\n".join(lines)

    @property
    def title(self) -> str:
        """Of which utterances it is."""
        return f"on {self.utterances:,} of {self.of:,} utterances"


def name_of(system: str, grammar: bool) -> str:
    """What a row is called."""
    return f"{system} {'with' if grammar else 'without'} grammar"


def of_results(
    cfg: Config, student: StoredResult, teacher: StoredResult | None, beside: Sequence[StoredResult]
) -> GrammarTable | None:
    """The table of a student that was decoded along a grammar, from the results on the same corpus.

    None if it was not, where it was not judged without the grammar too, or where no words were judged.
    """
    greedy = (
        row for row in beside if row.recogniser == student.recogniser and results.decoding(row.figures) == "greedy"
    )
    without = next(greedy, None)
    if results.decoding(student.figures) != "grammar" or without is None:
        return None
    free_teacher = next((row for row in beside if is_teacher_without_grammar(row)), None)
    has_grammar = bool((cfg.teacher.model_extra or {}).get("grammar"))
    sides: list[tuple[System, bool, StoredResult | None]] = [
        ("teacher", has_grammar, teacher),
        ("teacher", False, free_teacher if has_grammar else None),
        ("student", True, student),
        ("student", False, without),
    ]
    references = results.rows(student.references)
    drawn = references
    if has_grammar and free_teacher is not None:
        ids = {row["id"] for row in results.rows(free_teacher.references)}
        drawn = [row for row in references if row["id"] in ids]
    rows = [_row(cfg, drawn, side, grammar, result) for side, grammar, result in sides if result is not None]
    known = [row for row in rows if row is not None]
    return GrammarTable(utterances=len(drawn), of=len(references), rows=known) if known else None


def is_teacher_without_grammar(result: StoredResult) -> bool:
    """Whether a result is of what the teacher transcribed without its grammar, and not of its labels."""
    return bool(result.figures.get("without_grammar"))


def _row(
    cfg: Config, references: Sequence[results.Row], side: System, grammar: bool, result: StoredResult
) -> GrammarRow | None:
    """The error rates of a result on some of its utterances; None if these have no words."""
    normalize = normalizer(result.figures["normalizer"])
    texts = {row["id"]: row["text"] for row in results.rows(result.hypotheses)}
    scored = [words.score(row["id"], normalize(row["text"]), normalize(texts.get(row["id"], ""))) for row in references]
    rates = figures.figures(scored, {row["id"]: row.get("speaker") for row in references}, cfg)
    if rates.wer is None:
        return None
    return GrammarRow(
        system=side,
        grammar=grammar,
        wer=rates.wer,
        cer=rates.cer,
        interval=rates.interval,
        rtfx=result.figures.get("rtfx"),
    )
