"""A bare script of the engine of a teacher: windows of audio in, texts out, and nothing of voxstill.

    python benchmarks/bare_teachers.py transformers MODEL windows.jsonl texts.jsonl [--sort]

What a user of the engine writes who knows it well, on one thread: it reads each window from its file, and gives the
engine `--batch` of them at once, as they come or by their length. `benchmarks/teachers.py` runs it beside voxstill.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE_HZ = 16_000
WINDOW_S = 30
Window = dict[str, Any]
"""Its id, the path of its recording, start and end in ms."""
Samples = NDArray[np.float32]
Transcribe = Callable[[Sequence[Samples]], Sequence[str]]


def main() -> None:
    """Transcribe all windows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("model")
    parser.add_argument("windows", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--options", type=json.loads, default={}, help="what is passed on to the engine")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sort", action="store_true")
    args = parser.parse_args()
    windows = [json.loads(line) for line in args.windows.read_text().splitlines()]
    if args.sort:
        windows.sort(key=lambda window: window["end_ms"] - window["start_ms"])
    transcribe = ENGINES[args.engine](args.model, args.options)
    with args.texts.open("w") as file:
        for batch in batches(windows, args.batch):
            texts = transcribe([read(window) for window in batch])
            for window, text in zip(batch, texts, strict=True):
                file.write(json.dumps({"id": window["id"], "text": " ".join(text.split())}) + "\n")


def batches(windows: Sequence[Window], size: int) -> Iterator[Sequence[Window]]:
    """So many windows at a time."""
    for start in range(0, len(windows), size):
        yield windows[start : start + size]


def read(window: Window) -> Samples:
    """The samples of a window."""
    start, stop = (window[name] * RATE_HZ // 1000 for name in ("start_ms", "end_ms"))
    samples_T: Samples = soundfile.read(window["path"], start=start, stop=stop, dtype="float32")[0]
    return samples_T


def with_transformers(model: str, options: dict[str, Any]) -> Transcribe:
    """Features, `generate`, texts."""
    import torch
    from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

    torch.set_num_threads(1)
    processor: Any = AutoProcessor.from_pretrained(model)
    whisper: Any = AutoModelForSpeechSeq2Seq.from_pretrained(model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def transcribe(audio: Sequence[Samples]) -> Sequence[str]:
        features = processor(list(audio), sampling_rate=RATE_HZ, return_tensors="pt").input_features
        texts: Sequence[str] = processor.batch_decode(whisper.generate(features, **options), skip_special_tokens=True)
        return texts

    return transcribe


def with_faster_whisper(model: str, options: dict[str, Any]) -> Transcribe:
    """Windows behind one another as one recording, with the times of each: else files would not share a batch.

    Whisper was trained on windows with silence to their end. `pad: true` of the options adds it: faster-whisper itself
    fills features with zeros, which are no silence.
    """
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    pad, rest = options.get("pad", False), {name: value for name, value in options.items() if name != "pad"}
    pipeline = BatchedInferencePipeline(WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=1))

    def transcribe(audio: Sequence[Samples]) -> Sequence[str]:
        lengths = [WINDOW_S * RATE_HZ if pad else len(samples_T) for samples_T in audio]
        ends = np.cumsum(lengths)
        whole_T = np.zeros(ends[-1], np.float32)
        for samples_T, end, length in zip(audio, ends, lengths, strict=True):
            whole_T[end - length : end - length + len(samples_T)] = samples_T
        spans = [
            {"start": (end - length) / RATE_HZ, "end": end / RATE_HZ} for end, length in zip(ends, lengths, strict=True)
        ]
        segments, _ = pipeline.transcribe(whole_T, clip_timestamps=spans, batch_size=len(audio), **rest)
        texts = [""] * len(audio)
        for segment in segments:  # `seek` is where its window begins, in whole frames of 10 ms, rounded down
            texts[int(np.searchsorted(ends, (segment.seek + 1) * RATE_HZ // 100, side="right"))] += segment.text
        return texts

    return transcribe


def with_vllm(model: str, options: dict[str, Any]) -> Transcribe:
    """One request for each window."""
    import vllm

    engine = vllm.LLM(model, limit_mm_per_prompt={"audio": 1}, **options["engine"])
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=448)

    def transcribe(audio: Sequence[Samples]) -> Sequence[str]:
        prompts: Any = [
            {
                "encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": (samples_T, RATE_HZ)}},
                "decoder_prompt": options["prompt"],
            }
            for samples_T in audio
        ]
        return [answer.outputs[0].text for answer in engine.generate(prompts, sampling, use_tqdm=False)]

    return transcribe


ENGINES: dict[str, Callable[[str, dict[str, Any]], Transcribe]] = {
    "transformers": with_transformers,
    "faster-whisper": with_faster_whisper,
    "vllm": with_vllm,
}

if __name__ == "__main__":
    main()
