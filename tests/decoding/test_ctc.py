from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.core.records import Hypothesis, Word
from voxstill.decoding import ctc, fusion, prefix_search
from voxstill.decoding.ctc import greedy
from voxstill.decoding.ctc_likelihood import mean_log_likelihood
from voxstill.decoding.fusion import Fusion
from voxstill.decoding.tokens import detokenize
from voxstill.text import kneser_ney, lm

PIECES = ["▁one", "▁two", "teen", "▁"]
BLANK = len(PIECES)


def log_probs(*paths: list[int], peak: float = 0.9) -> NDArray[np.float32]:
    frames = max(map(len, paths), default=0)
    probs_BFV = np.full((len(paths), frames, BLANK + 1), (1 - peak) / BLANK, np.float32)
    for b, path in enumerate(paths):
        probs_BFV[b, range(len(path)), path] = peak
    return np.log(probs_BFV)


def decode(path: list[int], frames: int | None = None) -> Hypothesis:
    (hypothesis,) = greedy(
        log_probs(path),
        [len(path) if frames is None else frames],
        ids=["u"],
        pieces=PIECES,
        blank_id=len(PIECES),
        frame_ms=80,
    )
    return hypothesis


def test_a_blank_penalty_is_taken_off_the_blank_of_each_frame_and_the_rest_sums_to_1() -> None:
    logits_BFV = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    plain_BFV, less_BFV = ctc.log_probs(logits_BFV, 1), ctc.log_probs(logits_BFV, 1, 1.5)
    torch.testing.assert_close(plain_BFV, logits_BFV.log_softmax(-1))
    torch.testing.assert_close(less_BFV.exp().sum(-1), torch.ones(2, 5))
    torch.testing.assert_close(
        (less_BFV - plain_BFV)[..., 1] - (less_BFV - plain_BFV)[..., 0], torch.full((2, 5), -1.5)
    )


def test_repeats_collapse_and_a_blank_parts_them() -> None:
    assert decode([0, 0, BLANK, 0, 1, 1]).token_ids == (0, 0, 1)
    assert decode([0, 0, BLANK, 0, 1, 1]).text == "one one two"


def test_words_have_times_and_confidence() -> None:
    hypothesis = decode([BLANK, 1, 1, BLANK, 2, BLANK, 0])
    assert hypothesis.text == "twoteen one"
    assert hypothesis.words == (
        Word(text="twoteen", start_ms=80, end_ms=400, prob=pytest.approx(0.9)),
        Word(text="one", start_ms=480, end_ms=560, prob=pytest.approx(0.9)),
    )
    assert hypothesis.score == pytest.approx(np.log(0.9))


def test_silence_is_an_empty_hypothesis_without_a_score() -> None:
    assert decode([BLANK, BLANK]) == Hypothesis(id="u", text="")
    assert decode([0, 1], frames=0) == Hypothesis(id="u", text="")
    assert decode([3, 3]).words == ()


def test_a_lone_space_piece_parts_words_and_takes_no_time() -> None:
    hypothesis = decode([3, BLANK, 2, 3, 2])
    assert [(word.text, word.start_ms, word.end_ms) for word in hypothesis.words] == [
        ("teen", 160, 240),
        ("teen", 320, 400),
    ]


def test_padding_is_never_read() -> None:
    assert decode([0, 1, 1], frames=1).text == "one"


@given(st.lists(st.lists(st.integers(0, BLANK), min_size=1, max_size=12), min_size=1, max_size=4))
def test_the_best_path_is_collapsed_as_the_definition_says(paths: list[list[int]]) -> None:
    ids = [str(i) for i in range(len(paths))]
    log_probs_BFV = log_probs(*paths)
    hypotheses = greedy(
        log_probs_BFV, [len(path) for path in paths], ids=ids, pieces=PIECES, blank_id=len(PIECES), frame_ms=80
    )
    assert [hypothesis.id for hypothesis in hypotheses] == ids
    for path, hypothesis in zip(paths, hypotheses, strict=True):
        assert list(hypothesis.token_ids) == [token for token, _ in itertools.groupby(path) if token != BLANK]
        assert (
            hypothesis.text
            == detokenize(hypothesis.token_ids, PIECES)
            == " ".join(word.text for word in hypothesis.words)
        )
        times = [time for word in hypothesis.words for time in (word.start_ms, word.end_ms)]
        assert times == sorted(times)
        assert all(word.start_ms < word.end_ms <= len(path) * 80 for word in hypothesis.words)
    frames_B = torch.tensor([len(path) for path in paths])
    tensor = torch.from_numpy(log_probs_BFV)
    assert greedy(tensor, frames_B, ids=ids, pieces=PIECES, blank_id=len(PIECES), frame_ms=80) == hypotheses
    assert [
        hypothesis.text
        for hypothesis in greedy(tensor.bfloat16(), frames_B, ids=ids, pieces=PIECES, blank_id=len(PIECES), frame_ms=80)
    ] == [hypothesis.text for hypothesis in hypotheses]


@given(st.integers(1, 5), st.lists(st.integers(0, 1), max_size=3), st.integers(0, 2), st.integers(0, 99))
def test_the_log_likelihood_of_a_text_is_the_sum_over_all_its_paths(
    frames: int, tokens: list[int], blank_id: int, seed: int
) -> None:
    tokens = [token + (token >= blank_id) for token in tokens]
    log_probs_FV = np.log(np.random.default_rng(seed).dirichlet(np.ones(3), frames))
    sum_ = 0.0
    for path in itertools.product(range(3), repeat=frames):
        if [token for token, _ in itertools.groupby(path) if token != blank_id] == tokens:
            sum_ += math.exp(sum(log_probs_FV[f, token] for f, token in enumerate(path)))
    score = mean_log_likelihood(log_probs_FV.astype(np.float32), tokens, blank_id)
    if not tokens or not sum_:
        assert score is None
    else:
        assert score == pytest.approx(math.log(sum_) / len(tokens), abs=1e-5)


def test_the_confidence_of_a_word_is_the_mean_of_its_frames() -> None:
    probs_BFV = np.full((1, 2, BLANK + 1), 0.01, np.float32)
    probs_BFV[0, 0, 0], probs_BFV[0, 1, 0] = 0.5, 1.0
    (hypothesis,) = greedy(np.log(probs_BFV), [2], ids=["u"], pieces=PIECES, blank_id=len(PIECES), frame_ms=80)
    assert hypothesis.words[0].prob == pytest.approx(0.75)
    assert hypothesis.score == pytest.approx(np.log(0.5) / 2)


WORDS = ["▁one", "▁two", "▁", "teen", "o", ""]


def exhaustive(log_probs_FV: NDArray[np.float32], blank: int, fused: Fusion) -> dict[tuple[int, ...], float]:
    """Every text with the logarithm of its probability, all paths added up one by one, and what the fusion adds."""
    totals: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(log_probs_FV.shape[1]), repeat=len(log_probs_FV)):
        text = tuple(token for token, _ in itertools.groupby(path) if token != blank)
        weight = sum(float(log_probs_FV[f, token]) for f, token in enumerate(path))
        totals[text] = np.logaddexp(totals.get(text, -np.inf), weight)
    return {text: total + added(fused, text) for text, total in totals.items()}


def added(fused: Fusion, tokens: Iterable[int]) -> float:
    """What the fusion adds to a text."""
    texts_N = np.zeros(1, np.dtype(list(fusion.TEXT_FIELDS), align=True))
    fusion.start(fused, texts_N, 0)
    for token in tokens:
        fusion.append(fused, texts_N, 0, token)
    return float(texts_N[0]["bonus"] + fusion.end_score(fused, texts_N, 0))


def emissions(draw: np.random.Generator, frames: int, tokens: int, sharp: float) -> NDArray[np.float32]:
    logits_FV = draw.normal(0, sharp, (frames, tokens))
    return (logits_FV - np.logaddexp.reduce(logits_FV, 1)[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> lm.LanguageModel:
    path = tmp_path_factory.mktemp("lm") / "tiny.arpa"
    sentences = ["one two", "two one one", "twoteen o one", "one"]
    path.write_text("\n".join(kneser_ney.arpa(sentences, 3)) + "\n")
    return lm.read(str(path))


def fusions(tiny_lm: lm.LanguageModel, pieces: list[str]) -> list[Fusion]:
    return [
        fusion.fusion(pieces),
        fusion.fusion(pieces, tiny_lm, 0.7, 0.4),
        fusion.fusion(pieces, None, 0, 0, ["one two", "two one", "two"], 1.1),
        fusion.fusion(pieces, tiny_lm, 1.3, -0.2, ["two one one"], 0.6),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(tiny_lm: lm.LanguageModel, number: int) -> None:
    draw = np.random.default_rng(number)
    for case in range(250):
        num_frames, num_tokens = int(draw.integers(1, 6)), int(draw.integers(2, 5))
        log_probs_FV = emissions(draw, num_frames, num_tokens, draw.choice([0.3, 1, 3]))
        pieces = [*(draw.permutation(WORDS[:-1])[: num_tokens - 1].tolist()), ""]
        fused = fusions(tiny_lm, pieces)[number]
        totals = exhaustive(log_probs_FV, num_tokens - 1, fused)
        places = 2 << (len(totals) - 1).bit_length()
        tokens_U, total = prefix_search.search(log_probs_FV, num_tokens - 1, places, 99, np.inf, fused)
        assert total == pytest.approx(max(totals.values()), abs=1e-9), case
        assert total == pytest.approx(totals[tuple(tokens_U.tolist())], abs=1e-9)


@pytest.mark.parametrize("number", range(4))
def test_the_score_never_falls_as_the_beam_grows(tiny_lm: lm.LanguageModel, number: int) -> None:
    draw = np.random.default_rng(number)
    fused = fusions(tiny_lm, WORDS)[number]
    for _ in range(250):
        log_probs_FV = emissions(draw, int(draw.integers(1, 40)), len(WORDS), draw.choice([0.3, 1, 2, 4]))
        totals = [prefix_search.search(log_probs_FV, len(WORDS) - 1, 2**k, 99, np.inf, fused)[1] for k in range(7)]
        assert all(narrow <= wide + 1e-9 for narrow, wide in itertools.pairwise(totals)), totals


def test_pruning_without_a_language_model_loses_nothing() -> None:
    """Only the likeliest tokens are looked at: with a bonus too small to matter, all are, and the text is the same."""
    draw = np.random.default_rng(0)
    pieces = [f"▁{k}" for k in range(40)] + [""]
    few, all_ = fusion.fusion(pieces), fusion.fusion(pieces, word_bonus=1e-15)
    for _ in range(100):
        log_probs_FV = emissions(draw, 30, 41, 2)
        best, expected = (prefix_search.search(log_probs_FV, 40, 8, 99, np.inf, fused) for fused in (few, all_))
        assert best[0].tolist() == expected[0].tolist()
        assert best[1] == pytest.approx(expected[1], abs=1e-9)


def beamed(log_probs_BFV: NDArray[np.float32], pieces: list[str], fused: Fusion, width: int = 10) -> list[Hypothesis]:
    frames_B = [log_probs_BFV.shape[1]] * len(log_probs_BFV)
    ids = [str(i) for i in range(len(log_probs_BFV))]
    named = {"ids": ids, "pieces": pieces, "blank_id": len(pieces) - 1, "frame_ms": 80}
    return ctc.beam(log_probs_BFV, frames_B, width=width, fusion=fused, **named)


def test_on_clear_audio_a_beam_gives_the_greedy_text() -> None:
    path = [BLANK, 1, 1, BLANK, 2, BLANK, 0, 0, BLANK, 0]
    (hypothesis,) = beamed(log_probs(path, peak=0.99), [*PIECES, ""], fusion.fusion([*PIECES, ""]))
    (expected,) = greedy(log_probs(path, peak=0.99), [len(path)], ids=["0"], pieces=PIECES, blank_id=BLANK, frame_ms=80)
    assert hypothesis == expected


def test_padding_and_silence_are_no_matter_to_a_beam() -> None:
    silent = log_probs([BLANK, BLANK], [0, 1])
    fused = fusion.fusion([*PIECES, ""])
    named = {"ids": ["a", "b"], "pieces": PIECES, "blank_id": BLANK, "frame_ms": 80}
    hypotheses = ctc.beam(silent, [2, 0], width=4, fusion=fused, **named)
    assert [hypothesis.text for hypothesis in hypotheses] == ["", ""]
    assert [hypothesis.score for hypothesis in hypotheses] == [None, None]
    (short,) = ctc.beam(
        torch.from_numpy(silent[1:]), torch.tensor([1]), width=4, fusion=fused, **(named | {"ids": "b"})
    )
    assert short.text == "one"


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 20))
@settings(deadline=None, max_examples=50)
def test_words_of_a_beam_lie_in_order_and_tokens_are_parted(seed: int, frames: int, width: int) -> None:
    log_probs_BFV = emissions(np.random.default_rng(seed), frames, len(WORDS), 2)[None]
    (hypothesis,) = beamed(log_probs_BFV, WORDS, fusion.fusion(WORDS), width)
    times = [time for word in hypothesis.words for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert all(0 < word.prob <= 1 and word.start_ms < word.end_ms <= frames * 80 for word in hypothesis.words)
    assert (
        hypothesis.text == detokenize(hypothesis.token_ids, WORDS) == " ".join(word.text for word in hypothesis.words)
    )


def test_an_alignment_is_the_likeliest_of_all() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        num_frames = int(draw.integers(1, 7))
        log_probs_FV = emissions(draw, num_frames, 3, 1)
        path = max(
            itertools.product(range(3), repeat=num_frames),
            key=lambda path: sum(log_probs_FV[f, token] for f, token in enumerate(path)),
        )
        starts = [f for f in range(num_frames) if path[f] != 2 and (f == 0 or path[f - 1] != path[f])]
        tokens_U = np.array([path[f] for f in starts], np.int64)
        start_U, end_U = prefix_search.viterbi_align(log_probs_FV, tokens_U, 2)
        assert start_U.tolist() == starts
        for start, end in zip(start_U, end_U, strict=True):
            assert len(set(path[start:end])) == 1
            assert end == num_frames or path[end] != path[start]


def test_a_language_model_decides_between_homophones(tiny_lm: lm.LanguageModel) -> None:
    """Whole words, pieces and characters: after `two one`, `one` is likelier than `two`, although it sounds less so."""
    for pieces, tokenized in (
        (["▁one", "▁two", ""], {"one": [0], "two": [1]}),
        (["▁", "o", "n", "e", "t", "w", ""], {"one": [0, 1, 2, 3], "two": [0, 4, 5, 1]}),
        (["▁o", "ne", "▁tw", "o", ""], {"one": [0, 1], "two": [2, 3]}),
    ):
        blank = len(pieces) - 1
        rows: list[NDArray[np.float64]] = []
        for word, prob in (("two", 1.0), ("one", 1.0), ("one", 0.4)):
            for token, other in zip(tokenized[word], tokenized["two"], strict=True):
                probs_V = np.full(len(pieces), 1e-6)
                probs_V[token] += prob
                probs_V[other] += 1 - prob
                rows += [probs_V, np.eye(len(pieces))[blank] + 1e-6]
        log_probs_BFV = np.log(np.array(rows) / np.sum(rows, 1, keepdims=True))[None].astype(np.float32)
        (plain,) = beamed(log_probs_BFV, pieces, fusion.fusion(pieces))
        (helped,) = beamed(log_probs_BFV, pieces, fusion.fusion(pieces, tiny_lm, 4.0))
        (boosted,) = beamed(log_probs_BFV, pieces, fusion.fusion(pieces, boost=["one one"], boost_weight=1.0))
        assert [plain.text, helped.text, boosted.text] == ["two one two", "two one one", "two one one"]


def test_words_have_the_same_weight_however_they_are_tokenized(tiny_lm: lm.LanguageModel) -> None:
    spellings = {
        ("▁one", "▁two", "▁three", "▁twoteen"): [1, 0, 2, 3],
        ("▁", "o", "n", "e", "t", "w", "h", "r"): [4, 5, 1, 0, 1, 2, 3, 0, 4, 6, 7, 3, 3, 0, 4, 5, 1, 4, 3, 3, 2],
        ("▁o", "ne", "▁two", "▁th", "ree", "teen"): [2, 0, 1, 3, 4, 2, 5],
    }
    expected = sum(tiny_lm.logprobs(["two", "one", "three", "twoteen"])) * 0.7 + 4 * 0.3
    for pieces, tokens in spellings.items():
        assert added(fusion.fusion(pieces, tiny_lm, 0.7, 0.3), tokens) == pytest.approx(expected)
    for pieces, tokens in spellings.items():
        fused = fusion.fusion(pieces, None, 0, 0, ["one three", "three", "one one", "wo", "thr"], 2.0)
        assert added(fused, tokens) == pytest.approx(3 * 2.0), pieces


@given(st.lists(st.text("ab ", min_size=1, max_size=8), max_size=5), st.text("ab ", max_size=30))
def test_phrases_are_boosted_by_their_words_as_often_as_they_occur(phrases: list[str], text: str) -> None:
    text = " ".join(text.split())
    pieces = ["▁a", "▁b", "a", "b"]
    tokens = [
        pieces.index(("▁" if at == 0 or text[at - 1] == " " else "") + char)
        for at, char in enumerate(text)
        if char != " "
    ]
    words, num_boosted = text.split(), 0
    for phrase in {tuple(phrase.split()) for phrase in phrases if phrase.split()}:
        num_boosted += len(phrase) * sum(tuple(words[at : at + len(phrase)]) == phrase for at in range(len(words)))
    assert added(fusion.fusion(pieces, boost=phrases, boost_weight=1.5), tokens) == pytest.approx(
        1.5 * num_boosted, abs=1e-9
    )


def test_the_known_sentence_of_a_peer(shared_data: Callable[[str], Path]) -> None:
    """pyctcdecode's test: log-probabilities of LibriSpeech, and a model of two words that knows none of its own."""
    folder = shared_data("peer-vectors") / "ctc-decode"
    known = json.loads((folder / "libri_labels.json").read_text())
    pieces = [label.replace(" ", "▁") for label in known["labels"]] + [""]
    log_probs_BFV = np.array(json.loads((folder / "libri_logits.json").read_text()), np.float32)[None]
    expected = known["expected_text"]
    assert beamed(log_probs_BFV, pieces, fusion.fusion(pieces))[0].text == expected
    assert greedy(log_probs_BFV, [371], ids=["0"], pieces=pieces, blank_id=28, frame_ms=20)[0].text == expected
    tiny = lm.read(str(folder / "bugs_bunny_kenlm.arpa"))
    assert beamed(log_probs_BFV, pieces, fusion.fusion(pieces, tiny, 0.1, 2.0))[0].text == expected


def test_the_known_model_of_a_peer_prefers_its_own_words(shared_data: Callable[[str], Path]) -> None:
    """As in pyctcdecode's test: what sounds like `bunny bunny` and a little less like `bugs bunny` is the latter."""
    tiny = lm.read(str(shared_data("peer-vectors") / "ctc-decode/bugs_bunny_kenlm.arpa"))
    pieces = ["▁", "b", "g", "n", "s", "u", "y", ""]
    probs_FV = np.full((13, len(pieces)), 1e-9)
    for prob, spoken in ((0.55, "bun_ny"), (0.45, "bugs__")):
        for f, character in enumerate(f"{spoken} bun_ny"):
            probs_FV[f, pieces.index({"_": "", " ": "▁"}.get(character, character))] += prob
    log_probs_BFV = np.log(probs_FV)[None].astype(np.float32)
    assert beamed(log_probs_BFV, pieces, fusion.fusion(pieces))[0].text == "bunny bunny"
    assert beamed(log_probs_BFV, pieces, fusion.fusion(pieces, tiny, 0.5, 1.5))[0].text == "bugs bunny"
