"""What every request passes: keys, the state of the server, ids, and the figures of Prometheus."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
import uuid
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxstill.serving.errors import RequestError
from voxstill.serving.metrics import NO_MODEL, ServerMetrics

OPEN_PATHS = ("/health", "/ready")
"""Paths that need no key: probes have none."""
KEY_PROTOCOL = "openai-insecure-api-key."
"""Prefix of the WebSocket subprotocol in which a browser sends its key, as OpenAI's API has it."""
_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Keys:
    """The keys of clients and of the administrator, from the environment; they are kept as hashes."""

    def __init__(self, api_keys: Sequence[str], admin_key: str | None) -> None:
        self._api = [_digest(key) for key in api_keys]
        self._admin = [] if admin_key is None else [_digest(admin_key)]

    @property
    def are_needed(self) -> bool:
        """Whether clients need a key."""
        return bool(self._api)

    def check(self, scope: Scope) -> None:
        """RequestError where the request has no key that opens its path.

        Those of clients are a bearer token, the password of HTTP's basic authentication, with which a browser opens
        the page, or the subprotocol of a WebSocket. The administrator's is a bearer token alone: a browser sends none
        by itself, so no other page can use it.
        """
        headers, path = Headers(scope=scope), str(scope["path"])
        if path in OPEN_PATHS:
            return
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if path == "/admin" or path.startswith("/admin/"):
            if not self._admin:
                raise RequestError(403, "administration is disabled: the server was started without its key")
            if scheme.lower() != "bearer" or not _is_known(credentials.strip(), self._admin):
                raise RequestError(401, "this needs the administrator key", code="invalid_api_key")
            return
        if not self._api:
            return
        key = credentials.strip() if scheme.lower() == "bearer" else ""
        if scheme.lower() == "basic":
            key = _password(credentials)
        for protocol in scope.get("subprotocols", ()):
            if protocol.startswith(KEY_PROTOCOL):
                key = protocol.removeprefix(KEY_PROTOCOL)
        if not _is_known(key, self._api):
            raise RequestError(401, "the API key is missing or wrong", code="invalid_api_key")


class RequestMiddleware:
    """ASGI middleware around the whole server."""

    def __init__(self, app: ASGIApp, keys: Keys, metrics: ServerMetrics, endpoints: Sequence[str]) -> None:
        self._app, self._keys, self._metrics, self._endpoints = app, keys, metrics, endpoints
        self.is_draining = False
        """Whether each answer closes its connection, so that clients ask another server next."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        request_id = uuid.uuid4().hex
        start_s = time.perf_counter()
        status = 0

        async def timed_receive() -> Message:
            nonlocal start_s
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                start_s = time.perf_counter()
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    headers[name] = value
                if self.is_draining:
                    headers["Connection"] = "close"
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._count(scope, state, status, time.perf_counter() - start_s)
            await send(message)

        try:
            self._keys.check(scope)
        except RequestError as error:
            by_password = error.status == 401 and not scope["path"].startswith("/admin")
            challenge = {"WWW-Authenticate": 'Basic realm="voxstill"'} if by_password else {}
            await error.response(challenge)(scope, timed_receive, counted_send)
            return
        await self._app(scope, timed_receive, counted_send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = HTTPConnection(scope).headers.get("origin")
        try:
            self._keys.check(scope)
            if origin is not None and urlsplit(origin).netloc != HTTPConnection(scope).headers.get("host"):
                raise RequestError(403, "connections from pages of other servers are refused")
        except RequestError:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: HTTP 403
            return
        await self._app(scope, receive, send)

    def _count(self, scope: Scope, state: Mapping[str, str], status: int, seconds: float) -> None:
        endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
        model = state.get("model", NO_MODEL)
        self._metrics.requests.labels(model, state.get("version", NO_MODEL), endpoint, str(status)).inc()
        if model != NO_MODEL:
            self._metrics.latency_s.labels(model, endpoint).observe(seconds)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _is_known(key: str, digests: Sequence[bytes]) -> bool:
    """Whether a key is one of these; takes as long wherever it differs."""
    digest, is_known = _digest(key), False
    for known in digests:
        is_known |= hmac.compare_digest(digest, known)
    return is_known


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
