"""Errors of sources that are not indexed at all."""

from __future__ import annotations

from collections.abc import Sequence

from voxstill.core.errors import DataError
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.storage.redaction import holds_credentials, redact_uri


def without_texts(uris: Sequence[str]) -> DataError:
    """The error of a supervised source that has nothing to learn from."""
    names = ", ".join(f"`{redact_uri(uri)}`" for uri in uris)
    return DataError(
        f"the supervised source {names} has no texts",
        code="field-missing",
        why="`source.supervised` trains on the texts of its manifest, and no teacher labels it",
        fix="give a manifest with a column `text`, or leave `source.supervised` out",
    )


def refuse_credentials(entry: SourceEntry) -> None:
    """DataError if an address holds credentials: it is written into tables, which others may read."""
    if "://" in entry.uri and holds_credentials(entry.uri):
        raise DataError(
            f"`{redact_uri(entry.uri)}` contains credentials" + (f", in {entry.where}" if entry.where else ""),
            code="credentials-in-address",
            why="the addresses of audio are written into the tables of the work folder",
            fix="remove them from the address: put user and password of a web server into ~/.netrc, and the keys of a "
            "bucket into the environment",
        )
