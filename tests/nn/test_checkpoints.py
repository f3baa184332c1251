"""Students from checkpoints: weights are kept, what is new is new, and padding changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import write_waveform_checkpoint
from voxstill.core.config import Augment
from voxstill.core.errors import ConfigError, DataError
from voxstill.nn import checkpoints, students

FAMILIES = [("Wav2Vec2", "group"), ("Wav2Vec2", "layer"), ("Hubert", "group"), ("WavLM", "group")]


def from_checkpoint(folder: Path, num_pieces: int = 7, **changes: Any) -> Any:
    options = {
        "keep_vocabulary": False,
        "dropout": None,
        "seed": 0,
        "kind": "ctc",
        "freeze_convolutions": True,
        **changes,
    }
    return checkpoints.from_checkpoint(str(folder), num_pieces, **options)


@pytest.fixture(params=FAMILIES, ids=["-".join(family) for family in FAMILIES])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, norm = request.param
    return write_waveform_checkpoint(tmp_path, family, norm=norm)


def test_the_weights_are_kept_and_the_head_is_new(folder: Path) -> None:
    model = from_checkpoint(folder)
    assert (model.config.vocab_size, model.config.pad_token_id) == (8, 7)
    kept, now = load_file(folder / "model.safetensors"), model.state_dict()
    same = [name for name in kept if not name.startswith("lm_head")]
    assert len(same) > 20
    assert all(torch.equal(now[name], kept[name]) for name in same)
    again, other = from_checkpoint(folder), from_checkpoint(folder, seed=1)
    assert torch.equal(model.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)
    assert torch.equal(from_checkpoint(folder, 31, keep_vocabulary=True).lm_head.weight, kept["lm_head.weight"])
    assert not torch.equal(from_checkpoint(folder, 31).lm_head.weight, kept["lm_head.weight"])


def test_padding_changes_nothing_and_frames_are_what_comes_out(folder: Path) -> None:
    model = from_checkpoint(folder).eval()
    frontend = checkpoints.make_frontend(model.config, Augment(), checkpoint=str(folder))
    assert frontend.frame_ms == 20
    lengths = [16000, 7013, 401]
    audio_BT = torch.zeros(3, 16000, dtype=torch.int16)
    for row_T, num in zip(audio_BT, lengths, strict=True):
        row_T[:num] = torch.randint(-3000, 3000, (num,), generator=torch.Generator().manual_seed(num))
    with torch.inference_mode():
        logits_BFV, out_B = students.logits(model, *frontend.extract(audio_BT, torch.tensor(lengths)))
        assert out_B.tolist() == [frontend.num_frames(num) for num in lengths]
        for b, num in enumerate(lengths):
            inputs = frontend.extract(audio_BT[b : b + 1, :num], torch.tensor([num]))
            single_1FV, _ = students.logits(model, *inputs)
            assert single_1FV.shape[1] == int(out_B[b])
            assert torch.allclose(single_1FV[0], logits_BFV[b, : int(out_B[b])], atol=1e-4)


def test_a_saved_student_has_the_same_logits_in_transformers_alone(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCTC

    model = from_checkpoint(folder).eval()
    model.save_pretrained(tmp_path / "student")
    reference = AutoModelForCTC.from_pretrained(tmp_path / "student").eval()
    loaded = checkpoints.load(tmp_path / "student").eval()
    wave_1T = torch.randn(1, 9000, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected_1FV = reference(wave_1T).logits
        for student in (model, loaded):
            logits_1FV, _ = students.logits(student, wave_1T, torch.tensor([9000]))
            assert torch.allclose(logits_1FV, expected_1FV, atol=1e-4)


def test_every_trainable_weight_gets_a_gradient_and_frozen_ones_do_not(folder: Path) -> None:
    model = from_checkpoint(folder).train()
    logits_BFV, _ = students.logits(model, torch.randn(2, 8000), torch.tensor([8000, 5000]))
    logits_BFV.logsumexp(-1).sum().backward()
    without_gradient = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert without_gradient == {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert all("feature_extractor" in name or "masked_spec" in name for name in without_gradient)
    free = from_checkpoint(folder, freeze_convolutions=False)
    assert not any("feature_extractor" in name for name, weight in free.named_parameters() if not weight.requires_grad)


def test_dropout_is_that_of_the_checkpoint_unless_it_is_set(folder: Path) -> None:
    assert from_checkpoint(folder).config.hidden_dropout == 0.1
    assert from_checkpoint(folder, dropout=0.0).config.hidden_dropout == 0.0
    assert from_checkpoint(folder).config.layerdrop == 0.0


def test_a_pre_trained_encoder_without_a_head_will_do(tmp_path: Path) -> None:
    folder = write_waveform_checkpoint(tmp_path, "Wav2Vec2", head="ForPreTraining")
    kept, model = load_file(folder / "model.safetensors"), from_checkpoint(folder)
    names = [name for name in model.state_dict() if name in kept]
    assert len(names) > 20
    assert all(torch.equal(model.state_dict()[name], kept[name]) for name in names)


@pytest.mark.parametrize("old", ["ctc", "rnnt", "tdt"])
@pytest.mark.parametrize("new", ["ctc", "rnnt", "tdt"])
def test_a_parakeet_gives_its_encoder_to_any_kind_and_all_of_it_to_its_own(
    old: students.Kind, new: students.Kind, tmp_path: Path
) -> None:
    before = students.build("tiny", 7, dropout=0.0, seed=3, kind=old)
    before.save_pretrained(tmp_path)
    kept = before.state_dict()
    for keep_vocabulary, num_pieces in ((False, 7), (False, 11), (True, 7)):
        model = from_checkpoint(tmp_path, num_pieces, keep_vocabulary=keep_vocabulary, kind=new)
        assert students.student_kind(model) == new
        now = model.state_dict()
        encoder = [name for name in kept if name.startswith("encoder.")]
        assert all(torch.equal(now[name], kept[name]) for name in encoder)
        others = [name for name in kept if name in now and name not in encoder and kept[name].ndim > 1]
        if keep_vocabulary and old == new:
            assert all(torch.equal(now[name], kept[name]) for name in others)
        else:
            assert not any(
                now[name].shape == kept[name].shape and torch.equal(now[name], kept[name]) for name in others
            )


def test_a_checkpoint_that_cannot_be_used_is_an_error_that_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kind: rnnt"):
        from_checkpoint(folder, kind="rnnt")
    with pytest.raises(DataError, match="contains no student"):
        from_checkpoint(tmp_path / "nowhere")
    config = tmp_path / "bert"
    config.mkdir()
    (config / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match="contains no student") as caught:
        from_checkpoint(config)
    assert "bert" in (caught.value.why or "")
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "config.json").write_text((folder / "config.json").read_text())
    (torn / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match="cannot be loaded"):
        from_checkpoint(torn)


def test_the_digest_of_a_folder_is_that_of_its_weights(folder: Path) -> None:
    digest = checkpoints.weights_digest(str(folder))
    (folder / "note.txt").write_text("nothing")
    assert checkpoints.weights_digest(str(folder)) == digest
    (folder / "more.safetensors").write_bytes(b"x")
    assert checkpoints.weights_digest(str(folder)) != digest
    assert checkpoints.weights_digest(None) is None
    assert checkpoints.weights_digest("someone/something") == "someone/something"
