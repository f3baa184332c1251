"""What stands in a line of a manifest: text, a JSON object, numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from voxstill.indexing.formats.entry import bad_row

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def number_of(cell: str) -> float | str:
    """The number in a cell of a text file, or the cell itself, which the error then names."""
    try:
        return float(cell)
    except ValueError:
        return cell


def parse_json(line: bytes, where: str) -> dict[str, object]:
    """The JSON object of a line; DataError if it is none."""
    try:
        row = json.loads(decode_text(line, where))
    except (ValueError, RecursionError) as error:
        raise bad_row(where, f"it is not JSON: {error}") from None
    return json_object(row, where, has_escapes=_SURROGATE.search(line) is not None)


def json_object(row: object, where: str, *, has_escapes: bool = True) -> dict[str, object]:
    """What was read from JSON, where it is an object whose texts UTF-8 can hold; DataError if it is not."""
    if not isinstance(row, dict):
        raise bad_row(where, f"it is {type(row).__name__}, not an object")
    if has_escapes and not _is_utf8(row):
        raise bad_row(where, "it has an escape of half a surrogate pair")
    return row


def _is_utf8(value: object) -> bool:
    """Whether UTF-8 can hold all texts of a value from JSON: half of a surrogate pair it cannot."""
    if isinstance(value, Mapping):
        return all(_is_utf8(name) and _is_utf8(member) for name, member in value.items())
    if isinstance(value, list):
        return all(map(_is_utf8, value))
    try:
        return not isinstance(value, str) or value.encode() is not None
    except UnicodeEncodeError:
        return False


def decode_text(line: bytes, where: str) -> str:
    """UTF-8 with or without a byte-order mark; DataError for anything else."""
    try:
        return line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise bad_row(where, f"it is not UTF-8: {error}") from None
