"""Errors of requests to the explorer."""

from __future__ import annotations

from starlette.responses import JSONResponse


class RequestError(Exception):
    """A request that is refused: an HTTP status, a message for people and, of an error of voxstill, its code."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code

    def response(self) -> JSONResponse:
        """The answer."""
        code = {} if self.code is None else {"code": self.code}
        return JSONResponse({"error": self.message, **code}, self.status)
