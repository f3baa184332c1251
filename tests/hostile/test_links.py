"""Links that somebody has put into a work folder: nothing outside of it is deleted through one."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.test_remove import sharded, source
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import StorageError
from voxstill.pipeline.clean import clean
from voxstill.pipeline.remove import remove
from voxstill.pipeline.verify import verify
from voxstill.storage import corrections
from voxstill.storage.corrections import Correction
from voxstill.storage.store import Store

UNUSED = "alignments/0123456789abcdef"
"""A table that no configuration of these tests uses."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody, with names that tables have."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    for name in ("_SUCCESS.json", "00000.parquet", "deep/00001.parquet", "corpus.duckdb", "draft-corpus.duckdb"):
        (folder / name).write_text("of somebody")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    work = tmp_path / "work"
    work.mkdir()
    return config.load(None, [f"work={work}", f"source.uri={tmp_path / 'manifest.jsonl'}", "teacher=reference"], {})


@pytest.mark.parametrize("linked", ["alignments", UNUSED, f"{UNUSED}/deep", f"{UNUSED}/a/b"])
def test_clean_deletes_nothing_that_a_link_leads_to(
    cfg: Config, outside: Path, linked: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Be it a kind of tables, a table or a folder in one: it stays, and all else that is not used goes."""
    work, before = Path(cfg.work), content(outside)
    if linked == "alignments":
        shutil.copytree(outside, outside / "table")
        before = content(outside)
    (work / linked).parent.mkdir(parents=True, exist_ok=True)
    (work / linked).symlink_to(outside)
    other = work / "mixtures" / "other" / "_SUCCESS.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    assert clean(cfg).recipes == ["mixtures/other"]
    assert clean(cfg, delete=True).recipes == ["mixtures/other"]
    assert content(outside) == before
    assert (work / linked).is_symlink()
    assert not other.exists()
    assert "a link" in caplog.text


def test_clean_deletes_a_link_to_a_file_and_not_the_file(cfg: Config, outside: Path) -> None:
    before, table = content(outside), Path(cfg.work) / UNUSED
    table.mkdir(parents=True)
    for name in ("_SUCCESS.json", "00000.parquet"):
        (table / name).symlink_to(outside / name)
    assert clean(cfg, delete=True).recipes == [UNUSED]
    assert content(outside) == before
    assert not list(table.iterdir())


def test_a_work_folder_that_is_reached_by_a_link_is_cleaned(cfg: Config, tmp_path: Path) -> None:
    table = Path(cfg.work) / UNUSED
    table.mkdir(parents=True)
    (table / "_SUCCESS.json").write_text("{}")
    (tmp_path / "link").symlink_to(cfg.work)
    assert clean(config.changed(cfg, f"work={tmp_path / 'link'}"), delete=True).recipes == [UNUSED]
    assert not list(table.iterdir())


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write the folder changes it all the time."""
    work, outside = Store(str(tmp_path / "work")), tmp_path / "outside"
    folder, aside = tmp_path / "work" / "a" / "b", tmp_path / "aside"
    outside.mkdir()
    (outside / "file").write_text("of somebody")
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(outside)
    ends = threading.Event()

    def swap() -> None:
        while not ends.is_set():
            os.rename(folder, aside)
            os.rename(tmp_path / "link", folder)
            os.rename(folder, tmp_path / "link")
            os.rename(aside, folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(3000):
            with contextlib.suppress(StorageError):
                work.delete("a/b/file")
    finally:
        ends.set()
        thread.join()
    assert (outside / "file").read_text() == "of somebody"


@contextlib.contextmanager
def emptied(folder: Path) -> Iterator[None]:
    folder.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(folder)


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=8)


@settings(max_examples=50, deadline=None)
@given(names=st.lists(NAMES.filter(lambda name: name.strip(".")), min_size=1, max_size=4))
def test_what_is_listed_can_be_deleted_whatever_its_name(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "names"
    with emptied(root):
        path = root.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        work = Store(str(root))
        for entry in work.list():
            work.delete(entry.key)
            work.delete(entry.key)  # nothing happens where it is absent
            assert not path.exists()


@pytest.mark.parametrize("key", ["../outside/_SUCCESS.json", "a/../../outside/_SUCCESS.json", ".."])
def test_no_key_leads_out_of_the_folder(cfg: Config, outside: Path, key: str) -> None:
    (Path(cfg.work) / "a").mkdir()
    with pytest.raises(StorageError):
        Store(cfg.work).delete(key)
    assert (outside / "_SUCCESS.json").exists()


def test_remove_erases_nothing_outside(cfg: Config, tmp_path: Path, outside: Path) -> None:
    """Not what has the texts of removed utterances either: the joined file of the explorer, and judgements."""
    source(tmp_path)
    sharded(cfg)
    work, before = Path(cfg.work), content(outside)
    (work / "explorer").symlink_to(outside)
    with pytest.raises(StorageError, match="nothing is deleted") as error:
        remove(cfg, ["u02"])
    assert error.value.code == "linked-folder"
    assert content(outside) == before
    (work / "explorer").unlink()
    assert remove(cfg, ["u02"]).all_removed == 1  # it was recorded, and what is left of it goes now
    judgement = Correction(utterance_id="u03", audio="a", judgement="wrong", label="", time="t", judge="j")
    corrections.append(Store(cfg.work), [judgement])
    shutil.move(work / corrections.PREFIX, tmp_path / "moved")
    (work / corrections.PREFIX).symlink_to(tmp_path / "moved")
    judged = sorted((tmp_path / "moved").iterdir())
    with pytest.raises(StorageError, match="nothing is deleted"):
        remove(cfg, ["u03"])
    assert sorted((tmp_path / "moved").iterdir()) == judged


def test_reading_follows_links_and_changes_nothing(
    cfg: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tables may lie on another disk."""
    source(tmp_path)
    sharded(cfg)
    for folder in ("shards", "labels"):
        shutil.move(Path(cfg.work) / folder, tmp_path / folder)
        (Path(cfg.work) / folder).symlink_to(tmp_path / folder)
    caplog.set_level(logging.WARNING)
    assert not verify(cfg.work, cfg).broken
    assert clean(cfg, delete=True).recipes == []
    assert not verify(cfg.work, cfg).broken
