"""Audio that lies under several addresses is in the tables once, and what was removed does not come back by a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manifests import wav, write_tar
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.indexing.segment import IndexRow
from voxstill.pipeline.index import index
from voxstill.pipeline.remove import remove
from voxstill.pipeline.verify import verify
from voxstill.storage import removals, tables
from voxstill.storage.figures import IndexFigures
from voxstill.storage.store import Store

NUM = 6


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of six clips, each with its own pitch."""
    folder = tmp_path / "A"
    folder.mkdir()
    for number in range(NUM):
        (folder / f"{number}.wav").write_bytes(wav(300 + 50 * number))
    return folder


def configured(folder: Path, *uris: Path, **options: Any) -> Config:
    tree: dict[str, Any] = {"work": str(folder / "work"), "source": {"uri": [str(uri) for uri in uris]}}
    return Config.model_validate({**tree, "engine": {"name": "inline", "chunk": 1}, **options})


def utterances(cfg: Config, table: str = "utterances") -> list[Utterance]:
    return sorted(tables.read(Store(cfg.work), table, Utterance), key=lambda row: row.uri)


def reasons(cfg: Config) -> dict[str, str]:
    """The errors of recordings, by the end of the address."""
    rows = tables.read(Store(cfg.work), "recordings", IndexRow)
    folder = str(Path(cfg.work).parent) + "/"
    return {row.uri.removeprefix(folder): row.error.replace(folder, "") for row in rows if row.error is not None}


def parts(cfg: Config) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(cfg.work).rglob("*.parquet"))}


@pytest.mark.parametrize("way", ["moved", "copied", "linked", "linked file by file"])
def test_a_corpus_under_another_address_is_not_taken_again(
    corpus: Path, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = index(configured(tmp_path, corpus))
    before = utterances(configured(tmp_path))
    assert (first.utterances, first.duplicates, "another address" in caplog.text) == (NUM, 0, False)
    other = tmp_path / "B"
    if way == "moved":
        corpus.rename(other)
    elif way == "copied":
        shutil.copytree(corpus, other)
    elif way == "linked":
        other.symlink_to(corpus)
    else:
        other.mkdir()
        for path in corpus.iterdir():
            (other / path.name).symlink_to(path)
    cfg = configured(tmp_path, other)
    figures = index(cfg)
    assert (figures.duplicates, figures.damaged, figures.exit_code, figures.splits) == (NUM, 0, 0, first.splits)
    assert utterances(cfg) == before
    assert reasons(cfg) == {f"B/{number}.wav": f"duplicate: of `A/{number}.wav`" for number in range(NUM)}
    assert f"{NUM} recordings have audio that is in the table under another address" in caplog.text
    assert not verify(cfg.work, cfg).broken
    written = parts(cfg)
    assert index(cfg) == figures
    assert parts(cfg) == written
    (other / "new.wav").write_bytes(wav(2000))
    assert index(cfg).utterances == NUM + 1


def test_a_moved_corpus_with_ids_of_its_own_is_refused_and_goes_on_by_a_link(corpus: Path, tmp_path: Path) -> None:
    rows = [{"audio": f"{number}.wav", "id": f"u{number}"} for number in range(NUM)]
    (corpus / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = configured(tmp_path, corpus)
    first, before = index(cfg), parts(cfg)
    corpus.rename(tmp_path / "B")
    with pytest.raises(DataError, match="the id `u0` is already used") as caught:
        index(configured(tmp_path, tmp_path / "B"))
    assert "leave a link at its old place" in caught.value.fix
    corpus.symlink_to(tmp_path / "B")
    assert index(cfg) == first
    assert parts(cfg) == before


def test_what_was_removed_stays_out_of_every_table_where_its_audio_was_moved(corpus: Path, tmp_path: Path) -> None:
    index(configured(tmp_path, corpus))
    gone = utterances(configured(tmp_path))[2]
    remove(configured(tmp_path), [gone.id])
    corpus.rename(tmp_path / "B")
    (tmp_path / "B/2 again.wav").write_bytes((tmp_path / "B/2.wav").read_bytes())
    cfg = configured(tmp_path, tmp_path / "B")
    assert index(cfg).utterances == NUM
    other = config.changed(cfg, "segment.min_ms=100")  # another table, which knows nothing of the first
    figures = index(other)
    assert [Path(row.uri).name for row in utterances(cfg, f"utterances/{figures.recipe}")] == [
        f"{number}.wav" for number in range(NUM) if number != 2
    ]


def test_copies_that_are_in_the_tables_are_removed_with_it(corpus: Path, tmp_path: Path) -> None:
    index(configured(tmp_path, corpus))
    shutil.copytree(corpus, tmp_path / "B")
    cfg = configured(tmp_path, tmp_path / "B", segment={"min_ms": 100})
    index(cfg)
    [of_a, of_b] = [row for row in utterances(cfg) if row.uri.endswith("/2.wav")]
    assert remove(cfg, [of_a.id]).removed == 2
    assert set(removals.of(Store(cfg.work))) == {of_a.id, of_b.id}


@pytest.mark.parametrize("kind", ["files", "link", "tars"])
def test_of_equal_files_in_one_source_the_first_stays(corpus: Path, tmp_path: Path, kind: str) -> None:
    if kind == "tars":
        members = {path.name: path.read_bytes() for path in sorted(corpus.iterdir())[:2]}
        uris = [write_tar(tmp_path / name, members) for name in ("y.tar", "x.tar")]
    else:
        other = tmp_path / "0/copy.wav"
        other.parent.mkdir()
        if kind == "link":
            other.symlink_to(corpus / "1.wav")
        else:
            shutil.copy(corpus / "1.wav", other)
        uris = [corpus, other]
    cfg = configured(tmp_path, *uris)
    figures = index(cfg)
    assert (figures.utterances, figures.duplicates) == ((2, 2) if kind == "tars" else (NUM, 1))
    assert all(row.uri.startswith(str(uris[0])) for row in utterances(cfg))
    assert all(error.startswith(f"duplicate: of `{uris[0].name}") for error in reasons(cfg).values())


def test_the_copy_in_the_test_split_stays(corpus: Path, tmp_path: Path) -> None:
    for name, numbers in (("dev", "012"), ("train", "01234"), ("test", "14")):
        (tmp_path / name).mkdir()
        for number in numbers:
            shutil.copy(corpus / f"{number}.wav", tmp_path / name)
    cfg = configured(tmp_path, tmp_path / "train", tmp_path / "dev", tmp_path / "test")
    index(cfg)
    assert [row.uri.removeprefix(f"{tmp_path}/") for row in utterances(cfg)] == [
        *("dev/0.wav", "dev/2.wav", "test/1.wav", "test/4.wav", "train/3.wav"),
    ]


def test_the_copy_of_a_speaker_that_is_held_out_stays(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "B")
    rows = [{"audio": f"{folder}/{n}.wav", "speaker": f"{folder}{n}", "text": "x"} for folder in "AB" for n in range(3)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = configured(tmp_path, tmp_path / "m.jsonl")
    cfg = cfg.model_copy(update={"source": cfg.source.model_copy(update={"test_speakers": ["B1"]})})
    index(cfg)
    assert [(row.info.speaker, row.split) for row in utterances(cfg)] == [
        *(("A0", "train"), ("A2", "train"), ("B1", "test")),
    ]


def test_the_copy_with_a_text_stays(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "B")
    rows = [{"audio": f"B/{number}.wav", "text": f"words {number}"} for number in range(NUM)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = configured(tmp_path, corpus, tmp_path / "m.jsonl")
    assert index(cfg).duplicates == NUM
    assert [row.text for row in utterances(cfg)] == [f"words {number}" for number in range(NUM)]


def test_copies_whose_manifests_cut_other_stretches_give_both(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(wav(300, 3.0))
    cuts: list[Mapping[str, Any]] = [
        *({"audio": "a.wav", "start_ms": start, "end_ms": start + 900} for start in (0, 1000)),
        *({"audio": "b.wav", "start_ms": start, "end_ms": start + 900} for start in (0, 2000)),
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cuts))
    cfg = configured(tmp_path, tmp_path / "m.jsonl")
    figures = index(cfg)
    assert [(Path(row.uri).name, row.start_ms) for row in utterances(cfg)] == [
        *(("a.wav", 0), ("a.wav", 1000), ("b.wav", 2000)),
    ]
    assert (figures.recordings, figures.duplicates, figures.segment_reasons) == (2, 0, {"duplicate": 1})


def test_one_file_may_have_stretches_that_overlap(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(300, 3.0))
    cuts = [{"audio": "a.wav", "start_ms": start, "end_ms": 2000} for start in (0, 500)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cuts))
    assert index(configured(tmp_path, tmp_path / "m.jsonl")).utterances == 2


def test_parts_in_any_order_leave_what_one_index_leaves(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "B")
    results = []
    for number, order in enumerate(([None], ["1/3", "2/3", "3/3"], ["3/3", "2/3", "1/3"])):
        cfg = configured(tmp_path, corpus, tmp_path / "B", work=str(tmp_path / str(number)))
        figures = [index(cfg, part=part) for part in order][-1]
        results.append((figures, utterances(cfg), reasons(cfg)))
    assert results[0] == results[1] == results[2]
    assert (results[0][0].utterances, results[0][0].duplicates) == (NUM, NUM)


def test_an_index_that_was_killed_while_it_left_copies_out_goes_on(corpus: Path, tmp_path: Path) -> None:
    index(configured(tmp_path, corpus))
    alone = parts(configured(tmp_path))
    shutil.copytree(corpus, tmp_path / "B")
    cfg = configured(tmp_path, tmp_path / "B", engine={"name": "inline", "chunk": 4})
    figures = index(cfg)
    done = parts(cfg)
    new = sorted(path for path in done.keys() - alone.keys() if "/utterances/" in path)
    whole = configured(tmp_path, tmp_path / "B", engine={"name": "inline", "chunk": 4}, work=str(tmp_path / "other"))
    index(whole)
    for path in new:  # the part of utterances was not written anew yet
        shutil.copy(path.replace(cfg.work, whole.work), path)
    assert len(utterances(cfg)) == 2 * NUM
    assert index(cfg) == figures
    assert parts(cfg) == done


def test_a_part_of_copies_that_was_lost_is_made_again_as_it_was(corpus: Path, tmp_path: Path) -> None:
    index(configured(tmp_path, corpus))
    before = parts(configured(tmp_path))
    shutil.copytree(corpus, tmp_path / "B")
    cfg = configured(tmp_path, tmp_path / "B")
    index(cfg)
    done = parts(cfg)
    lost = min(path for path in done.keys() - before.keys() if "/utterances/" in path)
    Path(lost).unlink()
    verify(cfg.work, cfg, repair=True)
    assert parts(cfg) == done


def test_no_stretch_of_many_copies_is_there_twice(tmp_path: Path) -> None:
    """Copies of a recording, cut at random by a manifest, some in each split."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(5):
        (tmp_path / f"{number}.wav").write_bytes(wav(300 + 50 * (number % 2), 4.0))
        for start in sorted(rng.choice(35, 4, replace=False)):
            times = {"start_ms": int(start) * 100, "end_ms": int(start) * 100 + 400}
            rows.append({"audio": f"{number}.wav", "split": ["train", "test"][number % 3 == 0], **times})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = configured(tmp_path, tmp_path / "m.jsonl")
    figures: IndexFigures = index(cfg)
    kept = utterances(cfg)
    for row in kept:
        for other in kept:
            if int(Path(row.uri).stem) % 2 == int(Path(other.uri).stem) % 2 and row.uri != other.uri:
                assert row.end_ms <= other.start_ms or other.end_ms <= row.start_ms
    assert figures.utterances == len(kept) < len(rows)
    assert [row.split for row in kept].count("test") == 8  # copies 0 and 3 are of other bytes
