"""The ranks of a training as workers of Ray Train, on the machines of a Ray cluster.

What a worker runs is the training of a rank that torchrun has started: Ray sets the same variables. Ray starts the
processes and reports their deaths; resuming is ours, so it retries nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voxstill import engine
from voxstill.core import scratch
from voxstill.core.config import Engine
from voxstill.core.errors import ConfigError, TrainingError, VoxstillError


def train(rank: Callable[[], None], num: int, cfg: Engine) -> None:
    """Run `rank` in `num` workers of the cluster of `cfg.address`, to the end; on GPUs where the cluster has any.

    Raises what a rank raises where it is a VoxstillError, else TrainingError; ConfigError if Ray Train is not
    installed, or the cluster has too few GPUs or cores.
    """
    ray = engine.start_ray(cfg)
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise ConfigError(
            "Ray Train cannot be imported",
            code="missing-package",
            why=str(error).splitlines()[0],
            fix="pip install 'voxstill[ray-train]'",
        ) from None
    resources = ray.cluster_resources()
    kind = "GPU" if resources.get("GPU") else "CPU"
    if (there := int(resources.get(kind, 0))) < num:  # Ray would wait for them forever
        raise ConfigError(
            f"the training needs {num} {kind}s, but the Ray cluster has {there}",
            code="too-few-resources",
            why="each rank needs its own",
            fix="lower `train.devices`, or add machines to the cluster",
        )
    with scratch.folder() as folder:  # of Ray's own notes: checkpoints are ours
        trainer = TorchTrainer(
            _worker,
            train_loop_config={"rank": rank},
            scaling_config=ScalingConfig(num_workers=num, use_gpu=kind == "GPU"),
            run_config=RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=0)),
        )
        try:
            trainer.fit()
        except WorkerGroupError as error:
            raise _rank_error(error.worker_failures) from None


def _worker(config: dict[str, Any]) -> None:
    config["rank"]()


def _rank_error(failures: dict[int, Exception]) -> VoxstillError:
    """The error to show: of those that ranks raised, the first that says what to do."""
    causes = {rank: getattr(failure, "cause", None) or failure for rank, failure in sorted(failures.items())}
    for cause in causes.values():
        if isinstance(cause, VoxstillError):
            return cause
    rank, cause = next(iter(causes.items()))
    return TrainingError(
        f"a process of the training, rank {rank}, has ended",
        code="rank-ended",
        why=(str(cause).strip() or type(cause).__name__).splitlines()[-1],
        fix="the end of `train.log` shows what it did last; the same command resumes from the last checkpoint",
    )
