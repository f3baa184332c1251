"""Layouts of data sets are read as they lie, or refused in words: never misread."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, indexed, refused, wav, write_tar
from voxstill.core.config import Segment, Source
from voxstill.core.errors import DataError
from voxstill.indexing.formats import tables
from voxstill.indexing.scan import by_file, scan
from voxstill.indexing.segment import index
from voxstill.storage.store import Store

PAGE = Path(__file__).parents[2] / "docs/sources.md"
LAYOUTS = re.findall(r"^```layout\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def tree(folder: Path, **files: str | bytes) -> Path:
    """A folder with files; in their names `__` is a slash and `_DOT_` a dot."""
    for key, content in files.items():
        path = folder / key.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def facts(uri: Path | str) -> dict[str, str | None]:
    """The text of each file of a source, by the name of the file; all of them are sound."""
    work = Store(f"{uri}-work")
    files = list(by_file(scan(Source(uri=str(uri)), work)))
    assert all(index(file, Segment(), Source(), 0).recording.error is None for file in files)
    assert all(len(file.entries) == 1 for file in files)
    return {file.entries[0].uri.rpartition("/")[2]: file.entries[0].text for file in files}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# ------------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_of_the_page_is_read_with_its_texts(tmp_path: Path, layout: str) -> None:
    """`path  content` a line; what has no content is audio; a folder is named by its first part."""
    source = tmp_path / layout.split("/", 1)[0]
    num_audio = 0
    for line in layout.splitlines():
        name, _, content = line.partition("  ")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content:
            text = content.strip().replace("→", "\t").replace(" ⏎ ", "\n") + "\n"
            path.write_text(text, encoding="utf-8")
            if name.endswith(".parquet"):
                num_audio += parquet_of(path, num_audio)
        else:
            path.write_bytes(wav(300 + 20 * num_audio))
            num_audio += 1
    texts = facts(source)
    assert len(texts) == num_audio > 0
    assert set(texts.values()) <= {"hello world", "good morning"} | ({None} if "ann.wav" in layout else set())


def parquet_of(path: Path, first: int) -> int:
    """Turn a table whose first column is `audio` into Parquet with audio inside; returns its number of rows."""
    header, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    names = columns.pop("audio")
    audio = [{"path": name, "bytes": wav(300 + 20 * (first + row))} for row, name in enumerate(names)]
    pq.write_table(pa.table({"audio": audio, **columns}), path)
    return len(rows)


def test_the_page_shows_layouts() -> None:
    assert len(LAYOUTS) >= 6


# ------------------------------------------------------------------------------------------------- tables


def test_a_table_with_tabs_is_a_manifest_where_quotation_marks_are_text(tmp_path: Path) -> None:
    tree(tmp_path, a_DOT_wav=wav(), b_DOT_wav=wav(400), m_DOT_tsv='path\ttext\na.wav\t"so" he\nb.wav\t\n')
    assert facts(tmp_path / "m.tsv") == {"a.wav": '"so" he', "b.wav": None}
    tree(tmp_path, bad_DOT_tsv="path\ttext\na.wav\tx\ty\n")
    assert "bad.tsv:2" in refused(tmp_path / "bad.tsv").what


def common_voice(folder: Path) -> Path:
    header = "client_id\tpath\tsentence\tlocale\n"
    files: dict[str, str | bytes] = {}
    for number, name in enumerate(["train", "dev", "test", "other"]):
        files[f"{name}_DOT_tsv"] = f"{header}c{number}\t{name}.wav\tsentence {name}\ten\n"
        files[f"clips__{name}_DOT_wav"] = wav(300 + 20 * number)
    return tree(folder, **files)


def test_common_voice_is_read_with_its_splits_its_speakers_and_its_texts(tmp_path: Path) -> None:
    folder = common_voice(tmp_path / "cv/en")
    for source in (folder, folder.parent):
        entries = entries_in(source)
        assert [(row.text, row.implied_split, row.info.speaker) for row in entries] == [
            ("sentence train", "train", "c0"),
            ("sentence dev", "dev", "c1"),
            ("sentence test", "test", "c2"),
        ]
        assert all(row.etag for row in entries)
    [row] = entries_in(folder / "other.tsv")
    assert (row.implied_split, row.info.language) == (None, "en")
    assert row.uri == str(folder / "clips/other.wav")


def test_common_voice_and_kaldi_are_refused_in_a_bucket(tmp_path: Path) -> None:
    store = Store("memory://layouts-refused")
    folder = common_voice(tmp_path)
    for path in folder.rglob("*.*"):
        store.replace(f"cv/{path.relative_to(folder)}", path.read_bytes())
    store.replace("kaldi/train/wav.scp", b"r a.wav\n")
    assert "Common Voice" in refused("memory://layouts-refused/cv").what
    assert [row.text for row in entries_in("memory://layouts-refused/cv/dev.tsv")] == ["sentence dev"]
    assert "Kaldi" in refused("memory://layouts-refused/kaldi").what


@pytest.mark.parametrize("name", ["data.list", "rows.jsonl"])
def test_rows_of_wenet_have_their_keys_as_ids(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"key": f"k{n}", "wav": path, "txt": "hello"} for n, path in enumerate(["a.wav", "elsewhere/b.wav"])]
    tree(tmp_path, set__a_DOT_wav=wav(), elsewhere__b_DOT_wav=wav(400))
    (tmp_path / "set" / name).write_text(lines(*rows))
    monkeypatch.chdir(tmp_path)
    files = indexed(tmp_path / "set" / name)
    assert [row.utterances[0].id for row in files] == ["k0", "k1"]
    assert [row.utterances[0].text for row in files] == ["hello"] * 2


def test_a_key_is_not_in_the_metadata_so_that_tables_made_without_it_stay(tmp_path: Path) -> None:
    tree(tmp_path, a_DOT_wav=wav(), m_DOT_jsonl=lines({"key": "k", "wav": "a.wav", "txt": "x"}))
    tree(tmp_path, n_DOT_jsonl=lines({"wav": "a.wav", "txt": "x"}))
    [with_key], [without] = (list(by_file(scan(Source(uri=str(tmp_path / name))))) for name in ("m.jsonl", "n.jsonl"))
    assert with_key.metadata_hash == without.metadata_hash


@pytest.mark.parametrize("name", ["data.list", "all.txt", "all.lst"])
def test_a_list_of_tars_means_what_they_hold(tmp_path: Path, name: str) -> None:
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", {f"{number}.wav": wav(300 + 50 * number), f"{number}.txt": b"hello"})
    (tmp_path / name).write_text(f"0.tar\n{tmp_path}/1.tar\n")
    assert [row.text for row in entries_in(tmp_path / name)] == ["hello"] * 2
    assert [row.recording.error for row in indexed(tmp_path / name)] == [None] * 2


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("part_bytes", [7, 1 << 20])
def test_a_json_array_is_a_manifest(
    tmp_path: Path, indent: int | None, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_JSON_PART", part_bytes)
    rows = [{"audio": f"{n}.wav", "text": f"größe [{n}], {{}}"} for n in range(30)]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert [row.text for row in entries_in(path)] == [row["text"] for row in rows]
    path.write_text(lines(*rows))
    assert [row.text for row in entries_in(path)] == [row["text"] for row in rows]


@pytest.mark.parametrize("text", ['[{"audio": "a.wav"}, {"aud', '[{"audio": "a.wav"}, 3]', '[{"audio": "a.wav"}, {]'])
def test_a_broken_json_array_is_refused_with_its_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    assert "m.json:2" in refused(tmp_path / "m.json").what


# ------------------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("name", ["manifest.jsonl", "manifest.csv", "manifest.tsv", "manifest.json"])
def test_a_manifest_in_a_folder_describes_its_files(tmp_path: Path, name: str) -> None:
    tree(tmp_path, a_DOT_wav=wav(), deep__b_DOT_wav=wav(400), c_DOT_wav=wav(500))
    rows = [{"audio": "a.wav", "text": "one"}, {"audio": "deep/b.wav", "text": "two"}]
    separator = "\t" if name.endswith("tsv") else ","
    separated = "".join(separator.join(row) + "\n" for row in (rows[0].keys(), *(row.values() for row in rows)))
    text = {"json": json.dumps(rows), "jsonl": lines(*rows)}.get(name.rpartition(".")[2], separated)
    (tmp_path / name).write_text(text)
    assert facts(tmp_path) == {"a.wav": "one", "b.wav": "two", "c.wav": None}


def test_the_only_manifest_of_a_folder_without_audio_is_read_and_of_several_none(tmp_path: Path) -> None:
    tree(tmp_path, far__a_DOT_wav=wav(), set__mine_DOT_jsonl=lines({"audio": "../far/a.wav", "text": "x"}))
    tree(tmp_path, set__README_DOT_md="see mine.jsonl")
    assert facts(tmp_path / "set") == {"a.wav": "x"}
    tree(tmp_path, set__more_DOT_csv="audio,text\n../far/a.wav,y\n")
    assert "several manifests" in refused(tmp_path / "set").what


def test_a_manifest_that_a_folder_is_read_without_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree(tmp_path, a_DOT_wav=wav(), mine_DOT_jsonl=lines({"audio": "a.wav", "text": "x"}), settings_DOT_json='{"x": 1}')
    with caplog.at_level(logging.WARNING):
        assert facts(tmp_path) == {"a.wav": None}
    assert "mine.jsonl" in caplog.text
    assert "settings.json" not in caplog.text


def test_transcripts_of_librispeech_are_read_with_their_speakers(tmp_path: Path) -> None:
    folder = tree(
        tmp_path / "dev-clean/84/121123",
        **{
            "84-121123-0000_DOT_flac": wav(),
            "84-121123-0001_DOT_flac": wav(400),
            "84-121123_DOT_trans_DOT_txt": "84-121123-0000 GO\n84-121123-0001 DO YOU\n",
        },
    )
    expected = {"84-121123-0000.flac": "GO", "84-121123-0001.flac": "DO YOU"}
    assert facts(tmp_path) == facts(folder / "84-121123.trans.txt") == expected
    assert [row.info.speaker for row in entries_in(tmp_path) if row.id] == ["84", "84"]
    store = Store("memory://libri")
    for path in folder.iterdir():
        store.replace(path.name, path.read_bytes())
    assert facts("memory://libri") == expected


def test_a_transcript_of_another_kind_is_no_list_of_libri_speech(tmp_path: Path) -> None:
    tree(tmp_path, talk_DOT_wav=wav(), talk_DOT_trans_DOT_txt="what we spoke of\n")
    assert facts(tmp_path) == {"talk.wav": None}


def test_links_to_folders_are_followed_once_and_without_loops(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", real__a_DOT_wav=wav(), b_DOT_wav=wav(400))
    tree(tmp_path / "far", c_DOT_wav=wav(500), deep__d_DOT_wav=wav(600))
    (source / "link").symlink_to(tmp_path / "far")
    (source / "again").symlink_to(tmp_path / "far")
    (source / "0-same").symlink_to(source / "real")
    (source / "real/up").symlink_to(tmp_path)  # holds the source itself
    (tmp_path / "far/deep/loop").symlink_to(tmp_path / "far")
    names = [row.uri.rpartition("/")[2] for row in entries_in(source)]
    assert sorted(names) == ["a.wav", "b.wav", "c.wav", "d.wav"]
    assert entries_in(source)[1].uri == str(source / "real/a.wav")


def test_a_linked_folder_that_is_named_after_a_split_is_that_split(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", train__a_DOT_wav=wav())
    tree(tmp_path / "far", b_DOT_wav=wav(400))
    (source / "test").symlink_to(tmp_path / "far")
    assert [row.implied_split for row in entries_in(source)] == ["train", "test"]


def test_an_empty_source_is_an_error(tmp_path: Path) -> None:
    for source in (tree(tmp_path / "none"), tree(tmp_path / "notes", a_DOT_txt="hello")):
        source.mkdir(exist_ok=True)
        assert "no audio" in refused(source).what
    tree(tmp_path, a_DOT_wav=wav())
    assert len(list(scan(Source(uri=[str(tmp_path / "none"), str(tmp_path / "a.wav")])))) == 1
    tree(tmp_path, m_DOT_jsonl="", n_DOT_csv="audio,text\n", o_DOT_json="[]")
    for name in ("m.jsonl", "n.csv", "o.json"):
        assert name in refused(tmp_path / name).what


def test_parquet_with_audio_inside_is_a_row_with_a_reason_in_a_folder_too(tmp_path: Path) -> None:
    table = pa.table({"audio": [{"bytes": wav(), "path": "a.wav"}], "text": ["x"]})
    tree(tmp_path, data__b_DOT_wav=wav())  # where there is no work folder to unpack it into
    for name in ("data/train-00000-of-00001.parquet", "data/metadata.parquet", "data/manifest.parquet"):
        pq.write_table(table, tmp_path / name)
        assert "contains the audio itself" in refused(tmp_path / name).what
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data/facts.parquet")
    (tmp_path / "data/broken.parquet").write_bytes(b"PAR1")
    reasons = [(row.recording.error or "fine").partition(":")[0] for row in indexed(tmp_path)]
    assert sorted(reasons) == ["audio inside Parquet"] * 3 + ["fine"]


def test_a_kaldi_directory_may_be_named_by_its_list(tmp_path: Path) -> None:
    tree(tmp_path, wav_DOT_scp=f"r {tmp_path}/a.wav\n", text="r hello\n", a_DOT_wav=wav())
    assert facts(tmp_path / "wav.scp") == {"a.wav": "hello"}


# ------------------------------------------------------------------------------------------------- tars


@pytest.mark.parametrize("ending", ["text", "lab", "transcript", "txt"])
def test_members_of_a_tar_that_hold_text_are_its_text(tmp_path: Path, ending: str) -> None:
    path = write_tar(tmp_path / "t.tar", {"a.audio": wav(), f"a.{ending}": b"hello\n"})
    assert [row.text for row in entries_in(path)] == ["hello"]
    assert [row.recording.error for row in indexed(path)] == [None]


def test_labels_of_phones_are_no_text(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {"a.wav": wav(), "a.lab": b"0 1250000 sil\n1250000 2000000 h\n"})
    assert [row.text for row in entries_in(path)] == [None]


@pytest.mark.parametrize(
    "description", [b"[1]", b'{"text": ', b"\xff\xfe", b'{"text": 3}', b'{"split": "fold3"}', b"[" * 100_000]
)
def test_a_description_that_cannot_be_read_costs_only_its_sample(tmp_path: Path, description: bytes) -> None:
    members = {"a.wav": wav(), "a.json": description, "b.wav": wav(400), "b.json": b'{"text": "hello"}'}
    first, second = indexed(write_tar(tmp_path / "t.tar", members))
    assert (first.recording.error or "").startswith("unreadable description: ")
    assert "t.tar:a.json" in (first.recording.error or "")
    assert second.utterances[0].text == "hello"


def test_two_audio_members_that_share_a_text_are_rows_with_a_reason(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {"a.flac": wav(), "a.wav": wav(400), "a.txt": b"hello", "b.wav": wav(500)})
    reasons = [(row.recording.error or "fine").partition(":")[0] for row in indexed(path)]
    assert reasons == ["ambiguous sample"] * 2 + ["fine"]


def test_texts_that_lie_apart_from_their_audio_are_a_row_with_a_reason(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "t.tar", {"a.wav": wav(), "b.wav": wav(400), "b.txt": b"x", "a.txt": b"y", "c.txt": b"z"}
    )
    reasons = [(row.recording.error or "fine") for row in indexed(path)]
    assert reasons[:2] == ["fine"] * 2
    assert reasons[2].startswith("descriptions apart from their audio: 1 samples")


def test_equal_ids_in_tars_are_told_apart_and_others_stay(tmp_path: Path) -> None:
    for folder, name in (("x", "a"), ("y", "a"), ("y", "b")):
        (tmp_path / folder).mkdir(exist_ok=True)
        number = 300 + 20 * len(list(tmp_path.rglob("*.tar")))
        members = {"k.wav": wav(number), "k.json": b'{"id": "one"}'}
        write_tar(tmp_path / folder / f"{name}.tar", members | {f"own.{number}.wav": wav(number + 5)})
    write_tar(tmp_path / "z.tar", {"k.wav": wav(600), "k.json": b'{"id": "two"}'})
    ids = [row.utterances[0].id for row in indexed(tmp_path)]
    assert len(set(ids)) == len(ids) == 7
    assert "two" in ids
    assert "one" not in ids
    assert sum(bool(re.match(r"[ab]-k-", id_)) for id_ in ids) == 3


def test_an_id_of_a_manifest_stays_where_a_tar_has_it_too_and_two_manifests_may_not_share_one(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "t.tar", {"k.wav": wav(), "k.json": b'{"id": "one"}'})
    tree(tmp_path, a_DOT_wav=wav(400), m_DOT_jsonl=lines({"audio": "a.wav", "id": "one"}))
    tree(tmp_path, b_DOT_wav=wav(500), n_DOT_jsonl=lines({"audio": "b.wav", "id": "one"}))
    sources = [str(tar), str(tmp_path / "m.jsonl")]
    ids = [file.entries[0].utterance_id for file in by_file(scan(Source(uri=sources)))]
    assert ids[1] == "one"
    assert str(ids[0]).startswith("t-k-")
    for uris in ([*sources, str(tmp_path / "n.jsonl")], [sources[1], sources[0], str(tmp_path / "n.jsonl")]):
        with pytest.raises(DataError, match="two lines have the id"):
            by_file(scan(Source(uri=uris)))
