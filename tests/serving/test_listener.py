"""The server in its process: the socket that it listens at, and the logging that it finds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest

from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.serving import run
from voxstill.serving.middleware import Access
from voxstill.serving.models import ModelSource
from voxstill.serving.run import listening
from voxstill.serving.versions import ServedRecognizer


def test_small_answers_are_sent_at_once() -> None:
    async def nodelay() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=listening("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            is_set = await accepted
            writer.close()
        return is_set

    assert asyncio.run(nodelay())


def test_a_server_leaves_the_logging_of_its_process_as_it_is() -> None:
    def opener(source: str) -> Callable[[], ServedRecognizer]:
        raise ConfigError(f"`{source}` is not a model", why="it is none", fix="give one")

    uvicorn, before = logging.getLogger("uvicorn"), list(log.handlers)
    propagates = uvicorn.propagate
    with pytest.raises(ConfigError, match="`nothing` is not a model"):
        run.run(
            Config(),
            [ModelSource(name="m", source="nothing")],
            opener,
            Access([], None, "127.0.0.1"),
            listening("127.0.0.1", 0),
            print,
        )
    uvicorn.addHandler(logging.NullHandler())
    assert log.handlers == before
    assert uvicorn.propagate == propagates


def test_a_port_that_another_server_has_opened_is_refused_before_it_answers() -> None:
    with listening("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="cannot listen"):
        listening("127.0.0.1", first.getsockname()[1])
