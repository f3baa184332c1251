"""Addresses: which are paths on this machine."""

from __future__ import annotations

from pathlib import Path

from voxstill.storage.uri import is_local, local_path


def test_paths_and_file_uris_are_local_and_addresses_are_not() -> None:
    assert [is_local(uri) for uri in ("a/b", "/a", "file:///a", "s3://b/a", "memory://x")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert local_path("file:///a/b") == Path("/a/b") == local_path("/a/b")
