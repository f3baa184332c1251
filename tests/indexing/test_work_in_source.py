"""A work folder inside the source is no source."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import wav
from voxstill.core.config import Config, load
from voxstill.pipeline.index import index
from voxstill.storage.store import Store


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_the_work_folder_is_left_out_of_the_source_that_it_lies_in(tmp_path: Path, place: str, s3: Store) -> None:
    source = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    source.replace("a.wav", wav())
    source.replace("work.wav", wav(400))
    cfg: Config = load(None, [f"work={source.uri('work')}", f"source.uri={source.root}", "engine.name=inline"], {})
    assert index(cfg).recordings == 2
    Store(cfg.work).replace("unpacked/b.wav", wav(500))
    again = index(cfg)
    assert (again.recordings, again.damaged) == (2, 0)


@pytest.mark.parametrize("link", ["source", "work", "work in the source"])
def test_a_work_folder_is_known_behind_links(tmp_path: Path, link: str) -> None:
    (tmp_path / "corpus/work").mkdir(parents=True)
    (tmp_path / "corpus/a.wav").write_bytes(wav())
    source, work = tmp_path / "corpus", tmp_path / "corpus/work"
    if link == "source":
        source = tmp_path / "linked"
        source.symlink_to(tmp_path / "corpus")
    elif link == "work":
        work = tmp_path / "linked"
        work.symlink_to(tmp_path / "corpus/work")
    else:
        (tmp_path / "elsewhere").mkdir()
        work.rmdir()
        work.symlink_to(tmp_path / "elsewhere")
    Store(str(work)).replace("unpacked/b.wav", wav(500))
    cfg = load(None, [f"work={work}", f"source.uri={source}", "engine.name=inline"], {})
    assert index(cfg).recordings == 1


@pytest.mark.parametrize("place", ["folder", "bucket"])
@pytest.mark.parametrize("folder", ["", "calls"])
def test_a_work_folder_that_is_the_source_or_holds_it_gives_none_of_its_own_files(
    tmp_path: Path, place: str, folder: str, s3: Store
) -> None:
    work = s3 if place == "bucket" else Store(str(tmp_path / "corpus"))
    work.replace("calls/a.wav", wav())
    cfg = load(None, [f"work={work.root}", f"source.uri={work.uri(folder)}", "engine.name=inline"], {})
    assert index(cfg).recordings == 1
    again = index(cfg)
    assert (again.recordings, again.damaged) == (1, 0)
