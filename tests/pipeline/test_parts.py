"""Steps in parts, `--part K/N`, make what one command makes; what does not go with a part is refused in words."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from manifests import wav, write_tar
from table_rows import rows_of_work
from voxstill.core.config import Config, load
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.filtering import measures
from voxstill.indexing.formats.entry import local_entry
from voxstill.indexing.recipe import utterances_recipe
from voxstill.indexing.unpack import unpacked_tar
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.storage import lease, tables
from voxstill.storage.figures import TableFigures
from voxstill.storage.store import Store

NUM = 40
STEPS: dict[str, Callable[..., TableFigures]] = {
    "index": index,
    "label": label_utterances,
    "filter": filter_labels,
    "shard": shard,
}
FOLLOWING = dict(zip(STEPS, list(STEPS.values())[1:], strict=False))


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter measures the labels of one part of the utterances at a time, not of sixteen."""
    monkeypatch.setattr(measures, "PARTS", 1)


def configured(folder: Path, source: Path, *overrides: str) -> Config:
    engine = "engine={name: inline, chunk: 1}"
    loose = "filter={min_chars_per_s: 0, max_chars_per_s: 1e9}"
    settings = (f"work={folder}", f"source.uri={source}", engine, loose, "teacher=echo", "shard.utterances=4")
    return load(None, [*settings, *overrides], {})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    rows = []
    for number in range(NUM):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number))
        rows.append({"id": f"u{number}", "audio": f"{number}.wav", "text": str(number), "speaker": str(number)})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def test_parts_of_every_step_make_what_one_command_makes(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calm, parted = configured(tmp_path / "calm", source), configured(tmp_path / "parted", source)
    for name, step in STEPS.items():
        whole = step(calm)
        with caplog.at_level(logging.INFO, "voxstill"):
            figures = [step(parted, part=f"{number}/3") for number in (3, 1)]
            if (following := FOLLOWING.get(name)) is not None:
                with pytest.raises(DataError, match="has no finished"):
                    following(parted)
            figures.append(step(parted, part="2/3"))
        missing = [row.finished is False for row in figures]
        assert missing == [True, True, False], name
        assert f"{name}: part 3 of 3 is done; 2 of 3 parts are still missing: 1, 2" in caplog.messages
        assert f"{name}: part 1 of 3 is done; 1 of 3 parts is still missing: 2" in caplog.messages
        assert step(parted, part="1/3").finished is not False
        for key in ("utterances", "labels", "judged", "kept_utterances", "shards", "hours"):
            if isinstance(expected := getattr(whole, key, None), int | float):
                assert getattr(figures[-1], key) == pytest.approx(expected), (name, key)
    assert rows_of_work(tmp_path / "parted") == rows_of_work(tmp_path / "calm")


@pytest.mark.parametrize("name", STEPS)
def test_other_parts_and_the_whole_beside_a_part_are_refused(tmp_path: Path, source: Path, name: str) -> None:
    cfg = configured(tmp_path / "work", source)
    for before in list(STEPS)[: list(STEPS).index(name)]:
        STEPS[before](cfg)
    step = STEPS[name]
    figures = step(cfg, part="1/4")
    with pytest.raises(ConfigError, match="is made in 4 parts with chunks of 1") as caught:
        step(cfg, part="2/5")
    assert f"`voxstill {name}` without --part" in caught.value.fix
    table = f"{figures.kind}/{figures.recipe}"
    with lease.hold(Store(cfg.work), f"{table}/part-1-of-4", f"{name} --part 1/4"):
        for part in (None, "1/4"):
            with pytest.raises(StorageError, match=f"runs `voxstill {name} --part 1/4` there since"):
                step(cfg, part=part)
    assert step(cfg).finished is not False
    assert step(cfg, part="2/5").finished is not False


def test_shards_without_labels_are_written_in_parts(tmp_path: Path, source: Path) -> None:
    cfg = configured(tmp_path / "work", source)
    index(cfg)
    figures = [shard_unlabelled(cfg, part=f"{number}/2") for number in (1, 2)]
    assert [row.finished for row in figures] == [False, None]
    assert figures[0].utterances < figures[1].utterances == shard_unlabelled(cfg).utterances


def test_a_source_that_changed_between_its_parts_is_refused(tmp_path: Path, source: Path) -> None:
    """As two parts leave it of which neither saw what the other added."""
    before, after = configured(tmp_path / "before", source), configured(tmp_path / "after", source)
    index(before)
    (source.parent / "7.wav").write_bytes(wav(5000))
    index(after)
    recipe = utterances_recipe(before)
    for kind in ("recordings", "utterances"):
        for part in (tmp_path / "after" / kind / recipe).glob("*.parquet"):
            (tmp_path / "before" / kind / recipe / part.name).write_bytes(part.read_bytes())
    (tmp_path / "before/utterances" / recipe / tables.SUCCESS).unlink()
    with pytest.raises(DataError, match="the source was changed while parts") as caught:
        index(before, part="1/2")
    assert "1 files were indexed in two versions, 1 ids of utterances are there twice" in caught.value.why


def test_a_compressed_tar_is_unpacked_by_one_part(tmp_path: Path) -> None:
    work = Store(str(tmp_path / "work"))
    tar = write_tar(tmp_path / "t.tar", {"0.wav": wav(300)})
    entry = local_entry(str(tar))
    key = Path(unpacked_tar(entry, work))
    key.unlink()
    with (
        lease.hold(work, f"unpacked/{key.stem.partition('-')[0]}", "index --part 1/2"),
        pytest.raises(StorageError, match="being written by another process"),
    ):
        unpacked_tar(entry, work)
    assert unpacked_tar(entry, work) == str(key)
