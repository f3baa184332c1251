"""The stream of a streaming student for the part of a segment that is being spoken."""

from __future__ import annotations

from collections.abc import Callable

from voxstill.decoding.streams import Stream
from voxstill.streaming.events import SegmentPart


class PartStreams:
    """Opens a stream at the start of each part, and returns it again while the part grows.

    `open_stream` is that of the recogniser.
    """

    def __init__(self, open_stream: Callable[[], Stream]) -> None:
        self._open_stream = open_stream
        self._part: tuple[int, int] | None = None
        self._stream: Stream

    def of(self, part: SegmentPart) -> Stream:
        """The stream of a part; the one before it is whole by then, or was cleared."""
        if self._part != (part.segment, part.start_ms):
            self._part, self._stream = (part.segment, part.start_ms), self._open_stream()
        return self._stream
