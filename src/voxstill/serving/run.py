"""The server as a process: it listens, loads, and stops without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.serving.app import TranscriptionServer
from voxstill.serving.middleware import Keys
from voxstill.serving.models import ModelSource, Opener

_KEEP_ALIVE_S = 75
_BACKLOG = 2048  # that of uvicorn
_MOST_WS_BYTES = 16 << 20


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which close sockets at once and end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield


def run(
    cfg: Config,
    sources: Sequence[ModelSource],
    opener: Opener,
    keys: Keys,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    """Serve on an open socket until SIGTERM or SIGINT; `ready` is called when all models are loaded.

    The first signal makes `/ready` answer 503 for `serve.grace_s`; then the socket is closed and what is under way is
    answered, within `serve.drain_s`. A second signal ends the grace. VoxstillError where a model cannot be loaded.
    """
    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()  # uvloop, where it is installed
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(cfg, sources, opener, keys, listener, ready))


async def _serve(
    cfg: Config,
    sources: Sequence[ModelSource],
    opener: Opener,
    keys: Keys,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    logging.getLogger("uvicorn").handlers = [*log.handlers]
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # damaged forms are answered
    server = TranscriptionServer(cfg, opener, keys)
    options = uvicorn.Config(
        server.app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="websockets-sansio",
        ws_max_size=_MOST_WS_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(cfg.serve.drain_s)),
    )
    http = _Uvicorn(options)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal(name: str) -> None:
        if stop.is_set():
            hurry.set()
        log.info("serve: %s: no new requests in %g s", name, 0 if stop.is_set() else cfg.serve.grace_s)
        stop.set()

    if threading.current_thread() is threading.main_thread():  # no other may do so
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number.name)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    loading = asyncio.create_task(server.load(sources))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([loading, serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            ready()
            await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        server.drain()
        if loading.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), cfg.serve.grace_s)
        await server.end_sessions()
    finally:
        http.should_exit = True
        await serving
        if loading.done() and loading.exception() is None:
            await server.close()
        else:
            loading.cancel()


def listening(host: str, port: int) -> socket.socket:
    """Open a socket; the system chooses the port for 0. ConfigError where the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends small answers at once (TCP_NODELAY) where the protocol is named; else each waits 40 ms
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # now: until then another process may bind the same port
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"the server cannot listen at {host}:{port}",
            why=getattr(error, "strerror", None) or str(error),
            fix="take another --host or --port",
        ) from None
    return listener
