"""The application: every path of the server, and its life from loading to the end."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Sequence
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.version import __version__
from voxstill.serving.admin import Admin
from voxstill.serving.diarization import UploadDiarizer
from voxstill.serving.errors import RequestError
from voxstill.serving.metrics import CONTENT_TYPE, ServerMetrics
from voxstill.serving.middleware import Access, RequestMiddleware
from voxstill.serving.models import Models, ModelSource, Opener
from voxstill.serving.realtime import RealtimeSession
from voxstill.serving.transcriptions import Transcriptions
from voxstill.serving.uploads import UploadDecoder

_TRY_AGAIN_LATER = 1013


class TranscriptionServer:
    """Models, endpoints and state of one server; `app` is the ASGI application."""

    def __init__(self, cfg: Config, opener: Opener, access: Access) -> None:
        self.metrics = ServerMetrics()
        self._models = Models(opener, self.metrics)
        self._decoder = UploadDecoder(cfg)
        self._cfg = cfg
        self._is_ready = self._is_draining = False
        self._closing = asyncio.Event()
        self._sessions: set[asyncio.Task[None]] = set()
        self._page = _Page()
        self._created = int(time.time())
        self._diarizer = UploadDiarizer.of(cfg.diarize, cfg.segment.min_ms)
        transcriptions = Transcriptions(cfg, self._models, self._decoder, self._diarizer)
        admin = Admin(self._models)

        async def transcribe(request: Request) -> Response:
            self._check_loaded()
            return await transcriptions(request)

        routes: list[Route | WebSocketRoute] = [
            Route("/", self._page.answer),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._list_models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/audio/transcriptions", transcribe, methods=["POST"]),
            WebSocketRoute("/v1/realtime", self._realtime),
            Route("/admin", admin.state),
            Route("/admin/switch", admin.switch, methods=["POST"]),
            Route("/admin/weights", admin.weights, methods=["POST"]),
            Route("/admin/shadow", admin.shadow, methods=["POST"]),
        ]
        handlers = {RequestError: _refused, HTTPException: _http_error, Exception: _failed}
        app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
        self.app = RequestMiddleware(app, access, self.metrics, [route.path for route in routes])

    async def load(self, sources: Sequence[ModelSource]) -> None:
        """Load all models and the diarization engine; VoxstillError where one cannot be.

        `/ready` says 200 when each model has transcribed something.
        """
        if self._diarizer is not None:
            await self._diarizer.load()
        await self._models.load(sources)
        self._is_ready = True

    def drain(self) -> None:
        """From now on `/ready` says 503, and answers close their connections; requests are still taken."""
        self._is_draining = self.app.is_draining = True

    async def end_sessions(self) -> None:
        """Transcribe what was said in live sessions so far, and close them."""
        self._closing.set()
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=self._cfg.serve.drain_s)

    async def close(self) -> None:
        """Close the models and the diarization engine and end the decoders, when all requests were answered."""
        await self._models.close()
        if self._diarizer is not None:
            await self._diarizer.close()
        await asyncio.to_thread(self._decoder.close)

    def _check_loaded(self) -> None:
        if not self._is_ready:
            raise RequestError(503, "the models are being loaded", retry_s=1)

    async def _health(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "version": __version__})

    async def _ready(self, _: Request) -> JSONResponse:
        reason = "draining" if self._is_draining else "ready" if self._is_ready else "loading"
        if reason == "ready" and not await self._models.have_transcribed_lately():
            reason = "a model does not respond"
        return JSONResponse({"status": reason}, 200 if reason == "ready" else 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def _list_models(self, _: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._models.names]})

    async def _one_model(self, request: Request) -> JSONResponse:
        self._models.versions(request.path_params["name"])
        return JSONResponse(self._model(request.path_params["name"]))

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "voxstill"}

    async def _realtime(self, websocket: WebSocket) -> None:
        intent = websocket.query_params.get("intent", "transcription")
        if not self._is_ready or self._is_draining or intent != "transcription":
            await websocket.accept()
            reason = "this server only transcribes: intent=transcription"
            code = 1008 if intent != "transcription" else _TRY_AGAIN_LATER
            await websocket.close(code, reason if code == 1008 else "the server is starting or stopping")
            return
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        self.metrics.sessions.inc()
        try:
            await RealtimeSession(websocket, self._cfg, self._models, self._closing).run()
        finally:
            self.metrics.sessions.dec()
            self._sessions.discard(task)


class _Page:
    """The page at `/`, which asks no other server for anything: its policy allows its own script and style alone."""

    def __init__(self) -> None:
        self._html = resources.files("voxstill.serving").joinpath("page.html").read_text(encoding="utf-8")
        sources = {
            kind: " ".join(
                f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
                for content in re.findall(rf"<{kind}>(.*?)</{kind}>", self._html, re.S)
            )
            for kind in ("script", "style")
        }
        self._headers = {
            "Content-Security-Policy": f"default-src 'none'; script-src {sources['script']}; "
            f"style-src {sources['style']}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'",
            "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
            "Cache-Control": "no-cache",
        }

    async def answer(self, _: Request) -> HTMLResponse:
        """`GET /`."""
        return HTMLResponse(self._html, headers=self._headers)


async def _refused(_: Request, error: RequestError) -> JSONResponse:
    return error.response()


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    messages = {404: f"unknown path `{request.url.path[:100]}`", 405: f"method {request.method} is not allowed"}
    return RequestError(error.status_code, messages.get(error.status_code, error.detail)).response(error.headers)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    log.error("serve: %s has failed: %s", request.url.path, type(error).__name__)
    return RequestError(500, "the server has failed; see its log").response()
