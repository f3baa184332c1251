"""Installed packages, and GPUs with their driver: known incompatibilities."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from voxstill.core.metrics.gpus import nvml, slowed_by
from voxstill.pipeline.doctor.checks import Check
from voxstill.pipeline.doctor.machine import GIB
from voxstill.pipeline.gpu_memory import unowned_memory

_BESIDE_TORCH = ("torchaudio", "torchvision", "torchcodec")
"""Built against one torch: beside another they fail to load, and transformers with them."""


def packages() -> list[Check]:
    """Packages that are missing, older than voxstill needs, or built against another torch."""
    faults = [*_unmet("voxstill"), *_apart_from_torch()]
    versions = ", ".join(f"{name} {_version(name) or 'missing'}" for name in ("torch", "transformers", "ray"))
    if not faults:
        return [Check(name="packages", state="ok", found=versions)]
    texts, fixes = zip(*faults, strict=True)
    return [
        Check(
            name="packages",
            state="fail",
            found=f"{'; '.join(texts)}; {versions}",
            fix=f"run: {' && '.join(dict.fromkeys(fixes))}",
        )
    ]


def _unmet(name: str) -> Iterator[tuple[str, str]]:
    """What a package needs, without its extras, and is not there in a version that it takes."""
    from packaging.requirements import Requirement

    if _version(name) is None:  # it runs from a checkout
        return
    for line in metadata.requires(name) or ():
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        version = _version(needed.name)
        if version is None:
            yield f"{name} needs {needed.name}, which is missing", f"pip install '{line.partition(';')[0].strip()}'"
        elif not needed.specifier.contains(version, prereleases=True):
            text = f"{name} needs {needed.name}{needed.specifier}, but {version} is installed"
            yield text, f"pip install '{needed.name}{needed.specifier}'"


def _apart_from_torch() -> Iterator[tuple[str, str]]:
    """Packages that are built against another torch than the one that is there."""
    from packaging.requirements import Requirement

    torch = _version("torch")
    for name in _BESIDE_TORCH if torch else ():
        version = _version(name)
        if version is None or torch is None:
            continue
        needed = [Requirement(line) for line in metadata.requires(name) or ()]
        pinned = next((one.specifier for one in needed if one.name == "torch" and one.marker is None), None)
        build, torch_build = (text.partition("+")[2] for text in (version, torch))
        if (torch_build == "cpu") != (build == "cpu") or (pinned and not pinned.contains(torch, prereleases=True)):
            yield (
                f"{name} {version} is built against another torch than {torch}, and transformers fails to load with it",
                f"pip uninstall -y {name}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What the driver says of one GPU."""

    number: int
    name: str
    used_bytes: int
    total_bytes: int
    unowned_bytes: int = 0
    """In use, and no process has them."""
    slowed_by: str | None = None


def gpus() -> list[Check]:
    """The GPUs as their driver shows them, beside what torch was built for."""
    library = nvml()
    if library is None:
        has_gpu = Path("/dev/nvidia0").exists()
        text = "GPUs are not checked: pip install 'voxstill[gpu]' to see them" if has_gpu else "none is visible"
        return [Check(name="GPU", state="ok", found=text)]
    driver = int(library.nvmlSystemGetCudaDriverVersion())
    versions = (driver // 1000, driver % 1000 // 10)
    return judge_gpus(list(_seen(library)), versions, _version("torch"), _cuda_of_torch(), _nccl_fault())


def judge_gpus(
    seen: Sequence[Gpu], driver: tuple[int, int], torch: str | None, cuda: tuple[int, int] | None, nccl: str | None
) -> list[Check]:
    """Judge what the driver says; pure. `driver` and `cuda` are the versions of CUDA of the driver and of torch."""
    texts = [f"{gpu.number}: {gpu.name}, {gpu.used_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.0f} GiB" for gpu in seen]
    checks = [Check(name="GPU", state="ok", found="; ".join(texts) or "the driver shows none")]
    known = f"the driver supports CUDA {driver[0]}.{driver[1]}"
    if seen and cuda is None:
        text = f"there are GPUs, but torch {torch} is built for the CPU"
        checks.append(Check(name="driver", state="warn", found=text, fix="install a torch with CUDA (pytorch.org)"))
    elif seen and cuda is not None and driver[0] < cuda[0]:
        text = f"{known}, and torch {torch} is built for {cuda[0]}.{cuda[1]}"
        fix = f"update the driver, or install a torch for CUDA {driver[0]}"
        checks.append(Check(name="driver", state="fail", found=text, fix=fix))
    elif seen:
        checks.append(Check(name="driver", state="ok", found=f"{known}, torch is {torch}"))
    if seen and nccl is not None:
        checks.append(Check(name="NCCL", state="warn", found=nccl, fix="reinstall torch with its dependencies"))
    for gpu in seen:
        if gpu.unowned_bytes:
            text = f"{gpu.unowned_bytes / GIB:.1f} GiB of GPU {gpu.number} are in use, but no process holds them"
            fix = (
                "find the processes that have the device open: `sudo fuser -v /dev/nvidia*`; else reset it: "
                "`nvidia-smi --gpu-reset`"
            )
            checks.append(Check(name="GPU memory", state="warn", found=text, fix=fix))
        if gpu.slowed_by is not None:
            text, fix = f"GPU {gpu.number} is slowed down by {gpu.slowed_by}", "check its cooling and its power limit"
            checks.append(Check(name="GPU clock", state="warn", found=text, fix=fix))
    return checks


def _seen(library: ModuleType) -> Iterator[Gpu]:
    unowned = {memory.gpu: memory.num_bytes for memory in unowned_memory()}
    for number in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(number)
        memory, name, cause = library.nvmlDeviceGetMemoryInfo(handle), library.nvmlDeviceGetName(handle), None
        with contextlib.suppress(library.NVMLError):  # not every GPU says
            cause = slowed_by(library, handle)
        yield Gpu(
            number=number,
            name=name if isinstance(name, str) else name.decode(),
            used_bytes=int(memory.used),
            total_bytes=int(memory.total),
            unowned_bytes=unowned.get(number, 0),
            slowed_by=cause,
        )


def _nccl_fault() -> str | None:
    """What is wrong with the NCCL beside torch; None if it is what torch needs, or torch brings its own."""
    from packaging.requirements import Requirement

    for line in metadata.requires("torch") or () if _version("torch") else ():
        needed = Requirement(line)
        if needed.name.startswith("nvidia-nccl") and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            version = _version(needed.name)
            if version is None or not needed.specifier.contains(version):
                return f"torch needs {needed.name}{needed.specifier}, but {version or 'none'} is installed"
    return None


def _cuda_of_torch() -> tuple[int, int] | None:
    """The CUDA that torch is built for, as its `version.py` says; None if it is none. Does not load torch."""
    if _version("torch") is None:
        return None
    path = metadata.distribution("torch").locate_file("torch/version.py")
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda[^=]*= *'(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
