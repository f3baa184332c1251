"""The application: the page and every path of the API."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.explorer.columns import Column, Row
from voxstill.explorer.corpus import MAX_PAGE
from voxstill.explorer.errors import JoinedFileLost, RequestError
from voxstill.explorer.experiments import error_groups
from voxstill.explorer.filters import MAX_ROW, Filter, column_of, parse_filter, parse_order
from voxstill.explorer.guard import Guard
from voxstill.explorer.session import Session

PAGES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("app", "api", "charts", "choice", "detail", "experiments", "facet", "sound")
    },
}
_MAX_BODY = 64 << 10
_PAGE = 100
_BINS = 40
_MOST_DIGITS = 19


class Explorer:
    """The endpoints of one session; `app` is the ASGI application, with the guard around it."""

    def __init__(self, session: Session, port: int) -> None:
        self._session = session
        routes = [Route(path, _static(*page)) for path, page in PAGES.items()]
        routes += [
            Route("/api/about", self._about),
            Route("/api/rows", self._rows),
            Route("/api/totals", self._totals),
            Route("/api/histogram", self._histogram),
            Route("/api/facet", self._facet),
            Route("/api/funnel", self._funnel),
            Route("/api/experiments", self._experiments),
            Route("/api/export", self._export),
            Route("/api/utterances/{row}", self._utterance),
            Route("/api/utterances/{row}/audio", self._audio),
            Route("/api/judgements", self._judge, methods=["POST"]),
        ]
        handlers: dict[Any, Callable[..., Any]] = {
            RequestError: _refused,
            VoxstillError: _unusable,
            HTTPException: _http_error,
            Exception: _failed,
        }
        self.app = Guard(Starlette(routes=routes, exception_handlers=handlers), port)

    def _about(self, _: Request) -> JSONResponse:
        facts, corpus = self._session.facts, self._session.corpus
        return JSONResponse(
            {
                "title": facts.title,
                "utterances": corpus.about.num_rows,
                "columns": [asdict(column) for column in corpus.columns.values()],
                "teachers": [asdict(teacher) for teacher in corpus.about.teachers],
                "main": facts.main,
                "students": [
                    {"name": one.name, "column": None if one.texts is None else one.texts.prefix}
                    for one in facts.experiments
                ],
                "editable": facts.is_editable,
                "judge": facts.judge,
            }
        )

    def _rows(self, request: Request) -> JSONResponse:
        wanted = self._filter(request)
        columns = self._session.corpus.columns
        order = parse_order(request.query_params.get("order"), request.query_params.get("after"), columns)
        limit = _number(request, "limit", _PAGE, MAX_PAGE)
        names = request.query_params.get("columns")
        shown = None if names is None else [column_of(name, columns) for name in dict.fromkeys(names.split(","))]
        rows = self._session.corpus.page(wanted, order, limit, shown)
        return JSONResponse({"rows": rows, "next": [rows[-1]["key"], rows[-1]["row"]] if len(rows) == limit else None})

    def _totals(self, request: Request) -> JSONResponse:
        return JSONResponse(self._session.corpus.totals(self._filter(request)))

    def _histogram(self, request: Request) -> JSONResponse:
        bins = _number(request, "bins", _BINS, 200)
        histogram = self._session.corpus.histogram(self._filter(request), self._column(request), bins)
        return JSONResponse(None if histogram is None else asdict(histogram))

    def _facet(self, request: Request) -> JSONResponse:
        limit = _number(request, "limit", 50, 200)
        return JSONResponse(self._session.corpus.facet(self._filter(request), self._column(request), limit))

    def _funnel(self, request: Request) -> JSONResponse:
        """What each rule dropped, in the order of the rules; those of earlier versions last."""
        wanted = self._filter(request)
        reason = self._session.corpus.columns.get("reason")
        if reason is None:
            return JSONResponse({"rules": []})
        counts = {row["value"]: row for row in self._session.corpus.facet(wanted, reason, 200)}
        rules = self._session.facts.rules
        named = [{"name": rule.name, "why": rule.why} for rule in rules]
        known = {rule.name for rule in rules} | {None}
        named += [{"name": name, "why": ""} for name in counts if name not in known]
        totals = self._session.corpus.totals(wanted.without("reason"))
        return JSONResponse(
            {
                "judged": totals["judged"],
                "kept": totals["kept"],
                "rules": [{**rule, "dropped": counts.get(rule["name"], {}).get("num", 0)} for rule in named],
            }
        )

    def _utterance(self, request: Request) -> JSONResponse:
        row = self._row(request)
        return JSONResponse({"row": row, "texts": self._session.texts(row)})

    def _audio(self, request: Request) -> Response:
        """A WAV, or as JSON why there is none: an answer, too, for browsers report any other status as a failure."""
        row = self._row(request)
        try:
            sound = self._session.sounds.read(row)
        except VoxstillError as error:
            return JSONResponse({"error": _message(error), "code": error.code})
        source = "shard" if sound.is_of_shard else "source"
        return Response(sound.wav(), media_type="audio/wav", headers={"X-Audio-From": source})

    def _experiments(self, _: Request) -> JSONResponse:
        self._session.refresh()
        facts = self._session.facts.experiments
        students = [one.texts for one in facts if one.texts is not None]
        shown = [
            {
                "name": one.name,
                "curves": [asdict(curve) for curve in one.curves],
                "results": list(one.results),
                "column": None if one.texts is None else one.texts.prefix,
            }
            for one in facts
        ]
        return JSONResponse({"experiments": shown, "groups": error_groups(self._session.corpus, students)})

    def _export(self, request: Request) -> Response:
        columns = self._session.corpus.columns
        names = [name for name in request.query_params.get("columns", "id").split(",") if name]
        wanted = [column_of(name, columns) for name in dict.fromkeys(names)]
        form = request.query_params.get("format", "jsonl")
        if form not in ("jsonl", "csv") or not wanted:
            raise RequestError(400, "the format must be jsonl or csv, and at least one column is needed")
        rows = self._session.corpus.export(self._filter(request), wanted)
        lines = _json_lines(rows) if form == "jsonl" else _csv_lines(rows, [column.name for column in wanted])
        media_type = "application/x-ndjson" if form == "jsonl" else "text/csv"
        headers = {"Content-Disposition": f'attachment; filename="utterances.{form}"'}
        return StreamingResponse(lines, media_type=media_type, headers=headers)

    async def _judge(self, request: Request) -> JSONResponse:
        if not self._session.facts.is_editable:
            raise RequestError(403, "this explorer is read-only: start it with `--edit` to judge")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestError(415, "a judgement must be JSON")
        if request.headers.get("origin") is None:
            raise RequestError(403, "a judgement must be sent by the page of this explorer")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BODY:
                raise RequestError(413, f"a judgement must have at most {_MAX_BODY:,} bytes")
        row, judgement, text = _judgement(body)

        def judged() -> Row:
            self._session.refresh()
            new = self._session.judge(row, judgement, text)
            return {"row": new, "texts": self._session.texts(new)}

        return JSONResponse(await run_in_threadpool(judged))

    def _filter(self, request: Request) -> Filter:
        self._session.refresh()
        return parse_filter(request.query_params.get("filter"), self._session.corpus.columns)

    def _row(self, request: Request) -> Row:
        self._session.refresh()
        number = request.path_params["row"]
        if not (number.isascii() and number.isdigit() and len(number) < _MOST_DIGITS):
            raise RequestError(404, "the utterance does not exist")
        return self._session.row(int(number))

    def _column(self, request: Request) -> Column:
        return column_of(request.query_params.get("column"), self._session.corpus.columns)


def _judgement(body: bytes) -> tuple[int, str, str | None]:
    try:
        tree = json.loads(body)
        row, judgement, text = tree["row"], tree["judgement"], tree.get("text")
        json.dumps(tree, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RequestError(400, "a judgement must have `row`, `judgement` and, if it is `corrected`, `text`") from None
    is_row = isinstance(row, int) and not isinstance(row, bool) and 0 <= row < MAX_ROW
    if not is_row or not isinstance(judgement, str) or not (text is None or isinstance(text, str)):
        raise RequestError(400, "a judgement must have `row`, `judgement` and, if it is `corrected`, `text`")
    return row, judgement, text


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text)):
        raise RequestError(400, f"`{name}` is not a whole number above 0")
    return min(int(text), most)


def _json_lines(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _csv_lines(rows: Iterable[Row], names: Sequence[str]) -> Iterator[str]:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, names)
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        yield sink.getvalue()
        sink.seek(0)
        sink.truncate()
    yield sink.getvalue()


def _static(name: str, media_type: str) -> Callable[[Request], Response]:
    content = resources.files("voxstill.explorer").joinpath("page", name).read_bytes()
    return lambda _: Response(content, media_type=media_type)


async def _refused(_: Request, error: RequestError) -> JSONResponse:
    return error.response()


async def _unusable(_: Request, error: VoxstillError) -> JSONResponse:
    status = 500 if isinstance(error, JoinedFileLost) else 422
    message = f"{_message(error)}; {error.fix}" if error.fix else _message(error)
    return RequestError(status, message, error.code).response()


def _message(error: VoxstillError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what


async def _http_error(_: Request, error: HTTPException) -> JSONResponse:
    return RequestError(
        error.status_code, "the path does not exist" if error.status_code == 404 else error.detail
    ).response()


async def _failed(request: Request, error: Exception) -> JSONResponse:
    log.error("explore: %s has failed: %s", request.url.path, type(error).__name__)
    return RequestError(500, "the explorer has failed; see its log").response()
