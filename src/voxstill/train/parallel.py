"""On how many devices, in which precision: chosen from what the machine has, and said why."""

from __future__ import annotations

from typing import Any

import torch

from voxstill.config import Train
from voxstill.errors import TrainingError

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def precision(cfg: Train) -> tuple[str, str]:
    """The precision (`fp32`, `bf16` or `fp16`) and the reason for it."""
    if cfg.precision != "auto":
        return cfg.precision, "asked for by `train.precision`"
    if not torch.cuda.is_available():
        return "fp32", "there is no GPU, and bf16 is no faster on a CPU"
    major, minor = torch.cuda.get_device_capability()
    if major >= 8:
        return "bf16", f"the GPU has compute capability {major}.{minor}"
    return "fp16", f"the GPU has compute capability {major}.{minor}, which lacks bf16"


def fabric(cfg: Train) -> Any:
    """A Lightning Fabric for this machine, launched; TrainingError where it has too few GPUs."""
    from lightning.fabric import Fabric

    on_gpu = torch.cuda.is_available()
    if on_gpu and cfg.devices > torch.cuda.device_count():
        raise TrainingError(
            f"`train.devices` is {cfg.devices}",
            why=f"this machine has {torch.cuda.device_count()} GPUs",
            fix="lower `train.devices`",
        )
    return Fabric(
        accelerator="cuda" if on_gpu else "cpu",
        devices=cfg.devices,
        strategy="ddp_spawn" if cfg.devices > 1 else "auto",
        precision=PRECISIONS[precision(cfg)[0]],
    )
