"""The body of a request, limited in size and in time: clients that stall free their connections."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from voxstill.serving.errors import RequestError

STALLED_S = 30.0
"""A request whose body has not ended, and of which no byte arrives for so long, is answered with 408."""
BODY_S, SLOWEST_BYTES_PER_S = 60.0, 500.0
"""A body has so long to arrive, and a second more for each of so many bytes that are there: slow clients get along,
and those that send a byte now and then do not."""


def limited(receive: Receive, most_mb: int) -> Receive:
    """Receive a body of at most so many MB, no slower than the limits above; RequestError 413 or 408 beyond them."""
    num_bytes, start_s = 0, asyncio.get_running_loop().time()

    async def receive_limited() -> Message:
        nonlocal num_bytes
        left_s = BODY_S + num_bytes / SLOWEST_BYTES_PER_S - (asyncio.get_running_loop().time() - start_s)
        try:
            async with asyncio.timeout(min(STALLED_S, left_s)):
                message = await receive()
        except TimeoutError:
            reason = "is too slow" if left_s < STALLED_S else f"has stalled: no byte in {STALLED_S:g} s"
            raise RequestError(408, f"the request {reason}") from None
        num_bytes += len(message.get("body", b""))
        if num_bytes > most_mb * 10**6:
            raise too_large(most_mb)
        return message

    return receive_limited


def too_large(most_mb: int) -> RequestError:
    """The error of a body that is larger than the limit."""
    return RequestError(413, f"the request is larger than {most_mb} MB", param="file")
