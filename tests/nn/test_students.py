"""Students: equal seeds, documented sizes, a stem that passes something on, and a folder `transformers` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from voxstill.core.errors import DataError
from voxstill.nn import checkpoints, students
from voxstill.nn.log_mel import frame_mask
from voxstill.nn.mel import NUM_MELS

MILLIONS: dict[students.Size, tuple[float, float]] = {
    "tiny": (1, 3),
    "small": (7, 9),
    "medium": (27, 33),
    "large": (100, 120),
}


def same_weights(model: Any, other: Any) -> bool:
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == other_name and torch.equal(a, b) for (name, a), (other_name, b) in pairs)


def test_equal_seeds_give_equal_weights_and_leave_the_random_numbers_of_others_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = students.build("tiny", 20, dropout=0.0, seed=1)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(99)
    assert same_weights(model, students.build("tiny", 20, dropout=0.0, seed=1))
    assert not same_weights(model, students.build("tiny", 20, dropout=0.0, seed=2))


@pytest.mark.parametrize("size", get_args(students.Size))
def test_a_student_has_about_as_many_parameters_as_documented(size: students.Size) -> None:
    with torch.device("meta"):  # counts without filling anything in
        model = students.build(size, 500, dropout=0.0, seed=0)
    low, high = MILLIONS[size]
    assert low <= students.num_parameters(model) / 1e6 <= high


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_a_new_stem_passes_its_input_on(size: students.Size) -> None:
    model = students.build(size, 20, dropout=0.0, seed=0).eval()
    features_BFD = torch.randn(2, 100, NUM_MELS, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        stem_BFD = model.encoder.subsampling(features_BFD, frame_mask(torch.tensor([100, 100]), 100))
        logits_BFV, _ = students.logits(model, features_BFD, torch.tensor([100, 100]))
    assert 0.1 < stem_BFD.std(1).mean() < 10
    assert logits_BFV.std(1).mean() > 0.01


def test_the_blank_comes_after_the_last_piece_and_every_weight_learns() -> None:
    model = students.build("tiny", 7, dropout=0.1, seed=0)
    assert (model.config.vocab_size, model.config.pad_token_id) == (8, 7)
    assert model.training
    logits_BFV, out_B = students.logits(model, torch.randn(2, 64, NUM_MELS), torch.tensor([64, 30]))
    assert (logits_BFV.shape, out_B.tolist()) == ((2, 8, 8), [8, 4])
    logits_BFV.logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    without_gradient = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not without_gradient  # a weight without a gradient would stop training on several devices


def test_a_batch_of_a_single_output_frame_can_be_learnt_from() -> None:
    for frames in (1, 8):
        features_BFD, frames_B = torch.randn(1, frames, NUM_MELS), torch.tensor([frames])
        model = students.build("tiny", 8, dropout=0.0, seed=0)
        logits_BFV, out_B = students.logits(model, features_BFD, frames_B)
        assert out_B.tolist() == [1]
        logits_BFV[:, :1].sum().backward()
        transducer = students.build("tiny", 8, dropout=0.0, seed=0, kind="rnnt")
        _, out_B, _, _ = students.encode_and_predict(transducer, features_BFD, frames_B, torch.tensor([[3]]))
        assert out_B.tolist() == [1]


def test_a_saved_student_comes_back_with_the_same_weights(tmp_path: Path) -> None:
    model = students.build("tiny", 7, dropout=0.0, seed=3)
    model.save_pretrained(tmp_path)
    assert same_weights(checkpoints.load(tmp_path), model)


def test_a_folder_without_a_student_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no student") as caught:
        checkpoints.load(tmp_path)
    assert caught.value.fix
    (tmp_path / "config.json").write_text('{"model_type": "parakeet_ctc"}')
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match="contains no student"):
        checkpoints.load(tmp_path)
