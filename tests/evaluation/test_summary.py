"""`evaluate` for people: percent, the worst first, any field of the manifest, alignments on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from judged import corpus, experiment
from tones import TEXTS, speak
from voxstill import cli
from voxstill.evaluation import tables


@pytest.fixture(scope="module")
def judged(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve speakers, of which the last ones are understood worst, with a column that no table has."""
    folder = tmp_path_factory.mktemp("people")
    rows = [
        {
            "id": f"u{i:02}",
            "text": TEXTS[i % 4] + " ko" * (i // 4),
            "speaker": f"s{i:02}",
            "gender": "fm"[i % 2],
            "samples": speak(TEXTS[i % 4], i)[0],
        }
        for i in range(12)
    ]
    work = corpus(folder, rows)
    return experiment(folder / "exp", tone_student, work, source={"uri": str(folder / "manifest.jsonl")})


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--log-level", "error"]) == code
    out = capsys.readouterr()
    return out.out if code == 0 else out.err


def test_people_read_rates_in_percent_and_the_worst_speakers(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "evaluate", judged).splitlines()
    assert lines[0] == f"{judged} on test of {judged.parent / 'work'}, greedy"
    assert lines[1].startswith("WER ")
    assert " %  (95 % of draws of speakers: " in lines[1]
    assert lines[2].startswith("CER ")
    first = lines.index("by speaker, the worst 10 of 12:")
    rates = [float(line.split()[1]) for line in lines[first + 2 : first + 12]]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0
    assert "{" not in "".join(lines)


def test_errors_are_broken_down_by_a_column_of_the_manifest(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "evaluate", judged, "--by", "gender", "--by", "speaker")
    assert "by gender:" in text
    assert "by speaker:" in text
    assert "by duration" not in text
    figures = json.loads(printed(capsys, "evaluate", judged, "--by", "gender", "--json"))
    assert set(figures["by_gender"]) == {"f", "m"}
    assert sum(row["errors"] for row in figures["by_gender"].values()) == figures["errors"]
    assert "no utterance has a field `shoe_size`" in printed(capsys, "evaluate", judged, "--by", "shoe_size", code=2)


def test_alignments_of_the_worst_are_shown_on_request(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ref  " not in printed(capsys, "evaluate", judged)
    lines = printed(capsys, "evaluate", judged, "--show", "2").splitlines()
    assert sum(line.startswith("  ref  ") for line in lines) == 2
    assert lines[0].startswith("u")
    assert "errors in" in lines[0]
    assert "KO" in lines[1]
    assert "***" in lines[2]


def test_words_stand_below_words_also_where_characters_are_wide() -> None:
    pairs = [("今天", "今天"), ("好", None), (None, "oh"), ("a", "bcd")]
    assert tables.alignment(pairs) == ["  ref  今天 好  *** A", "  hyp  今天 *** OH  BCD"]
    long = tables.alignment([("word", "word")] * 30, 50)
    assert len(long) == 6
    assert all(len(line) <= 60 for line in long)
