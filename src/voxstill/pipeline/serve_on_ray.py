"""serve --ray: the same application in replicas that Ray Serve starts, scales, routes to and replaces.

`voxstill.pipeline.serve_on_ray:application` is an application builder for `serve deploy` and KubeRay's `RayService`.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

from voxstill.core import config, world
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.engine import ray_cluster
from voxstill.engine.retry import describe
from voxstill.pipeline import serve as server
from voxstill.pipeline.serve import Engine, ServeResult

if TYPE_CHECKING:
    from voxstill.serving.middleware import Access
    from voxstill.serving.models import ModelSource
    from voxstill.serving.replica import Replica

NAME = "voxstill"
_MOST_REQUESTS = 1024
"""Requests that Ray sends to one replica, which itself refuses what does not fit `serve.max_queue_s`."""


def serve(
    cfg: Config,
    models: Sequence[str],
    host: str,
    port: int,
    engine: Engine,
    ready: Callable[[ServeResult], None],
) -> None:
    """Serve models on the Ray cluster of `engine.address`, or on one of this process, until SIGTERM or SIGINT.

    `ready` is called once a replica answers. ConfigError if a model cannot be served or packages are missing,
    ClusterError if there is no cluster.
    """
    check_packages()
    from voxstill.serving import run

    sources, access = server.checked(models), server.access_at(host)
    for source in sources:
        server.check_engine(source.source, engine)
    if port == 0:  # Ray opens the socket itself
        with run.listening(host, 0) as listener:
            port = listener.getsockname()[1]
    ray_cluster.start_ray(cfg.engine)
    from ray import serve as ray_serve

    with world.Signals(_stopping) as signals:  # after Ray, which has a handler of its own
        try:
            ray_serve.start(http_options={"host": host, "port": port, "request_timeout_s": None})
            ray_serve.run(deployment(cfg, sources, access, engine), name=NAME, route_prefix="/")
        except Exception as error:
            ray_serve.shutdown()
            raise ConfigError(
                "the models are not served on Ray",
                code="ray-unavailable",
                why=describe(error),
                fix="see the logs of its replicas: `serve status` and `ray logs`",
            ) from error
        try:
            ready(ServeResult(url=server.address(host, port), models=server.names(sources)))
            while signals.caught is None:
                threading.Event().wait(0.2)
        finally:
            ray_serve.shutdown()
            ray_cluster.shutdown()


def application(arguments: Mapping[str, str]) -> Any:
    """Build the application from what a `RayService` gives in `args`.

    `models` is a list as on the command line with spaces between, `engine` as there, `config` a file, and any other
    name an option: `serve.max_replicas`.
    """
    options = dict(arguments)
    models, engine, path = options.pop("models", ""), options.pop("engine", "auto"), options.pop("config", None)
    if engine not in get_args(Engine):
        raise ConfigError(
            f"unknown engine `{engine}`",
            code="unknown-name",
            why="it must be auto, torch or onnx",
            fix="leave `engine` out",
        )
    check_packages()
    cfg = config.load(path, [f"{name}={value}" for name, value in options.items()])
    return deployment(cfg, server.checked(models.split()), server.access_at("0.0.0.0"), cast(Engine, engine))


def deployment(cfg: Config, sources: Sequence[ModelSource], access: Access, engine: Engine) -> Any:
    """The Ray Serve application of a configuration."""
    from ray import serve as ray_serve

    tree, options = cfg.model_dump(exclude_unset=True), cfg.serve

    def build() -> Replica:  # a function: Ray takes any other object for the application itself
        return _replica(tree, sources, access, engine)

    return ray_serve.deployment(
        ray_serve.ingress(build)(),
        name=NAME,
        ray_actor_options={"num_cpus": options.replica_cpus, "num_gpus": options.replica_gpus},
        autoscaling_config={
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas or options.min_replicas,
            "target_ongoing_requests": options.replica_requests,
        },
        max_ongoing_requests=_MOST_REQUESTS,
        graceful_shutdown_timeout_s=options.drain_s,
    ).bind()


def check_packages() -> None:
    """ConfigError if packages of the extra `ray-serve` are missing."""
    server.check_packages()
    if importlib.util.find_spec("fastapi") is None:
        raise ConfigError(
            "Ray Serve is not installed",
            code="missing-package",
            why="it is not installed",
            fix="pip install 'voxstill[ray-serve]'",
        )


def _replica(tree: Mapping[str, Any], sources: Sequence[ModelSource], access: Access, engine: Engine) -> Replica:
    """The ASGI application, in the process of a replica."""
    from voxstill.serving.app import TranscriptionServer
    from voxstill.serving.replica import Replica

    cfg = config.validated(Config, dict(tree))
    return Replica(TranscriptionServer(cfg, functools.partial(server.opened, cfg, engine), access), sources)


def _stopping(name: str) -> None:
    log.info("serve: %s: no new requests", name)
