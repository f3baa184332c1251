"""The server as a process: it listens, loads, and stops without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence

from voxstill.core import asgi
from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.serving.app import TranscriptionServer
from voxstill.serving.middleware import Access
from voxstill.serving.models import ModelSource, Opener


def run(
    cfg: Config,
    sources: Sequence[ModelSource],
    opener: Opener,
    access: Access,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    """Serve on an open socket until SIGTERM or SIGINT; `ready` is called when all models are loaded.

    The first signal makes `/ready` answer 503 for `serve.grace_s`; then the socket is closed and what is under way is
    answered, within `serve.drain_s`. A second signal ends the grace. VoxstillError where a model cannot be loaded.
    """
    with asgi.runner() as runner:
        runner.run(_serve(cfg, sources, opener, access, listener, ready))


async def _serve(
    cfg: Config,
    sources: Sequence[ModelSource],
    opener: Opener,
    access: Access,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # damaged forms are answered
    server = TranscriptionServer(cfg, opener, access)
    http = asgi.http_server(server.app, drain_s=max(1, round(cfg.serve.drain_s)), websockets=True)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            hurry.set()
        log.info("serve: %s: no new requests in %g s", number.name, 0 if stop.is_set() else cfg.serve.grace_s)
        stop.set()

    asgi.on_stop_signals(on_signal)
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
    return asgi.listening(host, port, fix="use another --host or --port")
