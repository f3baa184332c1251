"""How a training learns, from the lines of its metrics: the loss, the gradients, the batches and the dev split."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from voxstill.core.config import Config
from voxstill.pipeline.doctor.checks import Check, State, judged
from voxstill.storage.rundir import RunDir
from voxstill.training import divergence, stagnation
from voxstill.training.state import State as LoopState

_check = functools.partial(judged, "run")
_FEW_LINES = 10
_STEADY_LINES = 20
"""Lines of a training whose loss may be expected to have fallen."""
_FALL = 0.02
"""Share that the loss has to lose from the first quarter of the lines to the last."""
_CLIPPED = 0.5
_PADDING = 0.2
_SKIPPED, _REPLACED = 0.01, 0.001
_OVERFITTED = 1.15
"""Times the least error on the dev split that the last one may be."""
_FEW_VALIDATIONS = 4
_ONE_ERROR = 0.01
"""An error rate that differs by less is the same."""
_MAX_BYTES = 64 << 20
"""Read from the end of the metrics."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the metrics, of steps of the training or of a validation."""

    figures: Mapping[str, object]

    @property
    def is_validation(self) -> bool:
        """Whether it is of a split."""
        return "split" in self.figures

    def number(self, name: str) -> float | None:
        """A figure; None if there is none, or it is not a number."""
        value = self.figures.get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def metric(self) -> str | None:
        """The name of the error that a validation is judged by, its first figure."""
        return next((name for name in self.figures if name not in ("step", "split")), None)


def read_lines(run: RunDir) -> list[Line]:
    """The lines of the metrics, of a very long training the last ones; none where there are none."""
    try:
        with run.metrics.open("rb") as file:
            file.seek(0, 2)
            start = max(0, file.tell() - _MAX_BYTES)
            file.seek(start)
            data = file.read().split(b"\n")[1 if start else 0 :]
    except FileNotFoundError:
        return []
    return [Line(figures) for text in data if (figures := _parsed(text)) is not None]


def _parsed(text: bytes) -> Mapping[str, object] | None:
    try:
        figures = json.loads(text)
    except ValueError:  # the last one is being written
        return None
    return figures if isinstance(figures, dict) else None


def checks(lines: Sequence[Line], run: RunDir, cfg: Config, *, is_live: bool) -> list[Check]:
    """Everything that the lines say, in the order in which one fault explains another."""
    steps = [line for line in lines if not line.is_validation]
    if not steps:
        return [_check("loss", "ok", "no step is logged yet")]
    return [
        *_finite(steps, run),
        *_loss(steps, run, cfg),
        *_replaced(steps, run),
        *_overfitting(lines, cfg, is_live=is_live),
        *_gradients(steps, cfg),
        *_padding(steps),
    ]


def _finite(steps: Sequence[Line], run: RunDir) -> Iterator[Check]:
    """Steps whose loss or gradient was not finite."""
    skipped, num = steps[-1].number("skipped") or 0, steps[-1].number("step") or 1
    if not skipped:
        yield _check("skipped steps", "ok", "the loss and its gradient were finite in every step")
        return
    text = f"{skipped:.0f} of {num:.0f} steps had a loss or a gradient that was not finite, and were skipped"
    files = sorted(run.skipped.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    replay = [f"`voxstill doctor {run.path} --batch {path}` shows whether the data are at fault" for path in files[-1:]]
    is_lost = steps[-1].number("loss") is None
    state: State = "fail" if is_lost else "warn" if skipped > _SKIPPED * num else "ok"
    fix = "; ".join(["lower `train.lr`", *replay])
    yield _check("skipped steps", state, text, fix)


def _loss(steps: Sequence[Line], run: RunDir, cfg: Config) -> Iterator[Check]:
    """Whether the loss rises far above what it was, or does not fall at all; per stretch of one meaning."""
    state = LoopState()
    for line in steps:
        loss = line.number("loss")
        if loss is not None:
            for _ in range(cfg.train.log_every):  # a line is a mean over so many
                divergence.follow(state, loss, _parts(line))
    if state.risen_from is not None and state.loss is not None:
        advice = divergence.advice(run, cfg, _command(run), is_stepped=True, overflows=False)
        text = f"it diverges: the loss has risen from {state.risen_from:.3g} to {state.loss:.3g}"
        yield _check("loss", "fail", text, advice)
        return
    losses = [loss for line in steps if _parts(line) == _parts(steps[-1]) and (loss := line.number("loss")) is not None]
    if len(losses) < _STEADY_LINES:
        shown = f"{losses[-1]:.4g}" if losses else "none"
        yield _check("loss", "ok", f"the last is {shown}: too few lines to see whether it falls")
        return
    quarter = len(losses) // 4
    first, last = median(losses[:quarter]), median(losses[-quarter:])
    text = f"it went from {first:.3g} to {last:.3g}, by the medians of the first and the last quarter"
    if first - last < _FALL * abs(first) and last > _learnt(steps):
        fix = "check the labels and the tokenizer; then try another `train.lr` and less `augment`"
        yield _check("loss", "warn", f"it does not fall: {text}", fix)
    else:
        yield _check("loss", "ok", text)


def _learnt(steps: Sequence[Line]) -> float:
    """A loss that may stay as it is: a tenth of the highest one."""
    return 0.1 * max((loss for line in steps if (loss := line.number("loss")) is not None), default=0.0)


def _replaced(steps: Sequence[Line], run: RunDir) -> Iterator[Check]:
    """Utterances that could not be read."""
    replaced = steps[-1].number("replaced") or 0
    if not replaced:
        return
    text = f"{replaced:.0f} utterances could not be read, and were replaced by neighbouring utterances"
    num = steps[-1].number("step") or 1
    state: State = "warn" if replaced > _REPLACED * num else "ok"
    yield _check("replaced", state, text, f"{run.log} lists them; run `voxstill verify` on the work folder")


def _overfitting(lines: Sequence[Line], cfg: Config, *, is_live: bool) -> Iterator[Check]:
    """Whether the error on the dev split rises, or stands still, while the loss falls."""
    validations, pairs, loss = list[tuple[float, float]](), list[tuple[float, float]](), None
    metric = None
    for line in lines:
        if not line.is_validation:
            loss = line.number("loss") if line.number("loss") is not None else loss
        elif line.figures["split"] == "dev" and (name := line.metric) and (error := line.number(name)) is not None:
            metric = name
            validations.append((line.number("step") or 0, error))
            if loss is not None:
                pairs.append((loss, error))
    if metric is None:
        num = max((line.number("step") or 0 for line in lines), default=0)
        is_early = is_live or num < cfg.train.validate_every
        fix = "add utterances to the dev split: without it overfitting is not detected"
        yield _check("dev split", "ok" if is_early else "warn", "no validation is logged", fix)
        return
    step, best = min(validations, key=lambda row: row[1])
    last = validations[-1][1]
    text = f"{metric} {last:.3f} after {len(validations)} validations; the best was {best:.3f} at step {step:.0f}"
    fix = (
        "use more audio or augmentation, a smaller student, or `train.patience`; `train.average: best` uses the "
        "best checkpoints"
    )
    if len(validations) >= _FEW_VALIDATIONS and last > _OVERFITTED * best + _ONE_ERROR and _falls_after(pairs, best):
        yield _check("overfitting", "warn", f"the loss falls and the error on the dev split rises: {text}", fix)
    elif advice := stagnation.advice_on(pairs[-stagnation.NUM_VALIDATIONS :], metric):
        yield _check("overfitting", "warn", advice, fix)
    else:
        yield _check("dev split", "ok", text)


def _falls_after(pairs: Sequence[tuple[float, float]], best: float) -> bool:
    """Whether the loss fell from the best validation to the last."""
    at_best = next((loss for loss, error in pairs if error == best), None)
    return at_best is not None and pairs[-1][0] < at_best


def _gradients(steps: Sequence[Line], cfg: Config) -> Iterator[Check]:
    """Share of the steps whose gradient was scaled down: by the count of each line, else by the norm of its last.

    In the warm-up that is usual.
    """
    half = [line for line in steps[len(steps) // 2 :] if (line.number("progress") or 1.0) >= cfg.train.warmup]
    counted = [share for line in half if (share := line.number("clipped")) is not None]
    norms = [norm for line in half if (norm := line.number("grad_norm")) is not None]
    if counted:
        share = sum(counted) / len(counted)
    elif norms:
        share = sum(norm > cfg.train.clip_norm for norm in norms) / len(norms)
    else:
        return
    text = f"{share:.0%} of the gradients of the later half were scaled down to {cfg.train.clip_norm:g}"
    if share > _CLIPPED and len(half) >= _FEW_LINES:
        shown = f", the median norm is {median(norms):.3g}" if norms else ""
        yield _check("gradients", "warn", text + shown, "lower `train.lr`, or raise `train.clip_norm`")
    else:
        yield _check("gradients", "ok", text)


def _padding(steps: Sequence[Line]) -> Iterator[Check]:
    shares = [share for line in steps if (share := line.number("padding")) is not None]
    if not shares:
        return
    share = sum(shares) / len(shares)
    text = f"{share:.0%} of the batches is padding"
    if share > _PADDING:
        yield _check("padding", "warn", text, "raise `plan.window`, or `plan.budget_ms`; a tiny corpus pads more")
    else:
        yield _check("padding", "ok", text)


def _parts(line: Line) -> tuple[str, ...]:
    """What the loss of a line is made of: where that changes, so does its meaning."""
    names = list(line.figures)
    if "loss" not in names or "lr" not in names:
        return ()
    return tuple(sorted(names[names.index("loss") + 1 : names.index("lr")]))


def _command(run: RunDir) -> str:
    from voxstill.training.experiment import is_pretraining

    return "pretrain" if is_pretraining(run) else "train"
