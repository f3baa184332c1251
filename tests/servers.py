"""Real servers on loopback: moto for S3, our own for what OSS does otherwise, and a bad line in front of either."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import operator
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_MOTO = """
import threading
from moto import server

answer, one_at_a_time = server.DomainDispatcherApplication.__call__, threading.Lock()

def called(self, environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ:
        return answer(self, environ, start_response)
    with one_at_a_time:
        return answer(self, environ, start_response)

server.DomainDispatcherApplication.__call__ = called
server.main(["-H", "127.0.0.1", "-p", "0"])
"""


@contextlib.contextmanager
def moto_server(*buckets: str) -> Iterator[int]:
    """The port of an S3 server in a process of its own, with these buckets.

    moto looks whether an object is there, and writes it some time later: of two that create one, it may tell both that
    they were first, as S3 never does. So it takes those one at a time.
    """
    command = [sys.executable, "-c", _MOTO]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    break
            else:
                raise RuntimeError(f"moto does not start: {said}")
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or it stops at a full pipe
            port = int(found[1])
            for bucket in buckets:
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                client.request("PUT", f"/{bucket}")
                assert client.getresponse().status == 200
                client.close()
            yield port
        finally:
            process.terminate()


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


class _Handler(BaseHTTPRequestHandler):
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
def _serve(handler: type[_Handler]) -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def oss_server(page: int = 1000) -> Iterator[int]:
    """The port of a server with one bucket that keeps the rules of OSS which S3 has not."""
    objects: dict[str, bytes] = {}
    lock = threading.Lock()

    class Oss(_Handler):
        def bad(self) -> bool:
            host = self.headers["Host"].partition(":")[0]
            if host == "localhost" or not self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256"):
                self.body()
                self.refuse(403, "SecondLevelDomainForbidden" if host == "localhost" else "AccessDenied")
                return True
            return False

        def do_PUT(self) -> None:
            if self.bad():
                return
            data, key = self.body(), unquote(urlsplit(self.path).path[1:])
            if "aws-chunked" in self.headers.get("Content-Encoding", "") or "If-None-Match" in self.headers:
                self.refuse(400, "NotImplemented")
                return
            with lock:
                first = key not in objects
                if first or self.headers.get("x-oss-forbid-overwrite") != "true":
                    objects[key] = data
                    first = True
            if first:
                self.answer(200, ETag=_etag(data))
            else:
                self.refuse(409, "FileAlreadyExists")

        def do_DELETE(self) -> None:
            if not self.bad():
                objects.pop(unquote(urlsplit(self.path).path[1:]), None)
                self.answer(204)

        def do_GET(self) -> None:
            if self.bad():
                return
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if query.get("list-type") == "2":
                self.list(query)
                return
            data = objects.get(unquote(url.path[1:]))
            if data is None:
                self.refuse(404, "NoSuchKey")
                return
            more = {"ETag": _etag(data), "Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
            if self.headers.get("If-None-Match") == _etag(data):
                self.answer(304, **more)
            elif found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                start, end = int(found[1]), min(int(found[2]) + 1, len(data))
                if start >= len(data):
                    self.refuse(416, "InvalidRange")
                else:
                    self.answer(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}", **more)
            elif self.command == "HEAD":
                self.answer(200, Content_Length=str(len(data)), **more)
            else:
                self.answer(200, data, **more)

        do_HEAD = do_GET

        def list(self, query: Mapping[str, str]) -> None:
            keys = sorted(key for key in list(objects) if key.startswith(query.get("prefix", "")))
            keys = [key for key in keys if key > query.get("continuation-token", query.get("start-after", ""))]
            rows = "".join(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(_etag(objects[key]))}</ETag><Size>{len(objects[key])}</Size></Contents>"
                for key in keys[:page]
            )
            more = f"<NextContinuationToken>{escape(keys[page - 1])}</NextContinuationToken>" if keys[page:] else ""
            truncated = "true" if more else "false"
            body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{rows}</ListBucketResult>"
            self.answer(200, body.encode(), Content_Type="application/xml")

    with _serve(Oss) as port:
        yield port


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextlib.contextmanager
def http_server(objects: Mapping[str, bytes], status: int = 200, asks_for: str = "") -> Iterator[int]:
    """The port of a plain web server; `asks_for` must stand in the query or in the decoded `Authorization`."""

    class Web(_Handler):
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
                self.answer(200, data, ETag=_etag(data), Last_Modified="Mon, 01 Jan 2024 00:00:00 GMT")

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            self.body()
            self.do_GET()

    with _serve(Web) as port:
        yield port


@dataclass
class BadLine:
    """What lies between us and a server: `shares` says how often each fault comes; they may be changed at any time.

    `error` 500 and `slow_down` 503 are answered without asking the server, `reset` breaks the line before it, `lost`
    after it has done what was asked, `cut` in the middle of its answer, and `stall` says nothing for `stall_s`.
    """

    port: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    stall_s: float = 5.0
    seen: Counter[str] = field(default_factory=Counter)
    """How often each fault came; `fine` counts the answers passed on."""
    num_bytes: int = 0
    """Bytes of the bodies passed on to the client."""


@contextlib.contextmanager
def bad_line(upstream: int, seed: int = 0, **shares: float) -> Iterator[BadLine]:
    """A server on a port of its own that asks the one on `upstream`, and fails as told."""
    line = BadLine(shares=shares)
    chance = random.Random(seed)
    lock = threading.Lock()

    class Line(_Handler):
        def forward(self) -> None:
            body = self.body()
            with lock:
                kinds, weights = list(line.shares), list(line.shares.values())
                fault = chance.choices([*kinds, "fine"], [*weights, max(0.0, 1 - sum(weights))])[0]
                if fault == "cut" and self.command != "GET":
                    fault = "fine"
                line.seen[fault] += 1
            if fault in ("error", "slow_down"):
                self.refuse(*((500, "InternalError") if fault == "error" else (503, "SlowDown")))
                return
            if fault == "stall":
                time.sleep(line.stall_s)
            if fault in ("reset", "stall"):
                self.hang_up()
                return
            client = http.client.HTTPConnection("127.0.0.1", upstream, timeout=30)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "content-length")}
                client.request(self.command, self.path, body or (b"" if self.command == "PUT" else None), headers)
                answer = client.getresponse()
                data = answer.read()
            finally:
                client.close()
            if fault == "lost":
                self.hang_up()
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                line.num_bytes += len(data)
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
            if fault == "cut":
                self.wfile.flush()
                self.hang_up()

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = forward

        def hang_up(self) -> None:
            """Reset, not closed: the client sees a broken line at once."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

    with _serve(Line) as port:
        line.port = port
        yield line


@dataclass(slots=True)
class Hub:
    """What a server that answers as the Hugging Face Hub does has been told: repositories with their commits."""

    port: int = 0
    token: str = "hf_token_of_the_tests"
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    """By `OWNER/NAME/path`."""
    commits: list[str] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)
    """By their sha256, as git LFS brings them."""

    def environment(self) -> dict[str, str]:
        """What the environment says so that `hf://` goes here."""
        endpoint = f"http://127.0.0.1:{self.port}"
        return {"HF_ENDPOINT": endpoint, "HF_TOKEN": self.token, "HF_HUB_DISABLE_XET": "1"}


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """The part of the Hub's protocol that an upload needs: repositories, git LFS for weights, commits."""
    hub = Hub()

    class Handler(_Handler):
        def told(self, status: int, about: Mapping[str, Any]) -> None:
            self.answer(status, json.dumps(about).encode(), Content_Type="application/json")

        def do_PUT(self) -> None:  # the address is as good as a token, as with a bucket's signed ones
            data = self.body()
            hub.large[hashlib.sha256(data).hexdigest()] = data
            self.answer(200)

        def do_POST(self) -> None:
            body, path = self.body(), urlsplit(self.path).path
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.told(401, {"error": "Invalid credentials in Authorization header"})
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif path.endswith("/info/lfs/objects/batch"):
                self.batch(json.loads(body))
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path):
                getattr(self, found[2])(found[1], body)
            else:
                self.told(404, {"error": "not found"})

        def create(self, about: dict[str, Any]) -> None:
            name = f"{about['organization']}/{about['name']}"
            there = name in hub.private
            hub.private.setdefault(name, about.get("visibility") == "private")
            self.told(409 if there else 200, {"url": f"http://127.0.0.1:{hub.port}/{name}", "name": name})

        def preupload(self, name: str, body: bytes) -> None:
            def mode(path: str) -> dict[str, Any]:
                lfs = path.endswith(".safetensors")
                known = hub.files.get(f"{name}/{path}")
                blob = b"blob %d\0" % len(known or b"") + (known or b"")
                oid = hashlib.sha256(known or b"").hexdigest() if lfs else hashlib.sha1(blob).hexdigest()
                about = {"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
                return about if known is None else {**about, "oid": oid}

            self.told(200, {"files": [mode(each["path"]) for each in json.loads(body)["files"]]})

        def batch(self, about: dict[str, Any]) -> None:
            def action(oid: str, size: int) -> dict[str, Any]:
                upload = {"upload": {"href": f"http://127.0.0.1:{hub.port}/large/{oid}"}}
                return {"oid": oid, "size": size, **({} if oid in hub.large else {"actions": upload})}

            self.told(200, {"transfer": "basic", "objects": [action(**each) for each in about["objects"]]})

        def commit(self, name: str, body: bytes) -> None:
            for line in body.splitlines():
                kind, value = operator.itemgetter("key", "value")(json.loads(line))
                if kind == "header":
                    hub.commits.append(value["summary"])
                else:
                    data = hub.large[value["oid"]] if kind == "lfsFile" else base64.b64decode(value["content"])
                    hub.files[f"{name}/{value['path']}"] = data
            about = {"commitUrl": f"http://127.0.0.1:{hub.port}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40}
            self.told(200, about)

        def do_GET(self) -> None:
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/main)?", urlsplit(self.path).path)
            if found and found[1] in hub.private:
                self.told(200, {"id": found[1], "sha": "0" * 40, "siblings": []})
            else:
                self.told(404, {"error": "not found"})

    with _serve(Handler) as port:
        hub.port = port
        yield hub
