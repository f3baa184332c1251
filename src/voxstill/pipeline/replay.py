"""doctor: replay a training step with a loss or gradient that is not finite, to find the faulty utterances."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from voxstill.core import config, pcm
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.records import Batch
from voxstill.core.result import Result
from voxstill.nn.frontends import Frontend
from voxstill.storage.rundir import RunDir
from voxstill.tasks import pretraining, registry
from voxstill.training import checkpoint, guard
from voxstill.training.experiment import is_pretraining
from voxstill.training.task import StepContext, Task, make_generator

_START = "the start, as there is no checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient(Result):
    """What a batch gives: its loss and the norm of its gradient, None if they are not finite."""

    loss: float | None
    grad_norm: float | None
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceReplay(Result):
    """One utterance of the step: what it is, and what it gives alone."""

    id: str
    seconds: float
    tokens: int
    frames: int
    peak: int
    """The largest sample."""
    weight: float
    loss: float | None
    grad_norm: float | None
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult(Result):
    """A saved step replayed: loss and gradient of its batches and of each utterance alone, and who is at fault."""

    step: int
    rank: int
    checkpoint: str
    weights_not_finite: Sequence[str]
    batches: Sequence[Gradient]
    at_fault: Sequence[str]
    utterances: Sequence[UtteranceReplay]
    verdict: str

    def to_text(self) -> str:
        """The utterances at fault first, then those of the largest gradient."""
        return table(self)


def replay(experiment: str, batch: str) -> ReplayResult:
    """Loss and gradient of the saved step under the last checkpoint: of all of it, and of each utterance alone.

    Without a checkpoint the weights are those that the training started with. ConfigError if the folder is no
    experiment, DataError if the file is not a saved batch.
    """
    run = RunDir(Path(experiment))
    if not run.config.is_file():
        raise ConfigError(
            f"`{experiment}` is not an experiment",
            code="no-experiment",
            why="there is no config.yaml in it",
            fix="give a folder below exp/",
        )
    newest = checkpoint.newest(run)
    batches, context, step, rank = guard.load(Path(batch))
    cfg = config.load_snapshot(str(run.config))
    frontend, model, task = _rebuild(run, cfg)
    if newest is not None:
        checkpoint.load_weights(model, newest)
    broken = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    whole = [
        _gradient(task, model, batch, context, make_generator(torch.device("cpu"), cfg.seed, step, micro, rank))
        for micro, batch in enumerate(batches)
    ]
    rows = [
        _utterance(
            batch,
            i,
            frontend,
            _gradient(task, model, _only(batch, i), context, torch.Generator().manual_seed(step)),
        )
        for batch in batches
        for i in range(len(batch.ids))
    ]
    at_fault = [row.id for row in rows if not row.finite]
    return ReplayResult(
        step=step,
        rank=rank,
        checkpoint=_START if newest is None else newest.name,
        weights_not_finite=broken,
        batches=whole,
        at_fault=at_fault,
        utterances=rows,
        verdict=_verdict(broken, at_fault, len(rows), all(row.finite for row in whole)),
    )


def table(result: ReplayResult) -> str:
    """Format the replay as text: the faulty utterances first, then those with the largest gradient."""
    rows = sorted(result.utterances, key=lambda row: (row.finite, -(row.grad_norm or 0)))
    lines = [
        f"step {result.step} of rank {result.rank}, replayed with the weights of {result.checkpoint}",
        result.verdict,
        "",
        f"{'loss':>10}  {'gradient':>10}  {'seconds':>8}  {'tokens':>6}  {'frames':>6}  {'peak':>6}  utterance",
    ]
    for row in rows[:20]:
        loss, norm = ("none" if number is None else f"{number:.4g}" for number in (row.loss, row.grad_norm))
        lines.append(
            f"{loss:>10}  {norm:>10}  {row.seconds:>8.2f}  {row.tokens:>6}  {row.frames:>6}  {row.peak:>6}  {row.id}"
        )
    return "\n".join(lines)


def _rebuild(run: RunDir, cfg: Config) -> tuple[Frontend, nn.Module, Task]:
    """Build the frontend, the model before its first step, and the task of an experiment."""
    if is_pretraining(run):
        return pretraining.begun(cfg)
    return registry.find(cfg.student.task).rebuild(cfg, run)


def _gradient(task: Task, model: nn.Module, batch: Batch, context: StepContext, generator: torch.Generator) -> Gradient:
    """Loss and gradient of a batch under the weights of the model."""
    model.train()
    model.zero_grad(set_to_none=True)
    loss = task.loss(model, task.prepare(batch, context.progress, generator), context).value
    loss.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.get_total_norm([w.grad for w in model.parameters() if w.grad is not None]))
    finite = math.isfinite(float(loss.detach())) and math.isfinite(norm)
    known = [value if math.isfinite(value) else None for value in (float(loss.detach()), norm)]
    return Gradient(loss=known[0], grad_norm=known[1], finite=finite)


def _utterance(batch: Batch, i: int, frontend: Frontend, gradient: Gradient) -> UtteranceReplay:
    """The i-th utterance of a batch, with the gradient that it gives alone."""
    samples = int(batch.audio_len_B[i])
    return UtteranceReplay(
        id=batch.ids[i],
        seconds=pcm.samples_to_s(samples),
        tokens=int(batch.token_len_B[i]),
        frames=int(frontend.num_frames(batch.audio_len_B[i], batch.tempo_B[i])),
        peak=int(batch.audio_BT[i].abs().max()) if samples else 0,
        weight=float(batch.weight_B[i]),
        loss=gradient.loss,
        grad_norm=gradient.grad_norm,
        finite=gradient.finite,
    )


def _only(batch: Batch, i: int) -> Batch:
    """Return one utterance of a batch, without its padding."""
    tensors: dict[str, Tensor] = {
        field.name: getattr(batch, field.name)[i : i + 1] for field in dataclasses.fields(Batch) if field.name != "ids"
    }
    tensors["audio_BT"] = tensors["audio_BT"][:, : int(batch.audio_len_B[i])]
    return Batch(ids=(batch.ids[i],), **tensors)


def _verdict(broken: list[str], at_fault: list[str], num_utterances: int, is_finite: bool) -> str:
    if broken:
        return f"the weights of the checkpoint are broken ({broken[0]}): resume from an older one, and lower `train.lr`"
    if len(at_fault) == num_utterances > 1:
        return (
            "no utterance at all has a finite loss and gradient: the weights are at fault, not the audio, or an option "
            "that multiplies the loss; lower `train.lr`, or that option"
        )
    if at_fault:
        return (
            f"{len(at_fault)} utterances alone give a loss or gradient that is not finite: check their texts and audio"
        )
    if not is_finite:
        return "each utterance alone is fine, but not all together: a kernel or the precision is at fault, not the data"
    return "everything is finite with these weights: the weights at that step were at fault; lower `train.lr`"
