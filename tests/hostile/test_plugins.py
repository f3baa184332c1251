"""A broken package beside voxstill is named in a warning, and everything else works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from installed import install
from voxstill import cli
from voxstill.core import monitor

TEACHER = """
import pathlib
from pydantic import SecretStr
from voxstill.core.config import Section, option
class Options(Section):
    {option}
class Other:
    Options = Options
    reads_texts = False
    revision = load = transcribe_batch = close = lambda self: None
"""
BROKEN = {
    "raises": "raise RuntimeError('x')",
    "exits": "import sys; sys.exit(3)",
    "prints": "print('not JSON'); raise RuntimeError('x')",
    "raises what has no words": "class Odd(Exception):\n    def __str__(self): raise ValueError('x')\nraise Odd",
    "is no python": "def",
    "imports what is not there": "import no_such_package",
    "has nothing": "",
    "has a number": "Other = 3",
    "raises when asked": "class Meta(type):\n    def __getattribute__(self, name): raise RuntimeError(name)\n"
    "class Other(metaclass=Meta): ...",
    "has another kind of options": "class Other:\n    Options = dict",
    "cannot say its defaults": TEACHER.format(
        option="a: int = __import__('pydantic').Field(default_factory=lambda: 1 / 0)"
    ),
    "has a list of anything": TEACHER.format(option="a: __import__('typing').List = option([])"),
}


def explained(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """The options by their path, and the log."""
    monitor.start_logging("warning")
    capsys.readouterr()
    assert cli.main(["explain", "--json"]) == 0
    out, err = capsys.readouterr()
    return [row["path"] for row in json.loads(out)["options"]], err


WHOLE = TEACHER.format(option="b: int = option(1)")


@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_and_the_rest_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    before, _ = explained(capsys)
    install(tmp_path / "broken", monkeypatch, "voxstill.teachers", "broken", code, "Other")
    install(tmp_path / "whole", monkeypatch, "voxstill.teachers", "whole", WHOLE, "Other")
    after, log = explained(capsys)
    assert sorted(after) == sorted([*before, "teacher.b"])
    assert "left out" in log
    assert "`broken`" in log


def test_metadata_that_cannot_be_read_hides_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "whole", monkeypatch, "voxstill.teachers", "whole", WHOLE, "Other")
    install(tmp_path / "torn", monkeypatch, "voxstill.teachers", "torn", "")
    (tmp_path / "torn/other_torn-1.0.dist-info/entry_points.txt").write_bytes(b"[voxstill.teachers]\n\xff\xfe = a:b\n")
    paths, log = explained(capsys)
    assert "teacher.b" in paths
    assert log.count("left out: the entry points of `other-torn`") == 1


def test_a_default_that_json_does_not_know_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "path: pathlib.Path = option(pathlib.Path('a'))\n    key: SecretStr = option(SecretStr('canary'))"
    install(tmp_path / "whole", monkeypatch, "voxstill.teachers", "whole", TEACHER.format(option=option), "Other")
    paths, _ = explained(capsys)
    assert {"teacher.path", "teacher.key"} <= set(paths)
