"""Processes for tests to kill, forked from a server that has loaded what is slow to load, torch above all.

They differ from a command in a shell by how they start alone; where the start is what is tested, start a command.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import runpy
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from voxstill import cli

SERVER = get_context("forkserver")
# a thread would not be there after the fork; the one that these start, of pyarrow's jemalloc, starts again by itself
SERVER.set_forkserver_preload(
    [
        *("av", "kaldialign", "lightning_fabric", "obstore.store", "pandas", "pyarrow.parquet", "tokenizers"),
        *("torch.utils.tensorboard", "transformers.modeling_utils", "transformers.convert_slow_tokenizer"),
        *("transformers.models.parakeet.modeling_parakeet", "transformers.models.wav2vec2.modeling_wav2vec2"),
        *("voxstill.cli", "voxstill.pipeline.index", "voxstill.pipeline.filter", "voxstill.pipeline.end_to_end"),
        *("voxstill.pipeline.evaluate", "voxstill.tasks.recognition", "voxstill.tasks.classification"),
        *("voxstill.tasks.pretraining", "voxstill.pipeline.serve", "voxstill.serving.run"),
    ]
)


def start(
    target: Callable[..., object],
    *arguments: object,
    log: Path,
    output: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> ForkServerProcess:
    """A process that calls `target` in this environment or that of the test.

    What it prints is added to `output`, or to `log` as what it says on stderr.
    """
    variables = dict(os.environ if environment is None else environment)
    log.touch()
    process = SERVER.Process(target=_run, args=(target, arguments, output or log, log, Path.cwd(), variables))
    process.start()
    return process


def command(arguments: Sequence[object]) -> None:
    """The command line, to be started: a process group of its own, which ends with its exit code."""
    os.setsid()
    atexit._clear()  # what the server has registered is not of the command
    code = cli.main([str(argument) for argument in arguments])
    atexit._run_exitfuncs()  # multiprocessing does so from Python 3.13 on; without it Ray is killed, not shut down
    sys.exit(code)


def command_killed_at(line: str, arguments: Sequence[object]) -> None:
    """The same, which kills itself by SIGKILL once it logs this line."""

    def kill_at_line(record: logging.LogRecord) -> bool:
        if record.getMessage() == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    logging.getLogger("voxstill").addFilter(kill_at_line)  # the command replaces handlers
    command(arguments)


def script(arguments: Sequence[object]) -> None:
    """A file of Python with its arguments, to be started."""
    path, *_ = sys.argv = [str(argument) for argument in arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def commands(lines: Sequence[Sequence[str]]) -> None:
    """Command lines one after the other, to be started; it ends with the first that fails."""
    for words in lines:
        if code := cli.main([*words, "--log-level", "warning"]):
            sys.exit(f"{words} ended with {code}")


@contextlib.contextmanager
def forked(
    target: Callable[..., object], *arguments: object, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ForkServerProcess]:
    """`start`, and the end of the process at the end of the block at the latest."""
    process = start(target, *arguments, log=log, environment=environment)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def finish(*processes: ForkServerProcess, log: Path, within_s: float = 250) -> None:
    """Wait for processes, which must all end well; where one does not, the others are killed."""
    deadline = time.monotonic() + within_s
    try:
        while (codes := [process.exitcode for process in processes]) and not all(code == 0 for code in codes):
            assert not any(codes), log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            wait([process.sentinel for process in processes if process.exitcode is None], timeout=1)
    finally:
        for process in processes:
            process.kill()
            process.join()


def call(target: Callable[..., object], *arguments: object, log: Path, ranks: int = 1) -> None:
    """`target` in a process of its own, or in some that know each other as those of torchrun do; all must end well."""
    variables: list[dict[str, str]] = [{}] if ranks == 1 else torchrun_variables(ranks)
    processes = [start(target, *arguments, log=log, environment=os.environ | more) for more in variables]
    finish(*processes, log=log)


def free_port() -> int:
    """A port that nobody listens on, and none of those that are given out to whoever names none."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def torchrun_variables(ranks: int) -> list[dict[str, str]]:
    """What torchrun says to each of its processes."""
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "tests"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _run(
    target: Callable[..., object],
    arguments: tuple[object, ...],
    output: Path,
    log: Path,
    folder: Path,
    variables: dict[str, str],
) -> None:
    os.chdir(folder)
    for stream, path in enumerate((output, log), start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under `nohup` ignore it
    target(*arguments)
