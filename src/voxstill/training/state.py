"""What a checkpoint says of itself in `state.json`: the loop's few numbers, and the checksum of each of its files.

`sha256` has one for each file and, under `state.json`, one for all else that stands there. A checkpoint of an earlier
version has none: of that one it is only checked that its files can be read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pydantic
from safetensors import SafetensorError, safe_open

from voxstill.core.errors import first_line
from voxstill.storage.files import open_file

NAME = "state.json"
_FOLDER = re.compile(r"epoch=(\d+)-step=(\d+)")
_AVERAGE, _SUMS = "average", "sha256"

Validation = tuple[float, float]
"""The loss and the error on the dev split at a validation."""


@dataclass(slots=True)
class State:
    """What the loop remembers: steps done, the place in the epoch, the clock, the last loss and the best error.

    `error` is that of just these weights on the dev split, None if it was not measured; `stale` says how often in
    a row it was no better than the best. `loss` is a running mean of a loss that has these `loss_parts`, and
    `least_loss` its least value; `risen_from` is that value where the loss has risen far above it: see `divergence`.
    `rows` counts the lines of `metrics.jsonl`: those written after the checkpoint go when it is resumed.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    seconds: float = 0.0
    ascending: bool = True
    best_error: float | None = None
    scaling: dict[str, float] | None = None
    error: float | None = None
    stale: int = 0
    skipped: int = 0
    replaced: int = 0
    loss: float | None = None
    rows: int = 0
    least_loss: float | None = None
    validations: tuple[Validation, ...] = ()
    """The last few."""
    is_stagnation_told: bool = False
    loss_parts: tuple[str, ...] = ()
    risen_from: float | None = None
    loss_noise: float = 0.0


_NUMBERS = pydantic.TypeAdapter(State)


@dataclass(frozen=True, slots=True)
class Saved:
    """What stands in `state.json`; `averaged` counts the weights in the running mean."""

    state: State
    averaged: int
    sums: Mapping[str, str] | None
    """The checksum of each file beside it; None of a checkpoint of an earlier version."""

    @property
    def files(self) -> list[str]:
        """Names of the files that belong to it."""
        return _files(self.averaged)


def step_of(folder: Path) -> int | None:
    """The step that the name of a folder says; None if it is not the name of a checkpoint."""
    match = _FOLDER.fullmatch(folder.name)
    return int(match[2]) if match else None


def write(draft: Path, state: State, averaged: int) -> None:
    """Write `state.json` beside the files of a checkpoint, with their checksums."""
    sums = {path.name: _sum_of(path) for path in sorted(draft.iterdir())}
    document = {**asdict(state), _AVERAGE: averaged, _SUMS: sums}
    sums[NAME] = _sum_of_text(document)
    (draft / NAME).write_text(json.dumps(document), encoding="utf-8")


def read(folder: Path) -> Saved:
    """Read the `state.json` of a checkpoint; ValueError, or OSError, where it is none or not the one of this folder."""
    with open_file(folder / NAME) as file:
        return parse(file.read(), folder.name)


def parse(data: bytes, name: str) -> Saved:
    """Read the content of a `state.json` in a folder of that name; ValueError as for `read`."""
    try:
        document = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is not an object")
    sums = document.get(_SUMS)
    if sums is not None:
        checksum = sums.pop(NAME, None) if isinstance(sums, dict) else None
        if checksum != _sum_of_text(document):
            raise ValueError("it does not match its checksum")
    numbers = {key: value for key, value in document.items() if key not in (_AVERAGE, _SUMS)}
    if unknown := sorted(numbers.keys() - {field.name for field in fields(State)}):
        raise ValueError(f"`{unknown[0]}` is unknown")
    try:
        state = _NUMBERS.validate_json(json.dumps(numbers), strict=True)
        averaged = pydantic.TypeAdapter(int).validate_python(document.get(_AVERAGE), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or _AVERAGE}: {first['msg']}") from None
    if name != f"epoch={state.epoch}-step={state.step}":
        raise ValueError(f"it is of step {state.step} of epoch {state.epoch}")
    return Saved(state, averaged, sums)


def faults(folder: Path) -> dict[str, str]:
    """The files of a checkpoint that are not what was written, and why; none where it is whole."""
    reasons: dict[str, str | None] = {}
    saved = None
    try:
        saved = read(folder)
    except FileNotFoundError:
        reasons[NAME] = "it is missing"
    except (OSError, ValueError) as error:
        reasons[NAME] = first_line(error)
    sums = (saved and saved.sums) or {}
    for name in saved.files if saved else _files(averaged=0):
        reasons[name] = _fault(folder / name, sums.get(name))
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _files(averaged: int) -> list[str]:
    return [f"{name}.safetensors" for name in ("model", "optimizer", *(["average"] if averaged else []))]


def _fault(path: Path, sum_: str | None) -> str | None:
    """Why a file of weights is not what was written; None if it is, as far as can be known without a checksum."""
    if not path.is_file():
        return "it is missing"
    try:
        if sum_ is not None:
            return None if _sum_of(path) == sum_ else "its bytes do not match its checksum"
        with safe_open(path, "pt") as weights:
            weights.keys()
    except (SafetensorError, OSError, ValueError) as error:
        return first_line(error)
    return None


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum_of_text(document: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
