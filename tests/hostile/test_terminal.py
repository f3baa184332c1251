"""No text of a model, a file or a server reaches the terminal with control characters in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from voxstill import cli
from voxstill.core import monitor
from voxstill.core.terminal import printable

TITLE = "\x1b]0;title\x07\x9b31m\u202egnp.exe\r"


def test_control_characters_are_escaped_and_nothing_else() -> None:
    assert printable(TITLE) == r"\u001b]0;title\u0007\u009b31m\u202egnp.exe\u000d"
    text = "a\tb\nçà שלום \N{ZERO WIDTH JOINER} 漢字 \\u001b"
    assert printable(text) == text
    assert json.loads(printable(json.dumps({"text": TITLE}, ensure_ascii=False))) == {"text": TITLE}


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_results_and_errors_show_no_control_characters(
    json_option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("reference.trn", f"{TITLE} a (x-1)\n"), ("hypothesis.trn", f"b {TITLE} (x-1)\n")):
        (tmp_path / name).write_text(text, newline="")
    files = [str(tmp_path / "reference.trn"), str(tmp_path / "hypothesis.trn")]
    assert cli.main(["score", "words", *files, *json_option]) in (0, 2, 3)
    assert cli.main(["score", "words", f"{tmp_path}/{TITLE}.trn", files[1], *json_option]) != 0
    shown = capsys.readouterr()
    assert shown.out + shown.err == printable(shown.out + shown.err)


def test_messages_show_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging()
    monitor.log.warning("cannot read `%s`", TITLE)
    assert r"\u001b]0;title" in capsys.readouterr().err
