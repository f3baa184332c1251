"""Small students of every kind as model folders, with random weights: what they write is noise, and the same noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch

from checkpoints import write_whisper_checkpoint
from narrow_models import narrow
from tones import PLAIN
from voxstill.nn import students
from voxstill.nn.frontends import WhisperFrontend
from voxstill.nn.log_mel import LogMel
from voxstill.text import tokenizer

TEXTS = ("ba du ko", "mi ba", "ko du mi ba", "du mi ko")
Normalization = Literal["utterance", "level"]


def write_student(folder: Path, kind: students.Kind, normalization: Normalization) -> Path:
    """A narrow Parakeet whose tokens are not all the blank."""
    vocabulary = tokenizer.train(TEXTS, "word", 9)
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        model = students.build(
            "tiny", len(vocabulary.pieces), dropout=0.0, seed=5, kind=kind, normalization=normalization
        ).eval()
    with torch.no_grad():  # further apart than rounding, and blanks among them
        head = model.ctc_head if kind == "ctc" else model.joint.head
        head.weight.mul_(20)
    model.save_pretrained(folder)
    vocabulary.save(folder, LogMel(normalization=normalization).extractor, kind)
    return folder


def write_whisper(folder: Path) -> Path:
    """A small Whisper that takes 30 s at once and writes the same token until it may write no more."""
    import transformers

    write_whisper_checkpoint(folder, TEXTS)
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(WhisperFrontend(PLAIN).extractor)))
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    token = transformers.WhisperTokenizerFast.from_pretrained(folder).encode("ba", add_special_tokens=False)[0]
    with torch.no_grad():
        model.model.decoder.layer_norm.bias.copy_(1000 * model.proj_out.weight[token])
    model.save_pretrained(folder)
    return folder
