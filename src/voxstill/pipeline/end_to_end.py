"""run and demo: the whole pipeline; a step whose tables are finished is skipped."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from voxstill.core import config, world
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.demo import corpus
from voxstill.labelling import permission
from voxstill.pipeline import report, rounds, tuned_weights
from voxstill.pipeline.judge import judge
from voxstill.pipeline.marks import marks_children
from voxstill.pipeline.run_result import RunResult, SideResult
from voxstill.pipeline.steps import Steps
from voxstill.storage import lease
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.synthesis.voices import ACCENTS, VARIANTS
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
    f"decode.grammar={GRAMMAR}",
    "evaluate.lm_order=3",
    "evaluate.teacher_without_grammar=0",  # free speech in noise is slower than real time: minutes
)
"""What the demo sets; `--set` comes after it."""


@marks_children("demo")
def demo(cfg: Config, work: str) -> RunResult:
    """The pipeline on a synthetic corpus of spoken commands; its texts are not used before the evaluation."""
    steps = Steps()
    folder = Path(work) / "corpus"
    with steps.step("corpus") as result:
        with lease.hold(Store(str(folder)), "corpus", "demo"):
            manifest = corpus.make(folder, cfg.demo, cfg.seed)
        voices = len(ACCENTS) * sum(map(len, VARIANTS.values()))
        sizes = (cfg.demo.train_utterances, cfg.demo.dev_utterances, cfg.demo.test_utterances)
        result(
            f"{sum(sizes):,} commands in {voices} voices, {len(corpus.SNRS_DB)} noise levels",
            utterances=sum(sizes),
            voices=voices,
        )
    tree: dict[str, Any] = {"evaluate": {}, **cfg.model_dump(exclude_unset=True)}
    tree["source"] = config.sources_of(cfg.source)[0].model_copy(update={"uri": str(manifest)}).model_dump()
    tree["evaluate"] |= {"texts": str(folder / "texts.jsonl")}
    return run(config.validated(Config, tree), steps)


@marks_children("run")
def run(cfg: Config, steps: Steps | None = None, *, allow_teacher: Sequence[str] = ()) -> RunResult:
    """Index, label, filter, shard, train, evaluate and report; each step's figures and time.

    The teachers of `allow_teacher` may take over while it labels, as in `label_utterances`.
    """
    steps = steps or Steps()
    if ranks := world.ranks():
        raise ConfigError(
            f"{ranks.launcher} has started this command in {ranks.num} processes",
            code="ranks-mismatch",
            why="each of them would index, label and evaluate by itself",
            fix="run `voxstill index`, `label`, `filter` and `shard` directly, "
            f"and only `voxstill train` with {ranks.launcher}",
        )
    check(cfg)
    tuned_weights.check(cfg)
    if cfg.student.task != "recognition":
        _refuse_unknown_task(cfg.student.task)
        raise ConfigError(
            f"`student.task: {cfg.student.task}` is not for `voxstill run`",
            code="option-conflict",
            why="its pipeline ends in a recogniser that is compared with its teacher",
            fix="run `voxstill index`, then `voxstill train` and `voxstill evaluate`: docs/transfer.md",
        )
    registry.create(cfg.teacher)  # a teacher that cannot be made is reported before anything is done
    permission.allowed_teachers(cfg.teacher, allow_teacher)
    rounds.check(cfg)
    *earlier, last = finished = rounds.run(cfg, steps, allow_teacher)
    before = rounds.evaluate(earlier, steps)
    trained = last.trained
    with steps.step(rounds.step_name("evaluate", last.number, last.of)) as result:
        judged = judge(last.cfg, trained.path)
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
    compared = rounds.results(finished, [*before, judged.student])
    with steps.step("report") as result:
        written = report.write(last.cfg, RunDir(Path(trained.path)), steps.rows, last.verdicts, compared)
        result(written.report or "not written")
    return RunResult(
        teacher=SideResult.of(judged.teacher),
        student=SideResult.of_student(judged, parameters=trained.parameters, path=trained.path),
        steps=steps.rows,
        seconds=steps.seconds,
        report=written.report or "",
        comparison=written.against_teacher,
        grammar=written.grammar,
        rounds=compared,
    )


def _refuse_unknown_task(name: str) -> None:
    known = tasks.names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"unknown task `{name}`",
            code="unknown-name",
            why=f"the tasks are {', '.join(known)}",
            fix=f"did you mean `{near[0]}`?" if near else "set student.task to one of them",
        )
