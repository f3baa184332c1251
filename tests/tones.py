"""A language of four tones, which a student learns in seconds."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.config import Augment, Train
from voxstill.core.records import RATE_HZ, Batch, Split, UtteranceInfo, Word
from voxstill.nn import students
from voxstill.nn.frontends import LogMelFrontend
from voxstill.nn.log_mel import LogMel, output_frames
from voxstill.storage import shard_format, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.tasks.ctc import CtcTask
from voxstill.tasks.transducer import TransducerTask
from voxstill.text.tokenizer import Vocabulary
from voxstill.training import optim
from voxstill.training.task import Loss, StepContext, Task

PLAIN = Augment(noise_prob=0.0, tempo=0.0, vtlp=0.0, time_masks=0, mel_masks=0)
PITCH_HZ = {"ba": 400, "du": 900, "ko": 1700, "mi": 3000}
WORD_MS, PAUSE_MS = 240, 120
TEXTS = ("ba du ko", "mi ba", "ko du mi ba", "du mi ko")


def speak(text: str, seed: int = 0) -> tuple[NDArray[np.int16], tuple[Word, ...]]:
    """Samples and word times of a text: each word is a tone, with a pause around it, in faint noise."""
    words: list[Word] = []
    at = PAUSE_MS
    for spelled in text.split():
        words.append(Word(text=spelled, start_ms=at, end_ms=at + WORD_MS))
        at += WORD_MS + PAUSE_MS
    samples_T = np.random.default_rng(seed).normal(0, 30, pcm.ms_to_samples(at))
    for word in words:
        start, end = pcm.ms_to_samples(word.start_ms), pcm.ms_to_samples(word.end_ms)
        samples_T[start:end] += 6000 * np.sin(2 * np.pi * PITCH_HZ[word.text] * np.arange(end - start) / RATE_HZ)
    return samples_T.astype(np.int16), tuple(words)


def batch_of(vocabulary: Vocabulary, texts: Sequence[str] = TEXTS, *, timed: bool = True, seed: int = 0) -> Batch:
    """The texts as one batch of a student."""
    spoken = [speak(text, seed + i) for i, text in enumerate(texts)]
    encoded = [vocabulary.encode(text, words if timed else ()) for text, (_, words) in zip(texts, spoken, strict=True)]

    def padded(rows: Iterable[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)

    return Batch(
        ids=tuple(f"u{i}" for i in range(len(texts))),
        audio_BT=padded((torch.from_numpy(samples_T) for samples_T, _ in spoken), 0),
        audio_len_B=torch.tensor([len(samples_T) for samples_T, _ in spoken]),
        tokens_BU=padded((torch.tensor(ids) for ids, _ in encoded), -1),
        token_len_B=torch.tensor([len(ids) for ids, _ in encoded]),
        times_BU2=padded((torch.tensor(times) for _, times in encoded), -1),
        tempo_B=torch.ones(len(texts)),
        weight_B=torch.ones(len(texts)),
    )


def context_of(batch: Batch, progress: float = 0.0) -> StepContext:
    """The context of a step that consists of this batch alone."""
    frames_B = output_frames(batch.audio_len_B // 160)
    return StepContext(progress, int(batch.token_len_B.sum()), int(frames_B.sum()))


def loss_of(task: Task, model: Any, batch: Batch, context: StepContext, generator: torch.Generator) -> Loss:
    """The loss of the model on a batch, as the task computes it."""
    return task.loss(model, task.prepare(batch, context.progress, generator), context)


def overfitted_student(vocabulary: Vocabulary, *, timed: bool, num_steps: int) -> tuple[Any, list[float]]:
    """A tiny student after some steps on `TEXTS` alone, and the loss of each step."""
    cfg = Train(warmup=0.0, hold=1.0)
    task, batch = CtcTask(vocabulary, cfg, PLAIN), batch_of(vocabulary, timed=timed)
    model = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0)
    optimizer = optim.make_optimizer(model, cfg)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = loss_of(task, model, batch, context_of(batch, step / num_steps), torch.Generator().manual_seed(step))
        loss.value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip_norm)
        optimizer.step()
        losses.append(float(loss.value.detach()))
    return model.eval(), losses


def overfitted_streaming_student(vocabulary: Vocabulary, num_steps: int) -> Any:
    """A streaming student of half of the layers of a tiny one, after some steps on `TEXTS` alone."""
    cfg = Train(warmup=0.0, hold=1.0, lr=8e-3, optimizer="muon", auxiliary_ctc=1.0)  # the loss is small after 65 steps
    frontend = LogMelFrontend(PLAIN, None, LogMel(normalization="none"), is_streaming=True)
    task, batch = TransducerTask(vocabulary, cfg, PLAIN, frontend), batch_of(vocabulary)
    new: dict[str, Any] = {"kind": "rnnt", "normalization": "none", "streaming": True}
    shape = students.SHAPES["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(students.SHAPES, "tiny", dataclasses.replace(shape, layers=shape.layers // 2))
        model = students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0, **new)
    optimizer = optim.make_optimizer(model, cfg)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is heard ahead is drawn
        for step in range(num_steps):
            optimizer.zero_grad()
            context = context_of(batch, step / num_steps)
            loss = loss_of(task, model, batch, context, torch.Generator().manual_seed(step))
            loss.value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip_norm)
            optimizer.step()
    return model.eval()


def write_shards(store: Store, prefix: str, counts: dict[Split, int], seed: int = 0) -> None:
    """Finished shards of random texts, one for each split."""
    random = np.random.default_rng(seed)
    total = 0
    for index, (split, count) in enumerate(counts.items()):
        pairs = []
        for i in range(count):
            text = " ".join(random.choice(list(PITCH_HZ), size=random.integers(1, 4)))
            samples_T, words = speak(text, total + i)
            sample = Sample(
                id=f"{split}/{i}",
                split=split,
                duration_ms=pcm.samples_to_ms(len(samples_T)),
                num_samples=len(samples_T),
                text=text,
                words=words,
            )
            pairs.append((sample, codec.encode(samples_T, "flac")))
        total += count
        file = io.BytesIO()
        rows = shard_format.write(file, pairs)
        store.create(f"{prefix}/{shard_format.tar_name(index)}", file.getvalue())
        store.create(f"{prefix}/{shard_format.sidecar_name(index)}", tables.to_parquet(rows, Sample))
    figures = ShardFigures(recipe=prefix.rpartition("/")[2], shards=len(counts), utterances=total)
    shard_format.finish(store, prefix, figures)


HUMS_HZ = {"ann": 250, "bob": 620, "cas": 1250, "dee": 2300, "eve": 3900, "fay": 5600}
"""The hum beneath its words is what tells a speaker."""


def voiced(word: str, speaker: str, seed: int) -> NDArray[np.int16]:
    """One word of a voice: the tone of the word for a while, and the hum of the speaker all along."""
    random = np.random.default_rng(seed)
    samples_T, _ = speak(word, seed)
    samples_T = samples_T[: len(samples_T) - int(random.integers(0, 1500))]
    place_T = np.arange(len(samples_T))
    hum_T = 3000 * np.sin(2 * np.pi * HUMS_HZ[speaker] * (place_T / RATE_HZ + random.random()))
    mixed_T: NDArray[np.int16] = (samples_T + hum_T).astype(np.int16)
    return mixed_T


def write_voices(
    store: Store, prefix: str, speakers: dict[Split, Sequence[str]], times: int, *, unknown: int = 0
) -> None:
    """Finished shards of each word by each speaker of a split, `times` over, and `unknown` more without a speaker."""
    total = 0
    for index, (split, voices) in enumerate(speakers.items()):
        pairs = []
        rows = [(word, voice) for _ in range(times) for word in PITCH_HZ for voice in voices]
        for i, (word, voice) in enumerate(rows + rows[:unknown]):
            samples_T = voiced(word, voice, total + i)
            sample = Sample(
                id=f"{split}/{i}",
                split=split,
                duration_ms=pcm.samples_to_ms(len(samples_T)),
                num_samples=len(samples_T),
                text=word,
                info=UtteranceInfo(speaker=voice if i < len(rows) else None),
            )
            pairs.append((sample, codec.encode(samples_T, "flac")))
        total += len(pairs)
        file = io.BytesIO()
        written = shard_format.write(file, pairs)
        store.create(f"{prefix}/{shard_format.tar_name(index)}", file.getvalue())
        store.create(f"{prefix}/{shard_format.sidecar_name(index)}", tables.to_parquet(written, Sample))
    figures = ShardFigures(recipe=prefix.rpartition("/")[2], shards=len(speakers), utterances=total)
    shard_format.finish(store, prefix, figures)
