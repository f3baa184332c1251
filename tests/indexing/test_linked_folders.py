"""A folder that links give several addresses is one folder, in whatever entries of the source it is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import wav, write_tar
from voxstill.core.config import Source
from voxstill.core.errors import DataError
from voxstill.indexing.scan import by_file, scan


@pytest.fixture(params=["folder", "manifest", "manifest with ids", "tar"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder `de` of two clips, with `de2` and `both/x` as links to it, and `up/de` behind a link above it."""
    folder = tmp_path / "de"
    folder.mkdir()
    clips = {f"{name}.wav": wav(300 + 100 * number, seconds=0.2) for number, name in enumerate("ab")}
    if request.param == "tar":
        write_tar(folder / "clips.tar", clips)
    else:
        for name, data in clips.items():
            (folder / name).write_bytes(data)
    if request.param.startswith("manifest"):
        ids = [{"id": f"u-{name}"} if "ids" in request.param else {} for name in clips]
        rows = [{"audio": name, "speaker": "ann", "text": name, **id_} for name, id_ in zip(clips, ids, strict=True)]
        (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "both").mkdir()
    (tmp_path / "de2").symlink_to(folder)
    (tmp_path / "both/x").symlink_to("../de")
    (tmp_path / "up").symlink_to(tmp_path)
    return tmp_path


OTHERS = pytest.mark.parametrize("other", ["de2", "both", "up/de", "de/../de2"])


@OTHERS
@pytest.mark.parametrize("is_first", [True, False])
def test_it_is_read_once_in_one_source(corpus: Path, other: str, is_first: bool) -> None:
    uris = [str(corpus / "de"), str(corpus / other)]
    files = list(by_file(scan(Source(uri=uris if is_first else uris[::-1]))))
    alone = list(by_file(scan(Source(uri=uris[0]))))
    assert len(files) == len(alone) == 2
    assert [len(file.entries) for file in files] == [1, 1]
    assert [file.entries[0].utterance_id for file in files] == [file.entries[0].utterance_id for file in alone]
    if is_first:
        assert files == alone


@OTHERS
def test_in_two_sources_it_is_refused(corpus: Path, other: str) -> None:
    sources = [Source(uri=str(corpus / "de"), test_speakers=["ann"]), Source(uri=str(corpus / other))]
    for both in (sources, sources[::-1]):
        with pytest.raises(DataError, match="is in source 1 and in source 2"):
            list(by_file(scan(both)))


def test_folders_of_equal_files_are_two(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.wav").write_bytes(wav(seconds=0.2))
    (tmp_path / "three").symlink_to(tmp_path / "two")
    files = list(by_file(scan(Source(uri=[str(tmp_path / name) for name in ("one", "three")]))))
    assert [file.entries[0].uri for file in files] == [str(tmp_path / "one/a.wav"), str(tmp_path / "three/a.wav")]
