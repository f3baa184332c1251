"""The search along a grammar: its text is the likeliest sentence, as a search through all paths has it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.decoding import ctc, grammar_search
from voxstill.text import jsgf
from voxstill.text.grammar import Graph

BLANK = 3
WORDS = {"a": (0,), "b": (1,), "aa": (0, 0), "ab": (0, 1), "cab": (2, 0, 1), "missing": ()}
graphs = st.builds(
    lambda arcs, ends: Graph(arcs=tuple(sorted(arcs)), ends=ends, num_states=3),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(sorted(WORDS))), min_size=1, max_size=6),
    st.frozensets(st.integers(0, 2), min_size=1),
)


def sentences(graph: Graph, longest: int, delimiter_id: int | None) -> set[tuple[int, ...]]:
    """The token sequences of all sentences with up to so many tokens."""
    reached = pending = {(0, ())}
    while pending:
        pending = {
            (target, (*tokens, *([delimiter_id] if tokens and delimiter_id is not None else []), *WORDS[word]))
            for state, tokens in pending
            for source, target, word in graph.arcs
            if state == source and WORDS[word]
        }
        pending = {(state, tokens) for state, tokens in pending if len(tokens) <= longest} - reached
        reached = reached | pending
    complete = {tokens for state, tokens in reached if state in graph.ends}
    if delimiter_id is not None:
        complete |= {(*tokens, delimiter_id) for tokens in complete if tokens}
    return complete


def collapsed(path: tuple[int, ...], blank_id: int) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token != blank_id)


@settings(max_examples=150, deadline=None)
@given(graphs, st.integers(1, 5), st.none() | st.just(2), st.integers(0, 2**32 - 1))
def test_the_path_is_the_likeliest_of_all_that_spell_a_sentence(
    graph: Graph, num_frames: int, delimiter_id: int | None, seed: int
) -> None:
    logprob_FV = np.log(np.random.default_rng(seed).dirichlet(np.full(BLANK + 1, 0.5), num_frames)).astype(np.float32)
    tokens = grammar_search.token_graph(graph, WORDS.__getitem__, delimiter_id)
    allowed = sentences(graph, num_frames, delimiter_id)
    scores = {
        path: float(sum(logprob_FV[f, token] for f, token in enumerate(path)))
        for path in itertools.product(range(BLANK + 1), repeat=num_frames)
        if collapsed(path, BLANK) in allowed
    }
    best = grammar_search.search(logprob_FV, BLANK, tokens)
    assert grammar_search.has_sentence(tokens) == bool(sentences(graph, 12, delimiter_id))
    if not scores:
        assert best is None
        return
    assert best is not None
    assert best.score == pytest.approx(max(scores.values()), abs=1e-4)
    path = np.full(num_frames, BLANK)
    for token, start, end in zip(*(column.tolist() for column in best[:3]), strict=True):
        path[start:end] = token
    assert collapsed(tuple(path.tolist()), BLANK) == tuple(best.token_U.tolist()) in allowed
    assert scores[tuple(path.tolist())] == pytest.approx(best.score, abs=1e-4)


def test_hypotheses_have_the_times_and_confidences_of_the_path() -> None:
    graph = jsgf.parse("#JSGF V1.0;\ngrammar g;\npublic <s> = (on | off) now;").graph()
    pieces = ("<unk>", "▁on", "▁off", "▁now")
    tokens = grammar_search.token_graph(graph, lambda word: [pieces.index("▁" + word)])
    probs_FV = np.full((6, 5), 0.01, np.float32)
    probs_FV[[0, 1, 2, 3, 4, 5], [3, 2, 2, 4, 3, 4]] = 0.9, 0.4, 0.5, 0.9, 0.9, 0.9  # "now off now": the first is noise
    probs_FV[0, 4] = 0.02
    log_probs_1FV = np.log(probs_FV)[None]
    common = {"ids": ["u"], "pieces": pieces, "blank_id": 4, "frame_ms": 40}
    [greedy] = ctc.greedy(log_probs_1FV, [6], **common)
    [hypothesis] = ctc.grammar(log_probs_1FV, [6], graph=tokens, **common)
    assert (greedy.text, hypothesis.text) == ("now off now", "off now")
    assert [(word.start_ms, word.end_ms) for word in hypothesis.words] == [(40, 120), (160, 200)]
    assert hypothesis.words[0].prob == pytest.approx(0.45)
    [too_short] = ctc.grammar(log_probs_1FV, [1], graph=tokens, **common)
    assert (too_short.text, too_short.words, too_short.score) == ("", (), None)
