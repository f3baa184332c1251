"""diarize: turns of plain files in three forms, scored by `voxstill score`, and speakers of an index."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxstill
from diarization_models import command_of_halves
from tones import speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.records import Utterance
from voxstill.indexing.recipe import utterances_recipe
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.index import index
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.text import rttm


def write(path: Path, seconds: float, pitch_hz: int = 300) -> Path:
    time_T = np.arange(int(seconds * 16_000)) / 16_000
    path.write_bytes(codec.encode((9000 * np.sin(2 * np.pi * pitch_hz * time_T)).astype(np.int16), "wav"))
    return path


@pytest.fixture
def engine(tmp_path: Path) -> str:
    """Overrides that name a program which gives each half of a recording to a speaker."""
    return command_of_halves(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_json_has_turns_and_speakers(tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    talk, word = write(tmp_path / "talk one.wav", 4), write(tmp_path / "word.wav", 0.5)
    code, out, err = run(capsys, "diarize", str(talk), str(word), "--set", engine, "--json")
    result = json.loads(out)
    assert code == 3
    assert "too short for this program" in err
    assert result["speakers"] == 2
    assert result["turns"] == [
        {"audio": str(talk), "start_ms": 0, "end_ms": 2_000, "speaker": "talk one/1", "overlap": False},
        {"audio": str(talk), "start_ms": 2_000, "end_ms": 4_000, "speaker": "talk one/2", "overlap": False},
    ]
    assert [(row["duration_ms"], row["speakers"], row["turns"]) for row in result["recordings"]] == [
        (4_000, 2, 2),
        (500, 0, 0),
    ]
    assert "doubtful speakers" in result["recordings"][0]["warning"]
    assert result["recordings"][1]["error"].startswith("diarization has failed")


def test_rttm_is_scored_by_score_speakers(tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    talk = write(tmp_path / "talk.wav", 4)
    (tmp_path / "ref.rttm").write_text(
        "SPEAKER talk 1 0.0 2.5 <NA> <NA> ann <NA> <NA>\nSPEAKER talk 1 2.5 1.5 <NA> <NA> bob <NA> <NA>\n"
    )
    code, out, _ = run(capsys, "diarize", str(talk), "--set", engine)
    assert code == 0
    (tmp_path / "hyp.rttm").write_text(out)
    assert [event.speaker for event in rttm.read(str(tmp_path / "hyp.rttm"))] == ["talk/1", "talk/2"]
    scores = json.loads(
        run(capsys, "score", "speakers", str(tmp_path / "ref.rttm"), str(tmp_path / "hyp.rttm"), "--json")[1]
    )
    assert scores["der"] == pytest.approx(0.125)
    assert scores["confused_ms"] == 500


def test_subtitles_and_lines_of_json_name_the_speakers(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = write(tmp_path / "talk.wav", 4)
    _, srt, _ = run(capsys, "diarize", str(talk), "--set", engine, "--format", "srt")
    assert srt.splitlines()[:3] == ["1", "00:00:00,000 --> 00:00:02,000", "talk/1"]
    _, lines, _ = run(capsys, "diarize", str(talk), "--set", engine, "--format", "json")
    assert [json.loads(line)["speaker"] for line in lines.splitlines()] == ["talk/1", "talk/2"]


def test_python_has_the_same_result(tmp_path: Path, engine: str) -> None:
    result = voxstill.diarize([write(tmp_path / "talk.wav", 4)], voxstill.load_config(None, engine))
    assert result.speakers == 2
    assert type(result).from_dict(json.loads(json.dumps(result.to_dict()))) == result
    with pytest.raises(ConfigError, match="unknown format"):
        result.render("text")  # type: ignore[arg-type]


def test_recordings_that_are_decoded_ahead_have_the_turns_of_each_alone(tmp_path: Path, engine: str) -> None:
    paths = [write(tmp_path / f"talk{i}.wav", 2 + i, 300 + 50 * i) for i in range(4)]
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    paths[2:2] = [tmp_path / "broken.wav", tmp_path / "missing.wav"]
    cfg = voxstill.load_config(None, engine)
    together, alone = voxstill.diarize(paths, cfg), [voxstill.diarize(path, cfg) for path in paths]
    assert together.recordings == [result.recordings[0] for result in alone]
    assert together.turns == [turn for result in alone for turn in result.turns]
    assert [row.error is None for row in together.recordings] == [True, True, False, False, True, True]


def indexed(folder: Path, *overrides: str) -> Any:
    """Index the recordings in a folder, with each worker in this process."""
    return index(config.load(None, [f"work={folder}/work", f"source.uri={folder}/audio", "engine=inline", *overrides]))


def rows(folder: Path, name: str, kind: type[Any], recipe: str) -> Sequence[Any]:
    return list(tables.read(Store(f"{folder}/work"), f"{name}/{recipe}", kind))


def test_an_index_has_speakers_of_each_recording_and_the_reason_where_there_are_none(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audio").mkdir()
    for i in range(3):
        write(tmp_path / f"audio/talk{i}.wav", 40, 300 + 100 * i)
    write(tmp_path / "audio/word.wav", 0.5, 900)
    figures = indexed(tmp_path, engine, "segment.vad=never")
    utterances = rows(tmp_path, "utterances", Utterance, figures.recipe)
    recordings = {row.id: row for row in rows(tmp_path, "recordings", IndexRow, figures.recipe)}
    assert figures.damaged == 0
    assert figures.speaker_doubts == {"diarization has failed": 1}
    assert "diarization is not sure of recordings or channels" in caplog.text
    for recording in recordings.values():
        own = [row for row in utterances if row.recording_id == recording.id]
        assert len({row.split for row in own}) == 1
        if recording.uri.endswith("word.wav"):
            assert [row.info.speaker for row in own] == [None]
            assert "too short for this program" in recording.speaker_doubts[0]
        else:
            assert {row.info.speaker for row in own} == {f"{recording.id}/1", f"{recording.id}/2"}
            assert all(row.end_ms <= 20_000 for row in own if row.info.speaker == f"{recording.id}/1")
    again = indexed(tmp_path, engine, "segment.vad=never")
    assert again == figures


def test_off_is_as_if_there_was_no_diarization(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    write(tmp_path / "audio/talk.wav", 4)
    plain, off = indexed(tmp_path), indexed(tmp_path, "diarize.name=null")
    assert plain == off
    assert plain.speaker_doubts is None


def test_an_engine_that_is_not_there_ends_the_index_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    write(tmp_path / "audio/talk.wav", 4)
    with pytest.raises(ConfigError, match="cannot be run"):
        indexed(tmp_path, f"diarize={{name: command, command: ['{tmp_path}/none']}}")
    assert not (tmp_path / "work/utterances").exists()


def test_diarised_labels_are_judged_by_who_said_what(
    tmp_path: Path, engine: str, tone_student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: index with diarization, a teacher, STM, and cpWER against a human's STM."""
    (tmp_path / "audio").mkdir()
    first_T, second_T = (speak(text)[0] for text in ("ba du ko", "mi ba"))
    second_T = np.concatenate([second_T, speak("")[0]])[: len(first_T)]
    second_T = np.pad(second_T, (0, len(first_T) - len(second_T)))
    (tmp_path / "audio/talk one.wav").write_bytes(codec.encode(np.concatenate([first_T, second_T]), "wav"))
    cfg = config.load(
        None,
        [
            *(f"work={tmp_path}/work", f"source.uri={tmp_path}/audio", "engine=inline", engine),
            f"teacher={{name: student, checkpoint: '{tone_student}'}}",
        ],
    )
    assert voxstill.index(cfg).utterances == 2
    voxstill.label(cfg)
    voxstill.export_labels(cfg, tmp_path / "labels.stm", "stm")
    assert (tmp_path / "labels.stm").read_text().splitlines() == [
        f"talk_one 1 {speaker_of(tmp_path, cfg, 0)} 0.000 1.200 ba du ko",
        f"talk_one 1 {speaker_of(tmp_path, cfg, 1)} 1.200 2.400 mi ba",
    ]
    (tmp_path / "ref.stm").write_text("talk_one 1 ann 0.0 1.2 ba du ko\ntalk_one 1 bob 1.2 2.4 mi du\n")
    paths = str(tmp_path / "ref.stm"), str(tmp_path / "labels.stm")
    scores = json.loads(run(capsys, "score", "meeting", *paths, "--json")[1])
    assert scores["cpwer"] == pytest.approx(1 / 5)
    assert scores["sessions"][0]["speakers"] == [2, 2]
    assert set(scores["sessions"][0]["mapping"].values()) == {"ann", "bob"}


def speaker_of(folder: Path, cfg: Config, row: int) -> str | None:
    utterances = rows(folder, "utterances", Utterance, utterances_recipe(cfg))
    return sorted(utterances, key=lambda utterance: utterance.start_ms)[row].info.speaker


def test_recordings_of_one_name_have_sessions_of_their_own(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name in ("a/talk.wav", "b/talk.wav", "a b.wav", "a_b.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        paths.append(str(write(tmp_path / name, 2)))
    code, out, _ = run(capsys, "diarize", *paths, "--set", engine)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[1] for line in lines] == [name for name in ("talk", "talk-2", "a_b", "a_b-2") for _ in range(2)]
    assert all(line[7].startswith(f"{line[1]}/") for line in lines)
    assert run(capsys, "diarize", *paths, "--format", "srt", "--set", engine)[0] == 2


def test_a_name_that_has_a_number_is_that_of_its_file(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/talk.wav", "b/talk.wav", "c/talk-2.wav"):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / name, 2)
    paths = [str(tmp_path / name) for name in ("a/talk.wav", "b/talk.wav", "c/talk-2.wav", "a/talk.wav")]
    _, out, _ = run(capsys, "diarize", *paths, "--set", engine)
    assert [line.split()[1] for line in out.splitlines()] == [
        name for name in ("talk", "talk-3", "talk-2") for _ in range(2)
    ]


def test_turns_lie_within_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "wild.py"
    program.write_text(
        """for start, length in ((-5, 6), (1, 1000), (50, 2), (1, 1e300)):
    print(f"SPEAKER x 1 {start} {length} <NA> <NA> S{start} <NA> <NA>")
"""
    )
    engine = f"diarize={{name: command, command: ['{sys.executable}', '{program}']}}"
    code, out, _ = run(capsys, "diarize", str(write(tmp_path / "talk.wav", 3)), "--format", "json", "--set", engine)
    assert code == 0
    turns = [json.loads(line) for line in out.splitlines()]
    assert [(turn["start_ms"], turn["end_ms"], turn["speaker"]) for turn in turns] == [
        (0, 1000, "talk/1"),
        (1000, 3000, "talk/2"),
    ]


@pytest.mark.parametrize("output", ["b'\\xff\\xfe'", "b'SPEAKER x 1 nan 1 <NA> <NA> A <NA> <NA>'", "b'SPEAKER x'"])
def test_what_a_program_writes_wrongly_is_named_the_same_each_time(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "garbage.py"
    program.write_text(f"import sys; sys.stdout.buffer.write({output})")
    engine = f"diarize={{name: command, command: ['{sys.executable}', '{program}']}}"
    audio = str(write(tmp_path / "talk.wav", 3))
    first, second = (run(capsys, "diarize", audio, "--json", "--set", engine) for _ in range(2))
    assert first[0] == 3
    assert first[1] == second[1]
    assert "turns.rttm" not in first[1]
