"""An exported student beside the one in torch: equal texts, error rate, size and speed on one core.

    python benchmarks/export.py EXP [--utterances 360] [--rounds 5]

`EXP` is an experiment whose work folder is still there; it is exported with int8 into a temporary folder. All run in
turn, round after round, on the same utterances and the same core, from int16 samples to text: torch and onnxruntime as
voxstill runs them, one utterance at a time and in batches of 30 s; int8; the file that takes samples, decoded greedily;
sherpa-onnx, with 5 ms of silence in front; onnx-asr where it takes the student. `speed` is seconds of audio in a second
of CPU time, the median of the rounds; `equal` are the texts equal to those of torch; `cost` is the interval of the
points of WER that they cost, by a paired bootstrap. `shell_s` is the wall time of
`voxstill transcribe` on one utterance, with the export and with torch. Writes `benchmarks/results/export.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from voxstill.audio import codec  # noqa: E402
from voxstill.core import config, pcm  # noqa: E402
from voxstill.decoding import ctc, exported  # noqa: E402
from voxstill.decoding.options import RecognizerOptions  # noqa: E402
from voxstill.decoding.recognizer import Recognizer  # noqa: E402
from voxstill.exporting import sherpa, student  # noqa: E402
from voxstill.exporting.gate import GateAudio  # noqa: E402
from voxstill.pipeline import evaluate, export_audio  # noqa: E402
from voxstill.pipeline import export as exporting  # noqa: E402
from voxstill.scoring import stats, words  # noqa: E402
from voxstill.text.normalize import normalizer  # noqa: E402

HERE = Path(__file__).parent
Samples = NDArray[np.int16]
System = Callable[[Sequence[Samples]], list[str]]
ONE_BY_ONE_MS, BATCH_MS = 1000, 30_000
FILES = ("model.onnx", "model.int8.onnx", "encoder.onnx", "encoder.int8.onnx", "model.samples.onnx", "decoder.onnx")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", metavar="EXP")
    parser.add_argument("--utterances", type=int, default=360)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=str(HERE / "results" / "export.json"))
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cfg = config.load(evaluate.own_config(args.experiment))
    model = str(Path(args.experiment) / "model")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "onnx"
        result = exporting.export(cfg, args.experiment, str(folder), int8=True)
        audio = export_audio.of(cfg, student.load(Path(model)))
        samples = audio.samples[: args.utterances]
        audio_s = sum(len(samples_T) for samples_T in samples) / 16_000
        systems = systems_of(model, folder)
        texts = {name: system(samples) for name, system in systems.items()}
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(args.rounds):
            for name, system in systems.items():
                begin = time.process_time()
                system(samples)
                seconds[name].append(time.process_time() - begin)
        figures = {
            "experiment": Path(args.experiment).resolve().name,
            "kind": exported.read(folder).kind,
            "normalization": exported.read(folder).normalization,
            "on": audio.name,
            "utterances": len(samples),
            "audio_s": round(audio_s, 1),
            "bytes": {name: result.files[name] for name in FILES if name in result.files},
            "systems": {
                name: {
                    "equal": sum(map(str.__eq__, texts[name], texts["torch"])),
                    "equal_by_dataset": equal_by_dataset(audio, texts[name], texts["torch"]),
                    "wer": error_rate(cfg, audio, texts[name]),
                    "cost": cost(cfg, audio, texts["torch"], texts[name]),
                    "speed": round(audio_s / statistics.median(seconds[name])),
                    "rounds": [round(audio_s / value) for value in seconds[name]],
                }
                for name in systems
            },
            "shell_s": {
                name: shell(path, samples[0], Path(temporary), args.rounds)
                for name, path in (("onnxruntime", str(folder)), ("torch", model))
            },
            "machine": {"processor": platform.machine(), "python": platform.python_version()},
            "versions": {name: version(name) for name in ("torch", "onnx", "onnxruntime", "sherpa-onnx", "onnx-asr")},
        }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


def systems_of(model: str, folder: Path) -> dict[str, System]:
    """What is compared, loaded."""
    manifest = exported.read(folder)
    int8 = exported.int8_of(manifest.main)
    paths = {"torch": model, "onnxruntime": str(folder)}
    if (folder / int8).is_file():
        paths["onnxruntime, int8"] = str(folder / int8)
    systems = {
        f"{name}{ending}": voxstill(path, batch_ms)
        for name, path in paths.items()
        for ending, batch_ms in (("", ONE_BY_ONE_MS), (", batches of 30 s", BATCH_MS))
    }
    if (folder / exported.CTC_SAMPLES).is_file():
        systems["onnxruntime from samples"] = from_samples(folder)
    if sherpa.is_installed():
        systems["sherpa-onnx"] = sherpa_onnx(folder)
    if manifest.normalization == "utterance":
        systems["onnx-asr"] = onnx_asr(folder)
    return systems


def voxstill(path: str, batch_ms: int) -> System:
    """Our recogniser; an utterance longer than `batch_ms` goes alone."""
    recognizer = Recognizer(RecognizerOptions(model=path, dtype="float32", batch_ms=batch_ms))
    recognizer.load()
    return lambda samples: [hypothesis.text for hypothesis in recognizer.transcribe_batch(samples)]


def from_samples(folder: Path) -> System:
    """The file with the frontend inside, as a program with onnxruntime alone would use it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(folder / exported.CTC_SAMPLES), options, providers=["CPUExecutionProvider"]
    )
    vocabulary = exported.vocabulary(folder, exported.read(folder))

    def text(samples_T: Samples) -> str:
        inputs = {"samples": pcm.to_float(samples_T)[None], "length": np.array([len(samples_T)])}
        log_probs_BFV, frames_B = session.run(None, inputs)
        [hypothesis] = ctc.greedy(
            log_probs_BFV, frames_B, ids=[""], pieces=vocabulary.pieces, blank_id=vocabulary.blank_id, frame_ms=80
        )
        return hypothesis.text

    return lambda samples: list(map(text, samples))


def sherpa_onnx(folder: Path) -> System:
    """sherpa-onnx in this process: the export has shown that it takes the folder."""
    import sherpa_onnx as library

    wanted = sherpa.arguments(folder, exported.read(folder))
    recognizer = getattr(getattr(library, wanted.pop("recognizer")), wanted.pop("door"))(**wanted, num_threads=1)

    def text(samples_T: Samples) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(16_000, np.pad(pcm.to_float(samples_T), (80, 0)))
        recognizer.decode_stream(stream)
        return " ".join(stream.result.text.split())

    return lambda samples: list(map(text, samples))


def onnx_asr(folder: Path) -> System:
    """onnx-asr on one thread."""
    import onnx_asr as library
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    kind = f"nemo-conformer-{exported.read(folder).kind}"
    model = library.load_model(kind, str(folder), sess_options=options, providers=["CPUExecutionProvider"])
    return lambda samples: [" ".join(model.recognize(pcm.to_float(samples_T)).split()) for samples_T in samples]


def error_rate(cfg: config.Config, audio: GateAudio, texts: Sequence[str]) -> float | None:
    """WER against the human texts; None without."""
    normalize = normalizer(cfg.evaluate.normalizer)
    pairs = [
        (normalize(utterance.text), normalize(text))
        for utterance, text in zip(audio.utterances, texts, strict=False)
        if utterance.text is not None
    ]
    return words.wer(pairs).rate


def equal_by_dataset(audio: GateAudio, texts: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """The equal texts of all texts, by the data set of the utterance: `89 of 90`."""
    equal: dict[str, list[bool]] = {}
    for utterance, text, other in zip(audio.utterances, texts, others, strict=False):
        equal.setdefault(utterance.info.dataset or "", []).append(text == other)
    return {name: f"{sum(values)} of {len(values)}" for name, values in sorted(equal.items())}


def cost(cfg: config.Config, audio: GateAudio, before: Sequence[str], after: Sequence[str]) -> Sequence[float] | None:
    """The 95 % interval, by a paired bootstrap, of the points of WER that `after` has more than `before`."""
    normalize = normalizer(cfg.evaluate.normalizer)
    speakers = {utterance.id: utterance.info.speaker for utterance in audio.utterances}

    def blocks(texts: Sequence[str]) -> stats.Blocks:
        scored = [
            words.score(utterance.id, normalize(utterance.text), normalize(text))
            for utterance, text in zip(audio.utterances, texts, strict=False)
            if utterance.text is not None
        ]
        return stats.blocks(scored, speakers)

    test = stats.paired_test(blocks(before), blocks(after), cfg.evaluate.bootstrap_draws, cfg.seed)
    return None if test is None else [round(100 * value, 2) for value in test.interval]


def shell(model: str, samples_T: Samples, folder: Path, rounds: int) -> float:
    """Wall seconds of one command on one utterance, the median."""
    path = folder / "speech.wav"
    path.write_bytes(codec.encode(samples_T, "wav"))
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "voxstill", "transcribe", model, str(path)], check=True, capture_output=True
        )
        seconds.append(time.perf_counter() - begin)
    return round(statistics.median(seconds), 2)


if __name__ == "__main__":
    main()
