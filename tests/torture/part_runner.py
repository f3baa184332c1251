"""The command line in children of a server that has loaded what is slow to load: a killed part starts again at once."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import av  # noqa: F401
import obstore.store  # noqa: F401
import pyarrow.parquet  # noqa: F401

from voxstill import cli
from voxstill.pipeline import filter as _filter  # noqa: F401
from voxstill.pipeline import index as _index  # noqa: F401
from voxstill.pipeline import label as _label  # noqa: F401
from voxstill.pipeline import shard as _shard  # noqa: F401

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def start(arguments: tuple[str, ...], log: Path) -> ForkServerProcess:
    """A process that runs a command and says what it says into `log`."""
    process = SERVER.Process(target=run, args=(arguments, log))
    process.start()
    return process


def run(arguments: tuple[str, ...], log: Path) -> None:
    """The command, its output and its exit code."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.exit(cli.main(list(arguments)))
