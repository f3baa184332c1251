"""What the tortures share: a corpus, the command line in processes of its own, and what is on disk afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import forked
from voxstill.audio import codec
from voxstill.core.records import Label
from voxstill.storage import tables
from voxstill.storage.store import Store

SHARE = os.environ.get("TORTURE_SHARE")
"""How much of the full counts is done; None asks for the short forms."""
SPLITS = ("train", "train", "dev", "test")


def corpus(folder: Path, num: int) -> Path:
    """The manifest of so many strings of tones, each in a file of its own."""
    from tones import PITCH_HZ, speak

    folder.mkdir(parents=True)
    chance, rows = random.Random(num), []
    for i in range(num):
        text = " ".join(chance.choices(list(PITCH_HZ), k=chance.randint(1, 3)))
        (folder / f"{i:05}.flac").write_bytes(codec.encode(speak(text, i)[0], "flac"))
        row = {"id": f"u{i:05}", "audio": f"{i:05}.flac", "text": text, "split": SPLITS[i % 4], "speaker": f"s{i % 4}"}
        rows.append(row | {"language": "en"})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def configure(folder: Path, source: object, **sections: Any) -> Path:
    """The path of a small configuration whose work is below `folder`; sections given replace those of the same name."""
    tree = {
        "work": str(folder / "work"),
        "source": {"uri": str(source)},
        "engine": {"name": "inline", "chunk": 5},
        "teacher": {"name": "echo", "substitute": 0.1},
        "shard": {"utterances": 6},
        "plan": {"budget_ms": 8000},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(json.dumps(tree | sections))
    return path


def start(*arguments: object, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """The command line in a process group of its own, saying what it says into `log`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "voxstill.cli", *map(str, arguments)],
            env=inherited | environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def finish(*arguments: object, log: Path, within_s: float = 240, **environment: str) -> None:
    """The command ends well in time."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = forked.start(forked.command, arguments, log=log, environment=inherited | environment)
    forked.finish(process, log=log, within_s=within_s)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all it has started, unless it has ended."""
    if process.poll() is not None:
        return
    for pid in [*descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def descendants(pid: int) -> list[int]:
    """The processes that `pid` has started and those that they have, and so on; parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    pids = [pid]
    for parent in pids:
        pids += children.get(parent, [])
    return pids[1:]


def command_line(pid: int) -> str:
    """What a process is called; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def born(pid: int) -> str:
    """When a process began: with its number it names it for ever. Empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def left_of(processes: Iterable[tuple[int, str]], within_s: float = 90) -> list[str]:
    """Those of these processes, each with its birth, that are still there after a while.

    Ray's two agents wait a minute for a server that was killed, and then end: the short form does not wait for them.
    """
    known = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"} if SHARE is None else set()
    deadline = time.monotonic() + within_s
    while survivors := [pid for pid, birth in processes if birth and born(pid) == birth and is_left(pid, known)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return [command_line(pid) for pid in survivors]


def is_left(pid: int, known: Container[str]) -> bool:
    """Whether a process is there that is none of the known ones."""
    name = command_line(pid)
    return bool(name) and name not in known


def kept(work: Path) -> dict[str, bytes]:
    """Every part of every table and shard."""
    return {
        str(path.relative_to(work)): path.read_bytes()
        for path in sorted(work.rglob("*"))
        if path.suffix in {".parquet", ".tar"}
    }


def labels(work: str) -> list[Label]:
    """Every label in a work folder or bucket."""
    return list(tables.read(Store(work), "labels", Label))
