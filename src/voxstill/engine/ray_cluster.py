"""The Ray cluster of this process: started or joined, left again, and how many workers it holds."""

from __future__ import annotations

import functools
import inspect
import os
import re
import resource
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from voxstill.core import run_mark, scratch, world
from voxstill.core.config import Engine
from voxstill.core.errors import ClusterError, ConfigError
from voxstill.core.monitor import log
from voxstill.engine.retry import describe
from voxstill.engine.stage import Stage

JOIN_LIMIT_S = 10.0
_SHARED_MEMORY = "/dev/shm"
_PROCESS_BYTES = 4 << 30
"""Addresses that a process of Ray needs besides its shared memory: a worker without any work has 1.5 GB."""
MOST_WORKERS_PER_CORE = 16
"""A running job is not given more by a change: each is a process of some hundred megabytes."""
SPARE_CPUS = 0.01
"""Share of the CPUs that no worker reserves at the start, so that those started later find a little everywhere."""
_MOST_SESSION_BYTES = 64
"""The longest name of a socket below the folder of sessions; a whole path may have 107 bytes (unix(7))."""
_SESSION_FOLDERS: list[Path] = []
"""Those that this process has made and not removed."""


def start_ray(cfg: Engine) -> Any:
    """Return the module `ray`, connected: one cluster for each process, that of `cfg.address` or one of its own.

    One of its own listens on the loopback interface only and asks for a token that only this process and its children
    know. ClusterError if it cannot be started or joined.
    """
    _configure_ray(is_joining=cfg.address is not None)
    import ray

    ray._private.worker._worker_logs_enabled = False  # else notices of dead workers go to standard output
    if ray.is_initialized():
        return ray
    # Ray refuses to start where /dev/shm is small, unless a size is set; then it uses files in /tmp.
    store_bytes = cfg.object_store_memory or min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8, 8 << 30)
    own_cluster = {"num_cpus": world.num_cores(), "include_dashboard": False, "object_store_memory": store_bytes}
    if cfg.address and cfg.object_store_memory:
        log.warning(
            "engine.object_store_memory is not used: the Ray cluster `%s` was started with its own value; set it "
            "there by "
            "`ray start --object-store-memory`",
            cfg.address,
        )
    if not cfg.address:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        free = {folder: _free_bytes(folder) for folder in (_SHARED_MEMORY, session_parent())}
        check_room(store_bytes, None if limit == resource.RLIM_INFINITY else limit, free)
    try:
        if host_port := re.fullmatch(r"([^/]+):(\d+)", cfg.address or ""):  # Ray would wait for minutes
            socket.create_connection((host_port[1].strip("[]"), int(host_port[2])), JOIN_LIMIT_S).close()
        options = {"address": cfg.address or "local", "logging_level": "ERROR", "log_to_driver": False}
        if cfg.address:
            ray.init(**options, **_marked_job())
        else:
            with _few_daemons(ray):
                ray.init(**options, **own_cluster, **_session_folder(session_parent()))
    except Exception as error:
        raise ClusterError(
            f"the Ray cluster `{cfg.address}` cannot be joined" if cfg.address else "Ray cannot start",
            code="ray-unavailable",
            why=describe(error),
            fix="check `engine.address`, or use `engine: inline`" if cfg.address else "use `engine: inline`",
        ) from error
    return ray


@contextmanager
def _few_daemons(ray: Any) -> Iterator[None]:
    """Let Ray start without three of its processes, which cost CPU time at its start and ever after.

    A cluster of one driver uses none of them: the autoscaler's monitor, the reader of the workers' logs, and the server
    of a dashboard that is switched off, which would report usage where `ray start` allowed that. There is no public
    option. All are started where the internals of a version of Ray differ.
    """
    parameter, node = ray._private.parameter, ray._private.node.Node
    all_daemons, start_api_server = parameter.RayParams, getattr(node, "start_api_server", None)
    without = {"no_monitor": True, "include_log_monitor": False}
    if start_api_server is None or not without.keys() <= inspect.signature(all_daemons).parameters.keys():
        yield
        return
    parameter.RayParams = functools.partial(all_daemons, **without)
    node.start_api_server = lambda self, **_: None
    try:
        yield
    finally:
        parameter.RayParams, node.start_api_server = all_daemons, start_api_server


def session_parent() -> str:
    """Where the folder of this process's own Ray is made."""
    environment = world.environment()
    return os.path.abspath(environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp")


def _session_folder(parent: str) -> dict[str, str]:
    """Where Ray writes sockets and logs: a folder that says whose it is, where the names of sockets fit then."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    folder = scratch.make(parent)
    if len(os.fsencode(folder)) + _MOST_SESSION_BYTES > 107:
        scratch.remove(folder)
        return {}
    _SESSION_FOLDERS.append(folder)
    return {"_temp_dir": str(folder)}


def _marked_job() -> dict[str, object]:
    """The mark of the run for the workers of a cluster that others have started: they inherit nothing from here."""
    text = world.environment().get(run_mark.VARIABLE)
    return {} if text is None else {"runtime_env": {"env_vars": {run_mark.VARIABLE: text}}}


def check_room(store_bytes: int, address_bytes: int | None, free_bytes: Mapping[str, int]) -> None:
    """ClusterError if Ray's processes would wait or die for want of memory while they start, without saying so.

    `address_bytes` is the limit of the address space of a process, `free_bytes` the room in the folders that may hold
    the shared memory.
    """
    if address_bytes is not None and address_bytes < store_bytes + _PROCESS_BYTES:
        raise ClusterError(
            "Ray cannot start",
            code="ray-unavailable",
            why=f"a process may have {_mb(address_bytes)} of address space (`ulimit -v`), and each process of Ray "
            "takes the "
            f"{_mb(store_bytes)} of its shared memory and {_mb(_PROCESS_BYTES)} more",
            fix="run `ulimit -v unlimited`, set a smaller `engine.object_store_memory`, or use `engine: inline`",
        )
    if free_bytes and max(free_bytes.values()) < store_bytes:
        rooms = " and ".join(f"{_mb(num_bytes)} in {folder}" for folder, num_bytes in free_bytes.items())
        raise ClusterError(
            "Ray cannot start",
            code="ray-unavailable",
            why=f"its shared memory takes {_mb(store_bytes)}, and there are {rooms}",
            fix="make /dev/shm larger (`docker run --shm-size`), set a smaller `engine.object_store_memory`, or use "
            "`engine: inline`",
        )


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def _configure_ray(*, is_joining: bool) -> None:
    """Set Ray's environment variables, which it reads once, when it is imported."""
    if "ray" in sys.modules:
        return
    settings = {
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` ships the working folder
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # a payload that is lost is seen by its status
    }
    if not is_joining:
        settings |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: bind to loopback
            "RAY_process_group_cleanup_enabled": "1",  # what a worker has started dies with it, however it dies
        }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def shutdown() -> None:
    """End the cluster that this process started, or leave the one it joined; the next `run` starts again."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        while _SESSION_FOLDERS:
            scratch.remove(_SESSION_FOLDERS.pop())


def num_workers(ray: ModuleType, stages: Sequence[Stage]) -> list[int]:
    """How many workers each stage has: as configured, else as many as fit."""
    machines = _machines(ray)

    def fitting(stage: Stage) -> int:
        if stage.reserved:
            return max(1, sum(_num_fitting(stage.reserved, machine) for machine in machines))
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    return [stage.workers or fitting(stage) for stage in stages]


def is_free(ray: ModuleType, reserved: Mapping[str, float]) -> bool:
    """Whether so much of each resource is free."""
    free = ray.available_resources()
    return all(amount <= free.get(name, 0) for name, amount in reserved.items())


def cpu_share(ray: ModuleType, stages: Sequence[Stage], sizes: Sequence[int]) -> float:
    """The share of its `num_cpus` that a worker reserves, so that all workers fit.

    GPUs and other resources are not shared so: ConfigError if the workers need more than there are.
    """
    _check_reserved(_machines(ray), stages, sizes)
    cpus = sum(size * stage.num_cpus for stage, size in zip(stages, sizes, strict=True))
    return min(1.0, (1 - SPARE_CPUS) * ray.cluster_resources().get("CPU", 0) / cpus) if cpus else 1.0


def check_growth(ray: ModuleType, wanted: int, current: int) -> None:
    """Raise ConfigError if a change of a running job starts more workers than the cluster can hold.

    Everyone who can write into the work folder may request a change; only the user who starts a job may set any number.
    """
    most = max(current, int(MOST_WORKERS_PER_CORE * ray.cluster_resources().get("CPU", 1)))
    if wanted > most:
        raise ConfigError(
            f"a running job cannot get {wanted:,} workers",
            code="too-few-resources",
            why=f"the cluster allows {most:,}, {MOST_WORKERS_PER_CORE} per core",
            fix="set fewer, or end the job with SIGTERM and start it with that number",
        )


def _check_reserved(machines: Sequence[Mapping[str, float]], stages: Sequence[Stage], sizes: Sequence[int]) -> None:
    """Raise ConfigError if workers would wait for ever for what they reserve besides CPUs."""
    sized = list(zip(stages, sizes, strict=True))
    for name in dict.fromkeys(name for stage in stages for name in stage.reserved):
        wanted = sum(size * stage.reserved.get(name, 0) for stage, size in sized)
        present = sum(machine.get(name, 0) for machine in machines)
        if wanted > present:
            shares = [(stage.name, size, stage.reserved[name]) for stage, size in sized if name in stage.reserved]
            raise ConfigError(
                f"the workers need {_amount(name, wanted)} but the cluster has {present:g}",
                code="too-few-resources",
                why=", ".join(
                    f"`{stage}`: {size} workers of {_amount(name, amount)}" for stage, size, amount in shares
                ),
                fix="lower `engine.teachers` or `engine.teacher_gpus`"
                if name == "GPU"
                else "lower the numbers of workers or of what each reserves; declare it when a machine "
                f"starts: `ray start --resources='{{\"{name}\": 1}}'`",
            )
    for stage in stages:
        if stage.reserved and not any(_num_fitting(stage.reserved, machine) for machine in machines):
            raise ConfigError(
                f"no machine of the cluster has the resources that a worker of the stage `{stage.name}` reserves",
                code="too-few-resources",
                why=" and ".join(_amount(name, amount) for name, amount in stage.reserved.items()),
                fix="lower it, or add a machine that has enough",
            )


def _machines(ray: ModuleType) -> list[Mapping[str, float]]:
    """The resources of each machine of the cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _num_fitting(reserved: Mapping[str, float], machine: Mapping[str, float]) -> int:
    """How many workers that reserve so much a machine holds."""
    return min(int(machine.get(name, 0) / amount + 1e-6) for name, amount in reserved.items())


def _amount(name: str, amount: float) -> str:
    return f"{amount:g} GPUs" if name == "GPU" else f"{amount:g} of the resource `{name}`"
