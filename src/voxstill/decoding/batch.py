"""Decode one batch with a model that is loaded: greedily, or by a beam search with a language model and phrases."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from voxstill.core.config import Decode
from voxstill.core.records import Hypothesis
from voxstill.decoding import ctc, seq2seq, transducer
from voxstill.nn import students
from voxstill.nn.frontends import Frontend

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decode_batch(
    model: PreTrainedModel,
    frontend: Frontend,
    tokenizer: Any,
    audio_BT: Tensor,
    audio_len_B: Tensor,
    ids: Sequence[str],
    beam: Mapping[str, Any] | None = None,
) -> list[Hypothesis]:
    """Transcribe one batch; return one Hypothesis per utterance, in order.

    `audio_BT` is int16 at 16 kHz. Decoding is greedy, or the beam search that `beam_search` describes.
    """
    inputs, len_B = frontend.extract(audio_BT, audio_len_B)
    inputs = inputs.to(model.dtype)
    if students.student_kind(model) == "seq2seq":
        return _decode_seq2seq(model, tokenizer, inputs, ids)
    common: dict[str, Any] = {
        "ids": ids,
        "pieces": tokenizer.pieces,
        "blank_id": tokenizer.blank_id,
        "frame_ms": frontend.frame_ms,
    }
    if students.student_kind(model) == "ctc":
        logits_BFV, out_B = students.logits(model, inputs, len_B)
        log_probs_BFV = logits_BFV.float().log_softmax(-1)
        if beam:
            return ctc.beam(log_probs_BFV, out_B.tolist(), **beam, **common)
        return ctc.greedy(log_probs_BFV, out_B.tolist(), **common)
    no_tokens_B0 = torch.zeros(len(ids), 0, dtype=torch.long, device=audio_BT.device)
    encoded_BFP, out_B, _ = students.encode_and_predict(model, inputs, len_B, no_tokens_B0)
    common |= {
        "predict": functools.partial(students.predict, model),
        "joint": functools.partial(students.joint, model),
        "durations": students.durations(model),
    }
    if beam:
        return transducer.beam(encoded_BFP, out_B, **beam, **common)
    return transducer.greedy(encoded_BFP, out_B, **common)


def _decode_seq2seq(model: PreTrainedModel, tokenizer: Any, inputs: Tensor, ids: Sequence[str]) -> list[Hypothesis]:
    texts = seq2seq.greedy(
        students.decoder_step(model, inputs),
        len(ids),
        prefix=tokenizer.prefix,
        end_id=tokenizer.end_id,
        longest=model.config.max_target_positions - len(tokenizer.prefix),
        device=inputs.device,
    )
    return [
        Hypothesis(id=id_, text=tokenizer.decode(tokens), score=score, token_ids=tuple(tokens))
        for id_, (tokens, score) in zip(ids, texts, strict=True)
    ]


def beam_search(decoding: Decode, pieces: Sequence[str]) -> Mapping[str, Any] | None:
    """Read what a beam search needs beside the audio: width, language model and phrases. None where decoding is greedy.

    DataError where the file of the language model is none.
    """
    if decoding.beam == 1:
        return None
    from voxstill.decoding.fusion import fusion
    from voxstill.text import lm

    model = lm.read(decoding.lm) if decoding.lm else None
    word_bonus = decoding.word_bonus if model else 0.0
    fused = fusion(pieces, model, decoding.lm_weight, word_bonus, decoding.boost, decoding.boost_weight)
    return {"width": decoding.beam, "fusion": fused}
