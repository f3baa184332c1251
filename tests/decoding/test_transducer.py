"""The beam search of transducers, of those that say durations too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxstill.decoding import fusion, transducer, transducer_beam
from voxstill.decoding.transducer import EncodedBatch, Floats, Memory, TransducerModel

PIECES = ["▁one", "▁two", "teen"]
BLANK = len(PIECES)


def model_of(network: Tiny | Early, durations: Sequence[int] = ()) -> TransducerModel:
    return TransducerModel(
        predict=network.predict,
        joint=network.joint,
        pieces=PIECES,
        blank_id=BLANK,
        frame_ms=80,
        durations=durations,
    )


class Tiny:
    """A transducer of random numbers: what it says next depends on all that it said."""

    def __init__(self, seed: int, durations: Sequence[int]) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.lstm = torch.nn.LSTM(4, 5, batch_first=True)
        for weight in self.lstm.parameters():
            torch.nn.init.normal_(weight, generator=draw)
        self.embedding = torch.randn(BLANK + 1, 4, generator=draw)
        self.out = torch.randn(5, BLANK + 1 + len(durations), generator=draw) * 2
        self.durations = durations
        self.encoded_BFE = torch.randn(2, 3, 5, generator=draw).numpy()

    @torch.no_grad()
    def predict(self, tokens_BU: NDArray[np.int64], memory: Memory | None) -> tuple[Floats, Memory]:
        before = None if memory is None else tuple(map(torch.from_numpy, memory))
        states, (hidden, cell) = self.lstm(self.embedding[torch.from_numpy(tokens_BU)], before)
        return states.numpy(), (hidden.numpy(), cell.numpy())

    def joint(self, encoded: Floats, predicted: Floats) -> Floats:
        return np.tanh(encoded + predicted) @ self.out.numpy()

    def decode(self, frames_B: list[int], width: int, fused: fusion.Fusion | None) -> list[tuple[int, ...]]:
        batch = EncodedBatch(encoded_BFE=self.encoded_BFE, frames_B=frames_B, ids=["a", "b"])
        if fused is None:
            hypotheses = transducer.greedy(self.model(), batch)
        else:
            hypotheses = transducer_beam.beam(self.model(), batch, width=width, fusion=fused)
        return [hypothesis.token_ids for hypothesis in hypotheses]

    def model(self) -> TransducerModel:
        return model_of(self, self.durations)

    def walk(self, encoded_FE: Floats) -> list[tuple[int, int]]:
        """The likeliest token of each frame and text, one after another, with its frame."""
        frame, num_symbols, tokens = 0, 0, list[tuple[int, int]]()
        while frame < len(encoded_FE):
            states, _ = self.predict(np.array([[BLANK, *(token for token, _ in tokens)]]), None)
            logits_V = self.joint(encoded_FE[frame], states[0, -1])
            best = int(logits_V[: BLANK + 1].argmax())
            if best != BLANK:
                tokens.append((best, frame))
                num_symbols += 1
            least = int(best == BLANK or num_symbols >= transducer.MAX_SYMBOLS)
            on = max(self.durations[logits_V[BLANK + 1 :].argmax()], least) if self.durations else least
            frame, num_symbols = frame + on, 0 if on else num_symbols
        return tokens

    def totals(self, encoded_FE: Floats) -> dict[tuple[int, ...], float]:
        """Every text with the logarithm of its probability, one way after another."""
        scores: dict[tuple[int, ...], float] = {}

        def walk(frame: int, num_symbols: int, text: tuple[int, ...], weight: float) -> None:
            if frame >= len(encoded_FE):
                scores[text] = np.logaddexp(scores.get(text, -np.inf), weight)
                return
            states, _ = self.predict(np.array([[BLANK, *text]]), None)
            logits_V = torch.from_numpy(self.joint(encoded_FE[frame], states[0, -1]))
            token_V, passing_D = logits_V[: BLANK + 1].log_softmax(-1), logits_V[BLANK + 1 :].log_softmax(-1)
            for token in range(BLANK + 1):
                ways = list(zip(self.durations, passing_D.tolist(), strict=True)) or [(int(token == BLANK), 0.0)]
                for duration, passing in ways:
                    on = duration
                    if token == BLANK or num_symbols + 1 >= transducer_beam.MAX_SYMBOLS:
                        on = max(duration, 1)
                    longer = text if token == BLANK else (*text, token)
                    walk(frame + on, 0 if on else num_symbols + 1, longer, weight + float(token_V[token]) + passing)

        walk(0, 0, (), 0.0)
        return scores


def weight(fused: fusion.Fusion, tokens: tuple[int, ...]) -> float:
    texts_1 = np.zeros(1, np.dtype(list(fusion.TEXT_FIELDS), align=True))
    fusion.start(fused, texts_1, 0)
    for token in tokens:
        fusion.append(fused, texts_1, 0, token)
    return float(texts_1[0]["bonus"]) + fusion.end_score(fused, texts_1, 0)


@pytest.mark.parametrize("durations", [(), (0, 1, 2), (1, 2)])
@pytest.mark.parametrize("boosted", [False, True])
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(
    monkeypatch: pytest.MonkeyPatch, durations: Sequence[int], boosted: bool
) -> None:
    monkeypatch.setattr(transducer_beam, "MAX_SYMBOLS", 2)  # else there are too many texts to try all
    fused = (
        fusion.fusion(PIECES, boost=["twoteen one", "one one"], boost_weight=2.0) if boosted else fusion.fusion(PIECES)
    )
    for seed in range(4):
        tiny = Tiny(seed, durations)
        frames_B = [2, 1] if not durations else [2, 2]
        texts = tiny.decode(frames_B, 2000, fused)
        for tokens, encoded_FE, frames in zip(texts, tiny.encoded_BFE, frames_B, strict=True):
            totals = {text: total + weight(fused, text) for text, total in tiny.totals(encoded_FE[:frames]).items()}
            assert totals[tokens] == pytest.approx(max(totals.values()), abs=1e-6)


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_a_beam_of_one_on_confident_output_gives_the_greedy_text(durations: Sequence[int]) -> None:
    same = 0
    for seed in range(20):
        tiny = Tiny(seed, durations)
        tiny.out *= 40  # nothing is in doubt
        same += tiny.decode([3, 2], 4, fusion.fusion(PIECES)) == tiny.decode([3, 2], 1, None)
    assert same >= 19  # one way of a text may be the likeliest although another text is


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
@given(seed=st.integers(0, 10_000), frames_B=st.lists(st.integers(0, 25), min_size=1, max_size=4))
@settings(deadline=None, max_examples=30)
def test_a_greedy_text_is_that_of_a_walk_through_the_frames(
    durations: Sequence[int], seed: int, frames_B: list[int]
) -> None:
    tiny, draw = Tiny(seed, durations), np.random.default_rng(seed)
    tiny.out[:, BLANK] += draw.uniform(0, 3)
    tiny.encoded_BFE = draw.normal(0, 2, (len(frames_B), 25, 5)).astype(np.float32)
    texts, _ = transducer.greedy_tokens(tiny.model(), tiny.encoded_BFE, frames_B, None)
    for tokens, frames, encoded_FE in zip(texts, frames_B, tiny.encoded_BFE, strict=True):
        assert [(token.id, token.start) for token in tokens] == tiny.walk(encoded_FE[:frames])


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
@pytest.mark.parametrize("boosted", [False, True])
def test_a_beam_does_not_depend_on_the_batch(durations: Sequence[int], boosted: bool) -> None:
    fused = fusion.fusion(PIECES, boost=["one one"] if boosted else [], boost_weight=2.0)
    for seed in range(10):
        tiny, draw = Tiny(seed, durations), np.random.default_rng(seed)
        tiny.encoded_BFE = draw.normal(0, 2, (2, 12, 5)).astype(np.float32)
        texts = tiny.decode([12, 7], 4, fused)
        tiny.encoded_BFE = tiny.encoded_BFE[::-1]
        assert tiny.decode([7, 12], 4, fused) == texts[::-1]


def test_no_frames_are_no_words() -> None:
    assert Tiny(0, ()).decode([0, 0], 4, fusion.fusion(PIECES)) == [(), ()]


def test_times_lie_in_order() -> None:
    tiny = Tiny(3, (0, 1, 2))
    batch = EncodedBatch(encoded_BFE=tiny.encoded_BFE, frames_B=[3, 3], ids=["a", "b"])
    hypotheses = transducer_beam.beam(tiny.model(), batch, width=8, fusion=fusion.fusion(PIECES))
    for hypothesis in hypotheses:
        for one, other in itertools.pairwise(hypothesis.words):
            assert one.start_ms <= other.start_ms
        assert all(0 <= word.start_ms < word.end_ms <= 240 and 0 < word.prob <= 1 for word in hypothesis.words)


class Early:
    """A transducer that says its two words in the first frame, whatever it hears."""

    def predict(self, tokens_BU: NDArray[np.int64], memory: Memory | None) -> tuple[Floats, Memory]:
        said_1B1 = np.zeros((1, len(tokens_BU), 1), np.float32) if memory is None else memory[0] + 1
        return said_1B1[0][:, None], (said_1B1, said_1B1)

    def joint(self, encoded: Floats, predicted: Floats) -> Floats:
        num_said = (encoded[..., :1] + predicted)[..., 0].astype(np.int64)
        chosen = np.array([0, 1, BLANK])[np.minimum(num_said, 2)]
        return 20 * np.eye(BLANK + 1, dtype=np.float32)[chosen]


@pytest.mark.parametrize("width", [1, 8])
def test_words_are_where_the_frames_alone_say_if_these_know_them(width: int) -> None:
    early, encoded_BFE = Early(), np.zeros((2, 12, 4), np.float32)
    frame_log_probs = np.full(
        (2, 12, BLANK + 1), np.log(1 / (BLANK + 1)), np.float32
    )  # of the second, which knows none
    frame_log_probs[0] = -9.0
    frame_log_probs[0, :, BLANK] = -0.1
    for frame, token in ((4, 0), (5, 0), (9, 1)):
        frame_log_probs[0, frame, BLANK], frame_log_probs[0, frame, token] = -9.0, -0.1
    batch = EncodedBatch(encoded_BFE=encoded_BFE, frames_B=[12, 12], ids=["a", "b"], frame_log_probs=frame_log_probs)
    if width == 1:
        known, unknown = transducer.greedy(model_of(early), batch)
    else:
        fused = fusion.fusion(PIECES, None, 0.0, 0.0, [], 0.0)
        known, unknown = transducer_beam.beam(model_of(early), batch, width=width, fusion=fused)
    assert known.text == unknown.text == "one two"
    assert [(word.start_ms, word.end_ms) for word in known.words] == [(320, 480), (720, 800)]
    assert [(word.start_ms, word.end_ms) for word in unknown.words] == [(0, 80), (0, 80)]
