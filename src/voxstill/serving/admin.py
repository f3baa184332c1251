"""`/admin`: switch to another version, change weights, and shadow traffic; JSON in, JSON out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse

from voxstill.core.errors import VoxstillError
from voxstill.serving.errors import RequestError, in_one_line
from voxstill.serving.models import Models

_MOST_BYTES = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Admin:
    """The endpoints of the administrator."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def state(self, _: Request) -> JSONResponse:
        """`GET /admin`: versions, weights, shadows and what is being drained."""
        return JSONResponse(self._models.state())

    async def switch(self, request: Request) -> JSONResponse:
        """`POST /admin/switch`: load another version; without a weight it takes over, else it joins the others."""
        body = await _body(request, ("name", "model", "version", "weight"))
        weight = None if body.get("weight") is None else _weight(body["weight"])
        version = None if body.get("version") is None else _version_name(body)
        try:
            await self._models.switch(_text(body, "name"), _text(body, "model"), weight, version)
        except VoxstillError as error:
            raise RequestError(400, in_one_line(error), param="model", code=error.code) from None
        return JSONResponse(self._models.state())

    async def weights(self, request: Request) -> JSONResponse:
        """`POST /admin/weights`: new weights of versions; null closes one when it has answered what it has."""
        body = await _body(request, ("name", "weights"))
        weights = body.get("weights")
        if not isinstance(weights, dict):
            raise RequestError(400, "`weights` must be an object: a number or null for each version", param="weights")
        numbers = {str(version): None if weight is None else _weight(weight) for version, weight in weights.items()}
        self._models.set_weights(_text(body, "name"), numbers)
        return JSONResponse(self._models.state())

    async def shadow(self, request: Request) -> JSONResponse:
        """`POST /admin/shadow`: a version that transcribes a share of the traffic for comparison; null ends it."""
        body = await _body(request, ("name", "version", "share"))
        version = None if body.get("version") is None else _text(body, "version")
        share = _weight(body.get("share", 1.0))
        if share > 1:
            raise RequestError(400, "`share` must be from 0 to 1", param="share")
        self._models.set_shadow(_text(body, "name"), version, share)
        return JSONResponse(self._models.state())


async def _body(request: Request, names: tuple[str, ...]) -> Mapping[str, object]:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > _MOST_BYTES:
            raise RequestError(413, f"the request is larger than {_MOST_BYTES} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RequestError(400, "the request must be a JSON object")
    if unknown := [name for name in body if name not in names]:
        raise RequestError(400, f"unknown field `{unknown[0][:60]}`", param=unknown[0][:60])
    return body


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(400, f"`{name}` must be a text", param=name)
    return value


def _version_name(body: Mapping[str, object]) -> str:
    """The name of a new version: it stands in a header of each answer and in the labels of metrics."""
    name = _text(body, "version")
    if not _NAME.fullmatch(name):
        raise RequestError(400, "`version` must be up to 64 of a-z, A-Z, 0-9, `.`, `_` and `-`", param="version")
    return name


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise RequestError(400, "a weight or share must be a number of 0 or more")
    return float(value)
