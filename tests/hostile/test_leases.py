"""What others write among the leases of a work folder or an experiment ends no command in a traceback, nor locks it."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from voxstill.core.errors import StorageError
from voxstill.storage import lease
from voxstill.storage.store import Store

TABLE = "labels/abc"
HOLDER = dataclasses.asdict(dataclasses.replace(lease.Holder.of_this_process("label"), machine="elsewhere"))
ODD = {
    "list": [1],
    "null": None,
    "text": "abc",
    "no fields": {"id": "x"},
    "time in words": HOLDER | {"beat_s": "now"},
    "time without end": HOLDER | {"beat_s": float("inf")},
    "no time": HOLDER | {"beat_s": float("nan")},
    "machine": HOLDER | {"machine": 5},
    "process in words": HOLDER | {"process": "x", "machine": lease.machine()},
    "no process": HOLDER | {"process": -1},
    "process beyond any": HOLDER | {"process": 10**30, "machine": lease.machine()},
}


def written(folder: Path, name: str, content: object) -> Store:
    file = folder / "leases" / TABLE / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Store(str(folder))


@pytest.mark.parametrize(
    "content", [*ODD.values(), b"", b"\xff\xfe{", b"[" * 100_000], ids=[*ODD, "0", "bytes", "deep"]
)
def test_what_is_no_lease_is_refused_in_words(tmp_path: Path, content: object) -> None:
    work = written(tmp_path, "00000001.json", content)
    for look in (lambda: lease.acquire(work, TABLE, "label"), lambda: lease.check_free(work, TABLE)):
        with pytest.raises(StorageError, match="is not a lease"):
            look()


def test_other_files_beside_a_lease_are_passed_over(tmp_path: Path) -> None:
    for name in (".DS_Store", "notes.txt", "00000001 (1).json", "\u0661.json", f"{'9' * 200}.json"):
        written(tmp_path, name, b"x")
    work = written(tmp_path, "00000001.json", HOLDER | {"is_released": True})
    with lease.hold(work, TABLE, "label") as held:
        held.check()
        with pytest.raises(StorageError, match="is being written by another process"):
            lease.acquire(work, TABLE, "label")


def test_a_lease_from_the_future_holds_no_longer_than_its_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.1)
    work = written(tmp_path, "00000001.json", HOLDER | {"beat_s": time.time() + 1e8})
    lease.check_free(work, TABLE)
    lease.acquire(work, TABLE, "label").release()


def test_a_long_command_takes_one_line(tmp_path: Path) -> None:
    work = written(tmp_path, "00000001.json", HOLDER | {"command": "x\n" * 100_000, "beat_s": time.time()})
    with pytest.raises(StorageError) as caught:
        lease.acquire(work, TABLE, "label")
    assert len(caught.value.why) < 300
    assert "\n" not in caught.value.why
