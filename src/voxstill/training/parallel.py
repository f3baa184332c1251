"""On how many devices, in which precision: chosen from what the machine has, and said why."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from voxstill.core import errors, world
from voxstill.core.config import Config, Train
from voxstill.core.errors import ConfigError, TrainingError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.world import Ranks
from voxstill.storage.rundir import RunDir
from voxstill.training import cuda_graphs

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricOptimizer as FabricOptimizer
    from transformers import PreTrainedModel

T = TypeVar("T")


def precision(cfg: Train) -> tuple[str, str]:
    """The precision (`fp32`, `bf16` or `fp16`) and the reason for it."""
    if cfg.precision != "auto":
        return cfg.precision, "set by `train.precision`"
    if not torch.cuda.is_available():
        return "fp32", "there is no GPU, and bf16 is no faster on a CPU"
    major, minor = torch.cuda.get_device_capability()
    if major >= 8:
        return "bf16", f"the GPU has compute capability {major}.{minor}"
    return "fp16", f"the GPU has compute capability {major}.{minor}, which lacks bf16"


@contextlib.contextmanager
def record_rank_error(run: RunDir, fabric: Fabric) -> Iterator[None]:
    """What a rank that is a process of its own raises is left in a file, for `raise_rank_error`."""
    try:
        yield
    except VoxstillError as error:
        if fabric.world_size > 1:
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
            about = {"kind": kind, **error.to_dict()}
            run.ranks.mkdir(parents=True, exist_ok=True)
            draft = run.ranks / f".error-{fabric.global_rank}"
            draft.write_text(json.dumps(about))
            with contextlib.suppress(FileExistsError):  # the first one is reported
                os.link(draft, run.ranks / "error")
        raise


@contextlib.contextmanager
def raise_rank_error(run: RunDir, num: int) -> Iterator[None]:
    """Around processes that train together: one that fails is reported as the error that it raised, else as its end.

    SIGTERM and SIGHUP are passed on to them; Ctrl-C reaches them by itself.
    """
    if num == 1:
        yield
        return
    for path in run.ranks.glob("*error*"):
        path.unlink()
    with world.Signals(_pass_on, hangup=True):
        try:
            yield
        except (ProcessRaisedException, ProcessExitedException) as error:
            with contextlib.suppress(FileNotFoundError):
                about = json.loads((run.ranks / "error").read_text())
                kind: type[VoxstillError] = getattr(errors, about.pop("kind"))
                raise kind(**about) from None
            raise TrainingError(
                f"a process of the training, rank {error.error_index}, has ended",
                code="rank-ended",
                why=str(error).strip().splitlines()[-1],
                fix=f"`{run.log}` shows what it did last; the same command resumes from the last checkpoint",
            ) from error


def _pass_on(name: str) -> None:
    log.warning("%s: the ranks end after this step; another SIGINT or SIGTERM stops at once", name)
    if name != "SIGINT":
        for child in multiprocessing.active_children():
            if child.pid is not None:
                os.kill(child.pid, signal.SIGTERM)


def with_ranks(ranks: Ranks, cfg: Config) -> Config:
    """The configuration of processes that others have started: a batch for each, where their number is not set.

    ConfigError if `train.devices` says another number than there are on this machine.
    """
    if "devices" in cfg.train.model_fields_set and cfg.train.devices != ranks.num_local:
        raise ConfigError(
            f"`train.devices` is {cfg.train.devices}",
            code="ranks-mismatch",
            why=f"{ranks.launcher} has started {ranks.num_local} processes on this machine",
            fix=f"leave `train.devices` out: {ranks.launcher} sets it",
        )
    return with_batches(
        ranks.num, cfg.model_copy(update={"train": cfg.train.model_copy(update={"devices": ranks.num_local})})
    )


def with_batches(ranks: int, cfg: Config) -> Config:
    """The configuration with as many batches in a step as it says, or one for each rank where it says nothing."""
    if "batches_per_step" in cfg.plan.model_fields_set:
        return cfg
    return cfg.model_copy(update={"plan": cfg.plan.model_copy(update={"batches_per_step": ranks})})


def _precision(name: str, device: str) -> Any:
    from lightning_fabric.plugins.precision import MixedPrecision, Precision

    if name == "fp32":
        return Precision()
    if name == "bf16":
        return MixedPrecision("bf16-mixed", device)
    return MixedPrecision("16-mixed", device, torch.amp.GradScaler(device))


def broadcast_from_rank0(fabric: Fabric, make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank; a VoxstillError of it too."""
    result: T | VoxstillError | None = None
    if fabric.global_rank == 0:
        try:
            result = make()
        except VoxstillError as error:
            result = error
    result = fabric.broadcast(result)
    if isinstance(result, VoxstillError):
        raise result
    return result


def fabric(cfg: Train, ranks: Ranks | None = None) -> Fabric:
    """A Lightning Fabric that starts `devices` processes, or joins the `ranks` that are there already.

    TrainingError if this machine has too few GPUs.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment

    from voxstill.training.strategy import DdpOrShardedStrategy

    on_gpu = torch.cuda.is_available()
    if on_gpu and cfg.devices > torch.cuda.device_count():
        raise TrainingError(
            f"{cfg.devices} processes must train on this machine",
            code="too-few-resources",
            why=f"each process sees {torch.cuda.device_count()} GPUs",
            fix="use fewer (`train.devices`), or let each process see all GPUs of its machine",
        )
    return Fabric(
        accelerator="cuda" if on_gpu else "cpu",
        devices=cfg.devices,
        num_nodes=ranks.num // ranks.num_local if ranks else 1,
        strategy=DdpOrShardedStrategy(start_method="popen" if ranks else "spawn")
        if ranks or cfg.devices > 1
        else "auto",
        plugins=[
            TorchElasticEnvironment() if ranks else LightningEnvironment(),
            _precision(precision(cfg)[0], "cuda" if on_gpu else "cpu"),
        ],
    )


class Scaling:
    """What fp16 asks of a step: its loss is scaled up so that small gradients remain, and a scale that was too high is
    halved (Micikevicius et al. 2018, "Mixed precision training", section 3.2). For other precisions it does nothing.
    """

    def __init__(self, fabric: Fabric, state: dict[str, float] | None) -> None:
        self._scaler: torch.amp.GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
        if self._scaler is not None and state is not None:
            self._scaler.load_state_dict(state)

    def clipped(self, model: nn.Module, optimizer: FabricOptimizer, most: float) -> float:
        """The norm of the gradients, which are scaled back and then down to `most`."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer.optimizer)
        weights = cuda_graphs.weights_to_clip(model)
        total = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        norm = float(whole(total))
        if not norm + 1e-6 <= most:  # torch scales by one where they are small enough, which is a pass over all of them
            torch.nn.utils.clip_grads_with_norm_(weights, most, total)
        return norm

    def overflows(self, loss: float, norm: float) -> bool:
        """Whether the scale alone is at fault for a gradient that is not finite; the optimizer then makes no step."""
        if self._scaler is None or math.isfinite(norm) or not math.isfinite(loss) or self._scaler.get_scale() <= 1:
            return False
        log.info("fp16: a gradient was too large at a scale of %g, which is halved", self._scaler.get_scale())
        return True

    def passed_over(self) -> None:
        """The step is not made."""
        if self._scaler is not None:
            self._scaler.update()

    def state(self) -> dict[str, float] | None:
        """What a resumed training continues with."""
        return None if self._scaler is None else self._scaler.state_dict()


def shard_model(model: nn.Module, fabric: Fabric, cfg: Train) -> None:
    """Make the model ready for the ranks, before its optimizer is made: sharded where it is larger than `shard_above`.

    Sharded, each rank has a part of every weight (FSDP2, `torch.distributed.fsdp.fully_shard`), and a layer is put
    together only while it works. What lies outside the layers stays together from the forward pass to the end of the
    backward pass: the head of a transducer works after the forward pass.
    """
    if fabric.world_size == 1:
        return
    if cfg.sync_batchnorm:
        if fabric.device.type != "cuda":
            raise ConfigError(
                "`train.sync_batchnorm` needs GPUs",
                code="option-conflict",
                why=f"{fabric.world_size} processes train on the CPU, and torch synchronises batch norm only on CUDA",
                fix="set `train.sync_batchnorm: false`, or `train.devices: 1`",
            )
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if sum(weight.numel() for weight in model.parameters()) > cfg.shard_above * 1e6:
        if getattr(fabric.strategy.precision, "scaler", None) is not None:
            raise TrainingError(
                f"a student of {cfg.shard_above:g} million parameters or more cannot be sharded in fp16",
                code="option-conflict",
                why="each rank would scale its part of the gradients by itself",
                fix="set `train.precision: bf16` or `fp32`, or raise `train.shard_above`",
            )
        mesh = init_device_mesh(fabric.device.type, (fabric.world_size,))
        for layer in layers(model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which each rank may have a part; then all ranks must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """What this rank has of a whole tensor, laid out as another one."""
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def prepare(model: PreTrainedModel, fabric: Fabric, cfg: Train) -> None:
    """Make a model ready to be trained as `train` says, before its optimizer is made."""
    if cfg.activation_checkpointing:
        checkpoint_activations(model)
    if cfg.compile:
        compiled(model)
    if cfg.cuda_graphs:
        cuda_graphs.capture(model, cfg, fabric.world_size)
    shard_model(model, fabric, cfg)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """The layers of a transformers model are computed again in the backward pass: the same gradients in less memory.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). What BatchNorm has counted once is not counted
    again.
    """
    norms: list[Any] = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        tracked = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
        before = [(norm, momentum, count, count.clone()) for norm, momentum, count in tracked if count is not None]
        for norm in norms:
            norm.momentum = 0.0
        try:
            yield
        finally:
            for norm, momentum, count, counted in before:
                norm.momentum = momentum
                count.copy_(counted)

    options = {"use_reentrant": False, "context_fn": lambda: (contextlib.nullcontext(), again())}
    enable = getattr(model, "activation_checkpointing_enable", None)  # transformers 6 will have this name alone
    (enable or model.gradient_checkpointing_enable)(options)


def compiled(model: nn.Module, backend: str = "inductor") -> None:
    """The layers of a transformers model are compiled, once for all of them and all lengths.

    Sizes are symbols from the beginning, so batches of other sizes need no padding to few of them: only a batch of one
    utterance is compiled by itself. The layers and not the model: one graph serves them all.
    """
    for layer in layers(model):
        layer.compile(dynamic=True, backend=backend)


def layers(model: nn.Module) -> list[nn.Module]:
    """What a transformers model has many of."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
