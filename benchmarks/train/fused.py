"""A step of a FastConformer on a GPU: by the modules of `transformers`, fused, and as CUDA graphs.

    python benchmarks/train/fused.py

Random features in batches of `--budget-s`, in bf16, with CTC, clipping and AdamW; no data is read and nothing logged.
For each way, in turns: the median step, how long the processor was busy starting it, kernels and their time on the GPU,
and the most memory. Shapes come again often, so that most steps replay a graph. Prints a table and writes
`benchmarks/results/train_fused.json`; without a GPU only the modules run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from voxstill.core.config import Train
from voxstill.nn import losses, students
from voxstill.training import cuda_graphs, environment, optim

HERE = Path(__file__).parent
WAYS = ("modules", "fused", "graphs")
NUM_UNITS = 999
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Batch = tuple[torch.Tensor, ...]


def main() -> None:
    """Train each way for some steps and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="large", choices=("tiny", "small", "medium", "large"))
    parser.add_argument("--budget-s", type=int, default=600, help="audio of a batch")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, default=HERE.parent / "results/train_fused.json")
    args = parser.parse_args()
    figures: dict[str, Any] = {"machine": environment.machine(), "versions": environment.versions(), "ways": {}}
    for way in WAYS if DEVICE.type == "cuda" else WAYS[:1]:
        figures["ways"][way] = steps(way, args)
        args.output.write_text(json.dumps(figures, indent=1) + "\n")
    print("| way | step, ms | processor, ms | kernels | GPU, ms | memory, GB |\n|---|---|---|---|---|---|")
    for way, row in figures["ways"].items():
        cells = (f"{1000 * row[name]:.0f}" for name in ("step_s", "processor_s"))
        print(f"| {way} | {' | '.join(cells)} | {row['kernels']:.0f} | {1000 * row['gpu_s']:.0f} | {row['gb']:.1f} |")


def steps(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Medians over the steps of one way."""
    model = model_of(way, args.size)
    optimizer = optim.make_optimizer(model, Train(lr=1e-4))
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took, started = [], []
    for batch in batches(args.steps, args.budget_s):
        synchronize()
        start_s = time.perf_counter()
        step(model, optimizer, batch)
        started.append(time.perf_counter() - start_s)
        synchronize()
        took.append(time.perf_counter() - start_s)
    with torch.profiler.profile() as profile:
        for batch in batches(4, args.budget_s):
            step(model, optimizer, batch)
        synchronize()
    kernels = [event for event in profile.key_averages() if event.device_type.name == "CUDA"]
    return {
        "step_s": statistics.median(took),
        "processor_s": statistics.median(started),
        "kernels": sum(event.count for event in kernels) / 4,
        "gpu_s": sum(event.self_device_time_total for event in kernels) / 4 / 1e6,
        "gb": torch.cuda.max_memory_allocated() / 1e9 if DEVICE.type == "cuda" else 0.0,
    }


def model_of(way: str, size: students.Size) -> Any:
    """A random student that trains one way."""
    torch.manual_seed(0)
    model: Any = students.build(size, NUM_UNITS, dropout=0.0, seed=0)
    if way == "modules":
        fused, model = model, type(model)(model.config)
        model.load_state_dict(fused.state_dict())
    model.to(DEVICE).train()
    if way == "graphs":
        cuda_graphs.capture(model, Train(cuda_graphs=True), 1)
    return model


def batches(num: int, budget_s: int) -> Iterator[Batch]:
    """Features, frames, tokens and their numbers; the longest of a batch is one of ten lengths from 4 to 20 s."""
    lengths = random.Random(1)
    for _ in range(num):
        longest_s = lengths.randint(3, 12) * 1.6
        rows, frames, tokens = int(budget_s / longest_s), round(100 * longest_s), int(2.5 * longest_s)
        frames_B = torch.tensor([frames, *(int(frames * lengths.uniform(0.97, 1)) for _ in range(rows - 1))])
        yield (
            torch.randn(rows, frames, 80, device=DEVICE),
            frames_B.to(DEVICE),
            torch.randint(0, NUM_UNITS, (rows, tokens), device=DEVICE),
            torch.full((rows,), tokens, device=DEVICE),
        )


def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One step."""
    features_BFD, frames_B, tokens_BU, token_len_B = batch
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        logits_BFV, out_B = students.logits(model, features_BFD, frames_B)
    loss = losses.ctc(logits_BFV, out_B, tokens_BU, token_len_B, blank_id=NUM_UNITS).sum() / token_len_B.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(cuda_graphs.weights_to_clip(model), 5.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def synchronize() -> None:
    """Wait until the GPU has done all that it was told."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
