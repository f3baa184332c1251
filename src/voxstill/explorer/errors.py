"""Errors of requests to the explorer."""

from __future__ import annotations

from starlette.responses import JSONResponse


class RequestError(Exception):
    """A request that is refused: an HTTP status and a message for people."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse({"error": self.message}, self.status)
