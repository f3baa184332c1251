"""An S3 server whose objects are files of a folder, quick enough for a million of them, which counts its requests.

    with disk_bucket(folder) as bucket:
        os.environ |= s3_environment(bucket.port)
        bucket.counts()

It is a process of its own. The first part of a path is the bucket, a folder below `folder`; files that are there when
it starts are objects. It answers what the project asks of S3: GET with ranges and conditions, HEAD, PUT with
`If-None-Match`, multipart uploads, DELETE of one and of many, ListObjectsV2. It checks no signature. A write replaces a
file by a rename, and a conditional one has exactly one winner, since one thread answers all.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import re
import subprocess
import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

PAGE = 1000
COUNTS = "/-/counts"


@dataclass(frozen=True)
class Bucket:
    """A server that runs."""

    port: int
    pid: int

    def counts(self) -> Counter[str]:
        """Requests (`GET source/`) and bytes sent (`sent source/`) or taken (`taken work/`) since the start, by the
        method and the first folder of the key; HEAD requests and those for what is not there are counted as such."""
        return Counter(self._asked(COUNTS))

    def num_objects(self, prefix: str) -> int:
        """How many objects are below a prefix, with its bucket."""
        return int(self._asked(f"{COUNTS}?prefix={prefix}")["objects"])

    def _asked(self, path: str) -> Mapping[str, int]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("GET", path)
        counts: dict[str, int] = json.loads(client.getresponse().read())
        client.close()
        return counts


@contextlib.contextmanager
def disk_bucket(folder: Path) -> Iterator[Bucket]:
    """A server of the buckets in a folder."""
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Bucket(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class _About:
    num_bytes: int
    etag: str
    modified_s: float


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class _Objects:
    """The objects of all buckets by their paths, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, _About] = {}
        for path in folder.rglob("*"):
            if path.is_file():
                self.about[str(path.relative_to(folder))] = _about(path)
        self.names = sorted(self.about)
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.counts: Counter[str] = Counter()

    def write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.folder / "-draft"
        draft.write_bytes(data)
        draft.replace(path)
        if name not in self.about:
            insort(self.names, name)
        self.about[name] = _about(path)
        return self.about[name].etag

    def remove(self, name: str) -> None:
        if self.about.pop(name, None) is not None:
            del self.names[bisect_left(self.names, name)]
            (self.folder / name).unlink()

    def below(self, prefix: str, after: str) -> list[str]:
        """The first names below a prefix that come after another, one more than a page has."""
        start = bisect_left(self.names, max(prefix, f"{after}\0" if after else ""))
        names = self.names[start : start + PAGE + 1]
        return [name for name in names if name.startswith(prefix)]


def _about(path: Path) -> _About:
    stat = path.stat()
    return _About(stat.st_size, f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"', stat.st_mtime)


def _answer(objects: _Objects, method: str, target: str, headers: Mapping[str, str], body: bytes) -> _Answer:
    url = urlsplit(target)
    name, query = unquote(url.path[1:]), {key: values[0] for key, values in parse_qs(url.query, True).items()}
    if url.path == COUNTS:
        return _Answer(200, json.dumps(_counted(objects, query.get("prefix"))).encode())
    if method == "GET" and query.get("list-type") == "2":
        answer = _listed(objects, name, query)
    elif method in ("GET", "HEAD"):
        answer = _read(objects, method, name, headers)
    elif method == "PUT" and "uploadId" in query:
        objects.uploads[query["uploadId"]][int(query["partNumber"])] = body
        answer = _Answer(200, headers=(("ETag", f'"{hashlib.md5(body).hexdigest()}"'),))
    elif method == "PUT":
        if headers.get("if-none-match") == "*" and name in objects.about:
            answer = _refused(412, "PreconditionFailed")
        else:
            answer = _Answer(200, headers=(("ETag", objects.write(name, body)),))
    elif method == "DELETE":
        objects.uploads.pop(query["uploadId"], None) if "uploadId" in query else objects.remove(name)
        answer = _Answer(204)
    else:
        answer = _posted(objects, name, query, body)
    kind = "LIST" if "list-type" in query else method if answer.status < 400 else f"{method} {answer.status}"
    key = query.get("prefix", "") if kind == "LIST" else name.partition("/")[2]
    place = f"{key.partition('/')[0]}/"
    objects.counts[f"{kind} {place}"] += 1
    objects.counts[f"sent {place}"] += 0 if method == "HEAD" else len(answer.body)
    objects.counts[f"taken {place}"] += len(body)
    return answer


def _counted(objects: _Objects, prefix: str | None) -> Mapping[str, int]:
    if prefix is None:
        return objects.counts
    return {"objects": bisect_left(objects.names, prefix + "\U0010ffff") - bisect_left(objects.names, prefix)}


def _read(objects: _Objects, method: str, name: str, headers: Mapping[str, str]) -> _Answer:
    about = objects.about.get(name)
    if about is None:
        return _refused(404, "NoSuchKey")
    modified = formatdate(about.modified_s, usegmt=True)
    described = (("ETag", about.etag), ("Last-Modified", modified), ("Accept-Ranges", "bytes"))
    if method == "HEAD":
        return _Answer(200, b"", (*described, ("Content-Length", str(about.num_bytes))))
    if headers.get("if-none-match") == about.etag:
        return _Answer(304, b"", described)
    if headers.get("if-match", about.etag) != about.etag:
        return _refused(412, "PreconditionFailed")
    bounds = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
    with (objects.folder / name).open("rb") as file:
        if bounds is None:
            return _Answer(200, file.read(), described)
        start = int(bounds[1]) if bounds[1] else max(0, about.num_bytes - int(bounds[2]))
        end = min(int(bounds[2]) + 1, about.num_bytes) if bounds[1] and bounds[2] else about.num_bytes
        if start >= about.num_bytes:
            return _refused(416, "InvalidRange")
        file.seek(start)
        content_range = f"bytes {start}-{end - 1}/{about.num_bytes}"
        return _Answer(206, file.read(end - start), (*described, ("Content-Range", content_range)))


def _listed(objects: _Objects, bucket: str, query: Mapping[str, str]) -> _Answer:
    start, delimiter = f"{bucket.rstrip('/')}/", query.get("delimiter", "")
    prefix = start + query.get("prefix", "")
    after = query.get("continuation-token") or query.get("start-after") or ""
    after, rows, num, last = start + after if after else "", [], 0, ""
    names = objects.below(prefix, after)
    while names and num <= PAGE:
        name = names.pop(0)
        rest, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        num += 1
        if num > PAGE:
            break
        last = name
        if mark:
            folder = prefix + rest + mark
            rows.append(f"<CommonPrefixes><Prefix>{escape(folder[len(start) :])}</Prefix></CommonPrefixes>")
            last = folder + "\U0010ffff"
            names = objects.below(prefix, last)
        else:
            about = objects.about[name]
            modified = datetime.fromtimestamp(about.modified_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
            rows.append(
                f"<Contents><Key>{escape(name[len(start) :])}</Key><LastModified>{modified}Z</LastModified>"
                f"<ETag>{escape(about.etag)}</ETag><Size>{about.num_bytes}</Size></Contents>"
            )
    is_more = num > PAGE
    more = f"<NextContinuationToken>{escape(last[len(start) :])}</NextContinuationToken>" if is_more else ""
    body = f"<IsTruncated>{str(is_more).lower()}</IsTruncated>{more}{''.join(rows)}"
    return _xml(f"<ListBucketResult>{body}</ListBucketResult>")


def _posted(objects: _Objects, name: str, query: Mapping[str, str], body: bytes) -> _Answer:
    if "delete" in query:
        keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", body.decode())]
        for key in keys:
            objects.remove(f"{name.rstrip('/')}/{key}")
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
    if "uploads" in query:
        upload = f"upload-{len(objects.uploads)}-{objects.counts.total()}"
        objects.uploads[upload] = {}
        return _xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
    parts = objects.uploads.pop(query["uploadId"])
    etag = objects.write(name, b"".join(parts[number] for number in sorted(parts)))
    return _xml(f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>")


def _xml(text: str) -> _Answer:
    return _Answer(200, text.encode(), (("Content-Type", "application/xml"),))


def _refused(status: int, code: str) -> _Answer:
    return _Answer(status, f"<Error><Code>{code}</Code></Error>".encode(), (("Content-Type", "application/xml"),))


async def _serve(folder: Path) -> None:
    objects = _Objects(folder)

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                answer = _answer(objects, method, target, headers, body)
                lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
                lines += [f"{name}: {value}" for name, value in answer.headers]
                if not any(name == "Content-Length" for name, _ in answer.headers):
                    lines.append(f"Content-Length: {len(answer.body)}")
                writer.write("\r\n".join([*lines, "", ""]).encode())
                if method != "HEAD":
                    writer.write(answer.body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_all, "127.0.0.1", 0, limit=1 << 20)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
