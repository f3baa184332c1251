"""Texts that lie apart from their audio or beside it: read where they are known, and never two texts for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import entries_in, indexed, refused, wav, write_tar
from voxstill.core.errors import DataError
from voxstill.indexing.scan import SourceFile, by_file
from voxstill.storage.store import Store


def write(root: str | Path, **files: str | bytes) -> str:
    """Write files, in whose names `__` is a slash and `_DOT_` a dot, below a folder or address."""
    store = Store(str(root))
    for key, content in files.items():
        name = key.replace("__", "/").replace("_DOT_", ".")
        store.replace(name, content if isinstance(content, bytes) else content.encode())
    return store.root


def files_in(uri: str | Path) -> dict[str, SourceFile]:
    """The files of a source, by their names."""
    return {file.entries[0].uri.rpartition("/")[2].partition("#")[0]: file for file in by_file(entries_in(uri))}


AISHELL = {
    "transcript__aishell_transcript_v0_DOT_8_DOT_txt": "BAC009S0002W0122 而 对\nBAC009S0764W0121 甚至\n",
    "wav__train__S0002__BAC009S0002W0122_DOT_wav": wav(),
    "wav__train__S0002__BAC009S0002W0123_DOT_wav": wav(400),
    "wav__test__S0764__BAC009S0764W0121_DOT_wav": wav(500),
}


@pytest.mark.parametrize("below", ["", "/wav"])
def test_the_transcript_of_aishell_is_read_with_speakers_and_splits(
    tmp_path: Path, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = write(tmp_path / "data_aishell", **AISHELL)
    entries = {name: file.entries[0] for name, file in files_in(root + below).items()}
    rows = {name: (row.id, row.text, row.info.speaker, row.implied_split) for name, row in entries.items()}
    assert rows == {
        "BAC009S0002W0122.wav": ("BAC009S0002W0122", "而 对", "S0002", "train"),
        "BAC009S0002W0123.wav": (None, None, None, "train"),
        "BAC009S0764W0121.wav": ("BAC009S0764W0121", "甚至", "S0764", "test"),
    }
    assert "has no line for 1 of its audio files" in caplog.text


def test_the_transcript_of_aishell_holds_for_the_tars_of_its_speakers(tmp_path: Path) -> None:
    root = write(tmp_path / "data_aishell", **{key: data for key, data in AISHELL.items() if "transcript" in key})
    (tmp_path / "data_aishell/wav").mkdir()
    write_tar(tmp_path / "data_aishell/wav/S0764.tar", {"./test/S0764/BAC009S0764W0121.wav": wav()})
    [entry] = entries_in(root)
    assert (entry.text, entry.info.speaker, entry.implied_split) == ("甚至", "S0764", "test")


def test_a_transcript_of_aishell_is_refused_in_a_bucket_and_as_a_list(tmp_path: Path) -> None:
    assert "AISHELL" in refused(write("memory://aishell", **AISHELL)).what
    root = write(tmp_path / "data_aishell", **AISHELL)
    assert "is not a path" in refused(f"{root}/transcript/aishell_transcript_v0.8.txt").what


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_other_texts_in_a_folder_named_transcript_are_left_alone(tmp_path: Path, place: str) -> None:
    root = tmp_path / "calls" if place == "folder" else "memory://calls"
    files = {"transcript__a_DOT_txt": "hello you\nhello there\n", "wav__a_DOT_wav": wav()}
    assert [entry.text for entry in entries_in(write(root, **files))] == [None]


@pytest.mark.parametrize("place", ["folder", "bucket"])
@pytest.mark.parametrize("below", ["", "/metadata.csv"])
def test_the_metadata_of_ljspeech_is_read_with_normalised_texts(tmp_path: Path, place: str, below: str) -> None:
    root = write(
        tmp_path / "LJSpeech-1.1" if place == "folder" else f"memory://lj-{len(below)}",
        metadata_DOT_csv='LJ001-0001|Chapter 1, "Go"|Chapter one, "Go"\nLJ001-0002|in being|\nLJ001-0003|two\n',
        **{f"wavs__LJ001-000{number}_DOT_wav": wav(300 + 50 * number) for number in (1, 2, 3)},
    )
    texts = {name: file.entries[0].text for name, file in files_in(root + below).items()}
    assert texts == {"LJ001-0001.wav": 'Chapter one, "Go"', "LJ001-0002.wav": "in being", "LJ001-0003.wav": "two"}
    write(root, metadata_DOT_csv="LJ001-0001|one|one\nLJ001-0002\n")
    assert "metadata.csv:2" in refused(root).what


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_a_csv_is_separated_as_its_first_line_is(tmp_path: Path, separator: str) -> None:
    table = f'text{separator}path{separator}start\n"hello, you; there | here"{separator}a.wav{separator}0.05\n'
    write(tmp_path, far__a_DOT_wav=wav(), set__m_DOT_csv=table.replace("a.wav", "../far/a.wav"))
    for uri in (tmp_path / "set", tmp_path / "set/m.csv"):
        [entry] = entries_in(uri)
        assert (Path(entry.uri).name, entry.text, entry.start_ms) == ("a.wav", "hello, you; there | here", 50)


@pytest.mark.parametrize("line", ["a.wav|hello", "a.wav\thello", "a.wav,hello", "a.wav hello", "ann said hello"])
def test_a_list_or_table_without_names_of_columns_is_refused_with_what_to_write(tmp_path: Path, line: str) -> None:
    write(tmp_path, a_DOT_wav=wav(), list_DOT_txt=line + "\n", table_DOT_csv=line + "\n")
    for name in ("list.txt", "table.csv"):
        error = refused(tmp_path / name)
        assert f"{name}:1" in error.what
        assert "audio,text" in error.fix


@pytest.mark.parametrize("name", ["a, b|c d.wav", "a b.tar", "gone/a b.wav", "clip one"])
def test_a_list_may_name_files_with_spaces_and_marks(tmp_path: Path, name: str) -> None:
    if name.endswith(".tar"):
        write_tar(tmp_path / name, {"x.wav": wav()})
    elif "gone" not in name:
        (tmp_path / name).write_bytes(wav())
    (tmp_path / "all.lst").write_text(f"{name}\ns3://bucket/a clip\n")
    assert [entry.uri.rpartition("/")[2].partition("#")[0] for entry in entries_in(tmp_path / "all.lst")] == [
        name.rpartition("/")[2],
        "a clip",
    ]


@pytest.mark.parametrize("place", ["folder", "tar"])
def test_an_empty_text_beside_audio_says_nothing(tmp_path: Path, place: str) -> None:
    files = {"a.wav": wav(), "a.txt": b" \n", "b.wav": wav(400), "b.lab": b"", "b.txt": b"hello"}
    if place == "tar":
        write_tar(tmp_path / "t.tar", files)
    else:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
    assert [entry.text for entry in entries_in(tmp_path)] == [None, "hello"]


@pytest.mark.parametrize("place", ["folder", "tar"])
def test_two_files_with_different_texts_beside_audio_are_a_row_with_a_reason(tmp_path: Path, place: str) -> None:
    files = {"a.wav": wav(), "a.lab": b"good morning", "a.txt": b"hello", "b.wav": wav(400)}
    files |= {"b.lab": b"hello \n", "b.txt": b"hello"}
    if place == "tar":
        write_tar(tmp_path / "t.tar", files)
    else:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
    first, second = indexed(tmp_path)
    assert (first.recording.error or "").startswith("unreadable description: ")
    assert "a.txt" in (first.recording.error or "")
    assert [row.text for row in second.utterances] == ["hello"]


def test_a_sample_that_is_appended_to_a_tar_again_is_a_row_with_a_reason(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {"a.wav": wav(), "a.txt": b"hello", "b.wav": wav(400), "b.txt": b"hello"})
    assert [file.recording.error for file in indexed(path)] == [None, None]
    write_tar(path, {"a.wav": wav(500), "a.txt": b"good morning"}, "a")
    files = indexed(path)
    assert [[row.text for row in file.utterances] for file in files] == [["hello"], ["hello"], []]
    assert "the tar has this name more than once" in (files[2].recording.error or "")
    write_tar(path, {"b.txt": b"good morning"}, "a")
    assert "1 texts are in it more than once" in (indexed(path)[3].recording.error or "")


def test_a_folder_of_a_tar_that_is_named_after_a_split_is_held_out(tmp_path: Path) -> None:
    folders = {"corpus/train/0.wav": wav(), "corpus/test-clean/1.wav": wav(400), "2.wav": wav(500)}
    write_tar(tmp_path / "corpus.tar", folders)
    for uri in (tmp_path, tmp_path / "corpus.tar"):
        assert [entry.implied_split for entry in entries_in(uri)] == [None, "test", None]
    (tmp_path / "corpus.tar").rename(tmp_path / "dev.tar")
    assert [entry.implied_split for entry in entries_in(tmp_path / "dev.tar")] == [None, "test", None]


def test_a_manifest_may_still_say_that_nothing_is_spoken(tmp_path: Path) -> None:
    write(tmp_path, a_DOT_wav=wav(), m_DOT_jsonl='{"audio": "a.wav", "text": ""}\n')
    [entry] = entries_in(tmp_path / "m.jsonl")
    assert entry.text == ""
    with pytest.raises(DataError, match="has no audio column"):
        entries_in(write(tmp_path / "other", m_DOT_csv="name,text\n") + "/m.csv")
