"""How fast a student trains: the loop of `voxstill train` beside those of SpeechBrain and ESPnet, on one thread.

    python -m venv .venv-speechbrain
    .venv-speechbrain/bin/pip install torch==2.13.0 transformers==5.23.0
    .venv-speechbrain/bin/pip install --no-deps speechbrain==1.1.2 torchaudio==2.11.0
    .venv-speechbrain/bin/pip install huggingface_hub hyperpyyaml joblib requests scipy sentencepiece soundfile tqdm
    python -m venv .venv-espnet
    .venv-espnet/bin/pip install torch==2.13.0 transformers==5.23.0
    .venv-espnet/bin/pip install --no-deps espnet==202511 torchaudio==2.11.0
    .venv-espnet/bin/pip install asteroid_filterbanks==0.4.0 configargparse editdistance einops espnet_tts_frontend \
        h5py humanfriendly hydra-core jamo==0.4.1 kaldiio librosa lightning nltk opt-einsum protobuf pypinyin scipy \
        sentencepiece==0.2.0 soundfile torch_complex typeguard
    rm .venv-*/lib/python*/site-packages/torchaudio/lib/*.so
    python benchmarks/train/peers.py --speechbrain .venv-speechbrain/bin/python --espnet .venv-espnet/bin/python

Both import torchaudio, whose compiled part on the registry is for CUDA; without it, torchaudio is as one that was built
without. Neither uses it here.

All train a Conformer with CTC of as many layers, of the same width, heads, kernel and 8x subsampling, from the same
FLAC bytes and texts, with AdamW of the same learning rate, in float32, on one thread and with one process that reads;
batches have as much audio in the mean. The files in `recipes/` are what a user of each writes, and their lines are
counted. Each toolkit has its own Conformer; feed-forward layers of ESPnet are narrower, as its subsampling is wider. To
compare the loops alone, the peers also train our model, the same class with the same weights. Ours comes a second time
with its default optimizer, Muon.

Each is a process of its own, in turns. What counts is the time after a warm-up, from asking for a batch to asking for
another. CPU seconds are those of all its processes; memory is the largest sum of their proportional set sizes, looked
at once a second. Prints a table and writes `benchmarks/results/train_peers.json`; `--table FILE` prints that of a file.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from rounds import median, ratio  # noqa: E402
from speed_corpus import make  # noqa: E402

from tree_memory import TreeMemory  # noqa: E402

OURS, MUON = "voxstill", "voxstill, Muon"
TOOLKITS = {
    OURS: OURS,
    "SpeechBrain": "speechbrain",
    "ESPnet": "espnet",
    "SpeechBrain, our model": "speechbrain",
    "ESPnet, our model": "espnet",
    MUON: OURS,
}
"""The toolkit of each contender."""
FILES = {
    OURS: ("voxstill_ctc.yaml",),
    "speechbrain": ("speechbrain_ctc.yaml", "speechbrain_ctc.py"),
    "espnet": ("espnet_ctc.yaml", "espnet_data.py"),
}
"""What a user of each toolkit writes."""
BUDGET_S = 30
MOST_DIFFERENCE = 0.02


def main() -> None:
    """Make the corpus, train each contender on it in turns, print the medians."""
    args = parsed_arguments()
    if args.table:
        print(table(json.loads(Path(args.table).read_text())))
        return
    from voxstill.training import environment

    pythons = {OURS: sys.executable, "speechbrain": args.speechbrain, "espnet": args.espnet}
    missing = {toolkit for toolkit, python in pythons.items() if toolkit != OURS and not has(python, toolkit)}
    for toolkit in sorted(missing):
        print(f"{toolkit} is left out: install it as {Path(__file__).name} says at its top, and give --{toolkit}")
    figures: dict[str, Any] = {
        "machine": environment.machine(),
        "lines": {toolkit: sum(map(lines, files)) for toolkit, files in FILES.items()},
        "seconds": args.seconds,
        "rounds": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        make_corpus(Path(folder), args.size, args.utterances)
        for size in args.size:
            names = [name for name, toolkit in TOOLKITS.items() if toolkit not in missing]
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            figures["rounds"][size] = rounds
            for _ in range(args.rounds):
                for name, rows in rounds.items():
                    rows.append(child(pythons[TOOLKITS[name]], name, folder, size, args))
                    print(size, name, rows[-1], file=sys.stderr, flush=True)
                    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print(table(figures))


def parsed_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speechbrain", metavar="PYTHON", default=sys.executable, help="of its environment")
    parser.add_argument("--espnet", metavar="PYTHON", default=sys.executable, help="of its environment")
    parser.add_argument("--size", nargs="+", default=["tiny", "small"], choices=("tiny", "small"))
    parser.add_argument("--seconds", type=float, default=20, help="counted, of each training")
    parser.add_argument("--warmup", type=float, default=5, help="seconds before them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--utterances", type=int, default=2000)
    parser.add_argument("--table", metavar="FILE", help="print the table of these figures and end")
    parser.add_argument("--output", default=str(HERE.parent / "results/train_peers.json"))
    return parser.parse_args()


def has(python: str, package: str) -> bool:
    """Whether a Python has a package."""
    command = [python, "-c", f"import importlib.metadata as m; m.version({package!r})"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_corpus(folder: Path, sizes: Sequence[str], utterances: int) -> None:
    """Shards, the same audio as files with a manifest, and a student of each size."""
    from voxstill.nn import students

    make(folder, argparse.Namespace(utterances=utterances, budget_s=BUDGET_S, manifest=None))
    rows = json.loads((folder / "corpus.json").read_text())["rows"]
    manifest = [json.dumps({"audio": row["audio"], "text": row["text"]}) + "\n" for row in rows]
    (folder / "manifest.jsonl").write_text("".join(manifest))
    num_words = len({word for row in rows for word in row["text"].split()})
    parameters = {}
    for size in sizes:
        model = students.build(size, num_words, dropout=0.0, seed=0)  # type: ignore[arg-type]
        model.save_pretrained(folder / "models" / size)
        parameters[size] = sum(weight.numel() for weight in model.parameters())
    (folder / "about.json").write_text(json.dumps({"words": num_words, "parameters": parameters}))


def child(python: str, name: str, corpus: str, size: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one training in a process of its own."""
    command = [python, str(HERE / "peer_loops.py"), name, corpus, "--size", size]
    command += ["--seconds", str(args.seconds), "--warmup", str(args.warmup)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        memory = TreeMemory(process.pid, every_s=1)
        memory.start()
        output, _ = process.communicate()
        memory_mb = memory.stop()
        if process.returncode:
            log.seek(0)
            sys.exit(f"{name} ended with {process.returncode}:\n{log.read()[-4000:]}")
    figures: dict[str, Any] = json.loads(output.splitlines()[-1]) | {"memory_mb": memory_mb}
    expected = json.loads((Path(corpus) / "about.json").read_text())["parameters"][size]
    if abs(figures["parameters"] / expected - 1) > MOST_DIFFERENCE:
        sys.exit(f"{name} has {figures['parameters']:,} parameters, and ours {expected:,}: no fair comparison")
    return figures


def lines(name: str) -> int:
    """The lines of a file in `recipes/` that somebody has to write: neither empty, nor comments, nor docstrings."""
    text = (HERE / "recipes" / name).read_text()
    docstrings: set[int] = set()
    if name.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    written = [line for number, line in enumerate(text.splitlines(), 1) if number not in docstrings]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in written)


def table(figures: dict[str, Any]) -> str:
    """Medians over the rounds; ratios are medians of the ratios within a round."""
    head = ["student", "training", "parameters", "lines", "audio-s/s", "of ours", "audio-s/CPU-s", "of ours"]
    head += ["step, ms", "batch, s", "padding", "data wait", "memory, MB"]
    rendered = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for size, rounds in figures["rounds"].items():
        for name, rows in rounds.items():
            if not rows:
                continue
            cells = [size, name, f"{rows[0]['parameters']:,}", str(figures["lines"][TOOLKITS[name]])]
            for figure in ("audio_s_per_s", "audio_s_per_cpu_s"):
                cells += [f"{median(rows, figure):.0f}", ratio(rows, rounds[OURS], figure)]
            cells += [f"{1000 * median(rows, 'step_s'):.0f}", f"{median(rows, 'batch_s'):.1f}"]
            cells += [f"{median(rows, figure):.1%}" for figure in ("padding", "data_wait")]
            cells.append(f"{median(rows, 'memory_mb'):.0f}")
            rendered.append("| " + " | ".join(cells) + " |")
    return "\n".join(rendered)


if __name__ == "__main__":
    main()
