"""serve: students as a transcription server with OpenAI's API."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from voxstill.core import world
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.core.result import Result
from voxstill.core.same_origin import is_loopback
from voxstill.decoding import exported
from voxstill.decoding.recognizer import Recognizer
from voxstill.pipeline.transcribe import load_live_recognizer

if TYPE_CHECKING:
    from voxstill.serving.middleware import Access
    from voxstill.serving.models import ModelSource

Engine = Literal["auto", "torch", "onnx"]
API_KEYS, ADMIN_KEY = "VOXSTILL_API_KEYS", "VOXSTILL_ADMIN_KEY"
"""Variables of the environment: the keys of clients, with commas between them, and that of the administrator."""
PACKAGES = {"starlette": "starlette", "uvicorn": "uvicorn", "multipart": "python-multipart", "websockets": "websockets"}
"""Modules of the extra `serve`, and the packages that they come with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult(Result):
    """Where the server answers, once it is ready."""

    url: str
    models: Sequence[str]

    def to_text(self) -> str:
        """The address."""
        return self.url


def serve(
    cfg: Config,
    models: Sequence[str],
    host: str,
    port: int,
    engine: Engine,
    ready: Callable[[ServeResult], None],
) -> None:
    """Serve models, each `[NAME=]MODEL[@WEIGHT]`, until SIGTERM or SIGINT; `ready` is called once all are loaded.

    ConfigError if a model cannot be served, the address is taken or packages are missing.
    """
    check_packages()
    from voxstill.serving import run

    sources, access = checked(models), access_at(host)
    listener = run.listening(host, port)
    result = ServeResult(url=address(host, listener.getsockname()[1]), models=names(sources))
    run.run(cfg, sources, functools.partial(opened, cfg, engine), access, listener, lambda: ready(result))


def checked(models: Sequence[str]) -> list[ModelSource]:
    """The models, each `[NAME=]MODEL[@WEIGHT]`; ConfigError if one has no traffic."""
    from voxstill.serving.models import model_source

    sources = [model_source(text) for text in models]
    for name in names(sources):
        if not any(source.weight for source in sources if source.name == name):
            raise ConfigError(
                f"`{name}` would get no traffic",
                code="option-value",
                why="all its weights are 0",
                fix="leave one above 0",
            )
    return sources


def names(sources: Sequence[ModelSource]) -> list[str]:
    """The names that clients ask for."""
    return list(dict.fromkeys(source.name for source in sources))


def access_at(host: str) -> Access:
    """Who may use a server at this address, by the keys of the environment; warns where anybody could."""
    from voxstill.serving.middleware import Access

    api_keys, admin_key = _keys()
    if not api_keys and not is_loopback(host):
        log.warning(
            "serve: %s is not a loopback address and %s is not set: anyone who can reach it may use it", host, API_KEYS
        )
    return Access(api_keys, admin_key, host)


def address(host: str, port: int) -> str:
    """The address for people and programs."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def opened(cfg: Config, engine: Engine, source: str) -> Callable[[], Recognizer]:
    """What loads a model; ConfigError if the engine cannot run it."""
    from voxstill.serving.versions import BATCH_MS

    check_engine(source, engine)
    options = {"batch_ms": BATCH_MS, "threads": cfg.serve.threads}
    return functools.partial(load_live_recognizer, cfg, source, **options)


def check_engine(source: str, engine: Engine) -> None:
    """Raise ConfigError if the engine cannot run a model.

    `auto` takes `onnx` for an exported folder and `torch` for everything else.
    """
    is_exported = exported.locate(source) is not None
    if engine == "onnx" and not is_exported:
        raise ConfigError(
            f"`{source}` cannot be run by onnxruntime",
            code="wrong-model",
            why="it is not an exported student",
            fix=f"export it, and give DIR instead: voxstill export {source} --to DIR",
        )
    if engine == "torch" and is_exported:
        raise ConfigError(
            f"`{source}` cannot be run by torch",
            code="wrong-model",
            why="it is exported",
            fix="give the experiment that it was exported from, or leave --engine out",
        )


def check_packages() -> None:
    """ConfigError if packages of the extra `serve` are missing."""
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(
            "the server is not installed",
            code="missing-package",
            why=f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            fix="pip install 'voxstill[serve]'",
        )


def _keys() -> tuple[list[str], str | None]:
    """The keys of clients and of the administrator in the environment; ConfigError for one that no header can hold."""
    environment = world.environment()
    api_keys = [key.strip() for key in environment.get(API_KEYS, "").split(",") if key.strip()]
    admin_key = environment.get(ADMIN_KEY, "").strip() or None
    if environment.get(API_KEYS) and not api_keys:
        raise ConfigError(
            f"{API_KEYS} contains no key",
            code="server-keys",
            why="it has only commas and spaces",
            fix="set a key, or remove the variable",
        )
    for name, keys in ((API_KEYS, api_keys), (ADMIN_KEY, [admin_key or ""])):
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise ConfigError(
                f"{name} contains no key that a client can send",
                code="server-keys",
                why="it has characters other than printable ASCII",
                fix="use a random key: openssl rand -hex 32",
            )
    return api_keys, admin_key
