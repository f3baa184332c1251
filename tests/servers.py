"""Real servers on loopback: moto for S3, our own for what OSS does otherwise, and a plain web server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

SetEnvironment = Callable[[dict[str, str]], None]
"""Sets these variables of the environment; clients made before are forgotten."""
_MOTO = """
import threading
from moto import server

answer, one_at_a_time = server.DomainDispatcherApplication.__call__, threading.Lock()

def answer_in_turn(self, environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ:
        return answer(self, environ, start_response)
    with one_at_a_time:
        return answer(self, environ, start_response)

server.DomainDispatcherApplication.__call__ = answer_in_turn
server.main(["-H", "127.0.0.1", "-p", "0"])
"""


@contextlib.contextmanager
def moto_server(*buckets: str) -> Iterator[int]:
    """The port of an S3 server in a process of its own, with these buckets.

    moto looks whether an object is there, and writes it some time later: of two that create one, it may answer both
    that they were first, as S3 never does. So it takes those one at a time.
    """
    command = [sys.executable, "-c", _MOTO]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            messages = ""
            for line in process.stderr:
                messages += line
                if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    break
            else:
                raise RuntimeError(f"moto does not start: {messages}")
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or it stops at a full pipe
            port = int(match[1])
            reset_moto(port, *buckets)
            yield port
        finally:
            process.terminate()


def reset_moto(port: int, *buckets: str) -> None:
    """Let the server have these buckets, empty, and nothing else."""
    for method, path in (("POST", "/moto-api/reset"), *(("PUT", f"/{bucket}") for bucket in buckets)):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        client.request(method, path)
        assert client.getresponse().status == 200
        client.close()


def s3_environment(port: int) -> dict[str, str]:
    """What the environment says so that `s3://` goes to `port`."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key-of-the-tests",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_REGION": "us-east-1",
    }


def oss_environment(port: int) -> dict[str, str]:
    """What the environment says so that `oss://127/...` goes to `port`.

    Virtual-hosted style needs a host name below that of the server, and not every machine knows `bucket.localhost`:
    the bucket is called 127 and the server 0.0.1.
    """
    return {
        "OSS_ENDPOINT": f"http://0.0.1:{port}",
        "OSS_REGION": "cn-test",
        "OSS_ACCESS_KEY_ID": "key-of-the-tests",
        "OSS_ACCESS_KEY_SECRET": "secret-of-the-tests",
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name in the standard library)
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str = "") -> None:
        self.answer(status, f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error."""


@contextlib.contextmanager
def serve(handler: type[Handler], **state: Any) -> Iterator[int]:
    """The port of a server that answers by `handler`, whose objects share `state` as attributes."""
    server = _Server(("127.0.0.1", 0), type(handler.__name__, (handler,), state))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _OssHandler(Handler):
    """The rules of OSS which S3 has not, for one bucket."""

    objects: dict[str, bytes]
    lock: threading.Lock
    page: int

    def is_refused(self) -> bool:
        host = self.headers["Host"].partition(":")[0]
        if host == "localhost" or not self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256"):
            self.body()
            self.refuse(403, "SecondLevelDomainForbidden" if host == "localhost" else "AccessDenied")
            return True
        return False

    def put(self) -> None:
        if self.is_refused():
            return
        data, key = self.body(), unquote(urlsplit(self.path).path[1:])
        if "aws-chunked" in self.headers.get("Content-Encoding", "") or "If-None-Match" in self.headers:
            self.refuse(400, "NotImplemented")
            return
        with self.lock:
            is_allowed = key not in self.objects or self.headers.get("x-oss-forbid-overwrite") != "true"
            if is_allowed:
                self.objects[key] = data
        if is_allowed:
            self.answer(200, ETag=_etag(data))
        else:
            self.refuse(409, "FileAlreadyExists")

    def delete(self) -> None:
        if not self.is_refused():
            self.objects.pop(unquote(urlsplit(self.path).path[1:]), None)
            self.answer(204)

    def delete_many(self) -> None:
        """DeleteMultipleObjects, the one POST: OSS refuses it without the MD5 of the list."""
        if self.is_refused():
            return
        data = self.body()
        if urlsplit(self.path).query.partition("=")[0] != "delete":
            self.refuse(501, "NotImplemented")
        elif self.headers.get("Content-MD5") != base64.b64encode(hashlib.md5(data).digest()).decode():
            self.refuse(400, "InvalidDigest")
        else:
            keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", data.decode())]
            for key in keys:
                self.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), Content_Type="application/xml")

    def get(self) -> None:
        if self.is_refused():
            return
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query.get("list-type") == "2":
            self.list(query)
            return
        data = self.objects.get(unquote(url.path[1:]))
        if data is None:
            self.refuse(404, "NoSuchKey")
            return
        headers = {"ETag": _etag(data), "Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        if self.headers.get("If-None-Match") == _etag(data):
            self.answer(304, b"", **headers)
        elif match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2]) + 1, len(data))
            if start >= len(data):
                self.refuse(416, "InvalidRange")
            else:
                content_range = f"bytes {start}-{end - 1}/{len(data)}"
                self.answer(206, data[start:end], Content_Range=content_range, **headers)
        elif self.command == "HEAD":
            self.answer(200, b"", Content_Length=str(len(data)), **headers)
        else:
            self.answer(200, data, **headers)

    def list(self, query: Mapping[str, str]) -> None:
        keys = sorted(key for key in list(self.objects) if key.startswith(query.get("prefix", "")))
        keys = [key for key in keys if key > query.get("continuation-token", query.get("start-after", ""))]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_etag(self.objects[key]))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys[: self.page]
        )
        token = escape(keys[self.page - 1]) if keys[self.page :] else ""
        more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        truncated = "true" if token else "false"
        body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{rows}</ListBucketResult>"
        self.answer(200, body.encode(), Content_Type="application/xml")

    do_GET = do_HEAD = get
    do_PUT, do_DELETE, do_POST = put, delete, delete_many


def oss_server(page: int = 1000) -> contextlib.AbstractContextManager[int]:
    """The port of a server with one bucket that keeps the rules of OSS which S3 has not."""
    return serve(_OssHandler, objects={}, lock=threading.Lock(), page=page)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextlib.contextmanager
def http_server(
    objects: Mapping[str, bytes],
    status: int = 200,
    asks_for: str = "",
    content_type: str = "application/octet-stream",
) -> Iterator[int]:
    """The port of a plain web server; `asks_for` must stand in the query or in the decoded `Authorization`."""

    class Web(Handler):
        def do_GET(self) -> None:
            kind, _, user = self.headers.get("Authorization", "").partition(" ")
            user = base64.b64decode(user).decode() if kind == "Basic" else ""
            url = urlsplit(self.path)
            if status != 200:
                self.refuse(status, "SomeCode", f"you sent {self.path} and {dict(self.headers)}")
            elif asks_for not in url.query and asks_for != user:
                self.refuse(403, "SignatureDoesNotMatch", f"you sent {self.path}")
            elif unquote(url.path[1:]) not in objects:
                self.refuse(404, "NoSuchKey", f"you sent {self.path}")
            else:
                data = objects[unquote(url.path[1:])]
                date = "Mon, 01 Jan 2024 00:00:00 GMT"
                self.answer(200, data, ETag=_etag(data), Last_Modified=date, Content_Type=content_type)

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            self.body()
            self.do_GET()

    with serve(Web) as port:
        yield port
