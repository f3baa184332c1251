"""`verify` checks what belongs to no table, too: the record of removed utterances and unpacked copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import wav, write_tar
from voxstill.core.config import Config
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.remove import remove
from voxstill.pipeline.verify import verify
from voxstill.storage import same_audio


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    """A compressed tar of four recordings; one of them was removed before they were labelled."""
    members: dict[str, bytes] = {}
    for number in range(4):
        members[f"{number}.wav"] = wav(300 + 50 * number)
        members[f"{number}.json"] = json.dumps({"id": f"u{number}", "text": "one", "speaker": "s"}).encode()
    source = write_tar(tmp_path / "a.tar.gz", members, "w:gz")
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"uri": str(source), "dev_share": 0, "test_share": 0},
        "engine": "inline",
        "teacher": "reference",
    }
    cfg = Config.model_validate(tree)
    index(cfg)
    remove(cfg, ["u1"])
    label_utterances(cfg)
    assert not verify(cfg.work, cfg).broken
    return cfg


def one(cfg: Config, pattern: str) -> Path:
    [path] = Path(cfg.work).glob(pattern)
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_a_broken_record_of_removed_utterances_is_named(cfg: Config) -> None:
    record = one(cfg, "removed/*.parquet")
    flip(record, record.stat().st_size // 2)
    result = verify(cfg.work, cfg, repair=True)
    assert result.exit_code == 3
    [broken] = result.broken
    assert broken.path == f"removed/{record.name}"
    assert "voxstill remove" in broken.reason


def test_a_record_of_removed_utterances_that_is_missing_is_named(cfg: Config) -> None:
    one(cfg, "removed/*.parquet").unlink()
    [broken] = verify(cfg.work, cfg).broken
    assert broken.path == "removed"
    assert "1 utterances" in broken.reason
    remove(cfg, ["u1"])
    assert not verify(cfg.work, cfg).broken


def test_an_unpacked_copy_that_is_missing_or_broken_is_named_and_unpacked_again(cfg: Config) -> None:
    copy = one(cfg, "unpacked/*.tar")
    whole = copy.read_bytes()

    def reason() -> str:
        [broken] = verify(cfg.work, cfg).broken
        assert broken.path == f"unpacked/{copy.name}"
        result = verify(cfg.work, cfg, repair=True)
        assert (result.exit_code, list(result.repaired)) == (0, [broken.path])
        assert copy.read_bytes() == whole
        return broken.reason

    flip(copy, 600)
    assert "1 recordings" in reason()
    copy.write_bytes(whole[: len(whole) // 2])
    assert "recordings in it" in reason()
    copy.unlink()
    assert "it is missing" in reason()
    copy.unlink()
    index(cfg)
    assert not verify(cfg.work, cfg).broken
    assert copy.read_bytes() == whole


def test_an_unpacked_copy_of_a_file_that_was_touched_is_unpacked_again_and_of_another_file_stays(cfg: Config) -> None:
    copy, source = one(cfg, "unpacked/*.tar"), Path(str(cfg.source.uri))
    whole, packed = copy.read_bytes(), source.read_bytes()
    flip(copy, 600)
    source.write_bytes(packed)
    assert verify(cfg.work, cfg, repair=True).exit_code == 0
    assert one(cfg, "unpacked/*.tar") == copy
    assert copy.read_bytes() == whole
    flip(copy, 600)
    broken = copy.read_bytes()
    source.unlink()
    assert verify(cfg.work, cfg, repair=True).exit_code == 3
    assert copy.read_bytes() == broken
    assert not list(Path(cfg.work).glob("set_aside/**/*.tar"))


def test_a_broken_note_beside_labels_does_not_end_the_check_and_is_made_again(cfg: Config) -> None:
    note = one(cfg, f"labels/*/{same_audio.NAME}")
    note.write_bytes(b"")
    [broken] = verify(cfg.work, cfg).broken
    assert broken.path.endswith(same_audio.NAME)
    assert verify(cfg.work, cfg, repair=True).exit_code == 0
    assert not verify(cfg.work, cfg).broken
