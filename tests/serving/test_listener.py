"""The socket that the server listens at."""

from __future__ import annotations

import asyncio
import socket

from voxstill.serving.run import listening


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
