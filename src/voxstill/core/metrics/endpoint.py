"""The HTTP endpoint that Prometheus scrapes, and how long it stays after the end."""

from __future__ import annotations

import contextlib
import hmac
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from voxstill.core import world
from voxstill.core.errors import ConfigError
from voxstill.core.metrics import discovery
from voxstill.core.metrics.process import METRICS
from voxstill.core.metrics.registry import Metrics
from voxstill.core.monitor import log
from voxstill.core.same_origin import is_loopback

if TYPE_CHECKING:
    from voxstill.core.config import Monitor

TOKEN = "VOXSTILL_METRICS_TOKEN"
"""The variable of the environment that holds the bearer token of the endpoint."""
MOST_CLIENTS, CLIENT_S = 32, 10.0
"""At once; a client is waited for so long."""
MOST_LINGER_S = 120.0
"""After its end a run waits so long at most for one more scrape."""
_INTERVALS = 2.0  # of a reader, since it read last
_MOST_READERS = 64
_LOOK_S = 0.05
_POLL_S = 0.1  # the thread that listens looks so often whether it is to end
_FIRST_GAP_S = 15.0  # the interval until two scrapes have shown it


@dataclass(frozen=True, slots=True)
class _Reader:
    """When a reader got the metrics last, and how long after the time before."""

    last_s: float
    gap_s: float

    def is_due(self, end_s: float, now_s: float) -> bool:
        """Whether it has not read them since the end, and may do so yet."""
        return self.last_s < end_s and now_s - self.last_s < _INTERVALS * self.gap_s


class Endpoint:
    """`/metrics` at an address; a thread serves it until the process ends."""

    def __init__(self, options: Monitor, metrics: Metrics = METRICS) -> None:
        """Listen at `options.host` and `options.port`; the system chooses for 0.

        ConfigError if the address is taken or belongs to another machine, where anyone could read it, and where the
        certificate cannot be used.
        """
        assert options.port is not None
        self._check_access(options)
        self._metrics = metrics
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}
        try:
            self._server = _Server((options.host, options.port), self)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {options.host}:{options.port}",
                code="port-unavailable",
                why=error.strerror or str(error),
                fix="choose another `monitor.port`",
            ) from None
        if options.tls_cert is not None:
            self._server.socket = _tls(options).wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host, self.port = options.host, self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True).start()
        scheme = "http" if options.tls_cert is None else "https"
        shown = f"[{self.host}]" if ":" in self.host else self.host
        log.info("metrics: %s://%s:%d/metrics", scheme, shown, self.port)

    def page(self, accepted: str) -> tuple[bytes, str]:
        """All metrics now, and their content type."""
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(self._metrics)
        encode, kind = choose_encoder(accepted)
        return encode(registry), kind

    def count_scrape(self, reader: str, begun_s: float) -> None:
        """Remember when the metrics that a reader got were computed, and how long after those before."""
        with self._lock:
            last = self._readers.pop(reader, None)
            gap_s = _FIRST_GAP_S if last is None else begun_s - last.last_s
            self._readers[reader] = _Reader(begun_s, gap_s)
            if len(self._readers) > _MOST_READERS:
                del self._readers[next(iter(self._readers))]

    def linger(self) -> None:
        """Wait until all who read the metrics have read them once more, as otherwise none of them would see the end of
        a run.

        A reader is given up two of its intervals after it read last, and all are after `MOST_LINGER_S`.
        """
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < MOST_LINGER_S:
            with self._lock:
                readers = list(self._readers.values())
            if not any(reader.is_due(begun_s, time.monotonic()) for reader in readers):
                return
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    @staticmethod
    def _check_access(options: Monitor) -> None:
        is_safe = options.tls_cert is not None and bool(_token())
        if not (is_loopback(options.host) or is_safe or options.insecure):
            raise ConfigError(
                f"anyone could read the metrics at {options.host}",
                code="server-keys",
                why="other machines need TLS and a token",
                fix=f"set `monitor.tls_cert`, `monitor.tls_key` and {TOKEN}; in a trusted network "
                "`monitor.insecure=true`",
            )


class _Server(ThreadingHTTPServer):
    """Few clients at once, none for long, and no traceback of one that left."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.token = _token()
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request_thread(self, request: object, client_address: object) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone, or speaks no TLS, is none of ours."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        expected = f"Bearer {self.server.token}".encode()
        authorization = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if self.server.token and not hmac.compare_digest(authorization, expected):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            return
        begun_s = time.monotonic()
        page, kind = self.server.endpoint.page(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(page)
            reader = f"{self.client_address[0]} {self.headers.get('User-Agent', '')}"
            self.server.endpoint.count_scrape(reader, begun_s)

    def log_message(self, *_: object) -> None:
        """Scrapes are not logged."""


def _token() -> str:
    """The token that readers need; empty if none is set. ConfigError if a header cannot hold it."""
    token = world.environment().get(TOKEN, "").strip()
    if not all("!" <= char <= "~" for char in token):
        raise ConfigError(
            f"{TOKEN} cannot be sent in a header",
            code="server-keys",
            why="it has characters that are not printable ASCII",
            fix="choose another token: openssl rand -hex 32",
        )
    return token


def _tls(options: Monitor) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert options.tls_cert is not None
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "the certificate of `monitor.tls_cert` cannot be used",
            code="server-keys",
            why=str(error),
            fix="give a PEM file, and its key as `monitor.tls_key`",
        ) from None
    return context


_ENDPOINT: Endpoint | None = None


def serve(options: Monitor, run: str) -> Endpoint | None:
    """Serve the metrics of this process from now on where `monitor.port` is set, and write where they are.

    `run` is the label of the run in the file for discovery. One of the ranks of a machine serves for all of them. A
    second call of the same address keeps the first endpoint.
    """
    global _ENDPOINT  # noqa: PLW0603
    ranks = world.ranks()
    if options.port is None or (ranks is not None and ranks.rank % ranks.num_local):
        return None
    endpoint = _ENDPOINT
    if endpoint is None or endpoint.host != options.host or options.port not in (0, endpoint.port):
        endpoint = Endpoint(options)
        if _ENDPOINT is not None:
            _ENDPOINT.close()
        _ENDPOINT = endpoint
    if options.discovery is not None:
        discovery.write(options.discovery, endpoint.host, endpoint.port, run, is_tls=options.tls_cert is not None)
    return endpoint


def end() -> None:
    """Let the end of the run be read, then stop serving; a second signal ends the wait."""
    global _ENDPOINT
    endpoint, _ENDPOINT = _ENDPOINT, None
    if endpoint is None:
        return
    try:
        endpoint.linger()
    finally:
        discovery.remove()
        endpoint.close()
