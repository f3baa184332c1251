"""Files that crash, hang or flood a decoder, and utterances that do so to a teacher, are rows; the rest is labelled."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from torture import runs
from voxstill.core.records import Recording
from voxstill.storage import tables
from voxstill.storage.store import Store

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
CHUNK = 2
LIMITS = {"decode_s": 5.0, "decode_mb": 256, "lease_s": 15.0, "attempts": 1, "chunk": CHUNK}
IN_DECODER = {
    "crash": "decoding crashed: its process was ended by SIGSEGV",
    "hang": "decoding hung: no end within 5 s",
    "bomb": "decoding crashed: its process was ended by SIGABRT",
}
EXPANDING_H = (5, 7)
TOO_LARGE = ("decoding needs too much memory: more than 256 MB", "too long")
IN_TEACHER = {
    "crash": "set aside: its worker died",
    "hang": "set aside: no answer within the time limit",
    "bomb": "set aside: MemoryError",
}


def marked(data: bytes, marker: str) -> bytes:
    """A FLAC file with a block of data for an application after its first block (RFC 9639, section 8.5)."""
    content = b"test" + marker.encode()
    return data[:42] + bytes([2]) + len(content).to_bytes(3, "big") + content + data[42:]


def expanding(path: Path, hours: int) -> None:
    """A small file of so many hours."""
    with soundfile.SoundFile(path, "w", 1000, 1, "PCM_16", format="FLAC") as file:
        for _ in range(hours):
            file.write(np.full(3_600_000, 7, np.int16))


def teacher_package(folder: Path) -> None:
    """What `pip` would leave of a package that brings a teacher."""
    info = folder / "greedy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[voxstill.teachers]\ngreedy = greedy:GreedyTeacher\n")


def test_poison_is_set_aside_with_its_reason_and_the_rest_is_labelled(torture: Any, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not at hand")
    shim, log = tmp_path / "poison.so", tmp_path / "log"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "poison.c", "-ldl"], check=True)
    num = torture.count(short=40, full=3000)
    num_of_kind = max(1, num // 1100)  # of eleven kinds: one file in a hundred
    source = runs.corpus(tmp_path / "audio", num)
    ids = iter(range(7, num, num // (11 * num_of_kind + 1)))
    index_errors: dict[str, tuple[str, ...]] = {}
    label_errors: dict[str, str] = {}
    for kind in list(IN_DECODER) * num_of_kind:
        for step, errors in (("index", index_errors), ("label", label_errors)):
            number = next(ids)
            path = source.parent / f"{number:05}.flac"
            path.write_bytes(marked(path.read_bytes(), f"poison:{step}:{kind}"))
            errors[path.name if step == "index" else f"u{number:05}"] = IN_DECODER[kind]  # type: ignore[assignment]
    for hours in EXPANDING_H * num_of_kind:
        path = source.parent / f"{next(ids):05}.flac"
        expanding(path, hours)
        assert path.stat().st_size < 1_000_000
        index_errors[path.name] = TOO_LARGE
    teacher: dict[str, Any] = {"name": "greedy", "substitute": 0.1}
    for kind in list(IN_TEACHER) * num_of_kind:
        id_ = f"u{next(ids):05}"
        label_errors[id_] = IN_TEACHER[kind]
        teacher.setdefault(f"{kind}_on", []).append(id_)
    teacher_package(tmp_path / "packages")
    environment = {"LD_PRELOAD": str(shim), "PYTHONPATH": f"{HERE}:{tmp_path / 'packages'}"}
    engine = LIMITS | {"name": "ray", "workers": 2, "teachers": 2}
    config = runs.configure(tmp_path, source, teacher=teacher, engine=engine)
    work = tmp_path / "work"
    inline = ("--set", "engine.name=inline")
    index = ("index", source, "--work", work, "--config", config, *inline)
    assert runs.start(*index, log=log, POISON_STEP="index", **environment).wait(240) == 0, log.read_text()[-3000:]
    damaged = {
        Path(row.uri).name: row.error for row in tables.read(Store(str(work)), "recordings", Recording) if row.error
    }
    assert damaged.keys() == index_errors.keys()
    for name, expected in index_errors.items():
        assert str(damaged[name]).startswith(expected), (name, damaged[name])
    label = ("label", work, "--config", config)
    assert runs.start(*label, log=log, POISON_STEP="label", **environment).wait(3600) == 0, log.read_text()[-3000:]
    rows = runs.labels(str(work))
    poisoned = {int(name[:5]) for name in index_errors}
    assert sorted(row.utterance_id for row in rows) == [f"u{i:05}" for i in range(num) if i not in poisoned]
    failed = {row.utterance_id: str(row.error) for row in rows if row.error is not None}
    assert failed.keys() == label_errors.keys()
    for id_, expected_error in label_errors.items():
        assert failed[id_].startswith(expected_error), (id_, failed[id_])
    reasons = Counter(reason.partition(":")[0] for reason in [*map(str, damaged.values())]) + Counter(failed.values())
    torture.tell("poison", f"{len(index_errors) + len(label_errors)} of {num:,} files: {dict(reasons)}")
