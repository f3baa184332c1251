"""Text in a file beside its audio is the text of that audio, in a folder and in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import entries_in, indexed, wav
from voxstill.core.config import Source
from voxstill.indexing.beside import with_descriptions
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import by_file, scan
from voxstill.storage.store import Store


def corpus(store: Store, **files: bytes) -> Store:
    """A corpus of files whose names have `_` for a dot; those of audio are empty here."""
    for name, data in files.items():
        store.replace(name.replace("_", "."), data)
    return store


def texts(entries: list[SourceEntry]) -> dict[str, str | None]:
    return {entry.uri.rpartition("/")[2]: entry.text for entry in entries}


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_file_beside_audio_describes_it(tmp_path: Path, place: str, s3: Store) -> None:
    store = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    row = json.dumps({"text": "four", "speaker": "ann", "split": "test"}).encode()
    corpus(store, a_wav=b"a", a_txt=b" one two \n", b_flac=b"b", b_lab=b"three", c_json=row, c_mp3=b"c", d_wav=b"d")
    corpus(store, x_1_wav=b"x", x_1_txt=b"five", README_txt=b"no text", e_TXT=b"0 46797 She had.", e_WAV=b"e")
    entries = entries_in(store.root)
    expected = {"a.wav": "one two", "b.flac": "three", "c.mp3": "four", "d.wav": None, "x.1.wav": "five"}
    assert texts(entries) == expected | {"e.WAV": "She had."}
    [third] = [entry for entry in entries if entry.text == "four"]
    assert (third.info.speaker, third.split) == ("ann", "test")


def test_phones_are_no_text_and_what_cannot_be_read_is_a_row_with_a_reason(tmp_path: Path) -> None:
    store = corpus(Store(str(tmp_path)), a_wav=wav(), a_lab=b"0 1250000 sil\n1250000 2000000 h\n")
    corpus(store, b_wav=wav(400), b_json=b"[1]", c_wav=wav(500), c_txt=b"\xff\xfe", d_wav=wav(600), d_txt=b"x")
    corpus(store, e_wav=wav(700), e_flac=wav(800), e_txt=b"of which?")
    (tmp_path / "f.wav").write_bytes(wav(900))
    (tmp_path / "f.txt").symlink_to("nowhere")
    rows = {Path(row.recording.uri).name: row for row in indexed(tmp_path)}
    reasons = {name: (row.recording.error or "").partition(":")[0] for name, row in rows.items()}
    assert reasons == {
        **{"a.wav": "", "b.wav": "unreadable description", "c.wav": "unreadable description", "d.wav": ""},
        **{"e.flac": "ambiguous sample", "e.wav": "ambiguous sample", "f.wav": "cannot be read"},
    }
    assert (rows["a.wav"].utterances[0].text, rows["d.wav"].utterances[0].text) == (None, "x")


def test_a_manifest_comes_first_and_lacks_nothing(tmp_path: Path) -> None:
    store = corpus(Store(str(tmp_path)), a_wav=b"a", a_txt=b"beside", b_wav=b"b", b_txt=b"beside")
    lines = [{"audio": "a.wav", "text": "manifest"}, {"audio": "b.wav", "speaker": "ann"}]
    store.replace("manifest.jsonl", "\n".join(map(json.dumps, lines)).encode())
    rows = {Path(file.entries[0].uri).name: file.entries for file in by_file(scan(Source(uri=str(tmp_path))))}
    assert [(row.text, row.info.speaker) for row in rows["a.wav"]] == [("manifest", None)]
    assert [(row.text, row.info.speaker) for row in rows["b.wav"]] == [("beside", "ann")]


def test_no_file_is_read_where_none_describes_audio() -> None:
    """Files that are nowhere: reading one would be a failure."""
    names = ["README.txt", "a.wav", "b.c.txt", "b.wav", "data.json", "z.lab"]
    files = [SourceEntry(uri=f"/nowhere/{name}") for name in names]
    assert list(with_descriptions(files)) == files
