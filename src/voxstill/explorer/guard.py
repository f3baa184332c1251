"""What every request passes: it comes from this machine's browser, from our own page, with the token of this start."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxstill.core import same_origin
from voxstill.explorer.errors import RequestError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; media-src blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around the whole explorer; `token` opens it, `port` is the one that it listens at."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self.token = secrets.token_urlsafe(32)
        self._cookie = f"voxstill_explore_{port}"  # cookies are those of all ports of a host
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            self._check_place(Headers(scope=scope))
            if scope["path"] == "/" and self._is_token(self._token_in_query(scope)):
                response = RedirectResponse("/", 303)
                response.set_cookie(self._cookie, self.token, httponly=True, samesite="strict")
                await response(scope, receive, guarded_send)
                return
            if not self._is_token(self._token_in_headers(Headers(scope=scope))):
                raise RequestError(401, "open the address that `voxstill explore` printed: it contains the token")
        except RequestError as error:
            await error.response()(scope, receive, guarded_send)
            return
        await self._app(scope, receive, guarded_send)

    def _check_place(self, headers: Headers) -> None:
        """RequestError for another host, which may be a name that was bound to this machine, or for another page."""
        if same_origin.host(headers) not in self._hosts:
            raise RequestError(403, "this host is not served")
        if same_origin.is_from_another_page(headers, schemes=("http",)):
            raise RequestError(403, "requests from pages of other servers are refused")

    def _token_in_query(self, scope: Scope) -> str:
        values = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [])
        return values[0] if len(values) == 1 else ""

    def _token_in_headers(self, headers: Headers) -> str:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return credentials.strip()
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value

    def _is_token(self, text: str) -> bool:
        """Whether it is the token; takes as long wherever it differs."""
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())
