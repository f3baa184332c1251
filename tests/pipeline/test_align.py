"""align: a recording of a minute and its transcript, by a student of tones, become utterances that `index` reads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import voxstill
from checkpoints import write_whisper_checkpoint
from tones import PITCH_HZ, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.config import Config, Segment
from voxstill.core.errors import ConfigError
from voxstill.core.records import Utterance, Word
from voxstill.decoding import emissions, forced_alignment
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.pipeline import transcript_segments
from voxstill.storage import tables
from voxstill.storage.store import Store

LINES = ("Ba du ko!", "Mi, ba.", "Ko du mi ba", "Du mi ko?")


def recording(texts: Sequence[str], seed: int = 0) -> tuple[np.ndarray, list[Word]]:
    """Texts one after another, with pauses of half a second to two, and silence at both ends."""
    random = np.random.default_rng(seed)
    parts, words, at_ms = [], [], 0
    for i, text in enumerate([*texts, ""]):
        pause_ms = int(random.integers(500, 2000))
        parts.append(random.normal(0, 30, pcm.ms_to_samples(pause_ms)).astype(np.int16))
        at_ms += pause_ms
        if text:
            samples_T, spoken = speak(text, seed + i)
            parts.append(samples_T)
            words += [Word(text=w.text, start_ms=w.start_ms + at_ms, end_ms=w.end_ms + at_ms) for w in spoken]
            at_ms += pcm.samples_to_ms(len(samples_T))
    return np.concatenate(parts), words


def plain(line: str) -> str:
    return " ".join(word for word in "".join(c for c in line.lower() if c not in ",.!?").split() if word in PITCH_HZ)


def prepare(folder: Path, spoken: Sequence[str], transcript: str) -> list[Word]:
    samples_T, words = recording([plain(line) for line in spoken])
    (folder / "talk.wav").write_bytes(codec.encode(samples_T, "wav"))
    (folder / "talk.txt").write_text(transcript, encoding="utf-8")
    return words


def run(folder: Path, model: Path, *more: str) -> int:
    arguments = [str(folder / "talk.wav"), str(folder / "talk.txt"), "--output", str(folder / "talk.jsonl")]
    return cli.main(["align", *arguments, "--model", str(model), "--json", *more])


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "talk.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_minute_becomes_utterances_that_index_reads(
    tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [LINES[i % len(LINES)] for i in range(25)]
    words = prepare(tmp_path, lines, "\n".join(lines))
    assert run(tmp_path, tone_student) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["utterances"], figures["dropped"]) == (25, 0)
    aligned = rows(tmp_path)
    assert [row["text"] for row in aligned] == lines
    assert {row["audio"] for row in aligned} == {"talk.wav"}
    assert figures["hours"] == pytest.approx(sum(r["end_ms"] - r["start_ms"] for r in aligned) / 3.6e6, abs=1e-4)
    for row, line in zip(aligned, lines, strict=True):
        spoken, words = words[: len(plain(line).split())], words[len(plain(line).split()) :]
        assert abs(row["start_ms"] + 100 - spoken[0].start_ms) <= 160
        assert abs(row["end_ms"] - 100 - spoken[-1].end_ms) <= 160
        assert row["alignment"] > -1
    work = str(tmp_path / "work")
    assert cli.main(["index", str(tmp_path / "talk.jsonl"), "--work", work, "--set", "engine=inline", "--json"]) == 0
    [prefix] = [f"utterances/{name}" for name in Store(f"{work}/utterances").folders()]
    utterances = {row.id: row for row in tables.read(Store(work), prefix, Utterance)}
    assert {row["id"]: (row["start_ms"], row["end_ms"], row["text"]) for row in aligned} == {
        id_: (row.start_ms, row.end_ms, row.text) for id_, row in utterances.items()
    }


def test_what_was_not_spoken_is_dropped_and_the_rest_is_right(
    tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoken = ["mi ba mi ba", "du mi ko", "ko du mi ba", "ba du ko", "mi ba mi"]
    written = ["Du mi ko, 1984.", "Mi mi mi mi mi mi. Ko du mi ba.", "xyz 17", "Ba du ko"]
    words = prepare(tmp_path, spoken, "\n".join(written))  # the first and last have no text
    assert run(tmp_path, tone_student) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert (figures["utterances"], figures["dropped"]) == (3, 2)
    aligned = rows(tmp_path)
    assert [row["text"] for row in aligned] == ["Du mi ko, 1984.", "Ko du mi ba.", "Ba du ko"]
    starts = [words[i].start_ms for i in (4, 7, 11)]
    assert [row["start_ms"] + 100 for row in aligned] == pytest.approx(starts, abs=160)
    assert aligned[0]["end_ms"] > words[6].end_ms + 300  # time for the number
    assert aligned[0]["end_ms"] < aligned[1]["start_ms"]
    assert "dropped 1, not spoken: 0.0 s of audio" in err
    assert "dropped 1, without a token of the model: 0.0 s of audio" in err


def test_one_long_line_is_cut_at_sentences_and_pauses(tmp_path: Path, tone_student: Path) -> None:
    spoken = ["Ba du ko.", "Mi ba.", "Ko du mi ba ba du ko mi du mi ko."]
    prepare(tmp_path, spoken, " ".join(spoken))
    assert run(tmp_path, tone_student, "--set", "segment.max_ms=2600") == 0
    texts = [row["text"] for row in rows(tmp_path)]
    assert texts[:2] == spoken[:2]
    assert len(texts) >= 4
    assert " ".join(texts) == " ".join(spoken)
    assert all(row["end_ms"] - row["start_ms"] <= 2600 for row in rows(tmp_path))
    borders = [(one["end_ms"], other["start_ms"]) for one, other in itertools.pairwise(rows(tmp_path))]
    assert all(end <= start for end, start in borders)
    assert run(tmp_path, tone_student, "--yes") == 0
    assert [row["text"] for row in rows(tmp_path)] == [" ".join(spoken)]


def test_blocks_are_joined_in_their_middles(tone_student: Path) -> None:
    recognizer = Recognizer(RecognizerOptions(model=str(tone_student)))
    recognizer.load()
    samples_T, _ = recording([plain(LINES[i % 4]) for i in range(8)])
    whole_FV = emissions.log_probs(recognizer, samples_T)
    blocks_FV = emissions.log_probs(recognizer, samples_T, 4000, 1500)
    assert blocks_FV.shape == whole_FV.shape
    assert (blocks_FV.argmax(1) == whole_FV.argmax(1)).mean() > 0.97
    assert np.isfinite(blocks_FV).all()
    assert np.abs(np.exp(blocks_FV).sum(1) - 1).max() < 1e-3


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (" \n ", 3, "is empty"),
        ("xyz 17", 3, "has no token of any word"),
        ("ba du " * 500, 3, "too short for its text"),
        ("ko ko ko ko ko ko ko ko", 3, "no text of"),
    ],
)
def test_a_text_that_cannot_belong_to_the_audio_is_an_error(
    text: str, code: int, message: str, tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, ["ba du mi ba"] * 3, text)
    assert run(tmp_path, tone_student) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "talk.jsonl").exists()


def test_a_manifest_that_is_there_and_a_missing_model_are_errors(
    tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, LINES, "\n".join(LINES))
    (tmp_path / "talk.jsonl").write_text("mine")
    assert run(tmp_path, tone_student) == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "talk.jsonl").read_text() == "mine"
    with pytest.raises(ConfigError, match="no model for the alignment"):
        voxstill.align(Config(), tmp_path / "talk.wav", tmp_path / "talk.txt", tmp_path / "new.jsonl")
    whisper = write_whisper_checkpoint(tmp_path / "whisper", LINES)
    transformers.WhisperFeatureExtractor().save_pretrained(whisper)
    assert run(tmp_path, whisper, "--yes") == 2
    assert "it is not a CTC model" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["s3://bucket/talk.jsonl", "folder"])
def test_an_output_that_is_no_file_of_this_machine_is_refused_before_the_alignment(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"`{output}` is"):
        voxstill.align(Config(), "absent.wav", "absent.txt", output, model="absent", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["talk.csv", "talk.tsv", "talk.txt", "talk", "talk.jsonl.gz", "talk.parquet"])
def test_an_ending_that_index_takes_for_another_format_is_refused_before_the_alignment(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        voxstill.align(Config(), "absent.wav", "absent.txt", str(tmp_path / name), model="absent")
    assert ".jsonl or .json" in caught.value.fix


def test_audio_that_cannot_be_decoded_is_named(
    tmp_path: Path, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, LINES, "\n".join(LINES))
    (tmp_path / "talk.wav").write_text("no audio")
    assert run(tmp_path, tone_student) == 3
    assert f"`{tmp_path / 'talk.wav'}` cannot be decoded: not audio" in capsys.readouterr().err


def test_words_without_tokens_take_no_audio_from_those_that_have_it() -> None:
    """Numbers in digits at both edges of a text that is nearly as long as an utterance may be."""
    text = transcript_segments.TimedText(
        line="1 2 3 ba 4",
        begin=0,
        end=10,
        start_ms=10_000,
        end_ms=38_000,
        first=0,
        last=1,
        unaligned_before=3,
        unaligned_after=1,
    )
    [span] = transcript_segments.padded([text], 60_000, Segment(max_ms=30_000, pad_ms=100))
    assert span == (8_100, 38_100)


def test_a_model_of_letters_with_a_delimiter_aligns(tmp_path: Path) -> None:
    """Words of wav2vec 2.0 have its delimiter between them, and none behind the last."""
    vocabulary = {"b": (1,), "a": (2,)}
    [one, other] = transcript_segments.sentences(
        "ba 7 ab. b", lambda word: [vocabulary[c][0] for c in word if c in vocabulary], 9
    )
    assert (one.tokens, other.tokens) == ([1, 2, 9, 2, 1], [1])
    frames = np.arange(5)
    aligned = forced_alignment.AlignedTokens(frames, frames + 1, -0.5 * np.arange(6.0))
    words = transcript_segments.timed(one, 0, aligned, 20)
    assert [(word.text, word.start_ms, word.end_ms) for word in words] == [("ba 7", 0, 40), ("ab.", 60, 100)]
