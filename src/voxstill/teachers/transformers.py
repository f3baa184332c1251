"""A student, or any Parakeet folder of its kind, as a recogniser: it labels, it is judged and it transcribes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from voxstill import world
from voxstill.config import Augment, Section, option
from voxstill.errors import ConfigError
from voxstill.records import RATE_HZ, Hypothesis
from voxstill.teachers.teacher import Clip, Heard

if TYPE_CHECKING:
    import torch

    from voxstill.nn.hearing import Hearing


class TransformersOptions(Section):
    """Options of the teacher `transformers`."""

    model: str = option()
    """Folder of a student: the `model` folder of an experiment, or the experiment folder itself."""
    batch_ms: int = option(30_000, unit="ms", ge=1000)
    """Most audio heard at once, padding included."""
    language: str | None = option(None)
    """Language of the audio, for a Whisper student that knows many."""
    threads: int = option(1, unit="threads", ge=1)
    """CPU threads of the model."""


class TransformersTeacher:
    """A CTC or transducer model from a Hugging Face folder; hears clips in batches of like length, greedily decoded."""

    Options: ClassVar[type[Section]] = TransformersOptions
    reads_texts: ClassVar[bool] = False

    def __init__(self, options: TransformersOptions) -> None:
        self.options = options
        self.folder = model_folder(options.model)
        self._model: Any = None

    def revision(self) -> str:
        """The hash of the weights and the vocabulary."""
        digest = hashlib.sha256()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            digest.update((self.folder / name).read_bytes())
        return digest.hexdigest()[:16]

    def open(self) -> None:
        """Load the weights to the GPU where there is one; DataError where the folder holds no student."""
        import torch

        from voxstill.nn import students
        from voxstill.text.pretrained import Pretrained
        from voxstill.text.tokenizer import Vocabulary

        torch.set_num_threads(self.options.threads)
        world.keep_memory()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = students.load(self.folder).eval().to(self._device)
        self._spelling: Vocabulary | Pretrained
        if students.kind_of(self._model) == "seq2seq":
            self._spelling = Pretrained(str(self.folder), self.options.language, self._model.config.vocab_size)
        else:
            self._spelling = Vocabulary.load(self.folder)
        self._hearing = students.hearing(self._model.config, Augment(), checkpoint=str(self.folder))
        self._hearing.move(self._device)

    def num_parameters(self) -> int:
        """Weights of the open model."""
        return sum(weight.numel() for weight in self._model.parameters())

    def hear(self, clips: Sequence[Clip]) -> list[Heard]:
        """One answer for each clip, in order; the confidence is the mean log-probability of its tokens."""
        heard = [Heard(error="no audio", finish="failed")] * len(clips)
        lengths, most = [len(clip.samples_T) for clip in clips], self._hearing.longest_ms
        if most is not None:  # it takes so much of each clip, silence behind the speech
            for i, num in enumerate(lengths):
                if num > most * RATE_HZ // 1000:
                    heard[i] = Heard(error=f"longer than the {most // 1000} s heard at once", finish="failed")
                lengths[i] = 0 if heard[i].error != "no audio" or num < RATE_HZ // 100 else most * RATE_HZ // 1000
        for members in batches_by_length(lengths, self.options.batch_ms):
            for i, answer in zip(members, self._hear_batch([clips[i] for i in members]), strict=True):
                heard[i] = answer
        return heard

    def close(self) -> None:
        """Drop the weights."""
        self._model = None

    def _hear_batch(self, clips: Sequence[Clip]) -> list[Heard]:
        import torch

        lengths = [len(clip.samples_T) for clip in clips]
        audio_BT = np.zeros((len(clips), max(lengths)), np.int16)
        for row_T, clip in zip(audio_BT, clips, strict=True):
            row_T[: len(clip.samples_T)] = clip.samples_T
        with torch.inference_mode():
            audio, len_B = (torch.as_tensor(each).to(self._device) for each in (audio_BT, lengths))
            ids = [clip.utterance.id for clip in clips]
            hypotheses = said(self._model, self._hearing, self._spelling, audio, len_B, ids)
        return [
            Heard(text=each.text, mean_logprob=each.score, num_tokens=len(each.token_ids), words=each.words)
            for each in hypotheses
        ]


def said(
    model: Any,
    hearing: Hearing,
    spelling: Any,
    audio_BT: torch.Tensor,
    audio_len_B: torch.Tensor,
    ids: Sequence[str],
) -> list[Hypothesis]:
    """What a student says of each utterance, greedily decoded, in order."""
    import torch

    from voxstill.decode import ctc, seq2seq, transducer
    from voxstill.nn import students

    inputs, len_B = hearing.plain(audio_BT, audio_len_B)
    if students.kind_of(model) == "seq2seq":
        config = model.config
        found = seq2seq.greedy(
            students.step_of(model, inputs),
            len(ids),
            prefix=spelling.prefix,
            end_id=spelling.end_id,
            longest=config.max_target_positions - len(spelling.prefix),
            device=audio_BT.device,
        )
        return [
            Hypothesis(id=id_, text=spelling.decode(tokens), score=score, token_ids=tuple(tokens))
            for id_, (tokens, score) in zip(ids, found, strict=True)
        ]
    named: dict[str, Any] = {"ids": ids, "pieces": spelling.pieces, "frame_ms": hearing.frame_ms}
    if students.kind_of(model) == "ctc":
        logits_BFV, out_B = students.logits(model, inputs, len_B)
        return ctc.greedy(logits_BFV.float().log_softmax(-1), out_B.tolist(), **named)
    nothing_B0 = torch.zeros(len(ids), 0, dtype=torch.long, device=audio_BT.device)
    encoded_BFP, out_B, _ = students.transduced(model, inputs, len_B, nothing_B0)
    return transducer.greedy(
        encoded_BFP,
        out_B,
        predict=functools.partial(students.predict, model),
        joint=functools.partial(students.joint, model),
        durations=students.durations(model),
        **named,
    )


def batches_by_length(num_samples: Sequence[int], batch_ms: int) -> list[list[int]]:
    """Positions in batches of like length, padded to at most `batch_ms` (a longer clip goes alone); no clip is lost.

    Clips shorter than one output frame are left out: nothing can be heard in them.
    """
    order = sorted((n, i) for i, n in enumerate(num_samples) if n >= RATE_HZ // 100)
    batches: list[list[int]] = []
    for n, i in order:
        if batches and n * (len(batches[-1]) + 1) <= batch_ms * RATE_HZ // 1000:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def model_folder(path: str) -> Path:
    """The folder with the weights, for an experiment folder or the model folder in it; ConfigError where absent."""
    for folder in (Path(path), Path(path) / "model"):
        if (folder / "model.safetensors").is_file() and (folder / "config.json").is_file():
            return folder
    raise ConfigError(
        f"there is no student in `{path}`",
        why="neither it nor a folder `model` in it holds config.json and model.safetensors",
        fix="give an experiment folder that has finished training",
    )
