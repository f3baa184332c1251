"""The record of removed utterances: where it is damaged, or has shrunk, nothing goes on as if nobody was removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from disk_bucket import disk_bucket
from kept_folder import KeptFolder
from manifests import wav
from servers import SetEnvironment, s3_environment
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.pipeline.clean import clean
from voxstill.pipeline.export_labels import export_labels
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.pretrain import pretrain
from voxstill.pipeline.remove import remove
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.pipeline.train import train
from voxstill.pipeline.verify import verify
from voxstill.storage import removals, tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM = 8
STEPS: dict[str, Callable[[Config], object]] = {
    "index": index,
    "label": label_utterances,
    "filter": filter_labels,
    "shard": shard,
    "shard --unlabelled": shard_unlabelled,
    "export-labels": lambda cfg: export_labels(cfg, "labels.jsonl", "jsonl"),
    "clean": clean,
    "train": train,
    "pretrain": pretrain,
}


def configured(folder: Path) -> Config:
    overrides = [f"work={folder / 'work'}", f"source.uri={folder / 'manifest.csv'}", "train.steps=2"]
    return config.load(None, ["teacher=reference", "engine={name: inline, chunk: 3}", *overrides], {})


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    write_source(tmp_path, NUM)
    return configured(tmp_path)


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    folder = tmp_path_factory.mktemp("finished")
    write_source(folder, NUM)
    made(configured(folder))
    return KeptFolder(folder)


@pytest.fixture
def finished(finished_folder: KeptFolder) -> Config:
    """Of which all is made up to the shards."""
    return configured(finished_folder.put_back())


def write_source(folder: Path, num: int) -> None:
    rows = ["id,audio,text,speaker,split"]
    for number in range(num):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number, 3.0))
        rows.append(f"u{number},{number}.wav,text of number {number} here,s{number},{'train' if number else 'dev'}")
    (folder / "manifest.csv").write_text("\n".join(rows))


def made(cfg: Config) -> set[str]:
    """The ids in the shards of all steps."""
    for step in (index, label_utterances, filter_labels):
        step(cfg)
    return {row.id for row in tables.read(Store(cfg.work), f"shards/{shard(cfg).recipe}", Sample)}


def record(cfg: Config) -> list[Path]:
    return sorted(Path(cfg.work).glob("removed/*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def check_refused(cfg: Config) -> None:
    """Every step refuses at once, and says what to do without advising to delete anything; `verify` says the same."""
    for name, step in STEPS.items():
        with pytest.raises(DataError) as caught:
            step(cfg)
        assert caught.value.code == "removal-record", name
        assert f"voxstill remove {cfg.work} --ids FILE" in (caught.value.fix or "")
        assert "delete" not in str(caught.value)
    [broken] = verify(cfg.work, cfg).broken
    assert broken.path.startswith("removed")
    assert "delete" not in broken.reason
    assert f"voxstill remove {cfg.work} --ids FILE" in broken.reason


def test_a_damaged_record_is_refused_until_the_ids_are_given_again(finished: Config) -> None:
    remove(finished, ["u2", "u3"])
    ids = made(finished)
    assert ids == {f"u{number}" for number in range(NUM)} - {"u2", "u3"}
    [part] = record(finished)
    part.write_bytes(b"x")
    check_refused(finished)
    with pytest.raises(DataError, match="record of removed utterances"):
        remove(finished, [])
    assert part.read_bytes() == b"x"
    remove(finished, ["u2", "u3"], "once more")
    assert not part.exists()
    assert Path(f"{part}{removals.DAMAGED}").read_bytes() == b"x"
    assert not verify(finished.work, finished).broken
    assert made(finished) == ids


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("is_before_label", [True, False])
def test_a_record_that_is_gone_is_refused(cfg: Config, *, is_folder: bool, is_before_label: bool) -> None:
    if is_before_label:
        index(cfg)
    else:
        made(cfg)
    remove(cfg, ["u2"])
    ids = made(cfg)
    [part] = record(cfg)
    copy = part.read_bytes()
    part.unlink()
    if is_folder:
        part.parent.rmdir()
    check_refused(cfg)
    part.parent.mkdir(exist_ok=True)
    part.write_bytes(copy)
    assert made(cfg) == ids
    assert not verify(cfg.work, cfg).broken


@pytest.mark.parametrize("first", [0, 1])
def test_one_of_several_files_of_the_record_that_is_gone_is_refused(finished: Config, first: int) -> None:
    remove(finished, ["u2"])
    made(finished)
    remove(finished, ["u3"])
    ids = made(finished)
    record(finished)[first].unlink()
    check_refused(finished)
    remove(finished, ["u2", "u3"])
    assert made(finished) == ids
    assert not verify(finished.work, finished).broken


def test_a_file_that_is_gone_is_not_made_up_for_by_a_later_removal(finished: Config) -> None:
    """Verdicts count one removed utterance, and the record has one: but another."""
    remove(finished, ["u2"])
    made(finished)
    remove(finished, ["u3"])
    record(finished)[0].unlink()
    check_refused(finished)
    remove(finished, ["u2"])
    assert not made(finished) & {"u2", "u3"}


def test_a_copy_of_a_work_folder_without_the_record_is_refused(cfg: Config, tmp_path: Path) -> None:
    made(cfg)
    remove(cfg, ["u2"])
    made(cfg)
    shutil.copytree(cfg.work, tmp_path / "copy", ignore=shutil.ignore_patterns("removed"))
    check_refused(config.changed(cfg, f"work={tmp_path / 'copy'}"))
    assert "u2" not in made(cfg)


def test_a_corpus_that_grows_and_loses_more_voices_is_no_false_alarm(cfg: Config, tmp_path: Path) -> None:
    made(cfg)
    remove(cfg, ["u2"])
    made(cfg)
    write_source(tmp_path, NUM + 4)
    index(cfg)
    remove(cfg, ["u3", "u9"])
    expected = {f"u{number}" for number in range(NUM + 4)} - {"u2", "u3", "u9"}
    assert made(cfg) == expected
    index(config.changed(cfg, "segment.min_ms=210"))
    assert not verify(cfg.work, cfg).broken
    assert made(cfg) == expected


def test_a_damaged_file_whose_name_comes_again_is_whole_then(cfg: Config) -> None:
    index(cfg)
    remove(cfg, ["u2"])
    work, [part] = Store(cfg.work), record(cfg)
    whole = part.read_bytes()
    part.write_bytes(b"x")
    removals.append(work, tables.from_parquet(whole, removals.Removal), [f"removed/{part.name}"])
    assert [path.read_bytes() for path in part.parent.iterdir()] == [whole]


def test_utterances_that_were_made_again_are_no_false_alarm(finished: Config) -> None:
    """The index leaves removed utterances out of the parts that it makes again, and notes which they were."""
    remove(finished, ["u2"])
    made(finished)
    for part in Path(finished.work).glob("utterances/*/*.parquet"):
        part.unlink()
    verify(finished.work, finished, repair=True)
    removals.check(Store(finished.work))
    assert not [row for row in verify(finished.work, finished).broken if row.path.startswith("removed")]


def test_a_record_that_is_gone_from_a_bucket_is_refused(cfg: Config, s3: Store) -> None:
    cfg = config.changed(cfg, f"work={s3.root}")
    made(cfg)
    remove(cfg, ["u2"])
    made(cfg)
    work = Store(cfg.work)
    for key in tables.parts(work, removals.PREFIX):
        work.delete(key)
    check_refused(cfg)


def test_where_nothing_was_removed_no_table_is_read(
    cfg: Config, tmp_path: Path, set_environment: SetEnvironment
) -> None:
    """A listing of the record, and once in a process those of utterances, labels and verdicts with all figures."""
    made(cfg)
    (tmp_path / "bucket").mkdir()
    shutil.move(cfg.work, tmp_path / "bucket/unread")
    with disk_bucket(tmp_path) as bucket:
        set_environment(s3_environment(bucket.port))
        work = Store("s3://bucket/unread")  # no other test of this process has checked it
        removals.check(work)
        first = bucket.counts()
        removals.check(work)
        assert bucket.counts()["LIST unread/"] - first["LIST unread/"] == 1
    assert {name: num for name, num in first.items() if name.startswith("LIST")} == {"LIST unread/": 4}
    assert {name: num for name, num in first.items() if name.startswith("GET")} == {"GET unread/": 3}


def test_utterances_that_are_damaged_are_made_again_where_some_were_removed(finished: Config) -> None:
    remove(finished, ["u2"])
    made(finished)
    [part, *_] = Path(finished.work).glob("utterances/*/*.parquet")
    part.write_bytes(b"x")
    assert f"utterances/{part.parent.name}/{part.name}" in {row.path for row in verify(finished.work, finished).broken}
    assert not verify(finished.work, finished, repair=True).exit_code


def test_a_record_that_decays_in_a_process_that_has_checked_it_is_refused(cfg: Config, tmp_path: Path) -> None:
    """Its files keep their names and sizes: the index would take the voices in again that it lost."""
    index(cfg)
    remove(cfg, ["u3"])
    assert [removal.id for removal in removals.record(Store(cfg.work))] == ["u3"]
    [part] = record(cfg)
    data = bytearray(part.read_bytes())
    data[100] ^= 4
    part.write_bytes(data)
    write_source(tmp_path, NUM + 2)
    with pytest.raises(DataError, match="record of removed utterances is broken"):
        index(cfg)
