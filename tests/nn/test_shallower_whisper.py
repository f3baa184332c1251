"""A smaller Whisper of some of the layers of a large one, which runs in `transformers` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpoints import write_whisper_checkpoint
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.nn import checkpoints
from voxstill.training.check import check


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper of five and four layers."""
    return write_whisper_checkpoint(tmp_path_factory.mktemp("whisper"), ["ba du ko mi"], layers=(5, 4))


def student_of(folder: Path, encoder_layers: int | None = None, decoder_layers: int | None = None) -> Any:
    return checkpoints.from_checkpoint(
        str(folder),
        0,
        keep_vocabulary=False,
        dropout=None,
        seed=0,
        kind="seq2seq",
        freeze_convolutions=True,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
    )


def logits(model: Any) -> torch.Tensor:
    features_BDF = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output: torch.Tensor = model.eval()(features_BDF, decoder_input_ids=torch.tensor([[1, 2, 3]])).logits
    return output


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ((3, 2), ([0, 2, 4], [0, 3])),
        ((None, 1), ([0, 1, 2, 3, 4], [3])),
        ((2, None), ([0, 4], [0, 1, 2, 3])),
        ((4, 3), ([0, 1, 3, 4], [0, 2, 3])),
    ],
)
def test_layers_are_copied_at_even_distances(
    folder: Path, tmp_path: Path, wanted: tuple[int | None, int | None], kept: tuple[list[int], list[int]]
) -> None:
    from transformers import WhisperForConditionalGeneration

    student = student_of(folder, *wanted)
    assert (student.config.encoder_layers, student.config.decoder_layers) == tuple(map(len, kept))
    plain: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    for part, places in zip((plain.model.encoder, plain.model.decoder), kept, strict=True):
        part.layers = nn.ModuleList(part.layers[i] for i in places)
    plain.config.use_cache = False  # the layers know their old places in the cache
    torch.testing.assert_close(logits(student), logits(plain))
    assert student.proj_out.weight is student.model.decoder.embed_tokens.weight
    student.save_pretrained(tmp_path)
    loaded = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded), logits(student))


def test_heads_that_align_words_keep_their_layers(folder: Path) -> None:
    model = student_of(folder)
    model.generation_config.alignment_heads = [[0, 1], [1, 0], [3, 2]]
    shallower = checkpoints.shallower_whisper(model, None, 2)
    assert shallower.generation_config.alignment_heads == [[0, 1], [1, 2]]


def test_more_layers_than_there_are_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"student\.decoder_layers"):
        student_of(folder, decoder_layers=5)


def test_layers_of_another_student_than_a_whisper_are_refused() -> None:
    student = {"checkpoint": "some/wav2vec2", "encoder_layers": 2}
    with pytest.raises(ConfigError, match="no effect"):
        check(Config.model_validate({"student": student, "train": {"steps": 1}}))
