"""How long labelling and training take: from what was done, from a step that is made to try, or from data sheets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voxstill.core import config, world
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import Label, Utterance
from voxstill.data.plan import EpochPlan
from voxstill.pipeline.estimate_probe import labelling_rtfx
from voxstill.pipeline.recipes import finished_utterances
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Entry, Store
from voxstill.training import experiment, step_memory
from voxstill.training.budget import Budget
from voxstill.training.cards import Card, named_by_driver
from voxstill.training.footprint import Footprint
from voxstill.training.muon import ITERATIONS, sides, split
from voxstill.training.setup import TrainingSetup
from voxstill.training.step_memory import Shapes

Basis = Literal["measured", "probed", "assumed"]
"""How a figure came about: from what was done, from a part that was made to try, or from data sheets and guesses."""
_UTILISATION = 0.25
"""Of a card's peak, by matrices and convolutions: large models reach 0.3 to 0.5."""
_KERNEL_S = 8e-6
"""To launch a kernel from Python; small models wait for that."""
_PROBE_FLOPS = 10e9
"""Of a step that is made to try: half a second on a core."""
_SHORTEST_MS = 1_280
_LENGTH_OPTIONS = ("steps", "epochs", "max_minutes", "lr", "warmup", "hold", "final_lr", "patience", "weight_decay")
"""Options of `train` that make no step longer or shorter."""
_TOKEN_MS = 400
_GAP = 10
"""Of the median: a longer pause between two chunks was none of labelling."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds and how they are known; None if they are unknown."""

    seconds: float | None
    basis: Basis
    about: str
    steps: int | None = None


def label_duration(cfg: Config, *, probe: bool = False) -> Duration:
    """How long it takes to label all utterances, by the chunks that are finished; without any, and with `probe`, by a
    minute of labelling.
    """
    work = Store(cfg.work)
    try:
        source = finished_utterances(cfg)
    except DataError:
        return Duration(None, "assumed", "nothing is indexed")
    if not source.teacher_hours:
        return Duration(0.0, "measured", "all labels are texts of the sources")
    done = [workdir.named(work, LabelFigures, recipe) for recipe in workdir.finished_recipes(work, "labels")]
    own = [figures for figures in done if figures.teacher.partition("@")[0] == cfg.teacher.name and figures.rtfx]
    if own:
        rtfx, about = own[-1].rtfx, f"from {own[-1].labels:,} finished labels"
    elif (so_far := _rate_of_chunks(cfg, work, source.recipe)) is not None:
        rtfx, about = so_far
    elif probe and (tried := labelling_rtfx(cfg, source)) is not None:
        rtfx = tried * (cfg.engine.teachers or (1 if cfg.engine.name == "inline" else world.num_cores()))
        seconds = 3600 * source.teacher_hours / rtfx
        return Duration(seconds, "probed", f"from a minute of labelling, at {rtfx:.0f} times real time")
    else:
        return Duration(None, "assumed", "no chunk is labelled: `--probe` measures it for a minute")
    return Duration(3600 * source.teacher_hours / rtfx, "measured", f"{about}, at {rtfx:.0f} times real time")


def _rate_of_chunks(cfg: Config, work: Store, utterances: str) -> tuple[float, str] | None:
    """How many seconds of audio are labelled in one, by the chunks of labels that have started; None if there are
    fewer than two."""
    from voxstill.labelling.so_far import begun_task

    try:
        prefix = begun_task(work, cfg.teacher).prefix
    except VoxstillError:
        return None
    chunks = sorted(
        (entry for entry in work.list(prefix) if entry.key.endswith(".parquet")), key=lambda entry: entry.modified_s
    )
    if len(chunks) < 2:
        return None
    audio_ms = _labelled_ms(work, utterances, chunks[1:])
    gaps_s = np.diff([entry.modified_s for entry in chunks])
    elapsed_s = float(np.minimum(gaps_s, _GAP * np.median(gaps_s)).sum())
    return (audio_ms / 1000 / elapsed_s, f"from {len(chunks)} finished chunks") if elapsed_s and audio_ms else None


def _labelled_ms(work: Store, utterances: str, chunks: Sequence[Entry]) -> int:
    """Audio of the utterances that have a label in these chunks."""
    labelled = tables.columns(work, [entry.key for entry in chunks], Label, ("utterance_id",))
    ids = {id_ for table in labelled for id_ in table["utterance_id"].to_pylist()}
    keys = manifest.parts(work, workdir.prefix("utterances", utterances))
    total_ms = 0
    for table in tables.columns(work, keys, Utterance, ("id", "start_ms", "end_ms")):
        rows = zip(*(table[name].to_pylist() for name in ("id", "start_ms", "end_ms")), strict=True)
        total_ms += sum(end - start for id_, start, end in rows if id_ in ids)
    return total_ms


def train_duration(
    cfg: Config, plan: EpochPlan, hours: float | None, setup: TrainingSetup, footprint: Footprint, card: Card | None
) -> Duration:
    """How long a training takes, from its first step to its last.

    `hours` are those of an epoch of the corpus, of which the plan may be a part. Without a `card` it is this machine.
    """
    scale = 1.0 if hours is None else hours / max(float(plan.audio_ms_by_batch.sum()) / 3_600_000, 1e-9)
    budget = Budget.of(cfg.train, max(round(plan.steps * scale), 1))
    measured = _measured_step(cfg, card)
    if measured is not None:
        step_s, about = measured
        basis: Basis = "measured"
    elif card is None and not _has_gpu():
        step_s, basis = _probed_step(cfg, plan, setup, footprint), "probed"
        about = "from small trial steps"
    else:
        card = card or _own_card()
        if card is None:
            return Duration(None, "assumed", "this GPU is not in the table of cards: give one with `--gpu`")
        step_s, basis = _step_on(card, cfg, plan, setup, footprint), "assumed"
        about = f"{_UTILISATION:.0%} of the {card.name}'s peak is assumed, and {_KERNEL_S * 1e6:.0f} us a kernel"
    limits = [budget.steps * step_s] if budget.steps is not None else []
    if budget.seconds is not None and (not limits or budget.seconds < limits[0]):
        steps = int(budget.seconds / step_s)
        return Duration(budget.seconds, basis, f"`train.max_minutes` ends it, at step {steps:,}: {about}", steps)
    if not limits:
        return Duration(None, "assumed", "the training has no end")
    if hours is None and cfg.train.steps is None:
        return Duration(None, "assumed", "nothing is indexed, and the length of an epoch is not known")
    return Duration(limits[0], basis, f"{budget.steps:,} steps, {1 / step_s:.2g} a second: {about}", budget.steps)


def _measured_step(cfg: Config, card: Card | None) -> tuple[float, str] | None:
    """Seconds of a step in the newest experiment that had such steps on such a device; None if there is none."""
    wanted = _pace_settings(cfg)
    for path in sorted(Path(cfg.train.root).glob("*/config.yaml"), reverse=True):
        run = RunDir(path.parent)
        try:
            kept = config.load_snapshot(str(path))
        except VoxstillError:
            continue
        if _pace_settings(kept) == wanted and _was_on(run, card) and (step_s := step_seconds(_rows(run))) is not None:
            return step_s, f"by `{run.path}`"
    return None


def _pace_settings(cfg: Config) -> dict[str, object]:
    """What decides how long a step takes."""
    kept = experiment.train_settings(cfg)
    train: Any = kept["train"]
    return {
        **{name: value for name, value in kept.items() if name != "seed"},
        "train": {name: value for name, value in train.items() if name not in _LENGTH_OPTIONS},
        "optimizer": cfg.train.optimizer,
        "devices": cfg.train.devices,
        "pretrain": config.identity(cfg.pretrain),
    }


def _was_on(run: RunDir, card: Card | None) -> bool:
    """Whether an experiment ran on such a card; without one, on a machine like this."""
    from voxstill.training import environment

    machine: Any = experiment.noted(run).get("machine")
    if not isinstance(machine, Mapping):
        return False
    if card is None:
        return machine == environment.machine()
    names = machine.get("gpus") or [""]
    return named_by_driver(str(names[0])) == card


def _rows(run: RunDir) -> list[Mapping[str, Any]]:
    rows = []
    for line in run.metrics.read_text(encoding="utf-8").splitlines() if run.metrics.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # it is being written
            continue
    return [row for row in rows if isinstance(row, dict)]


def step_seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of a step, with its share of validations and checkpoints, by `metrics.jsonl`; None of too few lines.

    `seconds` counts steps alone. That the lines with a validation cover more time shows in the audio per second.
    """
    train = [row for row in rows if "split" not in row]
    judged = {row["step"] for row in rows if "split" in row}
    pairs = [(before, row) for before, row in itertools.pairwise(train) if row["step"] > before["step"]]
    if not pairs:
        return None
    steps_N = np.array([row["step"] - before["step"] for before, row in pairs])
    seconds_N = np.array([row["seconds"] - before["seconds"] for before, row in pairs])
    audio_N = np.array([row["audio_seconds_per_second"] for _, row in pairs])
    # a validation is in the line after it
    is_clean_N = np.array([not any(before["step"] <= step < row["step"] for step in judged) for before, row in pairs])
    if is_clean_N.any():
        audio_s = float((audio_N * seconds_N)[is_clean_N].sum() / steps_N[is_clean_N].sum())
        longer_N = audio_s * steps_N / np.maximum(audio_N, 1e-9)
        seconds_N = np.where(is_clean_N, seconds_N, np.maximum(seconds_N, longer_N))
    return float(seconds_N.sum() / steps_N.sum())


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _own_card() -> Card | None:
    import torch

    return named_by_driver(torch.cuda.get_device_name(0))


def _probed_step(cfg: Config, plan: EpochPlan, setup: TrainingSetup, footprint: Footprint) -> float:
    """Seconds of the mean step on this machine.

    Batches of one utterance of a usual length and of some are timed: what a step takes grows with their number, from
    what it takes with one.
    """
    shapes, step = Shapes.of_plan(plan), footprint.step
    usual = int(np.argsort(shapes.duration_ms_N)[len(shapes.duration_ms_N) // 2])
    num, duration_ms = int(shapes.num_utterances_N[usual]), int(shapes.duration_ms_N[usual])
    flops_of_one = float(step.flops(_shape(1, duration_ms))[0])
    duration_ms = max(int(duration_ms * min(_PROBE_FLOPS / flops_of_one, 1.0)), _SHORTEST_MS)
    several = min(max(int(_PROBE_FLOPS / float(step.flops(_shape(1, duration_ms))[0])), 2), max(num, 2))
    one_s, some_s = (_timed(setup, count, duration_ms) for count in (1, several))
    flops_one, flops_some = (float(step.flops(_shape(count, duration_ms))[0]) for count in (1, several))
    s_per_flop = max(some_s - one_s, 0.1 * some_s) / (flops_some - flops_one)
    mean_flops = float(step.flops(shapes).mean())
    batch_s = max(one_s + s_per_flop * (mean_flops - flops_one), s_per_flop * mean_flops)
    return batch_s * footprint.batches_per_rank + s_per_flop * _optimizer_flops(cfg, setup)


def _timed(setup: TrainingSetup, num: int, duration_ms: int) -> float:
    """Seconds of a step of one batch; the first one warms up."""
    num_tokens = max(1, duration_ms // _TOKEN_MS)
    return min(step_memory.step_seconds(setup.model, setup.task, num, duration_ms, num_tokens) for _ in range(2))


def _shape(num: int, duration_ms: int) -> Shapes:
    return Shapes(np.array([num]), np.array([duration_ms]))


def _optimizer_flops(cfg: Config, setup: TrainingSetup) -> float:
    """Operations of the matrices of Muon; AdamW has none."""
    flops = 0.0
    for weight in split(setup.model)[0] if cfg.train.optimizer == "muon" else ():
        short, wide = sides(weight)
        flops += ITERATIONS * 2 * short * short * (2 * wide + short)
    return flops


def _step_on(card: Card, cfg: Config, plan: EpochPlan, setup: TrainingSetup, footprint: Footprint) -> float:
    """Seconds of the mean step on a card: what it computes, or launches where that takes longer."""
    flops = float(footprint.step.flops(Shapes.of_plan(plan)).mean()) * footprint.batches_per_rank
    flops, kernels = flops + _optimizer_flops(cfg, setup), footprint.step.operations * footprint.batches_per_rank
    precision = precision_on(card, cfg)
    return max(flops / (card.tflops(precision) * 1e12 * _UTILISATION), kernels * _KERNEL_S)


def precision_on(card: Card, cfg: Config) -> str:
    """The precision of a training on a card."""
    if cfg.train.precision != "auto":
        return cfg.train.precision
    return "bf16" if card.has_bf16 else "fp16"
