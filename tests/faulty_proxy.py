"""A proxy on loopback in front of a server: it fails, breaks off, stalls or loses answers as often as a test asks."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from servers import Handler, serve


@dataclass
class FaultyProxy:
    """A proxy that fails: `shares` says how often each fault comes; they may be changed at any time.

    `error` 500, `slow_down` 503 and `denied` 403 are answered without asking the server, `reset` breaks the connection
    before it, `lost` after it has done what was asked, `cut` in the middle of its answer, and `stall` says nothing for
    `stall_s`.
    """

    port: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    stall_s: float = 5.0
    seen: Counter[str] = field(default_factory=Counter)
    """How often each fault came; `fine` counts the answers passed on."""
    num_bytes: int = 0
    """Bytes of the bodies passed on to the client."""


class _ProxyHandler(Handler):
    """Asks the server on `upstream`, and fails as `line` says."""

    line: FaultyProxy
    upstream: int
    random: random.Random
    lock: threading.Lock

    def draw_fault(self) -> str:
        with self.lock:
            faults, weights = list(self.line.shares), list(self.line.shares.values())
            fault = self.random.choices([*faults, "fine"], [*weights, max(0.0, 1 - sum(weights))])[0]
            if fault == "cut" and self.command != "GET":
                fault = "fine"
            self.line.seen[fault] += 1
        return fault

    def forward(self) -> None:
        body, fault = self.body(), self.draw_fault()
        if fault == "error":
            self.refuse(500, "InternalError")
        elif fault == "slow_down":
            self.refuse(503, "SlowDown")
        elif fault == "denied":
            self.refuse(403, "ExpiredToken")
        elif fault == "stall":
            time.sleep(self.line.stall_s)
            self.hang_up()
        elif fault == "reset":
            self.hang_up()
        else:
            response, data = self.ask(body)
            if fault == "lost":
                self.hang_up()
            else:
                self.pass_on(response, data, is_cut=fault == "cut")

    def ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "content-length")}
            client.request(self.command, self.path, body or (b"" if self.command == "PUT" else None), headers)
            response = client.getresponse()
            return response, response.read()
        finally:
            client.close()

    def pass_on(self, response: http.client.HTTPResponse, data: bytes, *, is_cut: bool) -> None:
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.line.num_bytes += len(data)
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            self.wfile.flush()
            self.hang_up()

    def hang_up(self) -> None:
        """Reset, not closed: the client sees a broken connection at once."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = forward


@contextlib.contextmanager
def faulty_proxy(upstream: int, seed: int = 0, **shares: float) -> Iterator[FaultyProxy]:
    """A proxy on a port of its own in front of the server on `upstream`; each fault has its share of the answers."""
    line = FaultyProxy(shares=shares)
    with serve(_ProxyHandler, line=line, upstream=upstream, random=random.Random(seed), lock=threading.Lock()) as port:
        line.port = port
        yield line
