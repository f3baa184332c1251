"""A pipe, a device, a file without end or one that is far too large is a row with a reason, or an error in words."""

from __future__ import annotations

import os
import socket
import tarfile
from pathlib import Path

import pytest

import voxstill
from manifests import entries_in, indexed, refused, wav, write_tar
from voxstill.audio import read_utterances
from voxstill.core import config
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.core.records import Utterance
from voxstill.indexing.formats import remote_file
from voxstill.pipeline.remove import read_ids
from voxstill.storage import control, fetch
from voxstill.storage.store import Store
from voxstill.text import lm, rttm, transcripts

FOUND_BY_NAME = (
    "manifest.jsonl",
    "metadata.csv",
    "data.list",
    "wav.scp",
    "transcripts.txt",
    "a-1.trans.txt",
    "x.tsv",
    "x.tar",
    "x.tar.gz",
    "x.parquet",
    "cuts.000000.jsonl.gz",
    "x.wav",
)


def make(path: Path, kind: str) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(os.path.relpath(path))  # a long path is no address
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", FOUND_BY_NAME)
def test_what_is_no_file_is_a_row_of_its_folder(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "sound.wav").write_bytes(wav())
    make(tmp_path / name, kind)
    errors = {file.recording.uri: file.recording.error for file in indexed(tmp_path)}
    assert errors == {
        str(tmp_path / "sound.wav"): None,
        str(tmp_path / name): "not read: it is a pipe, a socket or a device, not a file",
    }


@pytest.mark.parametrize("ending", ["txt", "json"])
def test_a_description_that_is_no_file_is_the_fault_of_its_audio(tmp_path: Path, ending: str) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    make(tmp_path / f"a.{ending}", "pipe")
    [file] = indexed(tmp_path)
    assert str(file.recording.error).startswith("unreadable description: ")


def test_what_is_no_file_is_refused_wherever_a_manifest_names_it(tmp_path: Path) -> None:
    make(tmp_path / "a.wav", "pipe")
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav"}\n')
    (tmp_path / "m.lst").write_text("a.wav\n/dev/zero\n")
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi/wav.scp").write_text(f"u1 {tmp_path}/a.wav\nu2 {tmp_path}/a.wav:9\nu3 /dev/zero:9\n")
    for source in ("m.jsonl", "m.lst", "kaldi"):
        assert {file.recording.error for file in indexed(tmp_path / source)} == {
            "not read: it is a pipe, a socket or a device, not a file"
        }
    make(tmp_path / "kaldi/text", "pipe")
    assert "it is a pipe" in refused(tmp_path / "kaldi").why


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv", "m.tar", "m.lst", "m.tsv"])
def test_a_source_that_is_no_file_is_an_error(tmp_path: Path, name: str) -> None:
    assert "it is a pipe" in refused(make(tmp_path / name, "pipe")).why


def test_a_file_that_became_a_pipe_has_no_audio(tmp_path: Path) -> None:
    """An error of the data, which becomes a label: one of storage would end each run in another try."""
    uri = str(make(tmp_path / "a.wav", "pipe"))
    [(_, error)] = read_utterances.samples([Utterance(id="u", recording_id="r", uri=uri, end_ms=100)])
    assert isinstance(error, DataError)


def test_what_a_command_is_told_to_read_must_be_a_file(tmp_path: Path) -> None:
    pipe = str(make(tmp_path / "pipe", "pipe"))
    readers = (read_ids, lm.read, lm.check, rttm.read, transcripts.read)
    for read in readers:
        with pytest.raises((DataError, StorageError)) as caught:
            read(pipe)
        assert "it is a pipe" in caught.value.why


def test_a_pipe_that_a_shell_has_opened_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"u1 yes\n")
    os.close(writing)
    try:
        assert [segment.text for segment in transcripts.read(f"/dev/fd/{reading}", "kaldi")] == ["yes"]
    finally:
        os.close(reading)


def test_a_file_that_is_too_large_is_a_row(tmp_path: Path) -> None:
    """Its bytes are holes, so nothing lies on the disk; read whole it would fill any memory."""
    (tmp_path / "a.wav").write_bytes(wav())
    with (tmp_path / "b.wav").open("wb") as file:
        file.truncate(100 << 30)
    (tmp_path / "m.jsonl").write_text(
        f'{{"audio": "b.wav"}}\n{{"audio": "a.wav"}}\n{{"audio": "b.wav#9+{90 << 30}"}}\n'
    )
    why = f"and at most {fetch.MAX_BYTES / 1e6:,.0f} MB are read"
    assert [file.recording.error for file in indexed(tmp_path / "m.jsonl")] == [
        f"not read: it has 107,374 MB, {why}",
        None,
        f"not read: it has 96,637 MB, {why}",
    ]
    for read in (lm.read, rttm.read, transcripts.read, read_ids):
        with pytest.raises(DataError) as caught:
            read(str(tmp_path / "b.wav"))
        assert why in caught.value.why
    with pytest.raises(ConfigError) as refused_config:
        config.load(str(tmp_path / "b.wav"))
    assert "longer than" in refused_config.value.why


def test_a_range_that_says_more_than_there_is_takes_no_memory_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    data = fetch.fetch(f"{tmp_path}/a.wav#4+{1 << 60}").data
    assert data == wav()[4:]


def test_a_file_that_the_kernel_makes_up_is_not_waited_for() -> None:
    assert fetch.fetch("/proc/self/stat").data == b""


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("m.jsonl", b'{"audio": "'),
        ("m.csv", b"audio,text\n"),
        ("m.tsv", b"audio\ttext\n"),
        ("m.lst", b"/a"),
        ("m.json", b'[{"audio": "'),
        ("transcripts.txt", b"1_2_3\t"),
        ("1-2.trans.txt", b"1-2-3 "),
    ],
)
def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, head: bytes) -> None:
    monkeypatch.setattr(remote_file, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("voxstill.indexing.formats.tables.MAX_LINE_BYTES", 1 << 20)
    (tmp_path / name).write_bytes(head)
    os.truncate(tmp_path / name, 20 << 30)  # zeros without a line break
    error = refused(tmp_path / name)
    assert name in error.what
    assert "longer than 1 MiB" in error.why or "not JSON" in error.why


def test_a_line_without_end_in_a_table_of_kaldi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "wav.scp").write_text("u1 a.wav\n")
    (tmp_path / "text").write_bytes(b"u1 yes")
    os.truncate(tmp_path / "text", 20 << 30)
    assert "longer than 1 MiB" in refused(tmp_path).why


def test_notes_in_a_work_folder_are_files_of_a_size_that_they_have(tmp_path: Path) -> None:
    work = Store(str(tmp_path))
    (tmp_path / control.REQUEST).write_bytes(b"{")
    os.truncate(tmp_path / control.REQUEST, 20 << 30)
    with pytest.raises(DataError) as caught:
        control.requested(work)
    assert "at most" in caught.value.why
    (tmp_path / control.REQUEST).unlink()
    make(tmp_path / control.REQUEST, "pipe")
    with pytest.raises(StorageError) as unread:
        control.requested(work)
    assert "it is a pipe" in unread.value.why


def test_the_index_goes_on_without_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / f"in/{number}.wav").write_bytes(wav(300 + 50 * number))
    make(tmp_path / "in/a.wav", "pipe")
    cfg = voxstill.load_config(
        None, f"work={tmp_path}/work", f"source.uri={tmp_path}/in", "engine={name: inline, workers: 1}"
    )
    figures = voxstill.index(cfg)
    assert (figures.recordings, figures.reasons) == (6, {"not read": 1})


def test_a_device_in_a_tar_is_no_audio(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a.wav": wav()})
    with tarfile.open(path, "a") as archive:
        for number, kind in enumerate((tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE, tarfile.SYMTYPE)):
            member = tarfile.TarInfo(f"b{number}.wav")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert [entry.failure is None for entry in entries_in(path)] == [True, False]  # of the link there is a row
