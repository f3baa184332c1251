"""flashlight-text and pyctcdecode as a process that decodes when it is asked to; `benchmarks/decode.py` starts it.

It needs numpy, flashlight-text, kenlm and pyctcdecode, and nothing of voxstill: pyctcdecode wants a numpy older than
ours.
Each line on standard input names a setting and a file of log-probabilities; each answer is a line of JSON.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from typing import Any

import numpy as np
from flashlight.lib.text.decoder import (
    CriterionType,
    LexiconDecoder,
    LexiconDecoderOptions,
    LexiconFreeDecoder,
    LexiconFreeDecoderOptions,
    SmearingMode,
    Trie,
    ZeroLM,
)
from flashlight.lib.text.decoder.kenlm import KenLM
from flashlight.lib.text.dictionary import Dictionary
from pyctcdecode import build_ctcdecoder

EVERYTHING = 1e9


def main() -> None:
    """Answer until standard input ends."""
    logging.disable(logging.WARNING)
    for line in sys.stdin:
        request = json.loads(line)
        log_probs_BFV = np.load(request["file"])[: request["utterances"]]
        num_tokens = log_probs_BFV.shape[2]
        figures: tuple[float, list[Any]]
        if "arpa" in request:
            figures = flashlight_lm(log_probs_BFV, request)
        elif request["peer"] == "flashlight":
            figures = flashlight(
                log_probs_BFV, request["beam"], num_tokens if request["all_tokens"] else request["beam"] + 1
            )
        else:
            figures = pyctcdecode(log_probs_BFV, request["beam"])
        print(json.dumps({"seconds": figures[0], "scores": figures[1]}), flush=True)


def flashlight(log_probs_BFV: np.ndarray, beam: int, num_tokens: int) -> tuple[float, list[float]]:
    """Seconds, and the score of each best text."""
    options = LexiconFreeDecoderOptions(
        beam_size=beam,
        beam_size_token=num_tokens,
        beam_threshold=EVERYTHING,
        lm_weight=0,
        sil_score=0,
        log_add=True,
        criterion_type=CriterionType.CTC,
    )
    blank_id = log_probs_BFV.shape[2] - 1
    decoder = LexiconFreeDecoder(options, ZeroLM(), -1, blank_id, [])
    start = time.process_time()
    scores = [decoder.decode(log_probs_FV.ctypes.data, *log_probs_FV.shape)[0].score for log_probs_FV in log_probs_BFV]
    return time.process_time() - start, scores


def flashlight_lm(log_probs_BFV: np.ndarray, request: dict[str, Any]) -> tuple[float, list[list[int]]]:
    """Seconds, and the words of each best text, with a language model by kenlm; in the lexicon token k is word k."""
    options = LexiconDecoderOptions(
        beam_size=request["beam"],
        beam_size_token=request["most_tokens"],
        beam_threshold=request["beam_threshold"] or EVERYTHING,
        lm_weight=request["lm_weight"] * math.log(10),  # kenlm's logarithms are to the base of 10
        word_score=request["word_bonus"],
        unk_score=-math.inf,
        sil_score=0,
        log_add=False,  # it would add up texts that differ, where the language model knows no difference
        criterion_type=CriterionType.CTC,
    )
    blank_id = log_probs_BFV.shape[2] - 1
    words = Dictionary()
    for token in range(blank_id):
        words.add_entry(str(token), token)
    words.add_entry("<unk>", blank_id)
    model = KenLM(request["arpa"], words)
    trie = Trie(blank_id + 1, blank_id)  # no token is silence; -1 would read beside the frame
    for token in range(blank_id):
        trie.insert([token], token, model.score(model.start(False), token)[1])
    trie.smear(SmearingMode.MAX)
    decoder = LexiconDecoder(options, trie, model, blank_id, blank_id, blank_id, [], False)
    start = time.process_time()
    results = [decoder.decode(log_probs_FV.ctypes.data, *log_probs_FV.shape)[0] for log_probs_FV in log_probs_BFV]
    return time.process_time() - start, [[word for word in result.words if word >= 0] for result in results]


def pyctcdecode(log_probs_BFV: np.ndarray, beam: int) -> tuple[float, list[float]]:
    """Seconds, and the score of each best text; it prunes as it does by itself."""
    labels = [f"▁{k}" for k in range(log_probs_BFV.shape[2] - 1)]
    decoder = build_ctcdecoder([*labels, ""])
    start = time.process_time()
    scores = [decoder.decode_beams(log_probs_FV, beam_width=beam)[0][-2] for log_probs_FV in log_probs_BFV]
    return time.process_time() - start, scores


if __name__ == "__main__":
    main()
