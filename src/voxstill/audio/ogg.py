"""The pages of an Ogg file (RFC 3533): whether the last of them is whole.

That no page is marked as the last is not a sign of a cut: recorders of telephones never mark one.
"""

from __future__ import annotations

from voxstill.audio.byte_source import ByteSource

_PAGE = b"OggS\0"
_HEADER = 27  # bytes before the table of segments
_LONGEST = _HEADER + 255 + 255 * 255  # bytes of a page


def is_cut_off(data: ByteSource) -> bool:
    """Whether a file is Ogg and ends in the middle of a page."""
    if data[: len(_PAGE)] != _PAGE:
        return False
    tail = data[max(0, len(data) - _LONGEST) :]
    start = tail.rfind(_PAGE)
    if start < 0:  # more follows than a page may have: a whole one, and what is none
        return False
    page = tail[start:]
    if len(page) < _HEADER:
        return True
    num_segments = page[_HEADER - 1]
    table = page[_HEADER : _HEADER + num_segments]
    return len(table) < num_segments or len(page) < _HEADER + num_segments + sum(table)
