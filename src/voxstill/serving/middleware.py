"""What every request passes: keys and pages, the state of the server, ids, and the figures of Prometheus."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
import uuid
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxstill.core import same_origin
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


class Access:
    """Who may ask: those with a key, where there are keys, kept as hashes; and no page of another server.

    `host` is the address that the server listens at.
    """

    def __init__(self, api_keys: Sequence[str], admin_key: str | None, host: str) -> None:
        self._api = [_digest(key) for key in api_keys]
        self._admin = [] if admin_key is None else [_digest(admin_key)]
        self._is_for_this_machine = same_origin.is_loopback(host)

    def check(self, scope: Scope) -> None:
        """RequestError where a request may not be answered."""
        if scope["path"] not in OPEN_PATHS:
            self._check_key(scope)
            self._check_page(scope)

    def _check_page(self, scope: Scope) -> None:
        """Refuse what a browser sends by itself for a page of another server.

        Without keys a page could take a name of its own that is bound to this machine; with keys the browser has none
        for that name. A page reads no answer of another server, so what changes nothing may be asked, a WebSocket
        excepted. A bearer token is sent by no browser itself, and for no other page without the leave of this server.
        """
        headers = Headers(scope=scope)
        if not self._api and self._is_for_this_machine and not same_origin.is_for_loopback(headers):
            raise RequestError(403, "this host is not served: ask 127.0.0.1 or localhost, or set VOXSTILL_API_KEYS")
        if scope["type"] == "http":
            is_harmless = scope["method"] in ("GET", "HEAD")
            if is_harmless or headers.get("authorization", "").lower().startswith("bearer "):
                return
        if same_origin.is_from_another_page(headers):
            raise RequestError(403, "requests from pages of other servers are refused")

    def _check_key(self, scope: Scope) -> None:
        """RequestError where the request has no key that opens its path.

        Those of clients are a bearer token, the password of HTTP's basic authentication, with which a browser opens
        the page, or the subprotocol of a WebSocket. The administrator's is a bearer token alone: a browser sends none
        by itself, so no other page can use it.
        """
        headers, path = Headers(scope=scope), str(scope["path"])
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

    def __init__(self, app: ASGIApp, access: Access, metrics: ServerMetrics, endpoints: Sequence[str]) -> None:
        self._app, self._access, self._metrics, self._endpoints = app, access, metrics, endpoints
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
            self._access.check(scope)
        except RequestError as error:
            by_password = error.status == 401 and not scope["path"].startswith("/admin")
            challenge = {"WWW-Authenticate": 'Basic realm="voxstill"'} if by_password else {}
            await error.response(challenge)(scope, timed_receive, counted_send)
            return
        await self._app(scope, timed_receive, counted_send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._access.check(scope)
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
