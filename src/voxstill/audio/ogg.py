"""The pages of an Ogg file (RFC 3533): whether the last of them is whole.

That no page is marked as the last is no sign of a cut: recorders of telephones never mark one.
"""

from __future__ import annotations

_PAGE = b"OggS\0"
_HEADER = 27  # bytes before the table of segments


def is_cut_off(data: bytes) -> bool:
    """Whether a file is Ogg and ends in the middle of a page."""
    if not data.startswith(_PAGE):
        return False
    page = data[data.rfind(_PAGE) :]
    if len(page) < _HEADER:
        return True
    num_segments = page[_HEADER - 1]
    table = page[_HEADER : _HEADER + num_segments]
    return len(table) < num_segments or len(page) < _HEADER + num_segments + sum(table)
