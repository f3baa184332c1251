"""A small corpus with audio, two teachers and two judged students, and an explorer of it in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import soundfile

import forked
from voxstill.core.config import Config
from voxstill.core.records import RATE_HZ
from voxstill.evaluation import recognition, results
from voxstill.evaluation.results import Corpus
from voxstill.explorer.filters import ROW, Filter, Order
from voxstill.pipeline import explore
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.pipeline import shard as sharding
from voxstill.pipeline.judged_split import of_split
from voxstill.storage.rundir import RunDir
from waiting import until

NUM = 48
WORDS = ("turn", "on", "the", "light", "please", "stop", "music", "now")
EVIL = "<img src=x onerror=alert(1)>"
get = functools.partial(httpx.get, verify=False)
post = functools.partial(httpx.post, verify=False)
"""Without a read of all certificates for each request; there is no TLS on loopback."""


def rows_of(cfg: Config) -> list[dict[str, Any]]:
    """The rows of a corpus in the order of its tables."""
    with explore.opened(cfg) as session:
        return [dict(row) for row in session.corpus.page(Filter(), Order(column=ROW), 500)]


def num_rows_of(arguments: tuple[str, str]) -> int:
    """How many rows a corpus has, in a process of its own, which can import this file and no file of tests."""
    path, text = arguments
    os.environ["OMP_NUM_THREADS"] = "1"
    return len(rows_of(Config.model_validate_json(text).model_copy(update={"work": path})))


@dataclass
class ExplorerProcess:
    """A running `voxstill explore`."""

    url: str
    process: ForkServerProcess
    log: Path

    @property
    def base(self) -> str:
        """The address without the token."""
        return f"http://{urlsplit(self.url).netloc}"

    @property
    def token(self) -> str:
        """The token of this start."""
        return urlsplit(self.url).query.removeprefix("token=")

    def get(self, path: str, **parameters: object) -> httpx.Response:
        """A GET with the token."""
        values = {
            name: json.dumps(value) if name in ("filter", "after") else str(value) for name, value in parameters.items()
        }
        return get(f"{self.base}/api/{path}", params=values, headers=self.headers, timeout=60)

    def rows(self, **parameters: object) -> list[dict[str, Any]]:
        """The rows of a page."""
        answer = self.get("rows", **parameters)
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()["rows"]
        return rows

    def judge(self, body: object, **headers: str) -> httpx.Response:
        """POST a judgement, as the page does."""
        own = {**self.headers, "Origin": self.base, **headers}
        return post(f"{self.base}/api/judgements", json=body, headers=own, timeout=60)

    @property
    def headers(self) -> dict[str, str]:
        """Those that open the API."""
        return {"Authorization": f"Bearer {self.token}"}

    def stop(self) -> int | None:
        """Send SIGTERM; return the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(60)
        return self.process.exitcode


@contextlib.contextmanager
def exploring(folder: Path, work: str, *arguments: object) -> Iterator[ExplorerProcess]:
    """An explorer that is ready, and killed at the end of the block where it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    output, log = folder / "url.json", folder / "explore.log"
    output.unlink(missing_ok=True)
    command = ["explore", work, *arguments, "--json"]
    process = forked.start(forked.command, command, log=log, output=output, environment=dict(os.environ))
    try:
        until(lambda: (output.exists() and output.read_text().endswith("\n")) or process.exitcode is not None, 120)
        assert process.exitcode is None, log.read_text()
        yield ExplorerProcess(json.loads(output.read_text())["url"], process, log)
    finally:
        process.kill()
        process.join()


def make_corpus(folder: Path, **more: Any) -> Config:
    """Index, label by two teachers, filter and shard a corpus whose every text is known."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUM):
        text = " ".join(WORDS[k] for k in rng.integers(0, len(WORDS), 3 + number % 5))
        samples_T = (rng.normal(0, 900, RATE_HZ // 2 + 400 * number)).astype(np.int16)
        soundfile.write(folder / f"{number}.wav", samples_T, RATE_HZ)
        rows.append(
            {
                "audio": f"{number}.wav",
                "id": f"u{number:03}",
                "text": text if number else f"stop {EVIL}",
                "split": ("train", "train", "dev", "test")[number % 4],
                "speaker": f"speaker-{number % 5}",
                "dataset": ("radio", "calls")[number % 2],
                "language": "en",
            }
        )
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = config_of(folder, 0.25, **more)
    indexing.index(cfg)
    labelling.label_utterances(config_of(folder, 0.5, **more))
    labelling.label_utterances(cfg)
    filtering.filter_labels(cfg)
    sharding.shard(cfg)
    return cfg


def copy_corpus(cfg: Config, folder: Path) -> Config:
    """The same corpus with a work folder of its own, to be changed; its audio stays where it is."""
    work = shutil.copytree(cfg.work, folder / "work")
    return cfg.model_copy(update={"work": str(work)})


def config_of(folder: Path, substitute: float, **more: Any) -> Config:
    """The configuration of the corpus with one of its teachers."""
    tree = {
        "work": str(folder / "work"),
        "source": {"uri": str(folder / "manifest.jsonl")},
        "engine": {"name": "inline", "chunk": 8},
        "teacher": {"name": "echo", "substitute": substitute},
        "filter": {"keep_share": 0.6},
        "evaluate": {"split": "test"},
    }
    return Config.model_validate(tree | more)


def write_config(folder: Path, cfg: Config) -> Path:
    """The configuration as a file."""
    path = folder / "config.yaml"
    path.write_text(json.dumps(cfg.model_dump(mode="json", exclude_unset=True)))
    return path


def make_experiments(folder: Path, cfg: Config, names: Sequence[str] = ("first", "second")) -> list[Path]:
    """Experiments whose students were judged: each has its own utterance wrong, and the rest right."""
    split = of_split(cfg)
    paths = []
    for number, name in enumerate(names):
        run = RunDir(folder / name)
        run.path.mkdir()
        run.config.write_text("{}")
        lines: list[dict[str, object]] = [{"step": step, "loss": 5.0 / step} for step in range(1, 900)]
        lines.append({"step": 899, "split": "dev", "wer": 0.1 * (number + 1), "seconds": 1.0})
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 900, "lo')
        texts = {row.id: row.text or "" for row in split.utterances}
        texts[split.utterances[number].id] = "nothing of that"
        figures = {
            "model": name,
            "split": "test",
            "normalizer": "basic",
            "wer": 0.1,
            "interval": [0.05, 0.2],
            "words": 60,
            "utterances": len(texts),
            "decode": {"beam": 1},
        }
        evaluation = recognition.evaluation_of(figures, split.utterances, texts)
        results.write(run.evaluation, evaluation.of(Corpus(work=cfg.work, utterances=split.corpus.utterances)))
        paths.append(run.path)
    return paths
