"""A small Whisper: it learns, says what it learnt, and `transformers` alone says the same of its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import write_whisper_checkpoint
from tones import PLAIN, TEXTS, loss_of, speak
from voxstill.core.config import Augment, Train
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Batch
from voxstill.decoding import seq2seq
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.nn import checkpoints
from voxstill.nn.frontends import WhisperFrontend
from voxstill.tasks.seq2seq import Seq2SeqTask
from voxstill.text.pretrained import WhisperTokenizer
from voxstill.training import optim
from voxstill.training.task import StepContext

LEARNT = TEXTS[:2]


def batch_of(tokenizer: WhisperTokenizer) -> Batch:
    spoken = [torch.from_numpy(speak(text, i)[0]) for i, text in enumerate(LEARNT)]
    tokens = [torch.tensor(tokenizer.encode(text)[0]) for text in LEARNT]
    tokens_BU = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-1)
    return Batch(
        ids=("a", "b"),
        audio_BT=torch.nn.utils.rnn.pad_sequence(spoken, batch_first=True),
        audio_len_B=torch.tensor(list(map(len, spoken))),
        tokens_BU=tokens_BU,
        token_len_B=torch.tensor(list(map(len, tokens))),
        times_BU2=torch.full((*tokens_BU.shape, 2), -1),
        tempo_B=torch.ones(2),
        weight_B=torch.ones(2),
    )


def from_checkpoint(folder: Path) -> Any:
    wanted: dict[str, Any] = {
        "keep_vocabulary": False,
        "dropout": 0.0,
        "seed": 0,
        "kind": "seq2seq",
        "freeze_convolutions": True,
    }
    return checkpoints.from_checkpoint(str(folder), 0, **wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper_checkpoint(tmp_path_factory.mktemp("whisper"), TEXTS)


@pytest.fixture(scope="module")
def learnt(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a student that knows two utterances by heart."""
    model, tokenizer = from_checkpoint(folder), WhisperTokenizer(str(folder), None, 0)
    task = Seq2SeqTask(tokenizer, Train(), PLAIN, checkpoints.make_frontend(model.config, PLAIN))
    batch, optimizer = batch_of(tokenizer), optim.make_optimizer(model, Train())
    for k in range(60):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1, (k + 1) / 10)
        context = StepContext(0.0, int(batch.token_len_B.sum()), 1)
        loss_of(task, model, batch, context, torch.Generator().manual_seed(k)).value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert [hypothesis.text for hypothesis in task.decode(model.eval(), batch)] == list(LEARNT)
    student: Path = tmp_path_factory.mktemp("student")
    model.save_pretrained(student)
    tokenizer.save(student, task.frontend.extractor, "seq2seq")
    return student


@pytest.mark.slow
def test_its_folder_transcribes_the_same_in_transformers_alone_and_as_our_recogniser(learnt: Path) -> None:
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    processor = AutoProcessor.from_pretrained(learnt)
    model = WhisperForConditionalGeneration.from_pretrained(learnt).eval()
    tokenizer = WhisperTokenizer(str(learnt), None, 0)
    clips = [speak(text, i)[0] for i, text in enumerate(LEARNT)]
    for samples_T, text in zip(clips, LEARNT, strict=True):
        inputs = processor(samples_T.astype(np.float32) / 32768, sampling_rate=16_000, return_tensors="pt")
        tokens = list(tokenizer.prefix)
        with torch.no_grad():
            while len(tokens) < 30:
                logits_1UV = model(**inputs, decoder_input_ids=torch.tensor([tokens])).logits
                tokens.append(int(logits_1UV[0, -1].argmax()))
                if tokens[-1] == tokenizer.end_id:
                    break
        assert processor.decode(tokens, skip_special_tokens=True) == text
    recognizer = Recognizer(RecognizerOptions(model=str(learnt)))
    recognizer.load()
    long_T = np.zeros(31 * 16_000, np.int16)
    empty_T = np.zeros(0, np.int16)
    hypotheses = recognizer.transcribe_batch([clips[0], long_T, empty_T, clips[1]])
    assert [hypotheses[0].text, hypotheses[3].text] == list(LEARNT)
    assert hypotheses[0].score is not None
    assert hypotheses[0].score > -1
    assert hypotheses[0].words == ()
    assert "30 s" in (hypotheses[1].error or "")
    assert hypotheses[2].error == "no audio"


def test_features_are_those_of_transformers() -> None:
    from transformers import WhisperFeatureExtractor

    frontend = WhisperFrontend(PLAIN)
    audio_BT = torch.from_numpy(speak(TEXTS[0])[0])[None]
    extractor = WhisperFeatureExtractor.from_dict(dict(frontend.extractor))
    wanted = extractor(
        audio_BT[0].numpy() / np.float32(32768), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    features_BDF, frames_B = frontend.extract(audio_BT, torch.tensor([audio_BT.shape[1]]))
    assert torch.allclose(features_BDF, wanted, atol=1e-4)
    assert frames_B.tolist() == [audio_BT.shape[1] // 160]


def test_the_loss_is_that_of_transformers_per_token_and_parts_add_up(folder: Path) -> None:
    model, tokenizer = from_checkpoint(folder).eval(), WhisperTokenizer(str(folder), None, 0)
    task, batch = (
        Seq2SeqTask(tokenizer, Train(), PLAIN, checkpoints.make_frontend(model.config, PLAIN)),
        batch_of(tokenizer),
    )
    context = StepContext(0.0, int(batch.token_len_B.sum()), 1)

    def loss(weight_B: torch.Tensor, task: Seq2SeqTask = task) -> float:
        part = dataclasses.replace(batch, weight_B=weight_B)
        return float(loss_of(task, model, part, context, torch.Generator().manual_seed(0)).value.detach())

    whole = loss(torch.ones(2))
    assert sum(map(loss, torch.eye(2))) == pytest.approx(whole, rel=1e-5)
    decoder_input_BU, targets_BU = task.texts(batch)
    for b, text in enumerate(LEARNT):
        ids = tokenizer.encode(text)[0]
        assert decoder_input_BU[b, : len(ids) + 2].tolist() == [*tokenizer.prefix, *ids]
        assert targets_BU[b, 1 : len(ids) + 2].tolist() == [*ids, tokenizer.end_id]
        assert (targets_BU[b, len(ids) + 2 :] == -1).all()
    labels_BU = torch.where(targets_BU < 0, -100, targets_BU)
    inputs, _ = task.frontend.extract(batch.audio_BT, batch.audio_len_B)
    wanted = model(input_features=inputs, decoder_input_ids=decoder_input_BU, labels=labels_BU).loss
    assert whole * context.num_tokens == pytest.approx(float(wanted.detach()) * int((targets_BU >= 0).sum()), rel=1e-4)
    smooth = Seq2SeqTask(tokenizer, Train(label_smoothing=0.2), PLAIN, task.frontend)
    assert loss(torch.ones(2), smooth) != whole
    noisy = Seq2SeqTask(tokenizer, Train(), Augment(noise_prob=1.0), checkpoints.make_frontend(model.config, Augment()))
    assert loss(torch.ones(2), noisy) != whole


def test_the_prefix_names_the_language_and_a_missing_or_unknown_one_is_an_error(tmp_path: Path) -> None:
    folder = str(write_whisper_checkpoint(tmp_path, TEXTS, languages=True))
    tokenizer = WhisperTokenizer(folder, "de", 51_865)
    names = [tokenizer.pieces[i] for i in tokenizer.prefix]
    assert names == ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert tokenizer.key != WhisperTokenizer(folder, "en", 51_865).key
    assert tokenizer.decode(tokenizer.encode("ba du ko")[0]) == "ba du ko"
    (tmp_path / "student").mkdir()
    tokenizer.save(tmp_path / "student", WhisperFrontend(PLAIN).extractor, "seq2seq")
    assert WhisperTokenizer(str(tmp_path / "student"), None, 51_865).prefix == tokenizer.prefix
    with pytest.raises(ConfigError, match="is not set"):
        WhisperTokenizer(folder, None, 51_865)
    with pytest.raises(ConfigError, match="klingon"):
        WhisperTokenizer(folder, "klingon", 51_865)
    with pytest.raises(DataError, match="Whisper tokenizer"):
        WhisperTokenizer(str(tmp_path / "nowhere"), None, 0)


def test_greedy_decoding_takes_the_likeliest_token_no_special_ones_and_ends() -> None:
    script = [[2, 9, 1], [3, 5, 0], [5, 1, 0]]  # the likeliest after each step; 5 ends, 9 is a command

    def step(newest_BU: torch.Tensor, at: int | None) -> tuple[torch.Tensor, int]:
        at = 0 if at is None else at
        logits_BV = torch.zeros(3, 10)
        for b, wanted in enumerate(script[min(at, 2)]):
            logits_BV[b, wanted] = 5.0
        logits_BV[1, 4] = 4.0
        return logits_BV, at + 1

    hypotheses = seq2seq.greedy(step, 3, prefix=[7, 8], end_id=5, longest=4, device=torch.device("cpu"))
    assert [tokens for tokens, _ in hypotheses] == [[2, 3], [4], [1, 0, 0, 0]]
    assert all(score is not None and score < 0 for _, score in hypotheses)
    silent = seq2seq.greedy(
        lambda newest_BU, _: (torch.eye(6)[5][None] * 9, None),
        1,
        prefix=[0],
        end_id=5,
        longest=4,
        device=torch.device("cpu"),
    )
    assert silent == [([], None)]
