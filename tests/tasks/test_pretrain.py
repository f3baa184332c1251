"""What a pre-training hears and says of itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tones import PLAIN, speak
from voxstill.core.config import Pretrain
from voxstill.core.monitor import log
from voxstill.core.records import Batch
from voxstill.nn import self_supervised
from voxstill.nn.frontends import LogMelFrontend
from voxstill.nn.log_mel import centred
from voxstill.tasks.pretrain import MaskedInput, RandomCodesTask, Watch


def batch_of(texts: list[str]) -> Batch:
    clips = [torch.from_numpy(speak(text, seed)[0]) for seed, text in enumerate(texts)]
    num = len(clips)
    return Batch(
        ids=tuple(map(str, range(num))),
        audio_BT=torch.nn.utils.rnn.pad_sequence(clips, batch_first=True),
        audio_len_B=torch.tensor([len(clip) for clip in clips]),
        tokens_BU=torch.zeros(num, 0, dtype=torch.long),
        token_len_B=torch.zeros(num, dtype=torch.long),
        times_BU2=torch.zeros(num, 0, 2, dtype=torch.long),
        tempo_B=torch.ones(num),
        weight_B=torch.ones(num),
    )


@pytest.mark.parametrize("targets", ["mels", "cepstra"])
def test_hidden_features_are_noise_and_their_codes_are_those_of_what_was_there(targets: Any) -> None:
    cfg = Pretrain(method="best_rq", mask_ms=160, min_masks=1, codes=64, targets=targets)
    task = RandomCodesTask(cfg, LogMelFrontend(PLAIN), seed=0)
    batch = batch_of(["ba du ko mi ba du", "mi ba ko du"])
    model_input = task.prepare(batch, 0.0, torch.Generator().manual_seed(0))
    assert isinstance(model_input, MaskedInput)
    plain_BFD, _ = task.frontend.extract(batch.audio_BT, batch.audio_len_B)
    frames = model_input.inputs.shape[1]
    over_BF = model_input.hidden_BF.repeat_interleave(8, dim=1)[:, :frames]
    own_BF = torch.arange(frames) < model_input.len_B[:, None]
    assert torch.equal(model_input.inputs[~over_BF], plain_BFD[:, :frames][~over_BF])
    assert model_input.inputs[over_BF & own_BF].std() == pytest.approx(0.1, rel=0.1)
    centred_BFD = centred(*task.frontend.log_mel.unnormalised(batch.audio_BT, batch.audio_len_B))
    codes_BF = task.quantizer.codes(plain_BFD if targets == "mels" else centred_BFD)
    for b, num in enumerate(model_input.hidden_BF.sum(1).tolist()):
        assert model_input.drawn[0][b, :num].tolist() == codes_BF[b][model_input.place_BM[b, :num]].tolist()
    assert task.masks.num_masked(batch.audio_len_B).tolist() == model_input.hidden_BF.sum(1).tolist()


@pytest.mark.parametrize("targets", ["mels", "cepstra"])
def test_equal_audio_has_equal_codes_and_other_audio_has_others(targets: Any) -> None:
    cfg = Pretrain(method="best_rq", targets=targets, codes=256)
    quantizer = self_supervised.quantizer(cfg, 80, 1)
    features_BFD = torch.randn(20, 8, 80, generator=torch.Generator().manual_seed(0))
    code_BF = quantizer.codes(features_BFD)
    assert torch.equal(quantizer.codes(features_BFD * 3), code_BF)
    assert len(set(code_BF[:, 0].tolist())) > 10
    assert torch.equal(self_supervised.quantizer(cfg, 80, 1).codes(features_BFD), code_BF)
    assert not torch.equal(self_supervised.quantizer(cfg, 80, 2).codes(features_BFD), code_BF)


def test_the_codes_of_cepstra_follow_the_spectral_envelope_and_not_its_detail() -> None:
    quantizer = self_supervised.quantizer(Pretrain(method="best_rq", targets="cepstra"), 80, 0)
    place_D = torch.arange(80) / 80
    shape_BFD = torch.stack([torch.cos(torch.pi * (place_D * k + k)) for k in range(1, 7)])[:, None].repeat(1, 8, 1)
    code_BF = quantizer.codes(shape_BFD)
    assert len(set(code_BF[:, 0].tolist())) == 6
    ripple_D = torch.cos(torch.pi * 30 * (place_D + 1 / 160))  # harmonics of a voice: another speaker's lie elsewhere
    assert torch.equal(quantizer.codes(shape_BFD + 3 * ripple_D), code_BF)
    in_time_F = torch.tensor([1.0, -1.0] * 4)[:, None]
    assert torch.equal(quantizer.codes(shape_BFD + in_time_F * ripple_D.roll(7)), code_BF)


class MessageHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def watched(figures: dict[str, float]) -> list[str]:
    watch, handler = Watch(2, "do this"), MessageHandler()
    log.addHandler(handler)
    try:
        for step in range(1, 201):
            watch.see(step, figures)
    finally:
        log.removeHandler(handler)
    return handler.messages


def test_a_collapse_is_logged_once_within_200_steps_with_what_to_do() -> None:
    (message,) = watched({"perplexity": 2.1, "accuracy": 0.5, "chance": 0.01})
    assert "2.1 codes are in use" in message
    assert "do this" in message


def test_accuracy_at_chance_is_logged_within_200_steps() -> None:
    (message,) = watched({"perplexity": 90.0, "accuracy": 0.011, "chance": 0.01})
    assert "1.10 % of the masked frames" in message
    assert "train.lr" in message


def test_a_pre_training_that_goes_well_warns_of_nothing() -> None:
    assert watched({"perplexity": 90.0, "accuracy": 0.3, "chance": 0.01}) == []
