"""WebDataset tars, whole and damaged."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from manifests import entries_in, indexed, wav, write_tar
from voxstill.audio import codec
from voxstill.storage.fetch import read_uri


def test_members_of_a_tar_are_read_alone_and_whole(tmp_path: Path) -> None:
    clips = {f"{k:04}": wav(200 + 10 * k, 0.1 + 0.01 * k) for k in range(12)}
    long = "d" * 120  # needs a header of more than one block
    members: dict[str, bytes] = {"readme.md": b"hello", "._0000.wav": b"junk"}
    for key, data in clips.items():
        members |= {f"{long}/{key}.wav": data, f"{long}/{key}.json": json.dumps({"text": key, "speaker": 3}).encode()}
    members |= {"x/0000.flac": codec.encode(np.full(4000, 99, np.int16), "flac"), "x/0000.txt": " größe \n".encode()}
    path = write_tar(tmp_path / "t.tar", members)
    entries = entries_in(path)
    assert [entry.text for entry in entries] == [*clips, "größe"]
    assert [read_uri(entry.uri) for entry in entries[:-1]] == list(clips.values())
    assert {entry.info.speaker for entry in entries[:-1]} == {"3"}
    assert len({entry.recording_id for entry in entries}) == 13
    rows = indexed(path)
    assert [row.recording.error for row in rows] == [None] * 13
    assert rows[0].recording.num_bytes == len(clips["0000"])
    assert [row.utterances[0].uri for row in rows] == [entry.uri for entry in entries]


def test_two_audio_files_of_one_sample_with_one_text_are_not_told_apart(tmp_path: Path) -> None:
    members = {"a.left.wav": wav(), "a.right.wav": wav(500), "a.json": b'{"id": "a", "text": "both"}'}
    left, right = entries_in(write_tar(tmp_path / "t.tar", members))
    assert (left.text, right.text, left.id, right.id) == ("both", "both", None, None)
    assert {entry.failure and entry.failure.kind for entry in (left, right)} == {"ambiguous sample"}


def test_a_shard_of_ours_gives_the_words_of_a_human_and_not_those_of_its_teacher(tmp_path: Path) -> None:
    facts = {"id": "u", "text": "machine", "teacher": "echo@1", "reference": None, "offset": 512}
    [one] = entries_in(write_tar(tmp_path / "a.tar", {"u.flac": wav(), "u.json": json.dumps(facts).encode()}))
    assert (one.id, one.text, one.start_ms) == ("u", None, None)
    facts["reference"] = "human"
    [two] = entries_in(write_tar(tmp_path / "b.tar", {"u.flac": wav(), "u.json": json.dumps(facts).encode()}))
    assert two.text == "human"


@pytest.mark.parametrize(("keep", "num_intact"), [(3000, 0), (7168, 1), (7400, 1), (9000, 1), (None, 3)])
def test_a_truncated_tar_gives_what_it_holds_and_an_error(tmp_path: Path, keep: int | None, num_intact: int) -> None:
    path = write_tar(tmp_path / "t.tar", {f"{k}.wav": wav(300 + k) for k in range(3)})
    path.write_bytes(path.read_bytes()[:keep])
    rows = indexed(path)
    assert sum(row.recording.error is None for row in rows) == num_intact
    reasons = [row.recording.error for row in rows if row.recording.error]
    if keep is not None and keep != 7168:  # there it ends at the end of a member, as some writers leave it
        assert any(reason.startswith("damaged tar: ") for reason in reasons)


def test_a_tar_with_a_broken_header_does_not_end_there_in_silence(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {f"{k}.wav": wav() for k in range(3)})
    data = bytearray(path.read_bytes())
    second = entries_in(path)[1]
    start = int(second.uri.rpartition("#")[2].partition("+")[0]) - 512
    data[start + 148 : start + 156] = b"99999999"  # its checksum
    path.write_bytes(data)
    rows = indexed(path)
    assert [(row.recording.error or "fine").partition(":")[0] for row in rows] == ["fine", "damaged tar"]
    write_tar(tmp_path / "none.tar", {"a.pdf": b"x"})
    [none] = indexed(tmp_path / "none.tar")
    assert (none.recording.error or "").startswith("no audio: ")


def test_samples_whose_audio_is_of_no_known_ending_are_a_row_with_a_reason(tmp_path: Path) -> None:
    members = {"1.wav": wav(), "1.txt": b"one", "2.pcm": b"x", "2.txt": b"two", "3.pcm": b"x", "3.json": b"{}"}
    path = write_tar(tmp_path / "t.tar", {**members, "README.txt": b"x", "README.md": b"x", "4.jpg": b"x"})
    assert [(entry.text, entry.failure and entry.failure.text) for entry in entries_in(path)] == [
        ("one", None),
        (None, "no audio: samples with a text have no member with the ending of an audio file, but 2 `.pcm`"),
    ]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_a_tar_are_rows_with_a_reason(tmp_path: Path, kind: bytes) -> None:
    path = write_tar(tmp_path / "t.tar", {"1.wav": wav(), "1.txt": b"one", "2.wav": wav(400)})
    with tarfile.open(path, "a") as archive:
        for name, target in (("3.wav", "1.wav"), ("4.txt", "1.txt")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            archive.addfile(link)
            if name == "4.txt":
                info = tarfile.TarInfo("4.wav")
                info.size = len(data := wav(500))
                archive.addfile(info, io.BytesIO(data))
    entries = entries_in(path)
    assert [entry.failure and entry.failure.kind for entry in entries] == [
        *(None, None, "no audio", "unreadable description")
    ]
    assert all("is a link; repack the tar" in str(entry.failure) for entry in entries[2:])
