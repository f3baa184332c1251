"""The transducer: it learns, says what it learnt, and `transformers` alone says the same of its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tones import PLAIN, TEXTS, batch_of, context_of, loss_of
from voxstill.core.config import Decode, Train
from voxstill.core.errors import ConfigError
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.nn import students
from voxstill.nn.log_mel import LogMel
from voxstill.tasks.transducer import TransducerTask
from voxstill.text import tokenizer
from voxstill.training import optim

WORDS = tokenizer.train(TEXTS, "word", 9)
TASK = TransducerTask(WORDS, Train(), PLAIN)


@pytest.fixture(scope="module", params=["rnnt", "tdt"])
def model(request: pytest.FixtureRequest) -> Any:
    """A tiny transducer that knows four utterances: until its loss is small, then some small steps, which settle the
    statistics of BatchNorm. How many steps that takes depends on the machine's arithmetic."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(students.SHAPES, "tiny", students.Shape(64, 2, 4, 16, 64))  # it gets there in half of the time
        model = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=0, kind=request.param)
    cfg = Train(lr=4e-3, auxiliary_ctc=1.0)  # its CTC leads the encoder there in fewer steps
    task = TransducerTask(WORDS, cfg, PLAIN)
    optimizer, batch = optim.make_optimizer(model, cfg), batch_of(WORDS)
    steps_left: int | None = None
    for k in range(600):
        lr = cfg.lr * (min(1, (k + 1) / 10) if steps_left is None else 0.1)
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = lr
        loss = loss_of(task, model, batch, context_of(batch, 1.0), torch.Generator().manual_seed(0)).value
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if steps_left is not None:
            steps_left -= 1
        elif float(loss.detach()) < 0.02:
            steps_left = 30
        if steps_left == 0:
            break
    return model.eval()


def test_a_tiny_transducer_overfits_four_utterances(model: Any) -> None:
    batch = batch_of(WORDS)
    hypotheses = TASK.decode(model, batch)
    assert [hypothesis.id for hypothesis in hypotheses] == list(batch.ids)
    assert [hypothesis.text for hypothesis in hypotheses] == list(TEXTS)
    for hypothesis in hypotheses:
        assert hypothesis.score is not None
        assert -1 < hypothesis.score <= 0
        assert [word.text for word in hypothesis.words] == hypothesis.text.split()
        starts = [word.start_ms for word in hypothesis.words]
        assert starts == sorted(starts)


@pytest.mark.parametrize("kind", ["rnnt", "tdt"])
def test_losses_of_parts_add_up_and_every_weight_learns(kind: students.Kind) -> None:
    batch = batch_of(WORDS)
    fresh = students.build("tiny", len(WORDS.pieces), dropout=0.0, seed=0, kind=kind).eval()
    whole = loss_of(TASK, fresh, batch, context_of(batch), torch.Generator().manual_seed(0)).value
    parts = []
    for weight_B in torch.eye(4):
        part = dataclasses.replace(batch, weight_B=weight_B)
        parts.append(
            float(loss_of(TASK, fresh, part, context_of(batch), torch.Generator().manual_seed(0)).value.detach())
        )
    assert sum(parts) == pytest.approx(float(whole.detach()), rel=1e-5)
    whole.backward()  # type: ignore[no-untyped-call]
    still = [name for name, weight in fresh.named_parameters() if weight.grad is None]
    assert not still  # a weight without a gradient would stop training on several devices


def test_its_folder_transcribes_the_same_in_transformers_alone_and_as_our_recogniser(
    model: Any, tmp_path: Path
) -> None:
    import transformers

    kind = students.student_kind(model)
    model.save_pretrained(tmp_path)
    WORDS.save(tmp_path, LogMel().extractor, kind)
    batch = batch_of(WORDS)
    clips = [
        (audio_T[:length].numpy(), id_)
        for audio_T, length, id_ in zip(batch.audio_BT, batch.audio_len_B, batch.ids, strict=True)
    ]
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    peer = getattr(transformers, students.TRANSDUCERS[f"parakeet_{kind}"]).from_pretrained(tmp_path).eval()
    for (samples_T, _), text in zip(clips, TEXTS, strict=True):
        # one by one: in a batch its `generate` goes on through the padding of the shorter ones, and may write more
        inputs = processor([samples_T.astype(np.float32) / 32768], sampling_rate=16_000)
        with torch.no_grad():
            tokens = peer.generate(**inputs.to(peer.device)).sequences
        assert processor.batch_decode(tokens, skip_special_tokens=True) == [text]
    for name, value in (("grammar", "g.jsgf"), ("blank_penalty", 1.0)):
        with pytest.raises(ConfigError, match=rf"`decode\.{name}` has no effect"):
            Recognizer(RecognizerOptions(model=str(tmp_path)), Decode.model_validate({name: value})).load()
    for decoding in (Decode(), Decode(beam=4), Decode(beam=4, boost=["ba du"], boost_weight=0.1)):
        recognizer = Recognizer(RecognizerOptions(model=str(tmp_path)), decoding)
        recognizer.load()
        hypotheses = recognizer.transcribe_batch([samples_T for samples_T, _ in clips])
        assert [hypothesis.text for hypothesis in hypotheses] == list(TEXTS)
