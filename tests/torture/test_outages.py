"""The bucket and the teacher's server go away at random moments for random times, and nothing is lost by it.

A command may end with an error in words, of storage or of the teacher. The same one goes on to the rows of a calm run.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import forked
from faulty_proxy import FaultyProxy, faulty_proxy
from seeds import seeded_random
from servers import Handler, moto_server, s3_environment
from torture import runs
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.storage import clients, tables
from voxstill.storage.retry import MAX_RETRYING_S
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(runs.SHARE is None, reason="short forms are test_s3.py and tests/teachers/test_openai.py"),
]
NUM = 24
STEPS = ("index", "label", "filter", "shard")
WITHIN_S = 2 * MAX_RETRYING_S + 60
"""Of a command: an operation of storage is tried for a minute, and the last may begin as long after another."""
PAUSES_S = (0.0, 1.5)
LENGTHS_S = (0.03, 10.0)
LONG_S = (MAX_RETRYING_S, 1.5 * MAX_RETRYING_S)
LONG_SHARE = 0.05


class Asked(Handler):
    """A recogniser with OpenAI's API, which knows only how a clip sounds."""

    def transcribe(self) -> None:
        audio = self.body().partition(b"RIFF")[2].rpartition(b"--")[0].rpartition(b"\r\n--")[0]
        digest = hashlib.sha256(audio).hexdigest()
        self.answer(200, json.dumps({"text": " ".join(digest[:6])}).encode(), Content_Type="application/json")

    do_POST = transcribe


@dataclass
class TeacherServer:
    """A server that is there or not: where it is not, connections are refused."""

    port: int = 0
    _server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that hangs up is no error."""

        self._server = Server(("127.0.0.1", self.port), Asked)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextlib.contextmanager
def outages(
    line: FaultyProxy, server: TeacherServer, chance: random.Random, lengths_s: list[tuple[str, float]]
) -> Iterator[None]:
    """Outages one after the other until the block ends, each added to the list; then both are there again."""
    ends = threading.Event()

    def strike() -> None:
        while not ends.wait(chance.uniform(*PAUSES_S)):
            is_long = chance.random() < LONG_SHARE
            shortest_s, longest_s = LENGTHS_S
            length_s = chance.uniform(*LONG_S) if is_long else shortest_s * (longest_s / shortest_s) ** chance.random()
            victim = chance.choice(("storage", "teacher", "both"))
            if victim != "teacher":
                line.shares = {chance.choice(("reset", "slow_down", "error")): 1.0}
            if victim != "storage":
                server.close()
            ends.wait(length_s)
            lengths_s.append((victim, length_s))
            line.shares = {}
            if victim != "storage":
                server.open()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def run(words: list[str], log: Path, environment: dict[str, str]) -> int:
    """The exit code of a command; it must end in time."""
    log.write_text("")
    process = forked.start(forked.command, words, log=log, environment=environment)
    wait([process.sentinel], timeout=WITHIN_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"{words} hangs: {log.read_text()[-3000:]}")
    return int(process.exitcode)


def contents(work: Store) -> dict[str, Counter[object]]:
    """How often each row is in each table and in the shards.

    A recording that could not be read at first lies in another part than the others, so parts differ.
    """
    sidecars = (work.read(entry.key) for entry in work.list("shards") if entry.key.endswith(".parquet"))
    samples = itertools.chain.from_iterable(tables.from_parquet(data, Sample) for data in sidecars)
    return {
        "utterances": Counter(map(repr, tables.read(work, "utterances", Utterance))),
        "labels": Counter((row.utterance_id, row.text, row.error) for row in tables.read(work, "labels", Label)),
        "verdicts": Counter((row.utterance_id, row.reason) for row in tables.read(work, "verdicts", Verdict)),
        "shards": Counter((row.id, row.text) for row in samples),
    }


def test_outages_of_any_length_lose_nothing(torture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, chance = torture.count(short=3, full=150), seeded_random()
    server, struck = TeacherServer(), list[tuple[str, float]]()
    server.open()
    codes: Counter[str] = Counter()
    slowest_s, corpora = 0.0, 0
    with moto_server("bucket") as moto_port, faulty_proxy(moto_port) as line:
        for name, value in s3_environment(moto_port).items():
            monkeypatch.setenv(name, value)
        clients.client.cache_clear()
        bucket = Store("s3://bucket")
        for path in runs.corpus(tmp_path / "audio", NUM).parent.iterdir():
            bucket.replace(f"audio/{path.name}", path.read_bytes())
        environment = dict(os.environ) | s3_environment(line.port)
        teacher = {"name": "openai", "model": "m", "base_url": f"http://127.0.0.1:{server.port}/v1"}
        pace = {"retries": 1, "timeout_s": 5, "concurrency": 2}
        engine = {"name": "inline", "chunk": 2}
        log = tmp_path / "log"

        def words(step: str, work: str) -> list[str]:
            config = runs.configure(tmp_path, "", work=work, teacher=teacher | pace, engine=engine)
            first = ["index", "s3://bucket/audio/manifest.jsonl", "--work", work] if step == "index" else [step, work]
            return [*first, "--config", str(config)]

        for step in STEPS:
            assert run(words(step, "s3://bucket/calm"), log, environment) == 0, log.read_text()[-3000:]
        expected = contents(Store("s3://bucket/calm"))
        assert len(expected["labels"]) == NUM
        while len(struck) < wanted:
            corpora += 1
            work = f"s3://bucket/work{corpora}"
            for step in STEPS:
                code, num = 1, 0
                while code != 0:
                    num += 1
                    since = time.monotonic()
                    calm_again = num > 20  # the source is back: now it must end
                    with contextlib.nullcontext() if calm_again else outages(line, server, chance, struck):
                        code = run(words(step, work), log, environment)
                    slowest_s = max(slowest_s, time.monotonic() - since)
                    codes[f"{step}: {code}"] += 1
                    message = log.read_text()
                    assert "Traceback" not in message, message[-3000:]
                    assert code in (0, 4, 5), message[-3000:]
                    assert code == 0 or re.search(r"error: .*\n  why: .*\n  fix: |: the same command tries", message), (
                        message
                    )
                    assert not (calm_again and code), message[-3000:]
            assert contents(Store(work)) == expected
    server.close()
    clients.client.cache_clear()
    lengths_s = sorted(length_s for _, length_s in struck)
    torture.tell(
        "outages",
        f"{len(struck)} of {lengths_s[0]:.2f} to {lengths_s[-1]:.0f} s, {sum(lengths_s):.0f} s in all, "
        f"in {corpora} corpora of {NUM}; exit codes {dict(codes)}; the slowest command took {slowest_s:.0f} s",
    )
