"""The samples of a recording in a temporary file, so that an hour takes no more memory than a minute."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import level
from voxstill.core.errors import StorageError, system_code
from voxstill.core.records import Normalization

_PART = 1 << 16  # samples read at a time


class SampleFile:
    """Samples at 16 kHz that are written in blocks, and read by slices as int16.

    An hour takes 115 MB of the folder for temporary files; with a normalization it is float32, and twice that.
    """

    def __init__(self, normalization: Normalization = "none") -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by `__exit__`
        self._normalization: Normalization = normalization
        self._type = np.dtype(np.float32 if self.is_float else np.int16)
        self._num_samples = 0
        self.is_silent = True
        self._gain_db: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, part: slice, /) -> NDArray[np.int16]:
        start, end, _ = part.indices(self._num_samples)
        stored_T = self.stored(start, max(start, end))
        return level.quantized(stored_T, self._gain_db) if self.is_float else stored_T

    @property
    def is_float(self) -> bool:
        """Whether it takes float32 samples, of which a gain is computed."""
        return self._normalization != "none"

    def write(self, samples_T: NDArray[Any], /) -> None:
        """Add samples at the end: float32 where `is_float`, else int16. StorageError if the disk is full."""
        data = np.ascontiguousarray(samples_T, self._type).view(np.uint8).data
        try:
            while data:  # one write may take a part only
                data = data[self._file.write(data) :]
        except OSError as error:
            raise StorageError(
                f"decoded audio cannot be written to `{tempfile.gettempdir()}`",
                code=system_code(error),
                why=error.strerror or str(error),
                fix="free some space there, or set another folder in TMPDIR",
            ) from None
        self._num_samples += len(samples_T)
        self.is_silent = self.is_silent and not samples_T.any()

    def clear(self) -> None:
        """Drop all samples."""
        self._file.seek(0)
        self._file.truncate()
        self._num_samples, self.is_silent = 0, True

    def normalize(self) -> None:
        """Compute the gain of all samples, which those that are read have from now on."""
        if self.is_float:
            self._gain_db = level.gain_db(_Parts(self), self._normalization)

    def stored(self, start: int, end: int) -> NDArray[Any]:
        """Samples as they were written."""
        size = self._type.itemsize
        data = os.pread(self._file.fileno(), (end - start) * size, start * size)
        return np.frombuffer(data, self._type)


class _Parts(Sequence[NDArray[np.float32]]):
    """All samples in parts that are read one at a time."""

    def __init__(self, samples: SampleFile) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return (len(self._samples) + _PART - 1) // _PART

    @overload
    def __getitem__(self, key: int) -> NDArray[np.float32]: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[NDArray[np.float32]]: ...
    def __getitem__(self, key: int | slice) -> NDArray[np.float32] | Sequence[NDArray[np.float32]]:
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        if not 0 <= key < len(self):
            raise IndexError
        return self._samples.stored(key * _PART, min((key + 1) * _PART, len(self._samples)))
