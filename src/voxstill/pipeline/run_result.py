"""What `run`, `demo` and `run --rehearse` return: every step with its time, then teacher against student."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxstill.core.errors import StorageError
from voxstill.core.monitor import clock
from voxstill.core.result import Result
from voxstill.evaluation.against_teacher import AgainstTeacher
from voxstill.evaluation.grammar_table import GrammarTable
from voxstill.evaluation.recognition import StudentFigures
from voxstill.evaluation.report.round_table import RoundResult
from voxstill.evaluation.teacher import TeacherFigures
from voxstill.evaluation.tuning import Tuning
from voxstill.scoring.figures import to_dicts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult(Result):
    """One finished step: what came out of it in words, its time, and its figures by name."""

    step: str
    result: str
    seconds: float
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Figures of teacher and student on the same utterances; None of what was not judged."""

    teacher: TeacherFigures | None = None
    student: StudentFigures | None = None
    with_lm: StudentFigures | None = None
    """Of the student with the language model of `evaluate.lm_order`."""

    def to_text(self) -> str:
        """All error rates in one sentence."""
        if self.student is None:
            return "no human texts to evaluate with"
        sides = {"student WER": self.student, "with a language model": self.with_lm, "teacher WER": self.teacher}
        rates = {name: side.errors.rates.wer for name, side in sides.items() if side is not None}
        return ", ".join(f"{name} {rate:.1%}" for name, rate in rates.items() if rate is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult(Result):
    """The teacher or the student on the test split; the rates are None if there are no human texts."""

    wer: float | None
    cer: float | None
    interval: tuple[float, float] | None
    """95 % interval of `wer`."""
    rtfx: float | None
    """Seconds of audio in a second of one CPU core."""
    by_dataset: Mapping[str, Mapping[str, Any]] | None
    with_lm: SideResult | None = None
    """The student decoded with a language model, where `evaluate.lm_order` is set."""
    order: int | None = None
    """The longest n-gram of that language model."""
    decode: Mapping[str, Any] | None = None
    tuning: Tuning | None = None
    """How the weights of the language model were found, with `decode.tune`."""
    parameters: int | None = None
    path: str | None = None
    """The experiment folder of the student."""

    @classmethod
    def of(cls, figures: StudentFigures | TeacherFigures | None) -> SideResult:
        """Choose what is compared from the figures of an evaluation; nothing is known of a side without them."""
        if figures is None:
            return cls(wer=None, cer=None, interval=None, rtfx=None, by_dataset=None)
        rates = figures.errors.rates
        return cls(
            wer=rates.wer,
            cer=rates.cer,
            interval=rates.interval,
            rtfx=figures.rtfx,
            by_dataset=to_dicts(figures.errors.by["dataset"]),
        )

    @classmethod
    def of_student(cls, judged: Judged, *, parameters: int, path: str) -> SideResult:
        """The student, and its own figures with a language model where it was judged with one."""
        helped = judged.with_lm
        with_lm = (
            None
            if helped is None
            else dataclasses.replace(
                cls.of(helped), order=helped.lm_order, decode=dict(helped.decode), tuning=helped.tuning
            )
        )
        tuning = None if judged.student is None else judged.student.tuning
        return dataclasses.replace(
            cls.of(judged.student), with_lm=with_lm, tuning=tuning, parameters=parameters, path=path
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal(Result):
    """A dry run: its folder, how many files went through the pipeline, and what the whole source would take."""

    work: str
    files: int
    share: float
    """Of the bytes of the whole source."""
    whole: Mapping[str, float | None]
    """Estimates for the whole source: `hours` of audio, `label_hours`, `train_hours`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Result):
    """The whole pipeline: both recognisers on the same utterances, every step, and the page of the report."""

    teacher: SideResult
    student: SideResult
    steps: Sequence[StepResult]
    seconds: float
    report: str
    """Empty if the folder cannot be written."""
    comparison: AgainstTeacher | None = None
    """Of student and teacher; None if one of them was not judged."""
    grammar: GrammarTable | None = None
    """Both with and without a grammar, where `decode.grammar` is set."""
    rounds: Sequence[RoundResult] = ()
    """Every round, the first one too; `student` is that of the last."""
    rehearsal: Rehearsal | None = None

    @property
    def exit_code(self) -> int:
        """That of a StorageError, where the page is not written."""
        return 0 if self.report else StorageError.exit_code

    def to_text(self) -> str:
        """Every step with its figures and time, then teacher against student."""
        left = max(10, *(len(row.step) + 2 for row in self.steps))
        width = max(len(row.result) for row in self.steps)
        lines = [f"{'step':<{left}}{'result':<{width + 2}}{'time':>6}", "-" * (left + width + 8)]
        lines += [f"{row.step:<{left}}{row.result:<{width + 2}}{clock(row.seconds):>6}" for row in self.steps]
        lines += [f"{'':<{left}}{'':<{width + 2}}{clock(self.seconds):>6}", ""]
        if len(self.rounds) > 1:
            lines += [*_rounds(self.rounds), ""]
        if self.student.wer is not None:
            lines += [*_rates(self.teacher, self.student), ""]
        if self.comparison is not None:
            lines += [self.comparison.to_text(), ""]
        if self.grammar is not None:
            lines += [self.grammar.to_text(), ""]
        lines.append(f"report: {self.report or 'not written'}")
        if self.rehearsal is not None:
            lines += ["", *_rehearsed(self.rehearsal, self.seconds, Path(self.student.path or "").parent)]
        return "\n".join(lines)


def _rounds(rounds: Sequence[RoundResult]) -> list[str]:
    """A line for each round."""

    def rate(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    lines = [f"{'':<9}{'labels kept':>12}{'label WER, all':>16}{'kept':>8}{'student WER':>13}  95 % interval"]
    for row in rounds:
        span = "" if row.interval is None else f"  {row.interval[0]:.1%} to {row.interval[1]:.1%}"
        rates = f"{rate(row.label_wer_before):>16}{rate(row.label_wer_after):>8}{rate(row.wer):>13}"
        lines.append(f"{f'round {row.round}':<9}{row.kept:>12.1%}{rates}{span}")
    return lines


def _rehearsed(rehearsal: Rehearsal, seconds: float, experiments: Path) -> list[str]:
    """The outcome of a dry run in sentences."""
    takes = {"labelling": rehearsal.whole["label_hours"], "training": rehearsal.whole["train_hours"]}
    known = [f"{name} {clock(3600 * hours)}" for name, hours in takes.items() if hours is not None]
    return [
        f"Every step works: {rehearsal.files} files went through the whole pipeline in {clock(seconds)}.",
        f"The whole source is about {rehearsal.whole['hours']:.1f} h of audio. "
        f"It will take roughly {' and '.join(known)}.",
        "Error rates after so few steps mean nothing.",
        f"Nothing else was touched; `{rehearsal.work}` and `{experiments}` may be removed.",
    ]


def _rates(teacher: SideResult, student: SideResult) -> list[str]:
    sides = {"student": student} if teacher.wer is None else {"teacher": teacher, "student": student}
    if student.with_lm is not None:
        sides[f"with {student.with_lm.order}-grams"] = student.with_lm
    wide = max(map(len, sides)) + 2
    lines = [f"{'':<{wide}}{'WER':>8}  {'95 % interval':<16}{'CER':>7}{'speed':>9}"]
    for name, side in sides.items():
        span = f"{side.interval[0]:.1%} to {side.interval[1]:.1%}" if side.interval else ""
        lines.append(f"{name:<{wide}}{side.wer:>8.1%}  {span:<16}{side.cer:>7.1%}{side.rtfx:>8.0f}x")
    lines += [f"tuned: {side.tuning.to_text()}" for side in sides.values() if side.tuning is not None]
    if teacher.by_dataset and student.by_dataset and len(student.by_dataset) > 1:
        lines += ["", f"{'WER by data set':<18}{'teacher':>9}{'student':>9}"]
        for name, row in student.by_dataset.items():
            lines.append(f"{name:<18}{teacher.by_dataset[name]['wer']:>9.1%}{row['wer']:>9.1%}")
    return lines
