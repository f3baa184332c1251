"""CTC models and transducers as recognisers, students and those of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from voxstill.core.config import Augment, Decode
from voxstill.core.errors import ConfigError
from voxstill.core.records import RATE_HZ, Hypothesis
from voxstill.decoding import ctc
from voxstill.decoding.batch import beam_search, decode_batch
from voxstill.decoding.loaded import dtype_of
from voxstill.decoding.options import GENERATION, RecognizerOptions
from voxstill.nn import checkpoints, students
from voxstill.text.pretrained import CheckpointVocabulary


class FrameModel:
    """A CTC model or a transducer; a `LoadedModel`. ConfigError where options are set that only `generate` knows."""

    max_duration_ms: int | None = None
    takes_batches = True

    def __init__(
        self, folder: Path, options: RecognizerOptions, decoding: Decode, device: torch.device, section: str
    ) -> None:
        for name in (name for name in (*GENERATION, "language") if getattr(options, name) is not None):
            raise ConfigError(
                f"`{section}{name}` has no use",
                why=f"`{options.model}` says what each moment of the audio is and writes no text by itself",
                fix=f"take `{section}{name}` away",
            )
        self.model = checkpoints.load(folder).eval().to(device, dtype_of(options, device))
        self._tokenizer = CheckpointVocabulary(folder, students.blank_id(self.model), self.model.config.vocab_size)
        self._frontend = checkpoints.make_frontend(self.model.config, Augment(), checkpoint=str(folder))
        self._frontend.move(device)
        self._beam = beam_search(decoding, self._tokenizer.pieces)
        if self._beam is not None:  # compiled now, and not while it is timed
            silence_BT = torch.zeros(1, RATE_HZ, dtype=torch.int16, device=device)
            with torch.inference_mode():
                self.transcribe(silence_BT, torch.tensor([RATE_HZ], device=device), [""])

    def transcribe(self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, ids: Sequence[str]) -> list[Hypothesis]:
        """Transcribe one batch; return one Hypothesis per utterance, in order."""
        return decode_batch(self.model, self._frontend, self._tokenizer, audio_BT, audio_len_B, ids, self._beam)


class CtcModel(FrameModel):
    """A CTC model, which can also score a text that is given: forced alignment, summed over all alignments."""

    def log_likelihoods(
        self, audio_BT: torch.Tensor, audio_len_B: torch.Tensor, texts: Sequence[str]
    ) -> list[float | None]:
        """Return the log-probability per token of each text, the best of its spellings; None where it has none."""
        inputs, len_B = self._frontend.extract(audio_BT, audio_len_B)
        logits_BFV, frames_B = students.logits(self.model, inputs.to(self.model.dtype), len_B)
        tokenized = [(b, ids) for b, text in enumerate(texts) for ids in self._tokenizer.encodings(text)]
        rows = [b for b, _ in tokenized]
        log_probs = ctc.mean_log_likelihoods(
            logits_BFV.float().log_softmax(-1)[rows],
            frames_B[rows],
            [ids for _, ids in tokenized],
            self._tokenizer.blank_id,
        )
        best: list[float | None] = [None] * len(texts)
        for b, log_prob in zip(rows, log_probs, strict=True):
            best[b] = max((value for value in (best[b], log_prob) if value is not None), default=None)
        return best
