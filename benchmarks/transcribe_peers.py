"""Transcribing at the shell beside `transformers.pipeline`, sherpa-onnx and faster-whisper: speed, first text, memory.

    pip install -e '.[export,sherpa,whisper]'
    python benchmarks/transcribe_peers.py exp/DATE_demo --audio work/demo/corpus

`voxstill transcribe` runs a CTC student, with torch and exported. `transformers.pipeline` runs the same student, and
sherpa-onnx the export. faster-whisper runs a Whisper of random weights with as many parameters: the width of the demo's
student, 4 layers in the encoder and 2 in the decoder. It is made to write 4 tokens for each second of audio, greedily,
as English has about so many. Without an experiment the student has random weights too, and without `--audio` synthetic
voices speak.

Each is a process of its own on one thread, in turns, on one short recording, on many, and on a long one, which is the
short ones with pauses between them. The first gives the start-up; its time is taken from that of the others, so that
speed is without it. The long one is cut by each as its users do: voxstill and sherpa-onnx at pauses by voice activity
detection, the pipeline into chunks of 30 s that overlap by 5, faster-whisper into windows of 30 s. The peers read files
with soundfile, faster-whisper with its own decoder. Memory is the largest sum of the proportional set sizes of a
process and those it started, looked at ten times a second. Prints a table and writes
`benchmarks/results/transcribe_peers.json`; `--table FILE` prints that of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402
import soundfile  # noqa: E402

from tree_memory import TreeMemory  # noqa: E402

HERE = Path(__file__).parent
TORCH, EXPORT, PIPELINE, SHERPA, WHISPER = (
    "voxstill",
    "voxstill, exported",
    "transformers.pipeline",
    "sherpa-onnx",
    "faster-whisper",
)
NAMES = (TORCH, EXPORT, PIPELINE, SHERPA, WHISPER)
PACKAGES = {SHERPA: "sherpa-onnx", WHISPER: "faster-whisper"}
TOKENS_PER_S, WINDOW_S = 4, 30
WIDTH, ENCODER_LAYERS, DECODER_LAYERS = 128, 4, 2
PAUSE_S, NOISE = 0.8, 8
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """One process."""

    first_text_s: float
    end_s: float
    cpu_s: float
    peak_mb: float
    texts: Sequence[str]


def main() -> None:
    """Make what is needed, measure in turns, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", metavar="EXP")
    parser.add_argument("--audio", type=Path, help="folder of short recordings of 16 kHz")
    parser.add_argument("--recordings", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the long recording")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", metavar="FILE", help="print the table of these figures and end")
    parser.add_argument("--output", default=str(HERE / "results/transcribe_peers.json"))
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS, metavar=("PEER", "MODEL", "FOLDER"))
    args = parser.parse_args()
    if args.run:
        peer, model, folder = args.run
        for name, text in PEERS[peer](model, sorted(Path(folder).iterdir())):
            print(f"{name}: {' '.join(text.split())}", flush=True)
        return
    if args.table:
        print(table(json.loads(Path(args.table).read_text())))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), args)
    Path(args.output).write_text(json.dumps(figures, indent=1) + "\n")
    print(table(figures))


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All figures; models and recordings are made in `folder`."""
    import torch

    from voxstill.training import environment

    seconds = write_recordings(folder, args.audio, args.recordings, args.minutes)
    models, parameters = make_models(folder, args.experiment)
    names = [name for name in NAMES if is_installed(name)]
    runs: dict[str, dict[str, list[Run]]] = {name: {kind: [] for kind in seconds} for name in names}
    torch.set_num_threads(1)
    for number in range(args.rounds):
        for name in names:
            for kind in seconds:
                runs[name][kind].append(run_once(command(name, models[name], folder / kind)))
                row = asdict(runs[name][kind][-1]) | {"texts": len(runs[name][kind][-1].texts)}
                print(number, name, kind, row, file=sys.stderr, flush=True)
    packages = ("torch", "transformers", "onnxruntime", "sherpa-onnx", "faster-whisper", "ctranslate2")
    return {
        "machine": environment.machine(),
        "versions": {package: version_of(package) for package in packages},
        "model": Path(args.experiment).resolve().name if args.experiment else "random weights",
        "audio_s": seconds,
        "parameters": parameters,
        "equal_texts": {
            name: sum(map(str.__eq__, runs[name]["short"][0].texts, runs[TORCH]["short"][0].texts)) for name in names
        },
        "recordings": len(runs[TORCH]["short"][0].texts),
        "runs": {
            name: {
                kind: [{key: value for key, value in asdict(run).items() if key != "texts"} for run in rounds]
                for kind, rounds in kinds.items()
            }
            for name, kinds in runs.items()
        },
    }


def is_installed(name: str) -> bool:
    """Whether a contender is there; says how to install one that is not."""
    package = PACKAGES.get(name)
    if package is None or version_of(package):
        return True
    print(f"{name} is left out: pip install {package}")
    return False


def version_of(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_recordings(folder: Path, audio: Path | None, most: int, minutes: float) -> dict[str, float]:
    """Folders with one recording, with many, and with a long one; the seconds of audio in each."""
    for kind in ("one", "short", "long"):
        (folder / kind).mkdir()
    clips: list[np.ndarray] = []
    for number, samples_T in enumerate(short_recordings(audio, most)):
        soundfile.write(folder / f"short/{number:04}.flac", samples_T, 16_000, "PCM_16")
        clips.append(samples_T)
    shutil.copy(folder / "short/0000.flac", folder / "one/0000.flac")
    random, left = np.random.default_rng(0), round(minutes * 60 * 16_000)
    with soundfile.SoundFile(folder / "long/long.flac", "w", 16_000, 1, "PCM_16") as file:
        while left > 0:
            for samples_T in clips:
                pause_T = random.normal(0, NOISE, round(PAUSE_S * 16_000)).astype(np.int16)
                part_T = np.concatenate([samples_T, pause_T])[: max(0, left)]
                file.write(part_T)
                left -= len(part_T)
    return {
        kind: sum(soundfile.info(path).duration for path in (folder / kind).iterdir())
        for kind in ("one", "short", "long")
    }


def short_recordings(audio: Path | None, most: int) -> Iterator[np.ndarray]:
    """Samples of recordings in a folder, taken evenly from all of it, or of synthetic voices."""
    if audio is None:
        from transcribe import TEXT, VOICES
        from voxstill.synthesis.voices import SpeechJob, synthesize

        words = TEXT.split()
        jobs = [
            SpeechJob(text=" ".join(words[number % 7 :]), voice=VOICES[number % len(VOICES)]) for number in range(most)
        ]
        yield from synthesize(jobs)
        return
    paths = sorted(path for path in audio.rglob("*") if path.suffix in (".wav", ".flac"))
    for path in paths[:: max(1, len(paths) // most)][:most]:
        samples_T, rate_hz = soundfile.read(path, dtype="int16")
        assert rate_hz == 16_000, path
        yield samples_T


def make_models(folder: Path, experiment: str | None) -> tuple[dict[str, str], dict[str, int]]:
    """The model of each contender, and how many parameters they have."""
    from transformers import AutoModelForCTC

    from voxstill.core import config
    from voxstill.pipeline.evaluate import own_config
    from voxstill.pipeline.export import export

    if experiment is None:
        from transcribe import make_student

        make_student(folder / "student")
        student, cfg = folder / "student", config.Config()
    else:
        student, cfg = Path(experiment) / "model", config.load(own_config(experiment))
    export(cfg, str(student), str(folder / "export"))
    model = AutoModelForCTC.from_pretrained(student)
    count = sum(weight.numel() for weight in model.parameters())
    whisper = make_whisper(folder / "whisper", count)
    models = {TORCH: student, EXPORT: folder / "export", PIPELINE: student, SHERPA: folder / "export"}
    return {name: str(path) for name, path in {**models, WHISPER: folder / "whisper/ct2"}.items()}, {
        "student": count,
        "whisper": whisper,
    }


def make_whisper(folder: Path, parameters: int) -> int:
    """A Whisper of random weights for faster-whisper, with about so many parameters; how many they are."""
    import torch
    import transformers
    from ctranslate2.converters import TransformersConverter

    sys.path.insert(0, str(HERE.parent / "tests"))
    from checkpoints import write_whisper_checkpoint

    write_whisper_checkpoint(folder, ["the words of English"], longest=448)
    config = transformers.WhisperConfig.from_pretrained(folder)
    config.d_model, config.encoder_layers, config.decoder_layers = WIDTH, ENCODER_LAYERS, DECODER_LAYERS

    def model_of(units: int) -> Any:
        config.encoder_ffn_dim = config.decoder_ffn_dim = units
        torch.manual_seed(0)
        return transformers.WhisperForConditionalGeneration(config)

    def count(model: torch.nn.Module) -> int:
        return sum(weight.numel() for weight in model.parameters())

    without, per_unit = 2 * count(model_of(1)) - count(model_of(2)), count(model_of(2)) - count(model_of(1))
    model = model_of(round((parameters - without) / per_unit))
    tokenizer = transformers.WhisperTokenizerFast.from_pretrained(folder)
    model.generation_config.is_multilingual = False
    model.generation_config.no_timestamps_token_id = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    model.save_pretrained(folder)
    transformers.WhisperProcessor(transformers.WhisperFeatureExtractor(), tokenizer).save_pretrained(folder)
    TransformersConverter(str(folder), copy_files=["tokenizer.json"]).convert(str(folder / "ct2"))
    return count(model)


# ------------------------------------------------------------------------------------------------------------ processes


def command(name: str, model: str, folder: Path) -> list[str]:
    """The command of a contender."""
    if name in (TORCH, EXPORT):
        return [sys.executable, "-m", "voxstill", "transcribe", model, str(folder)]
    return [sys.executable, __file__, "--run", name, model, str(folder)]


def run_once(arguments: Sequence[str]) -> Run:
    """Run a command; its texts, in the order of the files."""
    start_s = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    memory, errors = TreeMemory(process.pid, every_s=0.1), list[str]()
    log = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
    memory.start()
    log.start()
    lines = [process.stdout.readline()]
    first_text_s = time.perf_counter() - start_s
    lines += process.stdout.readlines()
    peak_mb = memory.stop()
    log.join()
    _, status, usage = os.wait4(process.pid, 0)
    end_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {process.returncode}:\n{errors[0][-4000:]}")
    return Run(
        first_text_s=first_text_s,
        end_s=end_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=peak_mb,
        texts=[line.rstrip("\n").partition(": ")[2] for line in lines if line],
    )


# ---------------------------------------------------------------------------------------------------------------- peers

Texts = Iterator[tuple[str, str]]


def run_pipeline(model: str, paths: Sequence[Path]) -> Texts:
    """`transformers.pipeline`; what is longer than a window in chunks, as its documents say."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(1)
    recognizer = pipeline("automatic-speech-recognition", model=model, device="cpu")
    recognizer.model.config.inputs_to_logits_ratio = 1280  # without it, chunks lose most of their text
    for path in paths:
        samples_T, rate_hz = soundfile.read(path, dtype="float32")
        chunks = {"chunk_length_s": WINDOW_S, "stride_length_s": 5} if len(samples_T) > WINDOW_S * rate_hz else {}
        yield path.name, recognizer({"raw": samples_T, "sampling_rate": rate_hz}, **chunks)["text"]


def run_sherpa(model: str, paths: Sequence[Path]) -> Texts:
    """sherpa-onnx; what is longer than a window is cut by the Silero VAD in it."""
    import sherpa_onnx

    recognizer = sherpa_onnx.OfflineRecognizer.from_nemo_ctc(
        model=f"{model}/model.onnx", tokens=f"{model}/tokens.txt", num_threads=1
    )

    def text(samples_T: np.ndarray) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(16_000, np.pad(samples_T, (80, 0)))
        recognizer.decode_stream(stream)
        return str(stream.result.text)

    for path in paths:
        samples_T, rate_hz = soundfile.read(path, dtype="float32")
        is_long = len(samples_T) > WINDOW_S * rate_hz
        yield path.name, " ".join(map(text, speech_of(samples_T))) if is_long else text(samples_T)


def speech_of(samples_T: np.ndarray) -> Iterator[np.ndarray]:
    """The stretches of speech that the VAD in sherpa-onnx finds."""
    import sherpa_onnx

    spec = find_spec("silero_vad")  # its import would load torch
    assert spec is not None
    assert spec.origin is not None
    config = sherpa_onnx.VadModelConfig(sample_rate=16_000, num_threads=1)
    config.silero_vad.model = str(Path(spec.origin).parent / "data/silero_vad.onnx")
    config.silero_vad.max_speech_duration = WINDOW_S
    detector = sherpa_onnx.VoiceActivityDetector(config, buffer_size_in_seconds=2 * WINDOW_S)
    window = config.silero_vad.window_size
    for start in range(0, len(samples_T), window):
        detector.accept_waveform(samples_T[start : start + window])
        while not detector.empty():
            yield np.array(detector.front.samples, dtype=np.float32)
            detector.pop()
    detector.flush()
    while not detector.empty():
        yield np.array(detector.front.samples, dtype=np.float32)
        detector.pop()


def run_whisper(model: str, paths: Sequence[Path]) -> Texts:
    """faster-whisper; as the weights are random, the number of tokens is set, and all but letters are suppressed."""
    from faster_whisper import WhisperModel

    recognizer = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=1)
    vocabulary = recognizer.hf_tokenizer.get_vocab()
    others = [token_id for token, token_id in vocabulary.items() if not (token.isascii() and token.isalpha())]
    for path in paths:
        tokens = round(TOKENS_PER_S * min(WINDOW_S, soundfile.info(path).duration))
        segments, _ = recognizer.transcribe(
            str(path),
            language="en",
            beam_size=1,
            temperature=0.0,
            max_new_tokens=2 * tokens - 2,  # CTranslate2 stops at half of these and of the prompt, which is two tokens
            suppress_tokens=others,
            suppress_blank=False,
            without_timestamps=True,
            condition_on_previous_text=False,
            no_speech_threshold=None,
            log_prob_threshold=None,
            compression_ratio_threshold=None,
        )
        yield path.name, "".join(segment.text for segment in segments)


PEERS: dict[str, Callable[[str, Sequence[Path]], Texts]] = {
    PIPELINE: run_pipeline,
    SHERPA: run_sherpa,
    WHISPER: run_whisper,
}


# ---------------------------------------------------------------------------------------------------------------- table


def table(figures: dict[str, Any]) -> str:
    """Medians over the rounds; the time of the one recording is taken from that of the others."""
    audio_s, recordings = figures["audio_s"], figures["recordings"]
    head = ["recogniser", "first text, s", "of it CPU, s"]
    for kind in ("short", "long"):
        head += [f"{kind}: audio-s/s", "audio-s/CPU-s"]
    head += ["memory, MB: one", "long", "texts equal to ours"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, kinds in figures["runs"].items():
        one = kinds["one"]
        cells = [name, f"{median(one, 'first_text_s'):.2f}", f"{median(one, 'cpu_s'):.2f}"]
        for kind in ("short", "long"):
            for figure in ("end_s", "cpu_s"):
                cells.append(f"{median_speed(one, kinds[kind], figure, audio_s[kind] - audio_s['one']):.0f}")
        cells += [f"{median(kinds[kind], 'peak_mb'):.0f}" for kind in ("one", "long")]
        cells.append("" if name == WHISPER else f"{figures['equal_texts'][name]} of {recordings}")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def median(runs: Sequence[dict[str, float]], figure: str) -> float:
    """The median of a figure over the rounds."""
    return statistics.median(run[figure] for run in runs)


def median_speed(
    one: Sequence[dict[str, float]], many: Sequence[dict[str, float]], figure: str, audio_s: float
) -> float:
    """Seconds of audio a second, without the start-up of the same round."""
    return statistics.median(audio_s / (run[figure] - start[figure]) for start, run in zip(one, many, strict=True))


if __name__ == "__main__":
    main()
