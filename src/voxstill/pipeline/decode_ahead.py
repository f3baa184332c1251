"""Recordings decoded in a thread while those before them are transcribed: in order, and never far ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from voxstill.audio import vad
from voxstill.core import pcm

_CLOSING_S = 1.0


@dataclass(frozen=True, slots=True)
class Decoded:
    """The samples of a recording at 16 kHz, read by slices, and what is wrong with its file although it has audio."""

    samples_T: vad.Samples
    is_silent: bool
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The outcome of a recording, what is to be closed once it is used, and how much audio it has."""

    decoded: Decoded | BaseException
    opened: ExitStack
    duration_ms: int = 0


class DecodeAhead:
    """While entered, decodes the recordings that are added, one after another, in a thread of its own.

    `read` opens one. It waits while `most_ms` of audio are decoded and not taken: there is so much at once, and the
    recording that goes beyond. `interrupt` ends what that thread decodes, where the block is left before the last one.
    """

    def __init__(
        self,
        read: Callable[[object], AbstractContextManager[Decoded]],
        interrupt: Callable[[threading.Thread], None],
        most_ms: int,
    ) -> None:
        self._read, self._interrupt, self._most_ms = read, interrupt, most_ms
        self._added: deque[object] = deque()
        self._answers: deque[_Answer] = deque()
        self._ends = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._decode_all, name="decode-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._interrupt(self._thread)
        self._thread.join(_CLOSING_S)  # what it reads from afar may take longer: it ends by itself

    def add(self, recording: object) -> None:
        """Let a recording be decoded after those that were added before."""
        with self._changed:
            self._added.append(recording)
            self._changed.notify_all()

    @contextmanager
    def taken(self) -> Iterator[Decoded]:
        """The samples of the next recording, as long as the block lasts; raises what was raised where it was read."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers)
            answer = self._answers.popleft()
            self._changed.notify_all()
        with answer.opened:
            if isinstance(answer.decoded, BaseException):
                raise answer.decoded
            yield answer.decoded

    def _decode_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due)
                if self._ends:
                    break
                recording = self._added.popleft()
            answer = self._answer(recording)
            with self._changed:
                self._answers.append(answer)
                self._changed.notify_all()
        for answer in self._answers:
            answer.opened.close()

    def _is_due(self) -> bool:
        """Whether there is something to do for the thread."""
        decoded_ms = sum(answer.duration_ms for answer in self._answers)
        return self._ends or bool(self._added and (decoded_ms < self._most_ms or not self._answers))

    def _answer(self, recording: object) -> _Answer:
        opened = ExitStack()
        try:
            decoded = opened.enter_context(self._read(recording))
            return _Answer(decoded, opened, pcm.samples_to_ms(len(decoded.samples_T)))
        except BaseException as error:  # raised again where the recording is taken
            return _Answer(error, opened)
