"""What voxstill does with one GPU, in one run of at most 40 minutes: speed, memory, data, decoding, resuming.

    benchmarks/gpu.sh
    benchmarks/gpu.sh --rehearse

Installs nothing, downloads nothing and needs no Ray: models are random, and the corpus is made on the spot. The parts,
each a process of its own with its share of the time:

- `steps`: a training of each size beside `transformers.Trainer` (`train/speed.py`), in bf16: audio per second, TFLOP/s
  against a product of large matrices, wait for data, memory; `graphs`: as CUDA graphs; `tf32`: in fp32 by TF32;
  `compiled`: `large` with compiled layers.
- `estimate`: the memory that `voxstill estimate` said of these trainings before they began.
- `pretrain`: the wav2vec 2.0 step beside the example of transformers (`train/pretrain.py`).
- `decoding`: random students transcribe: CTC greedily and with a beam, RNN-T greedily.
- `resume`: a training that is ended in the middle and goes on, beside one that is not; also as CUDA graphs.
- `transfer`: what 200 MB/s of audio, sent to the device meanwhile, cost products of matrices.

Each part is written to `benchmarks/results/gpu.json` as soon as it is done; one that fails or takes too long has its
reason there. `--only` runs some parts and keeps what the file has of the others, if it is of the same machine.
`--rehearse` does the same with everything small, on a CPU, and writes where `--output` says.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpu_decoding import decoding

HERE = Path(__file__).parent
SIZES = ("tiny", "small", "medium", "large")
LIMIT_S = {
    "steps": 480,
    "graphs": 420,
    "tf32": 240,
    "compiled": 300,
    "estimate": 60,
    "pretrain": 300,
    "decoding": 240,
    "resume": 240,
    "transfer": 60,
}
"""Together at most 39 minutes."""
TRANSFER_MB_PER_S = 200
OURS, THEIRS = "voxstill", "Trainer"
TF32 = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}


def main() -> None:
    """Run the parts, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="everything small, on whatever device there is")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--output", type=Path, default=HERE / "results/gpu.json")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)  # what a child does
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part](args.rehearse)))
        return
    import torch

    if not args.rehearse and not torch.cuda.is_available():
        sys.exit("there is no GPU here; `--rehearse` runs everything small on a CPU")
    head = {"machine": machine(), "rehearsed": args.rehearse}
    before: dict[str, Any] = json.loads(args.output.read_text()) if args.output.exists() else {}
    figures = before | head if head.items() <= before.items() else head
    for name in args.only:
        figures[name] = part(name, args.rehearse)
        add_measured_memory(figures)
        args.output.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(table(figures)))


def part(name: str, rehearse: bool) -> Any:
    """What a part prints, or why it failed; its whole process group ends with it."""
    command = [sys.executable, __file__, "--part", name, *(["--rehearse"] if rehearse else [])]
    start_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=LIMIT_S[name])
            if process.returncode == 0:
                return {**json.loads(output.splitlines()[-1]), "took_s": round(time.monotonic() - start_s, 1)}
            errors.seek(0)
            return {"error": f"it ended with {process.returncode}: {errors.read()[-6000:]}"}
        except subprocess.TimeoutExpired:
            return {"error": f"it was ended after {LIMIT_S[name]} s"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def add_measured_memory(figures: Mapping[str, Any]) -> None:
    """Put beside the estimated memory of each size what its training took, where both are known."""
    for size, row in figures.get("estimate", {}).items():
        measured = figures.get("steps", {}).get(f"{size}, {OURS}")
        if measured and isinstance(row, dict):
            row["measured_bytes"] = measured["memory_bytes"]
            row["measured_share"] = measured["memory_bytes"] / row["total_bytes"]


def machine() -> Mapping[str, object]:
    """The device and the versions."""
    from voxstill.training import environment

    return {**environment.machine(), "versions": environment.versions()}


def table(figures: Mapping[str, Any]) -> Iterator[str]:
    """One line for each figure."""
    yield "| figure | value |\n|---|---|"
    for name in PARTS:
        part_figures = figures.get(name, {})
        if "error" in part_figures:
            yield f"| {name} | {part_figures['error'].splitlines()[-1]} |"
            continue
        for key, value in part_figures.items():
            cells = (
                ", ".join(f"{inner}: {_shown(figure)}" for inner, figure in value.items())
                if isinstance(value, dict)
                else _shown(value)
            )
            yield f"| {name}, {key} | {cells} |"


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------------ steps


def steps(rehearse: bool) -> Mapping[str, Any]:
    """Trainings of all sizes in the precision that this device gets, ours and theirs."""
    return _trained(rehearse, SIZES, (OURS,) if rehearse else (OURS, THEIRS))


def graphs(rehearse: bool) -> Mapping[str, Any]:
    """Our trainings of all sizes as CUDA graphs, on a corpus so small that shapes come again soon."""
    if rehearse:
        return {}
    return _trained(rehearse, SIZES, (OURS,), "train.cuda_graphs=true", warmup_s=80, utterances=6000)


def tf32(rehearse: bool) -> Mapping[str, Any]:
    """Our trainings of all sizes in fp32, whose products are in TF32."""
    return _trained(rehearse, SIZES, (OURS,), "train.precision=fp32", environment=TF32)


def compiled(rehearse: bool) -> Mapping[str, Any]:
    """Our training of the largest size with compiled layers; on a CPU that takes minutes, so it is left out there."""
    return {} if rehearse else _trained(rehearse, SIZES[-1:], (OURS,), "train.compile=true", warmup_s=60)


def _trained(
    rehearse: bool,
    sizes: Sequence[str],
    contenders: Sequence[str],
    *settings: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    warmup_s: float = 5,
    utterances: int = 20_000,
) -> Mapping[str, Any]:
    """Figures by size and contender, out of one run of `train/speed.py`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        sizes = sizes[:1] if rehearse else sizes
        command = [sys.executable, str(HERE / "train/speed.py"), "--size", *sizes, "--only", *contenders]
        command += ["--rounds", "1", "--output", output.name]
        command += ["--seconds", "1", "--warmup", "0.5", "--budget-s", "20", "--utterances", "60"] if rehearse else []
        counted = ["--seconds", "10", "--warmup", str(warmup_s), "--utterances", str(utterances)]
        command += [] if rehearse else counted
        command += [word for setting in ("train.log_every=5", *settings) for word in ("--set", setting)]
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=sys.stderr)
        measured = json.loads(Path(output.name).read_text())
    return {
        f"{size}, {contender}": _step_figures(rows[0], measured["peak_tflops"])
        for size, rounds in measured["rounds"].items()
        for contender, rows in rounds.items()
    }


def _step_figures(row: Mapping[str, float], peak_tflops: float | None) -> Mapping[str, float]:
    names = ("audio_s_per_s", "step_s", "data_wait", "tflops", "memory_bytes")
    share = {"of_peak": row["tflops"] / peak_tflops} if peak_tflops else {}
    return {**{name: row[name] for name in names}, **share}


def estimate(rehearse: bool) -> Mapping[str, Any]:
    """Gigabytes that `voxstill estimate` says of a training of each size, on this device."""
    from voxstill.core import config
    from voxstill.pipeline import estimate as estimation

    sys.path.insert(0, str(HERE / "train"))
    import speed_corpus

    figures: dict[str, Any] = {}
    budget_s = 20 if rehearse else 600
    with tempfile.TemporaryDirectory() as folder:
        utterances = 60 if rehearse else 20_000
        speed_corpus.make(Path(folder), argparse.Namespace(manifest=None, utterances=utterances, budget_s=budget_s))
        for size in SIZES[:1] if rehearse else SIZES:
            settings = (
                f"work={folder}",
                f"student.size={size}",
                "student.units=word",
                f"plan.budget_ms={budget_s * 1000}",
            )
            result = estimation.estimate(config.load(None, [*settings, "train.steps=100"], {}))
            figures[size] = {"total_bytes": result.total_memory_bytes, **result.memory_bytes}
    return figures


# --------------------------------------------------------------------------------------------------------- pretrain


def pretrain(rehearse: bool) -> Mapping[str, Any]:
    """The step and the head of wav2vec 2.0, ours and the example's."""
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        small = ["--size", "tiny", "--batch", "2", "--seconds", "3", "--rounds", "1"]
        command = [
            sys.executable,
            str(HERE / "train/pretrain.py"),
            *(small if rehearse else []),
            "--output",
            output.name,
        ]
        subprocess.run(command, check=True, stdout=sys.stderr)
        figures: Mapping[str, Any] = json.loads(Path(output.name).read_text())
    return figures


# ----------------------------------------------------------------------------------------------------------- resume


def resume(rehearse: bool) -> Mapping[str, Any]:
    """Losses of a training that was ended and went on, beside those of one that was not."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        _make_work(Path(folder))
        figures |= _resumed(Path(folder), 6 if rehearse else 60, {})
        if not rehearse:
            figures |= {
                f"{name}, graphs": row for name, row in _resumed(Path(folder), 60, {"cuda_graphs": True}).items()
            }
    return figures


def _resumed(work: Path, num_steps: int, options: Mapping[str, object]) -> Mapping[str, Any]:
    name = "-".join(("training", *options))
    whole = _losses(work, f"{name}-whole", num_steps, None, options)
    first = _losses(work, f"{name}-parted", num_steps, num_steps // 2, options)
    rest = _losses(work, f"{name}-parted", num_steps, None, options)
    last = max(whole)
    return {
        "steps": {"whole": len(whole), "before": len(first), "after": len(rest)},
        "last loss": {"whole": whole[last], "resumed": rest[last], "difference": abs(whole[last] - rest[last])},
    }


def _make_work(work: Path) -> None:
    """The shards of a small corpus, by all steps of the line."""
    sys.path.insert(0, str(HERE / "train"))
    import speed_corpus

    from voxstill.audio import codec

    rows = []
    for number, (samples_T, text) in enumerate(speed_corpus.synthetic(200)):
        (work / f"{number:04}.flac").write_bytes(codec.encode(samples_T, "flac"))
        rows.append({"audio": f"{number:04}.flac", "text": text, "split": "dev" if number % 20 == 0 else "train"})
    (work / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, *source in (["index", f"{work}/manifest.jsonl", "--work"], ["label"], ["filter"], ["shard"]):
        command = [sys.executable, "-m", "voxstill", step, *source, f"{work}/work"]
        options = ("engine.name=inline", "teacher.name=echo")
        command += [word for option in options for word in ("--set", option)]
        subprocess.run(command, check=True, stdout=sys.stderr)


def _losses(
    work: Path, name: str, num_steps: int, stop_after: int | None, options: Mapping[str, object]
) -> Mapping[int, float]:
    """The loss of every step of a training, which is ended by SIGTERM after some."""
    training = {"root": str(work / "exp"), "name": name, "steps": num_steps, "log_every": 1, "checkpoint_every": 5}
    settings = {
        "work": f"{work}/work",
        "engine": {"name": "inline"},
        "teacher": {"name": "echo"},
        "student": {"size": "tiny", "units": "word"},
        "plan": {"budget_ms": 30_000},
        "train": {**training, **options},
    }
    config = work / f"{name}.yaml"
    config.write_text(json.dumps(settings))
    process = subprocess.Popen([sys.executable, "-m", "voxstill", "train", str(config)], stdout=sys.stderr)
    while process.poll() is None:
        if stop_after is not None and max(_logged(work, name), default=0) >= stop_after:
            process.terminate()
            process.wait()
        time.sleep(0.2)
    return _logged(work, name)


def _logged(work: Path, name: str) -> Mapping[int, float]:
    lines = [line for path in (work / "exp").glob(f"*{name}*/metrics.jsonl") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return {int(row["step"]): float(row["loss"]) for row in rows if "loss" in row}


# --------------------------------------------------------------------------------------------------------- transfer


def transfer(rehearse: bool) -> Mapping[str, Any]:
    """Products of matrices a second without audio on its way, and with it."""
    import torch

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    size, seconds = (256, 0.5) if rehearse else (8192, 10.0)
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    audio_T = torch.zeros(TRANSFER_MB_PER_S * 10**6 // 20, dtype=torch.int16)  # a tenth of a second's share
    audio_T = audio_T.pin_memory() if on_gpu else audio_T
    side = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]

    def send() -> None:
        if side is None:
            audio_T.clone()
            return
        with torch.cuda.stream(side):
            audio_T.to(device, non_blocking=True)

    def products_per_s(sends: bool) -> float:
        num, sent_s, start_s = 0, 0.0, time.perf_counter()
        while (now_s := time.perf_counter() - start_s) < seconds:
            if sends and now_s >= sent_s:
                send()
                sent_s += 0.1
            _ = one @ one
            if on_gpu:
                torch.cuda.current_stream().synchronize()
            num += 1
        return num / (time.perf_counter() - start_s)

    products_per_s(False)
    alone, beside = products_per_s(False), products_per_s(True)
    return {"products": {"alone": alone, "beside": beside, "share": beside / alone, "mb_per_s": TRANSFER_MB_PER_S}}


PARTS: Mapping[str, Callable[[bool], Mapping[str, Any]]] = {
    "steps": steps,
    "graphs": graphs,
    "tf32": tf32,
    "compiled": compiled,
    "estimate": estimate,
    "pretrain": pretrain,
    "decoding": decoding,
    "resume": resume,
    "transfer": transfer,
}

if __name__ == "__main__":
    main()
