"""run and demo: the whole pipeline; a step whose tables are finished is skipped."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from voxstill import engine
from voxstill.core import config, world
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.monitor import clock, log
from voxstill.demo import corpus
from voxstill.labelling import permission
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.pipeline import report, tuned_weights
from voxstill.pipeline import shard as sharding
from voxstill.pipeline.judge import judge
from voxstill.pipeline.run_result import RunResult, SideResult, StepResult
from voxstill.pipeline.train import train
from voxstill.storage import lease
from voxstill.storage.figures import LabelFigures, VerdictFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.tasks import registry as tasks
from voxstill.teachers import registry
from voxstill.training.check import check

GRAMMAR = str(resources.files("voxstill.demo") / "commands.jsgf")
DEMO = (
    f"teacher={{name: pocketsphinx, grammar: '{GRAMMAR}', noise_floor_db: 30.0, word_prob: 0.65}}",
    "filter.keep_share=0.85",
    "plan.budget_ms=12000",
    "augment.noise_prob=0.8",
    "augment.max_snr_db=20",
    "augment.spec_augment_start=1.0",  # never: so short a training has no time to learn around them
    "train.max_minutes=3.0",
    "train.name=demo",
    "evaluate.lm_order=3",
)
"""What the demo sets; `--set` comes after it."""


class Steps:
    """Times and results of the steps so far, one row for each."""

    def __init__(self) -> None:
        self.rows: list[StepResult] = []
        self._start = time.perf_counter()

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[..., None]]:
        """Time one step; the block says in words what came out, and gives its figures by name.

        A figure that is None is left out.
        """
        start = time.perf_counter()
        outcome: list[tuple[str, dict[str, float]]] = []

        def result(text: str, **figures: float | None) -> None:
            outcome.append((text, {name: value for name, value in figures.items() if value is not None}))

        log.info("%s ...", name)
        yield result
        text, figures = outcome[-1] if outcome else ("", {})
        row = StepResult(step=name, result=text, seconds=time.perf_counter() - start, figures=figures)
        self.rows.append(row)
        log.info("%s: %s (%s)", name, row.result, clock(row.seconds))

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the first step began."""
        return time.perf_counter() - self._start


def demo(cfg: Config, work: str) -> RunResult:
    """The line on a corpus of spoken commands made here; the texts stay hidden until the evaluation."""
    steps = Steps()
    folder = Path(work) / "corpus"
    with steps.step("corpus") as result:
        with lease.hold(Store(str(folder)), "corpus", "demo"):
            manifest = corpus.make(folder, cfg.demo, cfg.seed)
        voices = len(corpus.ACCENTS) * sum(map(len, corpus.VARIANTS.values()))
        sizes = (cfg.demo.train_utterances, cfg.demo.dev_utterances, cfg.demo.test_utterances)
        result(
            f"{sum(sizes):,} commands in {voices} voices, {len(corpus.SNRS_DB)} noise levels",
            utterances=sum(sizes),
            voices=voices,
        )
    tree = cfg.model_dump()
    tree["source"] = config.sources_of(cfg.source)[0].model_copy(update={"uri": str(manifest)}).model_dump()
    tree["evaluate"] |= {"texts": str(folder / "texts.jsonl")}
    return run(config.validated(Config, tree), steps)


def run(cfg: Config, steps: Steps | None = None, *, allow_teacher: Sequence[str] = ()) -> RunResult:
    """Index, label, filter, shard, train, evaluate and report; each step's figures and time.

    The teachers of `allow_teacher` may take over while it labels, as in `label_utterances`.
    """
    steps = steps or Steps()
    if ranks := world.ranks():
        raise ConfigError(
            f"{ranks.launcher} has started this in {ranks.num} processes",
            why="each of them would index, label and judge by itself",
            fix="run `voxstill index`, `label`, `filter` and `shard` alone, "
            f"and only `voxstill train` by {ranks.launcher}",
        )
    check(cfg)
    tuned_weights.check(cfg)
    if cfg.student.task != "recognition":
        _refuse_unknown_task(cfg.student.task)
        raise ConfigError(
            f"`student.task: {cfg.student.task}` is not of the whole line",
            why="the line ends in a recogniser that is compared with its teacher",
            fix="run `voxstill index`, then `voxstill train` and `voxstill evaluate`: docs/transfer.md",
        )
    registry.create(cfg.teacher)  # a teacher that cannot be made is told before anything is done
    permission.allowed_teachers(cfg.teacher, allow_teacher)
    filtered = _make_shards(cfg, steps, allow_teacher)
    with steps.step("train") as result:
        trained = train(cfg)
        size = f"{trained.parameters / 1e6:.2f} M parameters"
        result(
            f"{size}, {trained.steps:,} steps, loss {trained.loss:.3f}",
            steps=trained.steps,
            epochs=trained.epochs,
            loss=trained.loss,
            dev_wer=trained.dev_error,
            parameters=trained.parameters,
        )
    with steps.step("evaluate") as result:
        judged = judge(cfg, trained.path)
        student = judged.student
        rates = None if student is None else student.errors.rates
        result(
            judged.to_text(),
            wer=None if rates is None else rates.wer,
            wer_with_lm=None if judged.with_lm is None else judged.with_lm.errors.rates.wer,
            cer=None if rates is None else rates.cer,
            utterances=None if rates is None else rates.utterances,
            words=rates.counts.reference if rates is not None and rates.unit == "words" else None,
        )
    with steps.step("report") as result:
        written = report.write(cfg, RunDir(Path(trained.path)), steps.rows, filtered)
        result(written.report or "")
    return RunResult(
        teacher=SideResult.of(judged.teacher),
        student=SideResult.of_student(judged, parameters=trained.parameters, path=trained.path),
        steps=steps.rows,
        seconds=steps.seconds,
        report=written.report or "",
        comparison=written.against_teacher,
        grammar=written.grammar,
    )


def _refuse_unknown_task(name: str) -> None:
    known = tasks.names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"there is no task `{name}`",
            why=f"the tasks are {', '.join(known)}",
            fix=f"did you mean `{near[0]}`?" if near else "set student.task to one of them",
        )


def _make_shards(cfg: Config, steps: Steps, allow_teacher: Sequence[str]) -> VerdictFigures:
    """Index, label, filter and shard; returns the figures of the verdicts."""
    try:
        with steps.step("index") as result:
            indexed = indexing.index(cfg)
            text = f"{indexed.utterances:,} utterances, {indexed.hours:.2f} h, {indexed.damaged} damaged files"
            result(
                text,
                recordings=indexed.recordings,
                utterances=indexed.utterances,
                hours=indexed.hours,
                damaged=indexed.damaged,
            )
        if indexed.damaged > indexed.max_failed_share * indexed.recordings:
            raise indexing.unusable(indexed)
        with steps.step("label") as result:
            labelled = labelling.label_utterances(cfg, allow_teacher=allow_teacher)
            text = f"{labelled.labels:,} labels, {labelled.failed} failed, {labelled.rtfx:.0f} times real time"
            result(text, labels=labelled.labels, failed=labelled.failed, rtfx=labelled.rtfx)
        _refuse_failed_labels(cfg, labelled)
        with steps.step("filter") as result:
            filtered = filtering.filter_labels(cfg)
            text = f"{filtered.kept:.0%} kept, {filtered.kept_hours:.2f} h"
            result(
                text,
                judged=filtered.judged,
                kept=filtered.kept,
                wer_before=filtered.wer_before,
                wer_after=filtered.wer_after,
            )
        with steps.step("shard") as result:
            sharded = sharding.shard(cfg)
            text = f"{sharded.shards} shards, {sharded.utterances:,} utterances"
            result(text, shards=sharded.shards, utterances=sharded.utterances, hours=sharded.hours)
    finally:
        engine.shutdown()  # Ray's processes would take their share of the cores while training
    return filtered


def _refuse_failed_labels(cfg: Config, labelled: LabelFigures) -> None:
    """TeacherError where `voxstill label` would end with its exit code."""
    if labelled.exit_code:
        raise TeacherError(
            f"{labelled.failed:,} of {labelled.labels:,} labels failed",
            why=f"`engine.max_failed_share` allows {labelled.max_failed_share:g} of them",
            fix=f"mend the cause, then run `voxstill label {cfg.work} --retry-failed`; or raise "
            "`engine.max_failed_share` to go on with the rest",
        )
