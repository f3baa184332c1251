"""The peer: `transformers.Trainer` as its example for speech and CTC, `run_speech_recognition_ctc.py`, uses it.

Padding and features are those of `ParakeetFeatureExtractor`, the loss is the one that the model computes when it is
given labels, batches have a fixed number of utterances, of like lengths (`group_by_length`) or as chance has it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from steps import OverError, StepListener
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from voxstill.core.records import RATE_HZ
from voxstill.nn.log_mel import LogMel, mel_filters
from voxstill.nn.mel import NUM_MELS

FOREVER = 10**9


def check() -> None:
    """Say what is missing, if anything is."""
    if find_spec("accelerate") is None:
        sys.exit("transformers.Trainer needs another package: pip install -e '.[bench]'")


def extractor() -> Any:
    """The features that the student's folder describes."""
    module = import_module("transformers.models.parakeet.feature_extraction_parakeet")
    if "librosa" not in vars(module):  # older versions take these filters from there; its many packages change nothing
        filters = SimpleNamespace(mel=lambda **_: mel_filters().numpy())
        vars(module)["librosa"] = SimpleNamespace(filters=filters)
    options = {name: value for name, value in LogMel().extractor.items() if name != "feature_extractor_type"}
    return module.ParakeetFeatureExtractor(**options)


class Files(Dataset[dict[str, Any]]):
    """Audio files with labels, decoded when they are asked for."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[Sequence[int]]) -> None:
        self.paths, self.labels = paths, labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> dict[str, Any]:
        samples_T, _ = soundfile.read(self.paths[i], dtype="float32")
        return {"audio": samples_T, "labels": self.labels[i]}


def extract(path: Path, audio: Iterable[NDArray[np.floating[Any]]]) -> None:
    """Write the features of utterances into one file, and beside it where each ends."""
    extracts, ends = extractor(), [0]
    with path.open("wb") as file:
        for samples_T in audio:
            output = extracts(samples_T, sampling_rate=RATE_HZ, return_tensors="np")
            features_FD = output["input_features"][0][output["attention_mask"][0].astype(bool)]
            file.write(features_FD.astype(np.float32).tobytes())
            ends.append(ends[-1] + len(features_FD))
    path.with_suffix(".json").write_text(json.dumps(ends))


class Extracted(Dataset[dict[str, Any]]):
    """Features of `extract`, mapped: utterance i has those at place `which[i]`."""

    def __init__(self, path: Path, which: Sequence[int], labels: Sequence[Sequence[int]]) -> None:
        self.ends: list[int] = json.loads(path.with_suffix(".json").read_text())
        self.features_ND = np.memmap(path, np.float32, "r", shape=(self.ends[-1], NUM_MELS))
        self.which, self.labels = which, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        at = self.which[i]
        return {"input_features": self.features_ND[self.ends[at] : self.ends[at + 1]], "labels": self.labels[i]}


@dataclass
class Collate:
    """Pads a batch to its longest; labels end in blanks, which the loss does not count."""

    extractor: Any
    blank_id: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch of the model, and how many feature frames of it are not padding."""
        if "audio" in rows[0]:
            output = self.extractor([row["audio"] for row in rows], sampling_rate=RATE_HZ, return_tensors="pt")
        else:
            padded = [{"input_features": row["input_features"]} for row in rows]
            output = self.extractor.pad(padded, padding="longest", return_tensors="pt")
        labels = [torch.tensor(row["labels"]) for row in rows]
        mask_BF = output["attention_mask"].bool()
        return {
            "input_features": output["input_features"],
            "attention_mask": mask_BF,
            "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=self.blank_id),
            "num_frames": int(mask_BF.sum()),
        }


class Timed:
    """Items of an iterator, and the seconds that they were waited for."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items, self.seconds = items, 0.0

    def __iter__(self) -> Timed:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        try:
            return next(self.items)
        finally:
            self.seconds += time.perf_counter() - start


class Peer(Trainer):  # type: ignore[misc]
    """The trainer, with lengths where `datasets` would have a column of them."""

    def __init__(
        self,
        *,
        lengths: Sequence[int] | None,
        listener: StepListener,
        schedule: Callable[[], float] | None,
        **arguments: object,
    ):
        self.lengths, self.listener, self.schedule = lengths, listener, schedule
        self.flops_per_s = 0.0
        """Floating-point operations for a second of padded audio; 0 until the first step has been counted."""
        super().__init__(**arguments)

    def _get_train_sampler(self, *_: object) -> Any:
        """What `group_by_length` gives; versions differ in how they are asked for it. Without lengths, the default."""
        if self.lengths is None:
            return super()._get_train_sampler()
        return LengthGroupedSampler(self.args.train_batch_size, lengths=list(self.lengths))

    def get_batch_samples(self, epoch_iterator: Iterator[dict[str, Any]], *arguments: object, **options: object) -> Any:
        """The batches of a step."""
        self.listener.before_batches()
        timed = Timed(epoch_iterator)
        batches, num = super().get_batch_samples(timed, *arguments, **options)
        for batch in batches:
            frames = batch["input_features"].shape
            self.padded_s = frames[0] * frames[1] / 100
            self.listener.after_batch(batch.pop("num_frames") / 100, self.padded_s, timed.seconds)
        return batches, num

    def training_step(self, *arguments: object, **options: object) -> Any:
        """A step; the operations of the first are counted."""
        if self.flops_per_s:
            return super().training_step(*arguments, **options)
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            loss = super().training_step(*arguments, **options)
        self.flops_per_s = counter.get_total_flops() / self.padded_s
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The schedule of this peer, where there is one: a factor of the learning rate at this moment."""
        if self.schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        now = self.schedule
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda _: now())
        return self.lr_scheduler


def train(
    model: PreTrainedModel,
    data: Dataset[dict[str, Any]],
    lengths: Sequence[int] | None,
    blank_id: int,
    folder: Path,
    listener: StepListener,
    *,
    schedule: Callable[[], float] | None = None,
    **arguments: object,
) -> Peer:
    """Train until `listener` raises OverError; `arguments` are those of `TrainingArguments`."""
    check()
    training_arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=FOREVER,
        bf16=torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,  # there are none, and the count of frames is ours
        **arguments,
    )
    peer = Peer(
        model=model,
        args=training_arguments,
        train_dataset=data,
        data_collator=Collate(extractor(), blank_id),
        lengths=lengths,
        listener=listener,
        schedule=schedule,
    )
    try:
        peer.train()
    except OverError:
        return peer
    raise AssertionError("the training ended by itself")
