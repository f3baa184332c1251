"""How Lightning Fabric treats the model of a rank: DDP, but for one that is sharded already. Imported to train only."""

from __future__ import annotations

import contextlib
from typing import Any

from lightning_fabric.strategies.ddp import DDPStrategy, _DDPBackwardSyncControl
from lightning_fabric.strategies.strategy import _BackwardSyncControl
from torch import nn
from torch.distributed.fsdp import FSDPModule


class DdpOrShardedStrategy(DDPStrategy):  # type: ignore[misc]
    """A model that FSDP has sharded looks after its own gradients; any other is wrapped in DDP."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        """The module that makes the gradients of all ranks."""
        is_sharded = isinstance(module, FSDPModule)
        self._backward_sync_control = _ShardedBackwardSync() if is_sharded else _DDPBackwardSyncControl()
        wrapped: nn.Module = module if is_sharded else super().setup_module(module)
        return wrapped


class _ShardedBackwardSync(_BackwardSyncControl):  # type: ignore[misc]
    def no_backward_sync(self, module: FSDPModule, enabled: bool) -> Any:
        module.set_requires_gradient_sync(not enabled)
        return contextlib.nullcontext()
