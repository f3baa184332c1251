"""A server in a process of its own, on a port that the system chooses, and recordings of the tones for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

import forked
from tones import TEXTS, speak
from voxstill.core.records import RATE_HZ
from waiting import until

API_KEY, ADMIN_KEY = "key-of-the-tests", "admin-of-the-tests"


@dataclass
class ServerProcess:
    """A running `voxstill serve`."""

    url: str
    process: ForkServerProcess
    log: Path
    key: str = API_KEY

    def get(self, path: str, key: str | None = API_KEY) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return self._ask(urllib.request.Request(self.url + path), key)

    def admin(self, path: str = "", body: Mapping[str, object] | None = None) -> tuple[int, Any]:
        """Status and JSON of the administration."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/admin{path}", data=data)
        status, content = self._ask(request, ADMIN_KEY)
        return status, json.loads(content)

    def stop(self) -> int | None:
        """Send SIGTERM; return the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(120)
        return self.process.exitcode

    @staticmethod
    def _ask(request: urllib.request.Request, key: str | None) -> tuple[int, bytes]:
        if key is not None:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@contextlib.contextmanager
def serving(
    folder: Path,
    models: Sequence[object],
    *settings: str,
    environment: Mapping[str, str] | None = None,
    command: Callable[[Sequence[object]], None] = forked.command,
) -> Iterator[ServerProcess]:
    """A server that is ready, and killed at the end of the block where it still runs."""
    keys = {"VOXSTILL_API_KEYS": f"another-key,{API_KEY}", "VOXSTILL_ADMIN_KEY": ADMIN_KEY}
    output, log = folder / "url.json", folder / "serve.log"
    options = [option for setting in settings for option in ("--set", setting)]
    arguments = ["serve", *map(str, models), "--port", "0", "--json", *options]
    variables = os.environ | (keys if environment is None else environment)
    process = forked.start(command, arguments, log=log, output=output, environment=variables)
    try:
        until(lambda: (output.exists() and output.read_text().endswith("\n")) or process.exitcode is not None, 280)
        assert process.exitcode is None, log.read_text()
        yield ServerProcess(json.loads(output.read_text())["url"], process, log)
    finally:
        process.kill()
        process.join()


def command_with_small_limits(arguments: Sequence[object]) -> None:
    """The command line with 200 file descriptors, and with 2 s where a client may be silent for 30."""
    from voxstill.core import asgi
    from voxstill.serving import receiving

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    asgi.HEAD_S = receiving.STALLED_S = 2.0
    forked.command(arguments)


def samples_of(*texts: str) -> NDArray[np.int16]:
    """The texts as tones, one after the other."""
    return np.concatenate([speak(text, seed)[0] for seed, text in enumerate(texts)])


def wav_of(*texts: str) -> bytes:
    """The same as a WAV."""
    file = io.BytesIO()
    soundfile.write(file, samples_of(*(texts or TEXTS[:1])), RATE_HZ, format="WAV")
    return file.getvalue()
