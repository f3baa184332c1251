"""The explorer as a process: it listens on loopback until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from voxstill.core import asgi
from voxstill.explorer.app import Explorer
from voxstill.explorer.session import Session

HOST = "127.0.0.1"
_DRAIN_S = 3


def listening(port: int) -> socket.socket:
    """Open a socket on loopback; the system chooses the port for 0. ConfigError where it is taken."""
    return asgi.listening(HOST, port, fix="use another --port, or leave it out")


def run(session: Session, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the address, token included."""
    with asgi.runner() as runner:
        runner.run(_serve(session, listener, ready))


async def _serve(session: Session, listener: socket.socket, ready: Callable[[str], None]) -> None:
    port = listener.getsockname()[1]
    explorer = Explorer(session, port)
    http = asgi.http_server(explorer.app, drain_s=_DRAIN_S)

    def stop(_: object) -> None:
        http.should_exit = True

    asgi.on_stop_signals(stop)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    while not http.started and not serving.done():
        await asyncio.sleep(0.01)
    if http.started:
        ready(f"http://{HOST}:{port}/?token={explorer.app.token}")
    await serving
