"""Faults of a training that goes on: other programs, too many threads, a slow bucket, slow decoding, a straggler; and
of one that has ended: a learning rate that is too high.

The command `voxstill train` runs on tones. The fix is done as a user would: a process is ended, or the same training is
begun with another option.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from doctor_faults.fault import Answer, Fault, doctor
from doctor_faults.machines import alarms
from servers import moto_server, s3_environment
from tones import PITCH_HZ, speak, write_shards
from voxstill.core import pcm
from voxstill.core.records import RATE_HZ
from voxstill.data.bottleneck import Waits
from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.training.waits import read_waits
from waiting import until

NUM = 256
MEASURED_S = 15.0
_PLAIN = "augment={noise_prob: 0.0, gain_db: 0.0, tempo: 0.0, vtlp: 0.0, time_masks: 0, mel_masks: 0}"
_OPTIONS = ("plan.budget_ms=12000", _PLAIN, "train.loader_workers=1", "train.steps=100000", "train.log_every=5")
_LONG = ("train.validate_every=100000", "train.checkpoint_every=100000", "train.step_timeout_s=120")
_READER_DELAY_S = 0.05


class TrainingFault(Fault):
    """A training without an end in sight; `options` are what it is begun with."""

    options: tuple[str, ...] = ()

    @property
    def work(self) -> str:
        """Where its shards are."""
        return str(self.folder / "work")

    def environment(self) -> Mapping[str, str]:
        """Variables of the training and of doctor."""
        return {}

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        self.number = 0
        write_corpus(Store(self.work))
        with self.training(), self.disturbed():
            yield

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        """What is wrong beside the training."""
        yield

    @contextlib.contextmanager
    def training(self, *options: str) -> Iterator[None]:
        """A training, once it makes steps; it ends with the block."""
        self.number += 1
        root = self.folder / f"exp{self.number}"
        settings = [f"work={self.work}", f"train.root={root}", *_OPTIONS, *_LONG, *self.options, *options]
        config = self.folder / f"{self.number}.yaml"
        config.write_text("{}\n")
        command = [sys.executable, "-m", "voxstill", "train", str(config)]
        command += [word for option in settings for word in ("--set", option)]
        log = (self.folder / f"{self.number}.log").open("w")
        variables = {**os.environ, **self.environment()}
        self.process = process = subprocess.Popen(
            command, stdout=log, stderr=log, env=variables, start_new_session=True
        )
        prefer(process.pid)
        try:
            until(lambda: process.poll() is not None or self.steps(root) >= 10, within_s=180)
            assert process.poll() is None, Path(log.name).read_text()
            (self.experiment,) = root.iterdir()
            yield
        finally:
            end(process)
            log.close()

    @staticmethod
    def steps(root: Path) -> int:
        """Steps that the first rank has made."""
        runs = list(root.glob("*/config.yaml"))
        return total(RunDir(runs[0].parent)).steps if runs else 0

    def ask(self) -> Answer:
        return doctor(self.experiment, environment=self.environment())

    def speed(self) -> float | None:
        before = read_waits(RunDir(self.experiment))[0]
        time.sleep(MEASURED_S)
        after = read_waits(RunDir(self.experiment))[0]
        return (after.total.steps - before.total.steps) / (after.written - before.written)

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        """The training that the fix names an option of, ended, and begun with another value of it."""
        end(self.process)
        with self.training(*self.changed(fix)):
            yield

    def changed(self, fix: str) -> tuple[str, ...]:
        """The option that the fix asks for."""
        raise NotImplementedError


class OtherPrograms(TrainingFault):
    """Six programs that compute without an end."""

    name = "other programs"
    check = "machine"

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        hog = [sys.executable, "-c", "while 1: pass"]
        # in sessions of their own, as programs of others are: the scheduler shares cores out between sessions first
        self.others = [subprocess.Popen(hog, start_new_session=True) for _ in range(6)]
        for other in self.others:
            prefer(other.pid)
        try:
            yield
        finally:
            for other in self.others:
                other.kill()
                other.wait()

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert re.search(r"end the other programs, such as process \d+$", fix), fix
        for other in self.others:
            other.kill()
            other.wait()
        time.sleep(30)  # doctor judges by the last half minute
        yield


class TooManyThreads(TrainingFault):
    """Eight threads on a machine of few cores."""

    name = "too many threads"
    check = "machine"
    options = ("train.threads=8",)

    def changed(self, fix: str) -> tuple[str, ...]:
        assert "lower `train.threads`" in fix, fix
        return ("train.threads=1",)


class SlowBucket(TrainingFault):
    """A bucket that takes 50 ms for each request, and no room for whole tars."""

    name = "slow bucket"
    check = "storage"
    options = ("cache.max_gb=0.000001",)

    @property
    def work(self) -> str:
        return "s3://bench/work"

    def environment(self) -> Mapping[str, str]:
        return s3_environment(self.port)

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        with moto_server("bench") as upstream, delayed(upstream, _READER_DELAY_S) as self.port:
            os.environ.update(s3_environment(upstream))
            with super().induced():
                yield

    def changed(self, fix: str) -> tuple[str, ...]:
        assert "raise `cache.max_gb`" in fix, fix
        return ("cache.max_gb=1",)


class SlowDecoding(TrainingFault):
    """Shards of eight channels at 192 kHz, which one worker decodes more slowly than the student learns."""

    name = "slow decoding"
    check = "decoding"
    options = ("train.loader_workers=1",)

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        self.number = 0
        write_corpus(Store(self.work), encode=many_channels)
        with self.training():
            yield

    def changed(self, fix: str) -> tuple[str, ...]:
        assert "raise `train.loader_workers`" in fix, fix
        return ("train.loader_workers=2",)


class Straggler(TrainingFault):
    """One rank of two is stopped for three quarters of the time."""

    name = "straggler"
    check = "straggler"
    options = ("train.devices=2", "plan.batches_per_step=2", "train.loader_workers=0")

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        rank = json.loads((RunDir(self.experiment).ranks / "1.json").read_text())["pid"]
        self.ends = threading.Event()
        thread = threading.Thread(target=self.stop_and_go, args=(rank,))
        thread.start()
        try:
            yield
        finally:
            self.ends.set()
            thread.join()

    def stop_and_go(self, pid: int) -> None:
        """Stop a process again and again."""
        while not self.ends.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(pid, signal.SIGCONT)
            self.ends.wait(0.01)

    def ask(self) -> Answer:
        if not self.ends.is_set():
            time.sleep(30 - MEASURED_S)
        return super().ask()

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        assert "rank 1" in fix, fix
        self.ends.set()
        time.sleep(30)
        yield


class HighLearningRate(TrainingFault):
    """A learning rate that rises until the training diverges."""

    name = "diverging training"
    check = "loss"
    options = ("train.optimizer=adamw", "train.steps=200", "train.warmup=0.9")

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        self.number = 0
        write_corpus(Store(self.work))
        self.experiment = self.train("train.lr=1")
        yield

    def train(self, *options: str) -> Path:
        """Train to the end, however it ends; returns the experiment."""
        self.number += 1
        root = self.folder / f"exp{self.number}"
        (self.folder / "c.yaml").write_text("{}\n")
        settings = (f"work={self.work}", f"train.root={root}", *_OPTIONS, *_LONG, *self.options, *options)
        command = [sys.executable, "-m", "voxstill", "train", str(self.folder / "c.yaml")]
        subprocess.run(
            [*command, *(word for option in settings for word in ("--set", option))], capture_output=True, check=False
        )
        return next(root.iterdir())

    def speed(self) -> float | None:
        return None

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        command = re.search("`(voxstill train [^`]*)`", fix)
        assert command is not None, fix
        words = shlex.split(command[1])
        self.experiment = self.train(*(word for before, word in pairwise(words) if before == "--set"))
        yield


def end(process: subprocess.Popen[Any]) -> None:
    """End a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def prefer(pid: int) -> None:
    """Let a session come before what others do on this machine, where that is allowed: that is no part of the fault."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-15")


def total(run: RunDir) -> Waits:
    """What the first rank has measured so far."""
    row = read_waits(run).get(0)
    return row.total if row else Waits()


def many_channels(samples_T: np.ndarray[Any, Any]) -> bytes:
    """The samples as FLAC of eight channels at 192 kHz."""
    wide_T = np.repeat(samples_T, 12)
    file = io.BytesIO()
    soundfile.write(file, np.stack([wide_T] * 8, axis=1), 12 * RATE_HZ, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def write_corpus(store: Store, encode: Any = None) -> None:
    """Finished shards of tones, of which every step says that it is finished."""
    for kind in ("utterances", "labels", "verdicts"):
        store.write_json(f"{kind}/r/{tables.SUCCESS}", {"recipe": "r", "sha256": ""})
    if encode is None:
        write_shards(store, "shards/r", {"train": NUM, "dev": 8})
        return
    random, pairs = np.random.default_rng(0), []
    for i in range(NUM):
        text = " ".join(random.choice(list(PITCH_HZ), size=random.integers(1, 4)))
        samples_T, words = speak(text, i)
        sample = Sample(
            id=f"train/{i}",
            split="train",
            duration_ms=pcm.samples_to_ms(len(samples_T)),
            num_samples=len(samples_T),
            text=text,
            words=words,
        )
        pairs.append((sample, encode(samples_T)))
    file = io.BytesIO()
    rows = shard_format.write(file, pairs)
    store.create(f"shards/r/{shard_format.tar_name(0)}", file.getvalue())
    store.create(f"shards/r/{shard_format.sidecar_name(0)}", tables.to_parquet(rows, Sample))
    shard_format.finish(store, "shards/r", ShardFigures(recipe="r", shards=1, utterances=NUM))


@contextlib.contextmanager
def delayed(upstream: int, delay_s: float) -> Iterator[int]:
    """The port of a relay to another one, in which whatever a client says arrives `delay_s` later."""
    listener = socket.create_server(("127.0.0.1", 0))

    def relay(source: socket.socket, target: socket.socket, pause_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(pause_s)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", upstream))
                threading.Thread(target=relay, args=(client, server, delay_s), daemon=True).start()
                threading.Thread(target=relay, args=(server, client, 0.0), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


class _Healthy(TrainingFault):
    """A training with nothing wrong."""

    name = "healthy training"
    check = "model"


def healthy(folder: Path) -> list[dict[str, Any]]:
    """A training that nothing disturbs, while it goes on."""
    training = _Healthy(folder / "healthy")
    training.folder.mkdir()
    with training.induced():
        time.sleep(MEASURED_S)
        answer = training.ask()
    return [{"what": "training", "seconds": answer.seconds, "alarms": alarms(answer)}]


FAULTS: list[type[Fault]] = [
    OtherPrograms,
    TooManyThreads,
    SlowBucket,
    SlowDecoding,
    Straggler,
    HighLearningRate,
]
