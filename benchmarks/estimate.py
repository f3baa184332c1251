"""What `voxstill estimate` says against what is measured: memory of real steps, proposed budgets, and time.

    python benchmarks/estimate.py [--only memory budgets time start command] [--work WORK --experiment EXP]

memory    a real step on the CPU of each size, kind and shape: the bytes that autograd saves (by storage, without
          weights), weights, gradients, moments and average, against the sum of the same parts of the estimate; and the
          most bytes that were alive in it against the estimate's total.
budgets   20 random trainings, each with a random limit: the proposed `plan.budget_ms` is planned, its batches that take
          most are made, and the most bytes alive are compared with the limit.
time      the metrics of EXP up to a minute: the length of the whole training that they give, against what it was.
start     the processor seconds that `voxstill train` looks at its memory before the first step, by size of the student.
command   the seconds of `voxstill estimate` on WORK with the configuration of EXP, a process of its own; the least of
          five.

One thread. Prints JSON, and writes it to benchmarks/results/estimate.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from voxstill.core import world
from voxstill.core.config import Augment, Config, Plan, Student, Train
from voxstill.data.plan import EpochPlan, plan, tempos
from voxstill.nn import checkpoints, students
from voxstill.nn.frontends import Frontend, LogMelFrontend
from voxstill.pipeline.estimate_time import step_seconds
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.seq2seq import Seq2SeqTask
from voxstill.tasks.transducer import TransducerTask
from voxstill.text.pretrained import WhisperTokenizer
from voxstill.text.tokenizer import Vocabulary
from voxstill.training import fits, optim, step_memory
from voxstill.training.footprint import Footprint, Lengths, largest_budget, states_of
from voxstill.training.live_bytes import LiveBytes
from voxstill.training.parallel import checkpoint_activations
from voxstill.training.setup import TrainingSetup
from voxstill.training.step_memory import Shapes
from voxstill.training.task import StepContext, Task, make_generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "estimate.json"
PIECES, TOKENS_PER_S = 512, 3.0
SHAPES = ((8, 4.0), (4, 15.0), (2, 30.0), (24, 2.5))
"""Utterances and their seconds."""
CASES = (
    *((size, kind, "fp32") for size in ("tiny", "small", "medium") for kind in ("ctc", "rnnt")),
    ("tiny", "tdt", "fp32"),
    ("tiny", "streaming", "fp32"),
    ("small", "ctc", "bf16"),
    ("tiny", "checkpointed", "fp32"),
    ("tiny", "seq2seq", "fp32"),
)
NUM_BUDGETS = 20
MINUTE_S = 60.0


def student(size: students.Size, kind: str, train: Train, folder: Path) -> tuple[Any, Any]:
    """A student that has learnt nothing, and its task."""
    if kind == "seq2seq":
        if not folder.exists():
            sys.path.insert(0, str(HERE.parent / "tests"))
            from checkpoints import write_whisper_checkpoint

            write_whisper_checkpoint(folder, ["ba du ko mi"], longest=448, layers=(4, 4))
        options: dict[str, Any] = {"keep_vocabulary": True, "freeze_convolutions": False, "kind": "seq2seq"}
        model = checkpoints.from_checkpoint(str(folder), 0, dropout=None, seed=0, **options)
        frontend: Frontend = checkpoints.make_frontend(model.config, Augment(), checkpoint=str(folder))
        return model, Seq2SeqTask(
            WhisperTokenizer(str(folder), None, model.config.vocab_size), train, Augment(), frontend
        )
    vocabulary = Vocabulary("bpe", tuple(f"▁{i}" for i in range(PIECES)), ())
    streams = kind == "streaming"
    own: Any = {"checkpointed": "ctc", "streaming": "rnnt"}.get(kind, kind)
    model = students.build(size, PIECES, dropout=0.0, seed=0, kind=own, streaming=streams)
    task_class = CtcTask if own == "ctc" else TransducerTask
    return model, task_class(vocabulary, train, Augment(), LogMelFrontend(Augment(), is_streaming=streams))


def estimated(model: PreTrainedModel, task: Task, train: Train, precision: str) -> Footprint:
    """What the estimate says."""
    step = step_memory.measure(
        model, task, TOKENS_PER_S, precision, checkpoints_activations=train.activation_checkpointing
    )
    return Footprint(states_of(model, task, train), step)


class RealStep:
    """One real step: what autograd saves, what is held beside it, and the most that is alive."""

    def __init__(
        self, model: PreTrainedModel, task: Task, train: Train, precision: str, num: int, seconds: float
    ) -> None:
        duration_ms = int(seconds * 1000)
        num_tokens = max(1, int(seconds * TOKENS_PER_S))
        batch = step_memory.silent_batch(num, duration_ms, num_tokens)
        context = StepContext(0.0, num * num_tokens, num * duration_ms // 80, 0, num)
        own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        saved: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                saved[storage._cdata] = storage  # held, so that no other gets its place
            return tensor

        model.train()
        if train.activation_checkpointing:
            checkpoint_activations(model)

        def loss() -> torch.Tensor:
            torch.manual_seed(0)
            model_input = task.prepare(batch, 0.0, make_generator(torch.device("cpu"), 0, 0, 0, 0))
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                value: torch.Tensor = task.loss(model, model_input, context).value
            return value

        counter = LiveBytes([*model.parameters(), *model.buffers()])  # computes all of it
        with counter:
            value = loss()
            self.held = counter.live
            counter.backward(value)
        self.peak = max(counter.peaks.values())
        model.zero_grad(set_to_none=True)
        del value
        optimizer, average = optim.make_optimizer(model, train), optim.Average()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = loss()
        self.saved = sum(storage.nbytes() for storage in saved.values())
        saved.clear()
        value.backward()  # type: ignore[no-untyped-call]
        self.weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
        self.gradients = sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
        optimizer.step()
        average.add(model)
        moments = (value for state in optimizer.state.values() for value in state.values())
        self.optimizer = sum(moment.nbytes for moment in moments if isinstance(moment, torch.Tensor))
        self.average = sum(mean.nbytes for mean in average.mean.values())
        model.zero_grad(set_to_none=True)

    @property
    def tracked(self) -> int:
        """Saved tensors, and what is held from step to step."""
        tracked: int = self.weights + self.gradients + self.optimizer + self.average + self.activations
        return tracked

    @property
    def activations(self) -> int:
        """Hooks do not see the inputs of checkpointed layers; what is alive does."""
        return max(self.saved, self.held) if self.held > 1.2 * self.saved else self.saved


def memory(folder: Path) -> Iterator[dict[str, object]]:
    """Each size, kind, precision and shape."""
    for size, kind, precision in CASES:
        train = Train(optimizer="muon", activation_checkpointing=kind == "checkpointed")
        model, task = student(cast(students.Size, size), kind, train, folder)
        start_s = time.perf_counter()
        footprint = estimated(model, task, train, precision)
        probe_s = time.perf_counter() - start_s
        for num, seconds in SHAPES:
            real = RealStep(model, task, train, precision, num, seconds)
            shapes = Shapes(np.array([num]), np.array([int(seconds * 1000)]))
            parts = dict(footprint.parts(shapes))
            parts.pop("workspace")
            peak = footprint.states.kept + int(footprint.step.peak(shapes)[0])
            real_peak = real.weights + real.optimizer + real.average + real.peak
            yield {
                **{"size": size, "kind": kind, "precision": precision, "utterances": num, "seconds": seconds},
                "tracked_mib": round(real.tracked / 2**20, 1),
                "estimated_mib": round(sum(parts.values()) / 2**20, 1),
                "error": round(sum(parts.values()) / real.tracked - 1, 4),
                "peak_mib": round(real_peak / 2**20, 1),
                "peak_error": round(peak / real_peak - 1, 4),
                "probe_s": round(probe_s, 2),
            }


def budgets(folder: Path) -> Iterator[dict[str, object]]:
    """Random trainings with random limits: does the proposed budget fit?"""
    random = np.random.default_rng(0)
    for number in range(NUM_BUDGETS):
        size = str(random.choice(["tiny", "tiny", "small"]))
        kind = str(random.choice(["ctc", "rnnt", "tdt", "streaming", "checkpointed", "seq2seq"]))
        precision = str(random.choice(["fp32", "bf16"]))
        train = Train(
            optimizer="muon" if random.random() < 0.5 else "adamw", activation_checkpointing=kind == "checkpointed"
        )
        model, task = student(cast(students.Size, size), kind, train, folder)
        footprint = estimated(model, task, train, precision)
        middle_s, spread = random.uniform(1.5, 10), random.uniform(0.2, 0.9)
        durations_ms = (1000 * middle_s * np.exp(random.normal(0, spread, 400))).clip(500, 20_000).astype(np.int64)
        is_padded = kind == "seq2seq"
        tempo = 0.0 if is_padded else 0.1
        lengths = Lengths(np.ceil(durations_ms * (1 + tempo)).astype(np.int64), 512, 30_000 if is_padded else None)
        limit = footprint.states.kept + int(footprint.states.gradients + random.uniform(150, 700) * 2**20)
        budget_ms = largest_budget(footprint, lengths, limit)
        assert budget_ms is not None
        options = Plan(budget_ms=budget_ms, max_utterances=max(budget_ms // 30_000, 1) if is_padded else 512)
        epoch = plan(
            durations_ms,
            None,
            options,
            seed=number,
            epoch=0,
            tempo_N=tempos(len(durations_ms), tempo, seed=number, epoch=0) if tempo else None,
        )
        shapes = Shapes.of_plan(epoch)
        worst = int(footprint.least(shapes).argmax())
        num, duration_ms = int(shapes.num_utterances_N[worst]), int(shapes.duration_ms_N[worst])
        real = RealStep(model, task, train, precision, num, duration_ms / 1000)
        peak = real.weights + real.optimizer + real.average + max(real.peak, real.gradients)
        yield {
            **{"size": size, "kind": kind, "precision": precision, "budget_ms": budget_ms},
            **{"utterances": num, "seconds": duration_ms / 1000},
            "limit_mib": round(limit / 2**20, 1),
            "peak_mib": round(peak / 2**20, 1),
            "fits": peak <= limit,
        }


def training_time(experiment: Path) -> dict[str, object]:
    """The length of a training by the lines of its first minute."""
    rows = [json.loads(line) for line in (experiment / "metrics.jsonl").read_text().splitlines()]
    early = [row for row in rows if row["seconds"] <= MINUTE_S]
    last = [row for row in rows if "split" not in row][-1]
    by_minute = step_seconds(early)
    assert by_minute is not None
    after = last["step"] - early[-1]["step"]
    return {
        "steps": last["step"],
        "seconds_after_the_minute": round(last["seconds"] - early[-1]["seconds"], 1),
        "estimated": round(after * by_minute, 1),
        "error": round(after * by_minute / (last["seconds"] - early[-1]["seconds"]) - 1, 4),
    }


def start(folder: Path) -> dict[str, float]:
    """Processor seconds that a training of each size looks at its memory before it starts; the least of three."""
    seconds: dict[str, float] = {}
    for size in ("tiny", "small", "medium", "large"):
        train = Train(steps=1, optimizer="muon")
        cfg = Config(student=Student(size=size), train=train)
        model, task = student(size, "ctc", train, folder)
        durations_ms = np.random.default_rng(0).integers(1000, 20_000, 2000)
        epoch = plan(durations_ms, durations_ms // 400, cfg.plan, seed=0, epoch=0)
        setup = TrainingSetup(model, task, OneEpoch(epoch), size, {}, "dev_wer", lambda run, weights: None)
        spent = []
        for _ in range(3):
            start_s = time.process_time()
            fits.refuse_what_cannot_fit(setup, cfg, torch.device("cpu"), 1)
            spent.append(time.process_time() - start_s)
        seconds[size] = round(min(spent), 3)
    return seconds


class OneEpoch:
    """Data of which only the plan is asked for."""

    def __init__(self, epoch: EpochPlan) -> None:
        self._epoch = epoch

    def plan(self, epoch: int, *, ascending: bool) -> EpochPlan:
        """The same plan for all epochs."""
        return self._epoch

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks for `{name}` before the first step")


def command(work: str, experiment: Path) -> dict[str, object]:
    """Wall-clock and processor seconds of the command."""
    walls, cpus = [], []
    for _ in range(5):
        before, start_s = os.times(), time.perf_counter()
        call = [sys.executable, "-m", "voxstill", "estimate", str(experiment / "config.yaml"), "--set", f"work={work}"]
        subprocess.run([*call, "--json"], check=True, capture_output=True)
        after = os.times()
        walls.append(time.perf_counter() - start_s)
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return {"seconds": round(min(walls), 2), "processor_seconds": round(min(cpus), 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["memory", "budgets", "time", "start", "command"])
    parser.add_argument("--work")
    parser.add_argument("--experiment", type=Path)
    arguments = parser.parse_args()
    world.pin_threads(1)
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        if "memory" in arguments.only:
            rows = list(memory(Path(folder) / "whisper"))
            errors = [abs(float(str(row["error"]))) for row in rows]
            results["memory"] = {"cases": len(rows), "largest_error": max(errors), "rows": rows}
        if "budgets" in arguments.only:
            rows = list(budgets(Path(folder) / "whisper"))
            results["budgets"] = {"fit": sum(bool(row["fits"]) for row in rows), "of": len(rows), "rows": rows}
    if "time" in arguments.only and arguments.experiment:
        results["time"] = training_time(arguments.experiment)
    if "start" in arguments.only:
        results["start"] = start(Path())
    if "command" in arguments.only and arguments.experiment and arguments.work:
        results["command"] = command(arguments.work, arguments.experiment)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
