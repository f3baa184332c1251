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


def test_a_line_break_in_a_name_or_a_message_makes_no_line_that_looks_like_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor.start_logging()
    monitor.log.warning("cannot read `%s`", "a\n12:00:00 INFO    all is well")
    name = f"{tmp_path}/a\nerror: b\n  fix: run this.trn"
    assert cli.main(["score", "words", name, name]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0].strip() for line in lines if not line.startswith("       ")][1:] == [
        "error",
        "why",
        "fix",
        "more",
    ]


def test_a_name_of_any_length_and_with_line_breaks_takes_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a\nb  0.00 %", "c" * 1_000_000]
    rows = [{"id": str(i), "text": "yes", "room": name} for i, name in enumerate(names)]
    (tmp_path / "ref.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "hyp.jsonl").write_text(
        "".join(f"{json.dumps({'id': row['id'], 'text': 'n' * 1_000_000})}\n" for row in rows)
    )
    files = [str(tmp_path / "ref.jsonl"), str(tmp_path / "hyp.jsonl")]
    assert cli.main(["score", "words", *files, "--by", "room", "--show", "1"]) == 0
    shown = capsys.readouterr().out
    assert r"  a\u000ab  0.00 %" in shown
    assert max(map(len, shown.splitlines())) < 200
    assert cli.main(["score", "words", *files, "--by", "room", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["by_room"]) == set(names)
