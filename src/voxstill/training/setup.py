"""What a task hands to the training of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from voxstill.core.config import Config
from voxstill.nn.freezing import Frozen
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.training.data_source import Data
from voxstill.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """A model, its task, its data, and how it is saved: all that the loop and the experiment folder need."""

    model: Any
    task: Task
    data: Data
    about: str
    """What is trained, in words."""
    notes: Mapping[str, object]
    """For `environment.json`."""
    error: str
    """What the summary calls the least figure of the dev split."""
    save: Callable[[RunDir, dict[str, torch.Tensor]], None]
    """Writes the model folder, given all weights."""
    frozen: Frozen = field(default_factory=Frozen)
    """Layers that stay as they are, for good or for a while."""


SettingsOf = Callable[[Config], Mapping[str, object]]
"""The options of a configuration that change what is learnt: equal ones are the same training."""
Build = Callable[["Fabric", Config, RunDir, Store, str], TrainingSetup]
"""Builds the setup on this rank of a fabric: configuration, experiment folder, work folder, prefix of its shards."""
