"""Faults of a corpus: voices in two splits, silence, clipping, copies, labels at an impossible rate."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doctor_faults.fault import Answer, Fault, doctor
from tones import PITCH_HZ, speak
from voxstill.audio import codec

NUM = 100
SPLITS = ("train", "train", "train", "dev", "test")


class CorpusFault(Fault):
    """A manifest of tones, with one fault until it is mended; indexed and labelled with its own texts."""

    is_mended = False

    @contextlib.contextmanager
    def induced(self) -> Iterator[None]:
        self.make()
        yield

    def ask(self) -> Answer:
        return doctor(self.work)

    @contextlib.contextmanager
    def mended(self, fix: str) -> Iterator[None]:
        self.is_mended = True
        self.make()
        yield

    @property
    def work(self) -> Path:
        """Another folder once it is mended, as another source is another corpus."""
        return self.folder / ("mended" if self.is_mended else "work")

    def make(self) -> None:
        """Write the recordings and their manifest, and index, label and filter them."""
        import voxstill

        source = self.folder / ("source-mended" if self.is_mended else "source")
        source.mkdir()
        random = np.random.default_rng(0)
        rows = []
        for i in range(NUM):
            text = " ".join(random.choice(list(PITCH_HZ), size=random.integers(2, 5)))
            samples_T, _ = speak(text, i)
            row = {"id": f"u{i}", "text": text, "speaker": f"s{i % 5}", "language": "en", "split": SPLITS[i % 5]}
            written = [(row, samples_T)] if self.is_mended else self.faulty(i, row, samples_T)
            for number, (changed, changed_T) in enumerate(written):
                ending = ("wav", "flac")[number]
                (source / f"{i}.{ending}").write_bytes(codec.encode(changed_T, ending))
                rows.append({**changed, "id": f"{changed['id']}-{number}", "audio": f"{i}.{ending}"})
        (source / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        overrides = (f"work={self.work}", f"source.uri={source}/manifest.jsonl", "teacher.name=reference")
        cfg = voxstill.load_config(None, *overrides, "engine=inline")
        voxstill.index(cfg)
        voxstill.label(cfg)
        voxstill.filter(cfg)

    def faulty(
        self, i: int, row: dict[str, Any], samples_T: NDArray[np.int16]
    ) -> list[tuple[dict[str, Any], NDArray[np.int16]]]:
        """What stands in the place of the i-th recording."""
        raise NotImplementedError


class SpeakersInTwoSplits(CorpusFault):
    """Splits that were drawn by utterance."""

    name = "speakers in two splits"
    check = "speakers"

    def faulty(
        self, i: int, row: dict[str, Any], samples_T: NDArray[np.int16]
    ) -> list[tuple[dict[str, Any], NDArray[np.int16]]]:
        return [({**row, "split": SPLITS[i // 5 % 5]}, samples_T)]


class SilentAudio(CorpusFault):
    """A device that was off for every eighth recording: nothing but the noise of the converter."""

    name = "silent audio"
    check = "silence"

    def faulty(
        self, i: int, row: dict[str, Any], samples_T: NDArray[np.int16]
    ) -> list[tuple[dict[str, Any], NDArray[np.int16]]]:
        noise_T = np.random.default_rng(i).integers(-3, 4, len(samples_T)).astype(np.int16)
        return [(row, noise_T if i % 8 == 0 else samples_T)]


class ClippedAudio(CorpusFault):
    """A gain that is too high for every fourth recording."""

    name = "clipping"
    check = "clipping"

    def faulty(
        self, i: int, row: dict[str, Any], samples_T: NDArray[np.int16]
    ) -> list[tuple[dict[str, Any], NDArray[np.int16]]]:
        loud_T = (samples_T.astype(np.int64) * 12).clip(-32768, 32767).astype(np.int16)
        return [(row, loud_T if i % 4 == 0 else samples_T)]


class CopiesInTestSplit(CorpusFault):
    """Recordings of training that are in the test split again, as FLAC."""

    name = "copies in the test split"
    check = "copies"

    def faulty(
        self, i: int, row: dict[str, Any], samples_T: NDArray[np.int16]
    ) -> list[tuple[dict[str, Any], NDArray[np.int16]]]:
        is_copied = row["split"] == "train" and i % 10 == 0
        return [(row, samples_T), *([({**row, "split": "test", "speaker": None}, samples_T)] if is_copied else [])]


class ImpossibleRates(CorpusFault):
    """Texts of other recordings: a sentence where a word was said."""

    name = "texts of other audio"
    check = "label rate"

    def faulty(
        self, i: int, row: dict[str, Any], samples_T: NDArray[np.int16]
    ) -> list[tuple[dict[str, Any], NDArray[np.int16]]]:
        text = " ".join(f"word{k} of{k} another{k} text{k}" for k in range(8))
        return [({**row, "text": text} if i % 3 == 0 else row, samples_T)]


FAULTS: list[type[Fault]] = [SpeakersInTwoSplits, SilentAudio, ClippedAudio, CopiesInTestSplit, ImpossibleRates]
