"""A server on loopback that speaks the part of the Hugging Face Hub's protocol which uploads and downloads need."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from servers import Handler, serve

COMMIT = "0" * 40


@dataclass(slots=True)
class Hub:
    """What a server that answers as the Hugging Face Hub does has received: repositories with their commits."""

    port: int = 0
    token: str = "hf_token_of_the_tests"
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    """By `OWNER/NAME/path`."""
    commits: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    """Paths of the files that were asked for."""
    large: dict[str, bytes] = field(default_factory=dict)
    """By their sha256, as git LFS brings them."""

    def environment(self) -> dict[str, str]:
        """What the environment says so that `hf://` goes here."""
        endpoint = f"http://127.0.0.1:{self.port}"
        return {"HF_ENDPOINT": endpoint, "HF_TOKEN": self.token, "HF_HUB_DISABLE_XET": "1"}


class _HubHandler(Handler):
    """The part of the Hub's protocol that is needed: repositories, git LFS for weights, commits, files."""

    hub: Hub

    def answer_json(self, status: int, value: Mapping[str, Any]) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def put_large(self) -> None:  # the address is as good as a token, as with a bucket's signed ones
        data = self.body()
        self.hub.large[hashlib.sha256(data).hexdigest()] = data
        self.answer(200)

    def post(self) -> None:
        body, path = self.body(), urlsplit(self.path).path
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self.answer_json(401, {"error": "Invalid credentials in Authorization header"})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":  # of a model card
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            self.answer_json(200, {"errors": [], "warnings": []})
        elif path.endswith("/info/lfs/objects/batch"):
            self.batch(json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            self.preupload(match[1], body)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self.commit(match[1], body)
        else:
            self.answer_json(404, {"error": "not found"})

    def create(self, repository: dict[str, Any]) -> None:
        name = f"{repository['organization']}/{repository['name']}"
        exists = name in self.hub.private
        self.hub.private.setdefault(name, repository.get("visibility") == "private")
        self.answer_json(409 if exists else 200, {"url": f"http://127.0.0.1:{self.hub.port}/{name}", "name": name})

    def preupload(self, name: str, body: bytes) -> None:
        def mode(path: str) -> dict[str, Any]:
            lfs = path.endswith(".safetensors")
            known = self.hub.files.get(f"{name}/{path}")
            blob = b"blob %d\0" % len(known or b"") + (known or b"")
            oid = hashlib.sha256(known or b"").hexdigest() if lfs else hashlib.sha1(blob).hexdigest()
            file = {"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            return file if known is None else {**file, "oid": oid}

        self.answer_json(200, {"files": [mode(file["path"]) for file in json.loads(body)["files"]]})

    def batch(self, request: dict[str, Any]) -> None:
        def action(oid: str, size: int) -> dict[str, Any]:
            upload = {"upload": {"href": f"http://127.0.0.1:{self.hub.port}/large/{oid}"}}
            return {"oid": oid, "size": size, **({} if oid in self.hub.large else {"actions": upload})}

        self.answer_json(200, {"transfer": "basic", "objects": [action(**entry) for entry in request["objects"]]})

    def commit(self, name: str, body: bytes) -> None:
        for line in body.splitlines():
            kind, value = operator.itemgetter("key", "value")(json.loads(line))
            if kind == "header":
                self.hub.commits.append(value["summary"])
            else:
                data = self.hub.large[value["oid"]] if kind == "lfsFile" else base64.b64decode(value["content"])
                self.hub.files[f"{name}/{value['path']}"] = data
        commit_url = f"http://127.0.0.1:{self.hub.port}/{name}/commit/{COMMIT}"
        self.answer_json(200, {"commitUrl": commit_url, "commitOid": COMMIT})

    def get(self) -> None:
        path = urlsplit(self.path).path
        if match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path):
            self.give(match[1], unquote(match[2]))
        elif match := re.fullmatch(rf"/api/models/([^/]+/[^/]+)/tree/{COMMIT}", path):
            self.answer_json(200, [{"type": "file", **file} for file in self.listed(match[1])])  # type: ignore[arg-type]
        elif match := re.fullmatch(rf"/api/models/([^/]+/[^/]+)(/revision/(main|{COMMIT}))?", path):
            if match[1] in self.hub.private:
                siblings = [{"rfilename": file["path"]} for file in self.listed(match[1])]
                self.answer_json(200, {"id": match[1], "sha": COMMIT, "siblings": siblings})
            else:
                self.answer_json(404, {"error": "not found"})
        else:
            self.answer_json(404, {"error": "not found"})

    def listed(self, name: str) -> list[dict[str, Any]]:
        start = f"{name}/"
        return [
            {"path": key.removeprefix(start), "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for key, data in self.hub.files.items()
            if key.startswith(start)
        ]

    def give(self, name: str, path: str) -> None:
        if (data := self.hub.files.get(f"{name}/{path}")) is None:
            self.answer(404, b"", X_Error_Code="EntryNotFound")
            return
        self.hub.fetched.append(path)
        head = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X_Repo_Commit": COMMIT, "X_Linked_Size": str(len(data))}
        self.answer(200, data, **head)

    do_GET, do_HEAD, do_PUT, do_POST = get, get, put_large, post


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """A server with no repositories yet."""
    hub = Hub()
    with serve(_HubHandler, hub=hub) as port:
        hub.port = port
        yield hub
