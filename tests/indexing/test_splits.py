"""Held-out data stays out of training, by whatever name a data set holds it out."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from manifests import refused, wav, write_tar
from voxstill.core.config import Source, load
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.indexing.folder_splits import FolderSplits, splits_of_addresses
from voxstill.indexing.formats.entry import SourceEntry, split_named
from voxstill.indexing.scan import by_file, scan, split_of
from voxstill.pipeline.index import index
from voxstill.storage import tables
from voxstill.storage.store import Store


def splits(source: Path | str, work: Path) -> dict[str, str]:
    """The split of each file, by its name; no split is drawn by chance but train."""
    overrides = [f"work={work}", f"source={{uri: '{source}', dev_share: 0, test_share: 0}}", "engine.name=inline"]
    index(load(None, overrides, {}))
    store = Store(str(work))
    keys = [entry.key for entry in store.list("utterances") if entry.key.endswith(".parquet")]
    rows = [row for key in keys for row in tables.from_parquet(store.read(key), Utterance)]
    return {row.uri.rpartition("/")[2]: row.split for row in rows}


@pytest.mark.parametrize(
    ("name", "split"),
    {
        "train": "train",
        "training": "train",
        "train-clean-100": "train",
        "train.clean.360": "train",
        "validation": "dev",
        "valid": "dev",
        "dev-other": "dev",
        "Test": "test",
        "test_clean": "test",
        "eval": "test",
        "evaluation": "test",
        "eval92": "test",
        "tst-COMMON": "test",
        "holdout": "test",
        "held-out": "test",
        "held_out_2": "test",
        "testset": "test",
        "tests": "test",
        "evals": "test",
        "unseen": "test",
        "test_set": "test",
        "devset2": "dev",
        "held": None,
        "contest": None,
        "trainer": None,
        "validated": None,
    }.items(),
)
def test_names_of_splits_of_other_data_sets_are_known(name: str, split: str | None) -> None:
    assert split_named(name) == split


def test_a_column_with_other_names_of_splits_holds_out_what_it_says(tmp_path: Path) -> None:
    names = ["train-clean-100", "validation", "test-clean", "eval", "dev", "-", None]
    rows = []
    for number, name in enumerate(names):
        (tmp_path / f"{number}.wav").write_bytes(wav(300 + 20 * number))
        rows.append({"audio": f"{number}.wav", "split": name})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = ["train", "dev", "test", "test", "dev", "train", "train"]
    assert splits(tmp_path / "manifest.jsonl", tmp_path / "work") == {
        f"{number}.wav": split for number, split in enumerate(expected)
    }


def test_a_split_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "manifest.jsonl").write_text(json.dumps({"audio": "a.wav", "split": "fold3"}) + "\n")
    error = refused(tmp_path / "manifest.jsonl")
    assert "manifest.jsonl:1" in error.what
    assert "'fold3'" in error.why


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_folders_named_after_splits_are_splits(tmp_path: Path, place: str, s3: Store) -> None:
    store = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    for number, folder in enumerate(["train/ann", "train-other/bob", "validation/cem", "test-clean/dan/x", "."]):
        store.replace(f"{folder}/{number}.wav".removeprefix("./"), wav(300 + 20 * number))
    assigned = splits(store.root, tmp_path / "work")
    assert assigned == {"0.wav": "train", "1.wav": "train", "2.wav": "dev", "3.wav": "test", "4.wav": "train"}


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_folder_named_after_a_split_is_held_out_wherever_it_stands(
    tmp_path: Path, place: str, s3: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    folders = [
        "held-out",
        "more",
        "de/test/ann",
        "de/dev",
        "de/train/dev",
        "train/fr",
        "train/fr/validation",
        "fr/eval",
    ]
    for number, folder in enumerate(folders):
        store.replace(f"{folder}/{number}.wav", wav(300 + 20 * number))
    store.replace("held-out/manifest.jsonl", f'{{"audio": "{store.uri("more/8.wav")}"}}\n'.encode())
    store.replace("more/8.wav", wav(500))
    assert splits(store.root, tmp_path / "work") == {
        **{"0.wav": "test", "1.wav": "train", "2.wav": "test", "3.wav": "dev", "4.wav": "train", "7.wav": "test"},
        **{"8.wav": "test", "5.wav": "train", "6.wav": "train"},  # the outermost name counts
    }
    [warning] = [line for line in caplog.messages if "folders are held out by their names" in line]
    assert "`fr/eval` is test" in warning
    assert "column `split`" in warning


def test_kaldi_directories_and_packed_files_are_held_out_by_their_folder(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    for folder in ("train", "test", "packed/dev", "audio"):
        (corpus / folder).mkdir(parents=True)
    for number, folder in enumerate(["train", "test"]):
        (tmp_path / f"{number}.wav").write_bytes(wav(300 + 20 * number))
        (corpus / folder / "wav.scp").write_text(f"u{number} {tmp_path}/{number}.wav\n")
    write_tar(corpus / "packed/dev/a.tgz", {"2.wav": wav(400)}, "w:gz")
    rows = splits(corpus, tmp_path / "work")
    assert (rows.pop("0.wav"), rows.pop("1.wav"), list(rows.values())) == ("train", "test", ["dev"])


def test_a_manifest_decides_otherwise_than_the_name_of_a_folder(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "corpus"))
    store.replace("test/0.wav", wav())
    store.replace("test/1.wav", wav(400))
    store.replace("manifest.jsonl", b'{"audio": "test/0.wav", "split": "train"}\n')
    assert splits(store.root, tmp_path / "work") == {"0.wav": "train", "1.wav": "test"}


def test_several_sources_are_splits_by_their_names_and_one_alone_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path))
    for number, folder in enumerate(["train", "test", "more"]):
        store.replace(f"{folder}/{number}.wav", wav(300 + 20 * number))
    store.replace("dev.jsonl", b'{"audio": "more/2.wav"}\n')
    uris = [str(tmp_path / name) for name in ("train", "test", "dev.jsonl")]
    entries = list(scan(Source(uri=uris)))
    assert [entry.implied_split for entry in entries] == ["train", "test", "dev"]
    caplog.clear()
    assert [entry.implied_split for entry in scan(Source(uri=uris[1]))] == [None]
    assert "is named after a split that is held out, but it is the only source" in caplog.text


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        (("c/train/data.list", "c/test/data.list"), ("train", "test")),
        (("s3://test/c/train/a/data.list", "s3://test/c/dev-clean/a/data.list"), ("train", "dev")),
        (("/c/Cuts_train-clean-100.jsonl.gz", "/c/cuts_dev-clean.jsonl.gz"), ("train", "dev")),
        (("/c/more/a.jsonl", "/c/test/train.jsonl", "/c/eval/a.jsonl"), (None, "train", "test")),
        (("/c/test/a.jsonl", "/c/test/b.jsonl"), (None, None)),
        (("/dev/shm/a.jsonl", "/c/b.jsonl"), (None, None)),
        (("/c/my_test.wav", "/c/b.wav"), (None, None)),
        (("/c/my_test.jsonl",), (None,)),
    ],
)
def test_sources_are_told_apart_by_their_folders_and_by_words_of_their_names(
    uris: tuple[str, ...], expected: tuple[str | None, ...]
) -> None:
    named = splits_of_addresses(uris)
    assert tuple(map(named.get, uris)) == expected


def test_a_source_where_the_command_runs_has_the_name_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test").mkdir()
    monkeypatch.chdir(tmp_path / "test")
    assert splits_of_addresses([".", "../more"]) == {".": "test"}


def test_what_is_indexed_keeps_its_split_where_a_folder_becomes_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "corpus"))
    store.replace("test/0.wav", wav())
    assert splits(tmp_path / "corpus/test", tmp_path / "work") == {"0.wav": "train"}
    store.replace("test/1.wav", wav(400))
    assert "remain there" not in caplog.text
    assert splits(tmp_path / "corpus", tmp_path / "work") == {"0.wav": "train", "1.wav": "test"}
    assert "1 recordings that the source holds out were indexed for training before and remain there" in caplog.text


def test_metadata_of_hugging_face_in_the_folder_of_a_split_is_of_that_split(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "corpus"))
    for number, folder in enumerate(["train", "test"]):
        store.replace(f"{folder}/{number}.wav", wav(300 + 20 * number))
        store.replace(f"{folder}/metadata.csv", f"file_name,transcription\n{number}.wav,hello\n".encode())
    assert splits(store.root, tmp_path / "work") == {"0.wav": "train", "1.wav": "test"}


def test_unknown_speakers_are_warned_of_where_chance_draws_the_splits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "corpus"))
    store.replace("0.wav", wav())
    index(load(None, [f"work={tmp_path / 'a'}", f"source.uri={store.root}", "engine.name=inline"], {}))
    assert "the splits may share voices" in caplog.text
    caplog.clear()
    store.replace("manifest.jsonl", b'{"audio": "0.wav", "speaker": "ann"}\n')
    uri = store.uri("manifest.jsonl")
    index(load(None, [f"work={tmp_path / 'b'}", f"source.uri={uri}", "engine.name=inline"], {}))
    assert "share voices" not in caplog.text


def test_audio_and_speakers_in_training_and_in_a_held_out_split_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "corpus"))
    store.replace("0.wav", wav(seconds=2.0))

    def warned(*rows: dict[str, object]) -> str:
        caplog.clear()
        store.replace("manifest.jsonl", "".join(json.dumps({"audio": "0.wav", **row}) + "\n" for row in rows).encode())
        work = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        uri = store.uri("manifest.jsonl")
        index(load(None, [f"work={work}", f"source.uri={uri}", "engine.name=inline"], {}))
        return caplog.text

    first, second = {"start_ms": 0, "end_ms": 1000}, {"start_ms": 900, "end_ms": 1900}
    ann, bob = {"speaker": "ann"}, {"speaker": "bob"}
    overlapping = warned({**first, **ann, "split": "train"}, {**second, **bob, "split": "test"})
    assert "stretches of 1 recordings" in overlapping
    assert "test data is used in training" in overlapping
    assert "speakers, such as" not in overlapping
    later = {"start_ms": 1000, "end_ms": 1900}
    again = warned({**first, **ann, "split": "train"}, {**later, **ann, "split": "dev"})
    assert "overlap" not in again
    assert "1 speakers, such as `ann`, are in training and in a held-out split" in again
    assert "held-out" not in warned({**first, **ann, "split": "dev"}, {**second, **ann, "split": "test"})


def test_a_manifest_outside_of_a_folder_that_is_held_out_does_not_give_it_to_training(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for number, folder in enumerate(["test", "more"]):
        store.replace(f"{folder}/{number}.wav", wav(300 + 20 * number))
    store.replace("all.jsonl", b'{"audio": "test/0.wav", "text": "one"}\n{"audio": "more/1.wav", "text": "two"}\n')
    store.replace("all.lst", b"test/0.wav\nmore/1.wav\n")
    for manifest in ("all.jsonl", "all.lst"):
        files = by_file(scan(Source(uri=[str(tmp_path / manifest), str(tmp_path / "test")])))
        assert [file.entries[0].implied_split for file in files] == ["test", None]


def test_a_tar_named_after_a_held_out_split_is_held_out(tmp_path: Path) -> None:
    for name in ("train.tar", "test.tar", "dev-000.tar", "contest.tar"):
        with tarfile.open(tmp_path / name, "w") as tar:
            member = tarfile.TarInfo(f"{name.partition('.')[0]}.wav")
            member.size = 4
            tar.addfile(member, io.BytesIO(b"RIFF"))
    entries = scan(Source(uri=str(tmp_path)))
    splits = {entry.uri.rpartition("/")[2].partition("#")[0]: entry.implied_split for entry in entries}
    assert splits == {"train.tar": None, "test.tar": "test", "dev-000.tar": "dev", "contest.tar": None}


@pytest.mark.parametrize("place", ["beside", "elsewhere", "bucket"])
def test_audio_that_a_manifest_names_is_held_out_by_its_folder(
    tmp_path: Path, place: str, s3: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    names = ["train-clean/0.wav", "test-clean/1.wav", "more/unseen/2.wav", "3.wav"]
    for number, name in enumerate(names):
        store.replace(name, wav(300 + 20 * number))
    rows = [{"audio": store.uri(name), "speaker": "ann"} for name in names]
    if place == "beside":
        rows = [{"audio": name, "speaker": "ann"} for name in names]
    manifest = tmp_path / ("corpus/all.jsonl" if place == "beside" else "lists/all.jsonl")
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {"0.wav": "train", "1.wav": "test", "2.wav": "test", "3.wav": "train"}
    assert splits(manifest, tmp_path / "work") == expected
    assert "folders are held out by their names" in caplog.text
    assert splits(manifest.parent, tmp_path / "again") == expected


def test_the_folders_of_a_mount_are_no_splits_and_what_a_manifest_is_named_comes_before_folders_elsewhere() -> None:
    outside = FolderSplits("/home/ann/lists", lambda _: ())
    for folder, split in {"/dev/shm": None, "/test": None, "/home/ann/eval": "test", "/mnt/dev/x": "dev"}.items():
        assert outside.apply(SourceEntry(uri=f"{folder}/a.wav"), "/home/ann/lists/all.jsonl").implied_split == split
    named = FolderSplits("/home/ann/lists", lambda _: (), "train")
    for folder, split in {"/mnt/dev/x": "train", "/home/ann/lists/dev": "dev"}.items():
        assert named.apply(SourceEntry(uri=f"{folder}/a.wav"), "/home/ann/lists/train.jsonl").implied_split == split


@pytest.mark.parametrize("text", ["", '{"audio": "0.wav", "text": "hello"}', '{"audio": "0.wav", "id": "u"}'])
@pytest.mark.parametrize("names", [("all", "test"), ("test", "zoo"), ("train", "valid")])
def test_of_two_names_of_a_folder_the_one_that_is_held_out_counts(
    tmp_path: Path, names: tuple[str, str], text: str
) -> None:
    store = Store(str(tmp_path / "far"))
    store.replace("0.wav", wav())
    if text:
        store.replace("manifest.jsonl", text.encode())
    (tmp_path / "corpus").mkdir()
    for name in names:
        (tmp_path / "corpus" / name).symlink_to(tmp_path / "far")
    if names[0] == "train" and text:
        with pytest.raises(DataError, match=r"two rows differ about|two lines have the id"):
            splits(tmp_path / "corpus", tmp_path / "work")
    else:
        assert splits(tmp_path / "corpus", tmp_path / "work")["0.wav"] in ("dev", "test")


def test_a_link_to_a_part_of_the_corpus_holds_that_part_out(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "corpus"))
    for number, folder in enumerate(["all/a", "all/b"]):
        store.replace(f"{folder}/{number}.wav", wav(300 + 20 * number))
    (tmp_path / "corpus/test").symlink_to(tmp_path / "corpus/all/b")
    (tmp_path / "corpus/all/b/dev").symlink_to(tmp_path / "corpus")  # leads to where it lies itself
    assert splits(store.root, tmp_path / "work") == {"0.wav": "train", "1.wav": "test"}


def test_speakers_that_the_source_names_leave_held_out_what_a_manifest_holds_out(tmp_path: Path) -> None:
    rows = []
    for number, split in enumerate(["train", "test", "validation", None]):
        (tmp_path / f"{number}.wav").write_bytes(wav(300 + 20 * number))
        rows.append({"audio": f"{number}.wav", "speaker": f"s{number}", "split": split})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Source(uri=str(tmp_path / "m.jsonl"), dev_speakers=["s0"])
    assigned = [split_of(entry, source, 0) for entry in scan(source)]
    assert assigned == ["dev", "test", "dev", "train"]


def test_speakers_that_are_held_out_are_known_with_spaces_and_missed_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "1.wav").write_bytes(wav())
    (tmp_path / "m.jsonl").write_text('{"audio": "1.wav", "speaker": " ann "}\n')
    source = f"{{uri: {tmp_path / 'm.jsonl'}, test_speakers: [ann], dev_speakers: [bab]}}"
    figures = index(load(None, [f"work={tmp_path / 'work'}", f"source={source}", "engine.name=inline"], {}))
    assert figures.splits == {"test": 1}
    [warning] = [record.getMessage() for record in caplog.records if "check the names" in record.getMessage()]
    assert "contain `bab`," in warning
