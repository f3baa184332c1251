"""Transcripts that lie apart from their audio: MLS and fairseq."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import entries_in, refused, wav
from voxstill.indexing.scan import by_file
from voxstill.storage.store import Store


def fairseq(folder: Path, **texts: str) -> Path:
    """A list of two clips with texts by their ending."""
    (folder / "clips").mkdir(parents=True)
    for number in (1, 2):
        (folder / f"clips/{number}.wav").write_bytes(wav(300 * number))
    (folder / "valid.tsv").write_text(f"{folder}/clips\n1.wav\t3200\n2.wav\t3200\n")
    for ending, text in texts.items():
        (folder / f"valid.{ending}").write_text(text)
    return folder / "valid.tsv"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, [None, None]),
        ({"wrd": "HELLO WORLD\nGOOD MORNING\n", "ltr": "x\nx\n"}, ["HELLO WORLD", "GOOD MORNING"]),
        ({"ltr": "H E L L O | W O R L D |\n|\n"}, ["HELLO WORLD", ""]),
    ],
)
def test_a_list_of_fairseq_has_the_texts_beside_it(
    tmp_path: Path, texts: dict[str, str], expected: list[str | None]
) -> None:
    path = fairseq(tmp_path / "f", **texts)
    rows = entries_in(path)
    assert [(Path(row.uri).name, row.text, row.implied_split) for row in rows] == [
        ("1.wav", expected[0], "dev"),
        ("2.wav", expected[1], "dev"),
    ]
    assert [row.uri for row in entries_in(path.parent) if row.text is not None or not texts] != []
    assert all(Path(row.uri).suffix == ".wav" for row in entries_in(path.parent))


@pytest.mark.parametrize(("words", "line"), [("one\n", 3), ("one\ntwo\nthree\n", 4)])
def test_texts_that_do_not_fit_a_list_are_refused(tmp_path: Path, words: str, line: int) -> None:
    error = refused(fairseq(tmp_path / "f", wrd=words))
    assert f"valid.tsv:{line}" in error.what


def test_a_list_of_fairseq_in_a_bucket_needs_addresses(tmp_path: Path) -> None:
    store = Store("memory://fairseq")
    store.replace("valid.tsv", b"/home/clips\n1.wav\t3200\n")
    assert "write its path on this one there" in refused("memory://fairseq/valid.tsv").why
    store.replace("valid.tsv", b"memory://fairseq/clips\n1.wav\t3200\n")
    store.replace("valid.wrd", b"hello\n")
    assert [(row.uri, row.text) for row in entries_in("memory://fairseq/valid.tsv")] == [
        ("memory://fairseq/clips/1.wav", "hello")
    ]


def test_mls_has_its_speakers_here_and_in_a_bucket(tmp_path: Path) -> None:
    store = Store("memory://mls")
    for root, put in ((str(tmp_path), Store(str(tmp_path)).replace), ("memory://mls", store.replace)):
        put("dev/transcripts.txt", b"10_20_000000\thello world\n")
        put("dev/audio/10/20/10_20_000000.flac", wav())
        for uri in (root, f"{root}/dev/transcripts.txt"):
            [[row]] = [file.entries for file in by_file(entries_in(uri))]
            path = f"{root}/dev/audio/10/20/10_20_000000.flac"
            assert (row.text, row.info.speaker, row.uri) == ("hello world", "10", path)
    (tmp_path / "dev/transcripts.txt").write_text("10_20_000000\tx\nno line of MLS\n")
    assert "transcripts.txt:2" in refused(tmp_path).what
    (tmp_path / "dev/transcripts.txt").write_text("notes\n")
    assert [row.text for row in entries_in(tmp_path)] == [None]
