"""The plan of an epoch in a file: a training that continues reads its batches there and does not plan them again.

A kept plan is used only where it was made of the same arguments, by the same code and the same NumPy: the file begins
with a hash of all of them, of arrays by their content. Any other file, and a damaged one, is replaced by the plan.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel

from voxstill.core.atomic import atomic_file
from voxstill.core.monitor import log
from voxstill.data import batching, blocks
from voxstill.data import plan as planning
from voxstill.data.batching import Ints, Rows
from voxstill.data.plan import EpochPlan, Tempos

_Bytes = bytes | memoryview
_KEY_BYTES, _SUM_BYTES, _SIZE_BYTES = 16, 8, 8


def kept_plan(path: Path, make: functools.partial[EpochPlan]) -> EpochPlan:
    """The plan of `make`, a call of `plan`: read from `path` where it is kept there, else made and kept.

    Any number of processes may ask for it at the same time. Where the file cannot be written, nothing is kept.
    """
    key = _key(make)
    durations_ms, tempo_N = make.args[0], make.keywords.get("tempo_N")
    if (epoch_plan := _read(path, key, durations_ms, tempo_N)) is not None:
        return epoch_plan
    epoch_plan = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as draft, draft.open("wb") as file:
            file.writelines(_encoded(key, epoch_plan))
    except OSError as error:
        log.info(
            "train: the plan of the epoch cannot be saved in `%s`, and is made again when resuming: %s", path, error
        )
    return epoch_plan


def _key(make: functools.partial[EpochPlan]) -> bytes:
    """Hash of all that a kept plan is a function of: arguments, code, and NumPy with its generators."""
    arguments = *enumerate(make.args), *sorted(make.keywords.items())
    content = np.__version__, _code(), [(name, _identity(value)) for name, value in arguments]
    return xxhash.xxh3_128_digest(repr(content).encode())


@functools.cache
def _code() -> tuple[str, ...]:
    """Hashes of the files that say which plan is made, and how it is kept."""
    files = planning.__file__, batching.__file__, blocks.__file__, __file__
    return tuple(xxhash.xxh3_128_hexdigest(Path(str(file)).read_bytes()) for file in files)


def _identity(argument: object) -> str:
    if isinstance(argument, np.ndarray):
        content = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(argument).data)
        return f"{argument.dtype.str} {argument.shape} {content}"
    return argument.model_dump_json() if isinstance(argument, BaseModel) else repr(argument)


def _encoded(key: bytes, epoch_plan: EpochPlan) -> list[_Bytes]:
    """The key, a checksum of key and body, and the body: a header as JSON behind its size, and the arrays."""
    header = {
        "batches_per_step": epoch_plan.batches_per_step,
        "num_batches": len(epoch_plan.bounds) - 1,
        "dropped": dict(epoch_plan.dropped),
        "num_repeated": epoch_plan.num_repeated,
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % np.dtype(np.int64).itemsize)  # numbers begin at multiples of their size
    arrays = epoch_plan.bounds, epoch_plan.step_tokens, epoch_plan.step_frames, epoch_plan.order
    body: list[_Bytes] = [
        len(text).to_bytes(_SIZE_BYTES, "little"),
        text,
        *(array.data.cast("B") for array in arrays),
    ]
    return [key, _sum(key, *body), *body]


def _read(path: Path, key: bytes, durations_ms: Ints, tempo_N: Tempos | None) -> EpochPlan | None:
    """The plan of this key; None if there is no file, or one of another plan, or not what was written."""
    try:
        with path.open("rb") as file:
            if file.read(_KEY_BYTES) != key:
                return None
            checksum, body = file.read(_SUM_BYTES), file.read()
    except OSError:
        return None
    if _sum(key, body) != checksum:
        log.warning("train: the plan saved in `%s` is made again: its bytes do not match their checksum", path)
        return None
    start = _SIZE_BYTES + int.from_bytes(body[:_SIZE_BYTES], "little")
    header = json.loads(body[_SIZE_BYTES:start])
    num_batches, batches_per_step = header["num_batches"], header["batches_per_step"]
    num_steps = num_batches // batches_per_step
    number_N: NDArray[np.int64] = np.frombuffer(body, np.int64, num_batches + 1 + 2 * num_steps, start)
    bounds, step_tokens, step_frames = np.split(number_N, [num_batches + 1, num_batches + 1 + num_steps])
    order: Rows = np.frombuffer(body, np.int32, offset=start + number_N.nbytes)
    return EpochPlan(
        batches_per_step=batches_per_step,
        order=order,
        bounds=bounds,
        durations_ms=np.ascontiguousarray(durations_ms, np.int64),
        tempo_N=tempo_N,
        step_tokens=step_tokens,
        step_frames=step_frames,
        dropped=header["dropped"],
        num_repeated=header["num_repeated"],
    )


def _sum(*parts: _Bytes) -> bytes:
    content = xxhash.xxh3_64()
    for part in parts:
        content.update(part)
    return content.digest()
