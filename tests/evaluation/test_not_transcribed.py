"""What a human judged and nobody transcribed counts or is named: broken files, silence, noise, long audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from judged import corpus, experiment
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.records import Utterance
from voxstill.evaluation import recognition, results
from voxstill.indexing.segment import IndexRow
from voxstill.storage import tables
from voxstill.storage.store import Store

SECONDS = 16_000
NOISE_T = np.random.default_rng(0).normal(0, 400, 2 * SECONDS).astype(np.int16)
SILENCE_T = np.zeros(3 * SECONDS, np.int16)


def evaluate(capsys: pytest.CaptureFixture[str], exp: Path, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["evaluate", str(exp), *options, "--json", "--log-level", "error"]) == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return figures


def test_words_of_broken_and_silent_files_are_deletions_and_silence_is_judged(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": "sound", "text": TEXTS[0], "speaker": "a"},
        {"id": "broken", "text": "ba du", "speaker": "b", "data": codec.encode(speak("ba du")[0], "flac")[:900]},
        {"id": "mute", "text": "ko mi ba", "speaker": "c", "samples": SILENCE_T},
        {"id": "silence", "text": "", "speaker": "c", "samples": SILENCE_T},
        {"id": "noise", "text": "", "speaker": "c", "samples": NOISE_T},
        {"id": "short", "text": "du", "speaker": "c", "samples": NOISE_T[:800]},
    ]
    exp = experiment(tmp_path / "exp", tone_student, corpus(tmp_path / "corpus", rows))
    figures = evaluate(capsys, exp)
    assert (figures["utterances"], figures["words"]) == (6, 3 + 2 + 3 + 1)
    assert figures["deletions"] >= 2 + 3
    assert set(figures["unread"]) == {"broken"}
    assert "1 of 6 utterances could not be read" in figures["warnings"][0]
    assert "deletions" in figures["warnings"][0]
    [stored] = results.read_all(exp / "evaluation")
    spans = {row["id"]: row["end_ms"] - row["start_ms"] for row in results.rows(stored.references)}
    assert (spans["silence"], spans["mute"], spans["noise"]) == (3000, 3000, 2000)
    texts = {row["id"]: row["text"] for row in results.rows(stored.hypotheses)}
    invented = len(texts["silence"].split()) + len(texts["noise"].split())
    assert figures["words_per_hour_of_silence"] == pytest.approx(invented * 3600 / 5)


def test_a_split_of_silence_alone_is_judged_by_the_words_in_it(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": "sound", "text": "ba", "split": "train"},
        {"id": "silence", "text": "", "samples": SILENCE_T},
    ]
    figures = evaluate(capsys, experiment(tmp_path / "exp", tone_student, corpus(tmp_path / "corpus", rows)))
    assert figures["wer"] is None
    assert figures["words_per_hour_of_silence"] is not None


def test_silent_files_count_with_their_length_in_what_is_read_at_once(tmp_path: Path) -> None:
    """The index knows no end of them."""
    silence = codec.encode(np.zeros(recognition.PART_MS * SECONDS // 1000, np.int16), "flac")
    utterances = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.flac").write_bytes(silence)
        utterances.append(
            Utterance(
                id=name, recording_id=name, uri=str(tmp_path / f"{name}.flac"), start_ms=0, end_ms=0, split="test"
            )
        )
    parts = [[row.id for row, _ in part.audio] for part in recognition.audio_parts(Config(), utterances)]
    assert parts == [["a"], ["b"], []]


def test_texts_of_audio_that_was_cut_and_texts_of_no_utterance_are_counted(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long_T = np.tile(speak(TEXTS[1])[0], 40)
    rows = [{"id": "sound", "text": TEXTS[0]}, {"id": "long", "text": "mi ba " * 40, "samples": long_T}]
    work = corpus(tmp_path / "corpus", rows)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"id": "nowhere", "text": "ba"}) + "\n")
    exp = experiment(tmp_path / "exp", tone_student, work, evaluate={"texts": str(tmp_path / "texts.jsonl")})
    figures = evaluate(capsys, exp)
    assert figures["utterances"] == 1
    assert [warning[:2] for warning in figures["warnings"][:2]] == ["1 ", "1 "]
    assert "segment.max_ms" in figures["warnings"][0]
    assert "`evaluate.texts`" in figures["warnings"][1]


def test_a_broken_file_that_was_mended_is_judged_once(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "a", "text": TEXTS[0]}, {"id": "b", "text": TEXTS[1], "data": b"RIFF"}]
    work = corpus(tmp_path / "corpus", rows)
    corpus(tmp_path / "corpus", [rows[0], {"id": "b", "text": TEXTS[1]}])
    figures = evaluate(capsys, experiment(tmp_path / "exp", tone_student, work))
    assert (figures["utterances"], figures["unread"]) == (2, {})


def test_a_broken_file_whose_recording_was_removed_is_not_judged(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "a", "text": TEXTS[0]}, {"id": "b", "text": TEXTS[1], "data": b"RIFF"}]
    work = corpus(tmp_path / "corpus", rows)
    exp = experiment(tmp_path / "exp", tone_student, work)
    assert set(evaluate(capsys, exp)["unread"]) == {"b"}
    [broken] = [row for row in tables.read(Store(str(work)), "recordings", IndexRow) if row.error is not None]
    (tmp_path / "ids.txt").write_text(broken.id + "\n")
    assert cli.main(["remove", str(work), "--ids", str(tmp_path / "ids.txt")]) == 0
    assert evaluate(capsys, exp)["utterances"] == 1


def test_an_index_of_an_earlier_version_says_that_texts_are_not_known(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": "a", "text": TEXTS[0]}, {"id": "b", "text": TEXTS[1], "data": b"RIFF"}]
    work = corpus(tmp_path / "corpus", rows)
    for part in (work / "recordings").rglob("*.parquet"):
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(part).drop_columns(["unused"]), part)
    figures = evaluate(capsys, experiment(tmp_path / "exp", tone_student, work))
    assert figures["utterances"] == 1
    assert figures["warnings"][0].startswith("1 recordings could not be used (")
