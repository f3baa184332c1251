"""An ASGI application on a socket of ours: uvicorn, with signals left to the caller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log

_BACKLOG = 2048  # that of uvicorn
_KEEP_ALIVE_S = 75
_MOST_WS_BYTES = 16 << 20


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which close sockets at once and end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield


def http_server(app: ASGIApp, *, drain_s: int, websockets: bool = False) -> HttpServer:
    """A server of the application that logs as voxstill does; once it stops, requests have `drain_s` to end."""
    logging.getLogger("uvicorn").handlers = [*log.handlers]
    options = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="websockets-sansio" if websockets else "none",
        ws_max_size=_MOST_WS_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=drain_s,
    )
    return HttpServer(options)


def runner() -> asyncio.Runner:
    """A runner with the event loop of uvicorn: uvloop, where it is installed."""
    return asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory())


def on_stop_signals(stop: Callable[[signal.Signals], None]) -> None:
    """Call `stop` in the running loop at each SIGTERM and SIGINT, where this is the main thread: no other may."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)


def listening(host: str, port: int, fix: str) -> socket.socket:
    """Open a socket; the system chooses the port for 0. ConfigError, with `fix`, where the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) where the protocol is named; else each waits 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # now: until then another process may bind the same port
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the server cannot listen at {host}:{port}", code="port-unavailable", why=why, fix=fix
        ) from None
    return listener
