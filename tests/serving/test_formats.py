"""All formats and the stream have the same text; of an hour: tests/torture/test_formats.py."""

from __future__ import annotations

from serving_process import ServerProcess
from transcript_formats import client_of, recording, texts


def test_all_formats_have_the_same_text(server: ServerProcess) -> None:
    by_format = texts(client_of(server.url, server.key), "tone", recording(60))
    assert len(set(by_format.values())) == 1, by_format
    assert len(by_format["json"].split()) > 20
