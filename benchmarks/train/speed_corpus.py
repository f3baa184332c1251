"""The corpus of `speed.py`: shards, and the same FLAC bytes as files; of synthetic speech or of a manifest."""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_SHARD = 400
MEAN_S, SHORTEST_S, LONGEST_S = 7.0, 1.0, 20.0
WORDS, WORDS_PER_S = 1000, 2.5


def make(folder: Path, args: argparse.Namespace) -> float:
    """Shards, and the same FLAC bytes as files with their labels; their hours.

    A tar is written once and linked as often as there are shards: what is trained on does not care.
    """
    from voxstill.audio import codec
    from voxstill.core import pcm
    from voxstill.nn.log_mel import feature_frames, output_frames
    from voxstill.storage import shard_format, tables
    from voxstill.storage.figures import ShardFigures
    from voxstill.storage.shard_format import Sample
    from voxstill.storage.store import Store
    from voxstill.text import tokenizer
    from voxstill.text.normalize import normalizer

    normalize = normalizer("basic")
    spoken = list(real(Path(args.manifest), args.utterances) if args.manifest else synthetic(args.utterances))
    units = "bpe" if args.manifest else "word"
    vocabulary = tokenizer.train((normalize(text) for _, text in spoken), units, 200)  # type: ignore[arg-type]
    clips: list[tuple[Sample, bytes]] = []
    for samples_T, text in spoken:
        ids, _ = vocabulary.encode(normalize(text))
        repeats = sum(one == two for one, two in itertools.pairwise(ids))
        if not ids or len(samples_T) > args.budget_s * 16_000:
            continue
        if output_frames(feature_frames(len(samples_T))) < len(ids) + repeats:  # CTC could not learn it
            continue
        name = f"u{len(clips):06}"
        (folder / "audio").mkdir(exist_ok=True)
        data = codec.encode(samples_T, "flac")
        (folder / f"audio/{name}.flac").write_bytes(data)
        sample = Sample(id=name, duration_ms=pcm.samples_to_ms(len(samples_T)), num_samples=len(samples_T), text=text)
        clips.append((sample, data))
    store, index, hours, rows = Store(str(folder)), 0, 0.0, list[dict[str, Any]]()
    parts = [clips[first : first + PER_SHARD] for first in range(0, len(clips), PER_SHARD)]
    sidecars: list[list[Sample]] = []
    (folder / "shards/r").mkdir(parents=True)
    while len(rows) < args.utterances:
        part, path = parts[index % len(parts)], folder / "shards/r" / shard_format.tar_name(index)
        if index < len(parts):
            with path.open("wb") as file:
                sidecars.append(shard_format.write(file, part))
        else:
            os.link(folder / "shards/r" / shard_format.tar_name(index % len(parts)), path)
        sidecar = tables.to_parquet(sidecars[index % len(parts)], Sample)
        store.create(f"shards/r/{shard_format.sidecar_name(index)}", sidecar)
        hours += pcm.samples_to_s(sum(sample.num_samples for sample, _ in part)) / 3600
        rows += [
            {"audio": f"audio/{sample.id}.flac", "num_samples": sample.num_samples, "text": sample.text}
            for sample, _ in part
        ]
        index += 1
        if args.manifest and index == len(parts):
            break
    shard_format.finish(store, "shards/r", ShardFigures(recipe="r", shards=index, utterances=len(rows)))
    (folder / "corpus.json").write_text(json.dumps({"units": units, "rows": rows}))
    return hours


def synthetic(num: int) -> Iterator[tuple[NDArray[np.int16], str]]:
    """Something like speech: a voice with harmonics that comes and goes four times a second, in noise; random words."""
    random = np.random.default_rng(0)
    time_T = np.arange(120 * 16_000) / 16_000
    pitch_T = 140 + 30 * np.sin(2 * np.pi * 0.3 * time_T)
    phase_T = np.cumsum(2 * np.pi * pitch_T / 16_000)
    voice_T = sum(np.sin(k * phase_T) / k for k in range(1, 12))
    loud_T = np.maximum(np.sin(2 * np.pi * 4 * time_T), 0) * (np.sin(2 * np.pi * 0.2 * time_T) > -0.8)
    speech_T = (4000 * voice_T * loud_T + random.normal(0, 20, len(time_T))).astype(np.int16)
    deviation = 0.6
    for _ in range(min(num, PER_SHARD)):
        seconds = float(np.clip(random.lognormal(np.log(MEAN_S) - deviation**2 / 2, deviation), SHORTEST_S, LONGEST_S))
        length = round(seconds * 16_000)
        start = int(random.integers(0, len(speech_T) - length))
        word_ids = random.integers(0, WORDS, max(1, round(seconds * WORDS_PER_S)))
        yield speech_T[start : start + length], " ".join(f"w{word_id}" for word_id in word_ids)


def real(manifest: Path, num: int) -> Iterator[tuple[NDArray[np.int16], str]]:
    """The audio and the texts of a manifest, at most so many."""
    from voxstill.audio import codec

    for line in manifest.read_text().splitlines()[:num]:
        row = json.loads(line)
        yield codec.decode((manifest.parent / row["audio"]).read_bytes()).samples_T, row["text"]
