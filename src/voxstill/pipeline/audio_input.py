"""Audio that a caller has: paths, bytes, open files and arrays, decoded one at a time for a model."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import samples
from voxstill.audio.byte_source import ByteSource
from voxstill.audio.decoder import Decoder
from voxstill.audio.sample_file import SampleFile
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ
from voxstill.pipeline.decode_ahead import DecodeAhead, Decoded
from voxstill.storage.fetch import open_uri
from voxstill.storage.redaction import redact_uri

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Readable(Protocol):
    """An open file."""

    def read(self) -> object:
        """Its content from here to its end."""


Bytes = bytes | bytearray | memoryview
Samples = NDArray[np.float32] | NDArray[np.int16]
Audio: TypeAlias = "str | os.PathLike[str] | Bytes | IO[bytes] | Samples | Tensor"
"""A path or URI, the bytes of an audio file, such a file opened, or mono samples: float32 in [-1, 1] or int16."""


_PATHS_AHEAD = 16
_NO_MORE = object()


class Row(Protocol):
    """The outcome of a recording: a result, or an `error` that says why there is none."""

    @property
    def audio(self) -> str:
        """The name of the recording."""
        ...

    @property
    def error(self) -> str | None:
        """Why it could not be read."""
        ...

    @property
    def warning(self) -> str | None:
        """What is wrong with it although it could be read."""
        ...


class AudioReader:
    """Decodes one recording after another in a process of its own; threads may share it."""

    def __init__(self, cfg: Config) -> None:
        self._gain = cfg.audio.normalize
        self._decoder = Decoder(cfg.engine.decode_s, cfg.engine.decode_mb)
        self._decoding = threading.Lock()
        self._decoding_thread: threading.Thread | None = None
        weakref.finalize(self, self._decoder.close)

    def start(self) -> None:
        """Start the process that decodes, where a file is sure to come: it gets ready while a model loads."""
        with self._decoding:
            self._decoder.start()

    @contextmanager
    def read(self, recording: object, rate_hz: int = RATE_HZ) -> Iterator[Decoded]:
        """The samples of a recording, as long as the block lasts; an array has `rate_hz`.

        DataError or StorageError if it is no audio or cannot be read.
        """
        if _is_array(recording):
            samples_T = samples.from_array(_as_array(recording), rate_hz, self._gain)
            yield Decoded(samples_T, not samples_T.any())
            return
        with _source(recording) as source, SampleFile(self._gain) as decoded:
            with self._decoding:
                self._decoding_thread = threading.current_thread()
                try:
                    fault = self._decoder.decode_blocks(source, decoded, as_float=decoded.is_float)
                finally:
                    self._decoding_thread = None
            decoded.normalize()
            yield Decoded(decoded, decoded.is_silent, None if fault is None else in_one_line(fault))

    def read_each(
        self, recordings: Iterable[object], rate_hz: int = RATE_HZ, *, ahead_ms: int
    ) -> Iterator[tuple[str, AbstractContextManager[Decoded]]]:
        """The name of each recording, and what gives its samples, as `read` does; it is entered before the next one.

        Meanwhile those that follow are decoded by a thread: `ahead_ms` of audio, and the recording that goes beyond.
        What is not a path is in memory, so of such recordings one is asked for ahead.
        """
        left, names = iter(recordings), deque[str]()
        most_ahead, is_started = 1, False
        with DecodeAhead(lambda recording: self.read(recording, rate_hz), self._interrupt, ahead_ms) as ahead:
            while True:
                while len(names) <= most_ahead and (recording := next(left, _NO_MORE)) is not _NO_MORE:
                    most_ahead = _PATHS_AHEAD if isinstance(recording, str | os.PathLike) else 1
                    if not is_started and not _is_array(recording):
                        self.start()  # here: the process ends with the thread that started it
                        is_started = True
                    names.append(name_of(recording))
                    ahead.add(recording)
                if not names:
                    return
                yield names.popleft(), ahead.taken()

    def _interrupt(self, thread: threading.Thread) -> None:
        """End what a thread decodes."""
        if self._decoding_thread is thread:
            self._decoder.interrupt()


def recordings_of(audio: Audio | Iterable[Audio]) -> Iterable[object]:
    """The recordings of an argument that is one recording or several."""
    return [audio] if _is_one(audio) or not isinstance(audio, Iterable) else audio


def log_faults(rows: Iterable[Row]) -> None:
    """Log the errors and warnings of recordings."""
    for row in rows:
        if row.error is not None:
            log.error("%s: %s", redact_uri(row.audio), row.error)
        elif row.warning is not None:
            log.warning("%s: %s", redact_uri(row.audio), row.warning)


def exit_code(rows: Iterable[Row]) -> int:
    """That of bad data where a recording could not be read, else 0."""
    return DataError.exit_code if any(row.error is not None for row in rows) else 0


def in_one_line(error: VoxstillError) -> str:
    """What is wrong and why, as the error of a row."""
    return f"{error.what}: {error.why}" if error.why else error.what


def _is_one(audio: object) -> bool:
    """Whether this is one recording, and not several."""
    return isinstance(audio, str | os.PathLike | Bytes | Readable) or _is_array(audio)


def _is_array(recording: object) -> TypeGuard[NDArray[Any] | Tensor]:
    return isinstance(recording, np.ndarray) or _is_tensor(recording)


def _is_tensor(audio: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")  # where it is not loaded, nothing is a tensor
    return torch is not None and isinstance(audio, torch.Tensor)


def name_of(recording: object) -> str:
    """Its path or URI; `bytes` or `samples` where there is none, and the type of what is no audio at all."""
    name = getattr(recording, "name", None) if isinstance(recording, Readable) else recording
    if isinstance(name, str | os.PathLike):
        return os.fsdecode(name)
    if isinstance(recording, Bytes | Readable):
        return "bytes"
    return "samples" if _is_array(recording) else type(recording).__name__


def _content(file: Readable) -> bytes:
    """All bytes of an open file; DataError if it cannot be read, or was opened as text."""
    try:
        content = file.read()
    except (OSError, ValueError) as error:
        raise DataError("the file cannot be read", code="audio-argument", why=str(error), fix="open it again") from None
    if not isinstance(content, Bytes):
        raise DataError(
            "the file is not read as bytes", code="audio-argument", why="it was opened as text", fix='open it with "rb"'
        )
    return bytes(content)


@contextmanager
def _source(recording: object) -> Iterator[ByteSource]:
    """The bytes of an audio file; DataError if it is none."""
    if isinstance(recording, Bytes):
        yield bytes(recording)
    elif isinstance(recording, str | os.PathLike):
        with open_uri(os.fsdecode(recording)) as source:
            yield source
    elif isinstance(recording, Readable):
        yield _content(recording)
    else:
        raise DataError(
            "no recording",
            code="audio-argument",
            why=f"it is {'None' if recording is None else f'of the type {type(recording).__name__}'}",
            fix="give a path, the bytes of an audio file, or an array of samples",
        )


def _as_array(recording: NDArray[Any] | Tensor) -> NDArray[Any]:
    if isinstance(recording, np.ndarray):
        return recording
    samples_T = recording.detach().cpu()
    array_T: NDArray[Any] = (samples_T.float() if samples_T.is_floating_point() else samples_T).numpy()
    return array_T
