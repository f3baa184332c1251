"""An ASGI application on a socket of ours: uvicorn, with signals left to the caller."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log

_BACKLOG = 2048  # that of uvicorn
_KEEP_ALIVE_S = 75
_MOST_WS_BYTES = 16 << 20
HEAD_S = 30.0
"""A connection is closed that has sent no whole head of a request for so long."""
_TICKS_BETWEEN_CHECKS = 10
"""Of 0.1 s: how often the server looks whether it can open one more connection."""


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which close sockets at once and end the process by the signal.

    The log says when no file descriptor is left, and when there is one again: until then no connection is taken.
    """

    _has_descriptors = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; it is asked every 0.1 s."""
        if counter % _TICKS_BETWEEN_CHECKS == 0 and self._has_descriptors != _has_descriptors():
            self._has_descriptors = not self._has_descriptors
            if self._has_descriptors:
                log.info("the server takes connections again")
            else:
                log.error(
                    "no file descriptor is left for connections, of which %d are open: raise `ulimit -n`, or limit them"
                    " in a proxy",
                    len(self.server_state.connections),
                )
        return await super().on_tick(counter)


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection of uvicorn, which would wait for a first request as long as its client likes."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection, for `HEAD_S` where no request comes."""
        super().connection_made(transport)
        self._unused = asyncio.get_running_loop().call_later(HEAD_S, self._close_unused)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._unused.cancel()
        super().connection_lost(exc)

    def _close_unused(self) -> None:
        is_websocket = self.transport.get_protocol() is not self
        if self.cycle is None and not is_websocket and not self.transport.is_closing():
            self.transport.close()


def http_server(app: ASGIApp, *, drain_s: int, websockets: bool = False) -> HttpServer:
    """A server of the application that logs as voxstill does; once it stops, requests have `drain_s` to end."""
    logging.getLogger("uvicorn").handlers = [*log.handlers]
    options = uvicorn.Config(
        _answering_at_end(app),
        http=_Connection,
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


def _has_descriptors() -> bool:
    try:
        os.close(os.dup(2))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


def _answering_at_end(app: ASGIApp) -> ASGIApp:
    """The application, of which requests that are cancelled when the time to end is over are answered with 503.

    uvicorn cancels them, says in one line how many they were, and would log a traceback for each.
    """

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, watched_send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or has_begun:
                raise
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body"})

    return answering


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
