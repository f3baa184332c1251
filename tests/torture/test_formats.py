"""An hour of audio in every format of the server: the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving_process import serving
from torture.runs import SHARE
from transcript_formats import client_of, recording, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SHARE is None, reason="the short form is in tests/serving/test_formats.py"),
]


def test_an_hour_has_the_same_text_in_all_formats(exported_tone_student: Path, tmp_path: Path) -> None:
    assert SHARE is not None
    with serving(tmp_path, [f"tone={exported_tone_student}"]) as server:
        by_format = texts(client_of(server.url, server.key), "tone", recording(3600 * float(SHARE)))
    assert len(set(by_format.values())) == 1
    assert len(by_format["json"].split()) > 1000 * float(SHARE)
