"""A streaming student chunk by chunk: equal to the whole utterance, error rate, and what a stream costs.

    python benchmarks/streaming.py EXP [--chunks 1120 560 160 80] [--utterances 360] [--rounds 3]

`EXP` is an experiment with `student.streaming` whose work folder is still there; it is exported into a temporary
folder. The reference is the student in torch on whole utterances with the mask of each chunk length. Torch, onnxruntime
and sherpa-onnx hear each utterance alone, in blocks of 100 ms, on one core, in turn, round after round; sherpa-onnx has
the noise of a quiet room before and behind it. `equal` are the texts equal to the reference; `rtf` is seconds of CPU
time for a second of audio, the median of the rounds. Writes `benchmarks/results/streaming.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

from export import Samples, System, error_rate  # noqa: E402
from voxstill.core import config, pcm  # noqa: E402
from voxstill.core.config import CHUNKS_MS, Decode  # noqa: E402
from voxstill.decoding import exported  # noqa: E402
from voxstill.decoding.options import RecognizerOptions  # noqa: E402
from voxstill.decoding.recognizer import Recognizer  # noqa: E402
from voxstill.exporting import sherpa, student  # noqa: E402
from voxstill.nn import chunks  # noqa: E402
from voxstill.nn.mel import HOP  # noqa: E402
from voxstill.pipeline import evaluate, export_audio  # noqa: E402
from voxstill.pipeline import export as exporting  # noqa: E402

HERE = Path(__file__).parent
BLOCK = pcm.ms_to_samples(100)
QUIET = 30


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", metavar="EXP")
    parser.add_argument("--chunks", type=int, nargs="+", default=list(CHUNKS_MS))
    parser.add_argument("--utterances", type=int, default=360)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default=str(HERE / "results" / "streaming.json"))
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cfg = config.load(evaluate.own_config(args.experiment))
    model = str(Path(args.experiment) / "model")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "onnx"
        exporting.export(cfg, args.experiment, str(folder), streaming=args.chunks)
        audio = export_audio.of(cfg, student.load(Path(model)))
        samples = audio.samples[: args.utterances]
        audio_s = sum(map(len, samples)) / 16_000
        by_chunk = {}
        for chunk_ms in args.chunks:
            reference = [
                hypothesis.text for hypothesis in recognizer_of(model, chunk_ms).transcribe_batch(list(samples))
            ]
            systems: dict[str, System] = {
                "torch": streamed(recognizer_of(model, chunk_ms)),
                "onnxruntime": streamed(recognizer_of(str(folder), chunk_ms)),
                "sherpa-onnx": sherpa_onnx(folder, chunk_ms),
            }
            texts = {name: system(samples) for name, system in systems.items()}
            seconds: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(args.rounds):
                for name, system in systems.items():
                    begin = time.process_time()
                    system(samples)
                    seconds[name].append(time.process_time() - begin)
            by_chunk[str(chunk_ms)] = {
                "wer": error_rate(cfg, audio, reference),
                "systems": {
                    name: {
                        "equal": sum(map(str.__eq__, texts[name], reference)),
                        "wer": error_rate(cfg, audio, texts[name]),
                        "rtf": round(statistics.median(seconds[name]) / audio_s, 5),
                    }
                    for name in systems
                },
            }
    figures = {
        "experiment": Path(args.experiment).resolve().name,
        "on": audio.name,
        "utterances": len(samples),
        "audio_s": round(audio_s, 1),
        "chunks": by_chunk,
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "transformers", "onnxruntime", "sherpa-onnx")},
    }
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


def recognizer_of(path: str, chunk_ms: int) -> Recognizer:
    """The student in torch or exported, loaded."""
    options = RecognizerOptions(model=path, dtype="float32")
    recognizer = Recognizer(options, Decode.model_validate({"chunk_ms": chunk_ms}))
    recognizer.load()
    return recognizer


def blocks_of(num_samples: int) -> Sequence[int]:
    """Where the blocks end in which the audio arrives."""
    return [*range(BLOCK, num_samples, BLOCK), num_samples]


def streamed(recognizer: Recognizer) -> System:
    """Our decoder of streams, one stream at a time."""

    def text(samples_T: Samples) -> str:
        stream, hypothesis = recognizer.open_stream(), None
        for end in blocks_of(len(samples_T)):
            [hypothesis] = recognizer.advance([stream], [samples_T[:end]], [end == len(samples_T)])
        return "" if hypothesis is None else hypothesis.text

    return lambda samples: list(map(text, samples))


def sherpa_onnx(folder: Path, chunk_ms: int) -> Callable[[Sequence[Samples]], list[str]]:
    """`OnlineRecognizer` of sherpa-onnx in this process: the export has shown that it takes the folder."""
    import sherpa_onnx as library

    wanted = sherpa.arguments(folder, exported.read(folder))
    wanted["encoder"] = str(folder / exported.chunk_encoder(chunk_ms))
    recognizer = getattr(getattr(library, wanted.pop("recognizer")), wanted.pop("door"))(**wanted, num_threads=1)
    lead, tail = HOP * chunks.LEAD + HOP // 2, 2 * HOP * chunks.window_frames(chunk_ms)

    def text(samples_T: Samples) -> str:
        draw = np.random.default_rng(0)
        room = [draw.normal(0, QUIET, num).astype(np.int16) for num in (lead, tail)]
        wave_T = pcm.to_float(np.concatenate([room[0], samples_T, room[1]]))
        stream, start = recognizer.create_stream(), 0
        for end in blocks_of(len(wave_T)):
            stream.accept_waveform(16_000, wave_T[start:end])
            start = end
            while recognizer.is_ready(stream):
                recognizer.decode_stream(stream)
        stream.input_finished()
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
        return " ".join(recognizer.get_result(stream).split())

    return lambda samples: list(map(text, samples))


if __name__ == "__main__":
    main()
