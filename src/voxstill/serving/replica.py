"""One of several equal servers: the application loads at the start of its ASGI lifespan, and closes at its end."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.serving.app import TranscriptionServer
from voxstill.serving.errors import RequestError, in_one_line
from voxstill.serving.models import ModelSource

_OF_ONE_SERVER = ("/admin", "/metrics")
"""Paths below which one replica would answer for all."""


class Replica:
    """ASGI application of one replica."""

    def __init__(self, server: TranscriptionServer, sources: Sequence[ModelSource]) -> None:
        self._server, self._sources = server, sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or load and close with the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(_OF_ONE_SERVER):
            message = f"`{scope['path'][:100]}` needs a single server: this is one of several replicas"
            await RequestError(404, message).response()(scope, receive, send)
        else:
            await self._server.app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._server.load(self._sources)
        except VoxstillError as error:
            log.error("serve: %s", in_one_line(error))
            await send({"type": "lifespan.startup.failed", "message": in_one_line(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._server.drain()
        await self._server.end_sessions()
        await self._server.close()
        await send({"type": "lifespan.shutdown.complete"})
