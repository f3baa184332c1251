"""Which columns of a source's rows were read, as what, and which were ignored: logged once for each source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from voxstill.indexing.formats.column_names import COLUMN_NAMES, LATER_NAMES, NUMBER_COLUMNS, spelling

_READ_AS = {
    **{name: column for column, names in COLUMN_NAMES.items() for name in names},
    **{name: column for column, names in LATER_NAMES.items() for name in names},
    **{name: name for name in NUMBER_COLUMNS},
    "words": "word times",
    **dict.fromkeys((".txt", ".text", ".lab", ".transcript"), "text"),  # members of a tar
    **{"wav.scp": "audio", "segments": "times", "utt2spk": "speaker", "utt2lang": "language"},  # tables of Kaldi
}
"""What a column means, by its name."""
_CUT = {name: name for name in ("id", "start", "duration", "channel", "type")} | {"recording": "audio"}
_CUT |= {f"supervisions.{name}": name for name in ("text", "speaker", "language", "start", "duration")}
_CUT |= {"supervisions.alignment": "word times"}
"""The same of a cut of lhotse, with the columns of its supervisions."""
_KINDS_KEPT = 1024


class ColumnsRead:
    """The columns of the rows of one source, each name once."""

    def __init__(self) -> None:
        self._kinds: set[tuple[str, ...]] = set()
        """Columns of rows that were seen lately."""
        self._read: dict[str, str] = {}
        self._ignored: dict[str, None] = {}

    def add(self, columns: tuple[str, ...]) -> None:
        """Note the columns of one row."""
        if columns in self._kinds:
            return
        if len(self._kinds) == _KINDS_KEPT:
            self._kinds.clear()
        self._kinds.add(columns)
        for name, meaning in _meanings(columns):
            if meaning is None:
                self._ignored[name] = None
            else:
                self._read[name] = meaning

    def __str__(self) -> str:
        """In words; empty if no row had columns."""
        read = [f"`{name}`" if name == column else f"`{name}` as {column}" for name, column in self._read.items()]
        ignored = [f"`{name}`" for name in self._ignored if name not in self._read]
        parts = (f"{what} {', '.join(names)}" for what, names in (("read", read), ("ignored", ignored)) if names)
        return "; ".join(parts)


def _meanings(columns: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Each column of a row with what it is read as; None if it is ignored."""
    known: Mapping[str, str] = _CUT if {"recording", "supervisions"} <= {*columns} else _READ_AS
    if {"wav", "txt"} <= {*columns}:
        known = {**known, "key": "id"}
    if {"audio_filepath", "shard_id"} <= {*columns}:
        known = {**known, "shard_id": "the number of a tar"}
    if {"teacher", "reference"} <= {*columns}:  # a shard of ours: its text is a label, its times are of the recording
        unread = {"text", "words", *NUMBER_COLUMNS} - {"channel"}
        known = {**{name: column for name, column in known.items() if name not in unread}, "reference": "text"}
    for name in columns:
        if name not in ("supervisions", ".json"):  # whose columns are logged
            yield name, known.get(spelling(name))
