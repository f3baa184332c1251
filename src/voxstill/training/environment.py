"""Where a training ran: versions, machine, command line and git commits, as `environment.json` notes them."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

from voxstill.core import world
from voxstill.core.version import __version__
from voxstill.storage.redaction import redact_arguments

PACKAGE = Path(__file__).parents[1]
"""The folder of the code that runs."""
PACKAGES = ("torch", "transformers", "lightning-fabric", "numpy", "pyarrow", "ray", "pocketsphinx", "soundfile", "av")
_TIMEOUT_S = 20.0
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
"""Git that only reads, and starts no monitor that the repository names."""


def versions() -> dict[str, str]:
    """Versions of Python, voxstill and the packages that decide what a run computes."""
    installed = {"python": platform.python_version(), "voxstill": __version__}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def machine() -> dict[str, object]:
    """What the run has to work with: processor, cores, and where there are GPUs, the versions of CUDA and driver."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {"system": platform.system(), "processor": platform.machine(), "cores": world.num_cores(), "gpus": gpus}
    if gpus:
        drivers = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        facts |= {"cuda": torch.version.cuda, "driver": drivers.splitlines()[0] if drivers else None}
    return facts


def command_line() -> str:
    """The command line of this process, without secrets."""
    return shlex.join(redact_arguments(sys.argv))


def commits() -> dict[str, dict[str, object]]:
    """The git commits of the project in the working folder and of voxstill, where they are checkouts."""
    commits = {"project": commit_of(Path.cwd())}
    # one installed into the environment of a project lies in its repository, but is none of its files
    if _output(*_GIT, "-C", str(PACKAGE), "ls-files", "__init__.py"):
        commits["voxstill"] = commit_of(PACKAGE)
    return {name: commit for name, commit in commits.items() if commit is not None}


def commit_of(folder: Path) -> dict[str, object] | None:
    """The commit of the repository that a folder is in, and whether its files were changed since; None outside one."""
    commit = _output(*_GIT, "-C", str(folder), "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": _is_dirty(folder)}


def _is_dirty(folder: Path) -> bool | None:
    """Whether files of a repository were changed since its commit; None if git cannot find out without its programs.

    Files are compared without the filters that the repository names: they are programs that git would run. Those of
    submodules are not compared, as each has filters of its own.
    """
    filters = _output(*_GIT, "-C", str(folder), "config", "--name-only", "--get-regexp", r"^filter\.") or ""
    drivers = {name.rpartition(".")[0] for name in filters.splitlines()}
    if any("=" in driver for driver in drivers):  # `-c` could not name it
        return None
    off = (f"{driver}.{value}" for driver in sorted(drivers) for value in ("clean=", "process=", "required=false"))
    options = [part for option in off for part in ("-c", option)]
    status = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    changes = _output(*_GIT, *options, "-C", str(folder), *status)
    return None if changes is None else bool(changes)


def _output(*command: str) -> str | None:
    """What a program writes; None if it fails or is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
