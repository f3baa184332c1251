"""Requests and speed of a teacher with windows of 30 s, before and after stretches of speech are packed.

    python benchmarks/pack_speech.py --clips SHARED/coffee-orders/audio SHARED/librispeech-unlabelled-30/audio
    python benchmarks/pack_speech.py --words --clips SHARED/coffee-orders/audio SHARED/speechocean762-train/audio

The clips of each folder, of real speech, are put into one long recording with pauses of `--pauses-ms` between them. It
is indexed with `segment.target_ms` unset and set, and labelled by a Whisper of the size of `tiny` with random weights,
which computes 30 s for every request. It writes as many tokens for a second of audio in both runs, so that packing
saves windows and no tokens. Seconds are those that the labelling process has the CPU, on one thread.
Prints a table and writes `benchmarks/results/pack_speech.json`.

`--words` counts what becomes of the words at the cuts. When a word is said is known from the text of its clip, in the
manifest beside the folder, which PocketSphinx aligns with the audio. A word is lost where its middle is in no
utterance, doubled where it is in two, and cut where an utterance begins or ends in it, more than 50 ms from its ends.
Writes `benchmarks/results/pack_words.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402

from voxstill import index, label, load_config  # noqa: E402
from voxstill.audio import codec  # noqa: E402
from voxstill.core.pcm import ms_to_samples, samples_to_s  # noqa: E402
from voxstill.storage.figures import IndexFigures  # noqa: E402

Span = tuple[float, float]
"""Start and end in ms."""
TOKENS_PER_S = 4.0
"""Of a teacher's text, for a second of audio: three words of English are some four tokens of Whisper."""
MAX_TOKENS = 200
NOISE = 20  # of 32,768: the noise of a room in the pauses
EDGE_MS = 50
"""So exact the aligned times of words are."""
FRAME_MS = 10  # of PocketSphinx


@dataclass(frozen=True)
class Row:
    """One recording labelled in one way."""

    recording: str
    hours: float
    target_ms: int | None
    requests: int
    mean_s: float
    cpu_s: float

    @property
    def rtfx(self) -> float:
        """Seconds of the recording for a second of the CPU."""
        return self.hours * 3600 / self.cpu_s


@dataclass(frozen=True)
class WordRow:
    """The words of a recording that was segmented in one way."""

    recording: str
    minutes: float
    target_ms: int | None
    windows: int
    words: int
    lost: int
    doubled: int
    cut: int


def main() -> None:
    """Measure both ways, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, nargs="+", required=True)
    parser.add_argument("--pauses-ms", type=int, nargs=2, default=(500, 2000))
    parser.add_argument("--target-ms", type=int, default=28_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.words:
        count_words(args.clips, args.pauses_ms, args.target_ms)
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_teacher(Path(folder) / "whisper")
        for number, clips in enumerate(args.clips):
            path = Path(folder) / f"{number}.flac"
            hours = write_recording(path, clips, args.pauses_ms)[0] / 3600
            rows += measure(Path(folder) / clips.parent.name, path, model, hours, (None, args.target_ms), args.rounds)
    print("| recording | min | target_ms | requests | mean s | CPU s | times real time |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.recording} | {row.hours * 60:.1f} | {row.target_ms} | {row.requests} ", end="")
        print(f"| {row.mean_s:.1f} | {row.cpu_s:.1f} | {row.rtfx:.1f} |")
    report = [{**asdict(row), "rtfx": row.rtfx} for row in rows]
    (HERE / "results/pack_speech.json").write_text(json.dumps(report, indent=1) + "\n")


def write_teacher(folder: Path) -> Path:
    """A Whisper of the shape of `tiny` with random weights."""
    import transformers

    from checkpoints import write_whisper_checkpoint

    write_whisper_checkpoint(folder, ["three words of English"], longest=MAX_TOKENS + 48)
    config = transformers.WhisperConfig.from_pretrained(folder)
    for name, value in {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4}.items():
        setattr(config, name, value)
    config.encoder_attention_heads = config.decoder_attention_heads = 6
    config.encoder_ffn_dim = config.decoder_ffn_dim = 1536
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config)
    tokenizer = transformers.WhisperTokenizerFast.from_pretrained(folder)
    model.generation_config.no_timestamps_token_id = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    model.generation_config.is_multilingual = False
    model.save_pretrained(folder)
    transformers.WhisperProcessor(transformers.WhisperFeatureExtractor(), tokenizer).save_pretrained(folder)
    return folder


def write_recording(path: Path, clips: Path, pauses_ms: tuple[int, int]) -> tuple[float, dict[str, float]]:
    """All clips of a folder in one file with pauses between them; its length in s, and where each begins in ms."""
    random = np.random.default_rng(0)
    parts: list[np.ndarray] = []
    begins_ms, length = {}, 0
    for clip in sorted(clips.iterdir()):
        begins_ms[clip.stem] = samples_to_s(length) * 1000
        pause = ms_to_samples(int(random.integers(*pauses_ms)))
        parts += [codec.decode(clip.read_bytes()).samples_T, random.normal(0, NOISE, pause).astype(np.int16)]
        length += len(parts[-2]) + pause
    samples_T = np.concatenate(parts)
    path.write_bytes(codec.encode(samples_T, "flac"))
    return samples_to_s(len(samples_T)), begins_ms


def measure(
    folder: Path, path: Path, model: Path, hours: float, targets: Sequence[int | None], rounds: int
) -> Iterator[Row]:
    """Label the recording by each target in turns; the requests, and the median of the CPU seconds."""
    cpu_s: dict[int | None, list[float]] = {target: [] for target in targets}
    indexed: dict[int | None, IndexFigures] = {}
    for number in range(rounds):
        for target in targets if number % 2 == 0 else reversed(targets):
            options = [f"work={folder}-{target}-{number}", f"source.uri={path}", "engine.name=inline"]
            options += [] if target is None else [f"segment.target_ms={target}"]
            indexed[target] = index(load_config(None, *options))
            tokens = min(MAX_TOKENS, round(TOKENS_PER_S * mean_seconds(indexed[target])))
            teacher = f"teacher={{name: transformers, model: {model}, max_new_tokens: {tokens}}}"
            start_s = time.process_time()
            label(load_config(None, *options, teacher))
            cpu_s[target].append(time.process_time() - start_s)
    for target, figures in indexed.items():
        yield Row(
            recording=folder.name,
            hours=hours,
            target_ms=target,
            requests=figures.utterances,
            mean_s=mean_seconds(figures),
            cpu_s=statistics.median(cpu_s[target]),
        )


def count_words(folders: Sequence[Path], pauses_ms: tuple[int, int], target_ms: int) -> None:
    """Segment each recording in both ways, and count its words."""
    rows: list[WordRow] = []
    with tempfile.TemporaryDirectory() as temporary:
        for clips in folders:
            name = clips.parent.name
            path = Path(temporary) / f"{name}.flac"
            seconds, begins_ms = write_recording(path, clips, pauses_ms)
            words = list(aligned_words(clips, begins_ms))
            for target in (None, target_ms):
                options = [f"work={temporary}/{name}-{target}", f"source.uri={path}", "engine.name=inline"]
                options += [] if target is None else [f"segment.target_ms={target}"]
                index(load_config(None, *options))
                tables = map(pq.read_table, Path(temporary).glob(f"{name}-{target}/utterances/*/*.parquet"))
                spans = [(row["start_ms"], row["end_ms"]) for table in tables for row in table.to_pylist()]
                rows.append(WordRow(name, seconds / 60, target, len(spans), len(words), *fates(words, spans)))
    print("| recording | min | target_ms | windows | words | lost | doubled | cut |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.recording} | {row.minutes:.1f} | {row.target_ms} | {row.windows} ", end="")
        print(f"| {row.words} | {row.lost} | {row.doubled} | {row.cut} |")
    (HERE / "results/pack_words.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def fates(words: Sequence[Span], spans: Sequence[Span]) -> tuple[int, int, int]:
    """How many words are lost, doubled and cut by these utterances."""
    starts_U, ends_U = np.array(spans).T
    inside_WU = np.array([[(start + end) / 2] for start, end in words])
    num_W = ((starts_U <= inside_WU) & (inside_WU < ends_U)).sum(1)
    borders = np.concatenate([starts_U, ends_U])
    cut = sum(bool(((borders > start + EDGE_MS) & (borders < end - EDGE_MS)).any()) for start, end in words)
    return int((num_W == 0).sum()), int((num_W > 1).sum()), cut


def aligned_words(clips: Path, begins_ms: Mapping[str, float]) -> Iterator[Span]:
    """When each word of the clips is said, in ms of the recording; clips that cannot be aligned are left out."""
    import pocketsphinx

    decoder = pocketsphinx.Decoder(lm=None, loglevel="FATAL")
    manifest = map(json.loads, (clips.parent / "manifest.jsonl").read_text().splitlines())
    for row in manifest:
        tokens = row["text"].lower().split()
        stem = Path(row["audio"]).stem
        if stem not in begins_ms or any(decoder.lookup_word(token) is None for token in tokens):
            continue
        samples_T = codec.decode((clips.parent / row["audio"]).read_bytes()).samples_T
        decoder.set_align_text(" ".join(tokens))
        decoder.start_utt()
        decoder.process_raw(samples_T.tobytes(), full_utt=True)
        decoder.end_utt()
        segments = [segment for segment in decoder.seg() or () if not segment.word.startswith(("<", "[", "(", "+"))]
        if [segment.word.partition("(")[0] for segment in segments] == tokens:
            begin = begins_ms[stem]
            frames = ((segment.start_frame, segment.end_frame + 1) for segment in segments)
            yield from ((begin + start * FRAME_MS, begin + end * FRAME_MS) for start, end in frames)


def mean_seconds(figures: IndexFigures) -> float:
    """Mean length of an utterance."""
    return figures.hours * 3600 / figures.utterances


if __name__ == "__main__":
    main()
