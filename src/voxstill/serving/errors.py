"""Errors of requests, as OpenAI's API writes them."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

from voxstill.core.errors import VoxstillError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """A request that is refused: an HTTP status, a message for people, and the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_s = status, message, param, code, retry_s

    def to_dict(self) -> dict[str, str | None]:
        """The object `error` of OpenAI's API."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """The answer, with Retry-After where the client may come again; after a 408 the connection is closed."""
        more = {} if self.retry_s is None else {"Retry-After": str(self.retry_s)}
        more |= {"Connection": "close"} if self.status == 408 else {}
        return JSONResponse({"error": self.to_dict()}, self.status, headers={**(headers or {}), **more})


def in_one_line(error: VoxstillError) -> str:
    """What is wrong and why, for a client."""
    return f"{error.what}: {error.why}" if error.why else error.what
