"""Kaldi data directories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manifests import entries_in, indexed, refused, wav
from voxstill.storage.fetch import read_uri


def data_directory(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("wav_scp", "wav.scp")).write_text(text, encoding="utf-8")
    return folder


def test_a_kaldi_directory_without_segments_gives_its_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wavs").mkdir()
    for name in "abc":
        (tmp_path / f"wavs/{name}.wav").write_bytes(wav())
    scp = f"r1 {tmp_path}/wavs/a.wav\nr2 ../../wavs/b.wav\nr3 wavs/c.wav\nr4 s3://bucket/d.wav\n"
    folder = data_directory(
        tmp_path / "data/train",
        wav_scp=scp,
        text="r2 zwei  wörter\nr1 eins\nr3\n",
        utt2spk="r1 s1\nr2 s2\n",
        utt2lang="r2 de\n",
        spk2utt="s1 r1\n",
    )
    monkeypatch.chdir(tmp_path)
    one, two, three, four = entries_in(folder)
    assert [row.uri for row in (one, two, three)] == [f"{tmp_path}/wavs/{name}.wav" for name in "abc"]
    assert four.uri == "s3://bucket/d.wav"
    assert (two.id, two.text, two.info.speaker, two.info.language) == ("r2", "zwei  wörter", "s2", "de")
    assert (one.text, one.info.language, three.text, four.text, four.info.speaker) == ("eins", None, "", None, None)
    assert [row.id for row in entries_in(tmp_path / "data")] == ["r1", "r2", "r3", "r4"]


def test_segments_of_a_kaldi_directory_are_utterances_of_their_channel(tmp_path: Path) -> None:
    loud_T = (8000 * np.sin(np.arange(32_000) / 9)).astype(np.int16)
    two_TC = np.stack([loud_T, loud_T[::-1] // 2], axis=1)
    import soundfile

    soundfile.write(tmp_path / "a.wav", two_TC, 16_000)
    folder = data_directory(
        tmp_path / "d",
        wav_scp=f"rec {tmp_path}/a.wav\n",
        segments="u1 rec 0.0 0.5 A\nu2 rec 0.5 1.25 1\nu3 rec 1.5 -1\n",
        text="u1 one\nu2 two\nu3 three\n",
    )
    [row] = indexed(folder)
    assert row.recording.num_channels == 2
    assert [
        (utterance.id, utterance.text, utterance.channel, utterance.start_ms, utterance.end_ms)
        for utterance in row.utterances
    ] == [
        ("u1", "one", 0, 0, 500),
        ("u2", "two", 1, 500, 1250),
        ("u3", "three", None, 1500, 2000),
    ]


def test_a_channel_without_speech_fails_alone(tmp_path: Path) -> None:
    import soundfile

    loud_T = (8000 * np.sin(np.arange(16_000) / 9)).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", np.stack([loud_T, 0 * loud_T], axis=1), 16_000)
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav", "channel": 0}\n{"audio": "a.wav", "channel": 1}\n')
    [row] = indexed(tmp_path / "m.jsonl")
    assert row.recording.error is None
    assert [utterance.channel for utterance in row.utterances] == [0]


def test_a_command_is_never_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = data_directory(tmp_path / "d", wav_scp=f"a touch {canary} |\nb cat x.wav |\nc -\n")
    rows = indexed(folder)
    assert not canary.exists()
    assert {(row.recording.error or "").partition(":")[0] for row in rows} == {"is a command"}
    assert f"touch {canary} |" in (rows[0].recording.error or "")
    assert len({row.recording.id for row in rows}) == 3


def test_entries_of_an_ark_are_read_alone(tmp_path: Path) -> None:
    ark, scp = b"", []
    clips = [wav(300 + 50 * k, 0.1 * (k + 1)) for k in range(4)]
    for number, data in enumerate(clips):
        ark += f"utt{number} ".encode()
        scp.append(f"utt{number} wav.ark:{len(ark)}")
        ark += data
    (tmp_path / "wav.ark").write_bytes(ark)
    data_directory(tmp_path, wav_scp="\n".join([*scp, "bad wav.ark:3", "gone none.ark:8"]) + "\n")
    entries = entries_in(tmp_path)
    assert [read_uri(entry.uri) for entry in entries[:4]] == clips
    reasons = [(row.recording.error or "fine").partition(":")[0] for row in indexed(tmp_path)]
    assert reasons == ["fine"] * 4 + ["not audio", "cannot be read"]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"segments": "u1 nobody 0 1\n"}, "segments:1"),
        ({"segments": "u1 r 0 1 A B\n"}, "segments:1"),
        ({"segments": "u0 r 0 1\nu1 r 1 0.5\n"}, "segments:2"),
        ({"segments": "u1 r zero 1\n"}, "segments:1"),
        ({"segments": "u1 r 0 1 left\n"}, "segments:1"),
        ({"text": "r a\nr b\n"}, "has the key `r` twice"),
        ({"wav_scp": "r a.wav\n\nq b.wav\n"}, "wav.scp:2"),
    ],
)
def test_a_bad_line_of_a_kaldi_file_is_named(tmp_path: Path, files: dict[str, str], what: str) -> None:
    folder = data_directory(tmp_path / "d", **({"wav_scp": "r a.wav\n"} | files))
    assert what in refused(folder).what
