"""The explorer as a process: it listens on loopback until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.explorer.app import Explorer
from voxstill.explorer.session import Session

HOST = "127.0.0.1"
_DRAIN_S = 3


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield


def listening(port: int) -> socket.socket:
    """Open a socket on loopback; the system chooses the port for 0. ConfigError where it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the explorer cannot listen at {HOST}:{port}",
            why=error.strerror or str(error),
            fix="take another --port, or leave it out",
        ) from None
    return listener


def run(session: Session, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the address, token included."""
    with asyncio.Runner() as runner:
        runner.run(_serve(session, listener, ready))


async def _serve(session: Session, listener: socket.socket, ready: Callable[[str], None]) -> None:
    logging.getLogger("uvicorn").handlers = [*log.handlers]
    port = listener.getsockname()[1]
    explorer = Explorer(session, port)
    options = uvicorn.Config(
        explorer.app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_DRAIN_S,
    )
    http = _Uvicorn(options)

    def stop() -> None:
        http.should_exit = True

    if threading.current_thread() is threading.main_thread():  # no other may do so
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    while not http.started and not serving.done():
        await asyncio.sleep(0.01)
    if http.started:
        ready(f"http://{HOST}:{port}/?token={explorer.app.token}")
    await serving
