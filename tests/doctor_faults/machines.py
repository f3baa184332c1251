"""Faults of a machine: its memory, disk, limits, packages, ports and bucket."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor_faults.fault import Answer, CannotBeInduced, Fault, doctor
from servers import moto_server, s3_environment

MIB = 1 << 20


class FullDisk(Fault):
    """The experiments lie on a disk of which everything is taken."""

    name = "full disk"
    check = "disk"

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        image = self.folder / "image"
        with image.open("wb") as file:
            file.truncate(8192 * MIB)
        _run("mkfs.ext4", "-q", "-F", str(image))
        _run("mount", "-o", "loop", str(image), str(self.disk))
        try:
            _run("fallocate", "-l", f"{7200 * MIB}", str(self.disk / "old-checkpoints"))
            yield
        finally:
            _run("umount", "-l", str(self.disk))

    def ask(self) -> Answer:
        return doctor("--set", f"train.root={self.disk}/exp", "--set", f"work={self.disk}/work")

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert "free some space" in fix
        (self.disk / "old-checkpoints").unlink()
        yield


class LittleMemory(Fault):
    """A container with 600 MB, which a training does not fit into."""

    name = "memory limit"
    check = "memory"
    limit_bytes = 600 * MIB

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        root = Path("/sys/fs/cgroup/memory")
        self.group = (root if root.is_dir() else Path("/sys/fs/cgroup")) / f"voxstill-{os.getpid()}"
        self.limit = self.group / ("memory.limit_in_bytes" if root.is_dir() else "memory.max")
        try:
            self.group.mkdir()
            self.limit.write_text(str(self.limit_bytes))
        except OSError as error:
            raise CannotBeInduced(f"no control group: {error}") from None
        try:
            yield
        finally:
            self.group.rmdir()

    def ask(self) -> Answer:
        inside = f'echo $$ > {self.group}/cgroup.procs && exec "$@"'
        return doctor(before=["bash", "-c", inside, "bash"])

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert "raise its limit" in fix
        self.limit.write_text(str(4096 * MIB))
        yield


class FewFiles(Fault):
    """A shell that allows 128 open files."""

    name = "open files"
    check = "open files"
    limit = "ulimit -n 128"

    def ask(self) -> Answer:
        return doctor(before=["bash", "-c", f'{self.limit} && exec "$@"', "bash"])

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        self.limit = fix.removeprefix("run: ").replace("65536", "4096")  # no more than the hard limit of the host
        yield


class WrongPackage(Fault):
    """A torchaudio that is built against another torch, as pip brings it along."""

    name = "conflicting package"
    check = "packages"

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        self.info = self.folder / "torchaudio-2.9.0.dist-info"
        self.info.mkdir()
        (self.info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.9.0\nRequires-Dist: torch (==2.9.0)\n"
        )
        yield

    def ask(self) -> Answer:
        path = os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH"))))
        return doctor(environment={"PYTHONPATH": path})

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert "pip uninstall -y torchaudio" in fix
        shutil.rmtree(self.info)  # what pip would do
        yield


class TakenPort(Fault):
    """Something listens where the metrics are to be served."""

    name = "port in use"
    check = "ports"

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as free:
            self.port, self.other = other.getsockname()[1], free.getsockname()[1]
            free.close()
            yield

    def ask(self) -> Answer:
        return doctor("--set", f"monitor.port={self.port}")

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert "choose another `monitor.port`" in fix
        self.port = self.other
        yield


class HungBucket(Fault):
    """An endpoint that takes connections and never answers."""

    name = "bucket that hangs"
    check = "bucket"
    port: int

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        with socket.create_server(("127.0.0.1", 0)) as silent, moto_server("bench") as right:
            self.port, self.right = silent.getsockname()[1], right
            yield

    def ask(self) -> Answer:
        return doctor("--set", "work=s3://bench/work", environment=s3_environment(self.port))

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert "it hangs" in fix
        self.port = self.right
        yield


def healthy(folder: Path) -> dict[str, Any]:
    """The machine as it is: what fails or warns there, and how long it took."""
    answer = doctor("--set", f"work={folder}/work", "--set", f"train.root={folder}/exp")
    return {"what": "machine", "seconds": answer.seconds, "alarms": alarms(answer)}


def alarms(answer: Answer) -> list[str]:
    """What is not ok."""
    return [f"{check['name']}: {check['found']}" for check in answer.checks if check["state"] != "ok"]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBeInduced(f"{command[0]}: {done.stderr.strip()}")


FAULTS: list[type[Fault]] = [FullDisk, LittleMemory, FewFiles, WrongPackage, TakenPort, HungBucket]
