"""N-grams: counted as lmplz counts them, read as kenlm reads them, and adding up to one after any words."""

from __future__ import annotations

import gzip
import math
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError, StorageError
from voxstill.storage.store import Store
from voxstill.text import kneser_ney, lm

SENTENCES = (
    "turn on the light",
    "turn off the light",
    "turn the music on",
    "the light is on",
    "is the music on",
)
LMPLZ = {
    "<unk>": (-1.1371732, 0.0),
    "</s>": (-0.9215734, 0.0),
    "turn": (-0.98227125, -0.30103),
    "the": (-0.7035177, -0.30103),
    "<s> turn": (-0.4533545, -0.30103),
    "<s> the": (-0.70123786, -0.30103),
    "turn on": (-0.6922366, -0.30103),
    "on </s>": (-0.40535426, 0.0),
    "the light": (-0.4533545, -0.30103),
    "<s> turn on": (-0.571494, 0.0),
    "<s> turn the": (-0.52363336, 0.0),
    "the light is": (-0.49266428, 0.0),
    "music on </s>": (-0.15700743, 0.0),
    "is the music": (-0.20339677, 0.0),
}
"""Some of what `lmplz -o 3 --discount_fallback` (kenlm) makes of these sentences: log10 of probability and back-off."""
MISSING_CONTEXT = (
    "\\data\\\nngram 1=4\nngram 2=1\nngram 3=1\n\n\\1-grams:\n-1\ta\t-0.5\n-2\tb\t-0.25\n-3\t<s>\t0\n-4\t</s>\n\n"
)
MISSING_CONTEXT += "\\2-grams:\n-0.1\tb b\n\n\\3-grams:\n-0.2\ta b a\n\n\\end\\\n"


def model(folder: Path, sentences: list[str] | tuple[str, ...], order: int) -> lm.LanguageModel:
    (folder / "made.arpa").write_text("\n".join(kneser_ney.arpa(sentences, order)) + "\n")
    return lm.read(str(folder / "made.arpa"))


def random_sentences(num: int, num_words: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words, odds = [f"w{i}" for i in range(num_words)], [1 / (i + 1) for i in range(num_words)]
    return [" ".join(draw.choices(words, odds, k=draw.randint(1, 8))) for _ in range(num)]


def test_counting_gives_what_lmplz_gives() -> None:
    weights = {}
    for line in kneser_ney.arpa(SENTENCES, 3):
        if line.startswith("-"):
            weight, words, *backoff = line.split("\t")
            weights[words] = float(weight), float(backoff[0]) if backoff else 0.0
    for words, (weight, backoff) in LMPLZ.items():
        assert weights[words] == pytest.approx((weight, backoff), abs=1e-6), words
    assert len(weights) == 10 + 16 + 17


def test_discounts_are_those_of_the_equation() -> None:
    """Worked by hand: n1 = 4, n2 = 2, n3 = 2, n4 = 1, so Y = 1/2."""
    assert kneser_ney._discounts(np.array([1, 1, 1, 1, 2, 2, 3, 3, 4, 9])) == (0.5, 0.5, 2.0)
    less_than_nothing = np.array([1, 1, 1, 1, 2, 3, 3, 3, 3, 4])
    assert kneser_ney._discounts(less_than_nothing) == kneser_ney._FALLBACK
    assert kneser_ney._discounts(np.array([1, 1])) == kneser_ney._FALLBACK


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=6).map(" ".join), min_size=1, max_size=60).filter(any),
    st.integers(1, 4),
)
def test_after_any_words_the_probabilities_add_up_to_one(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[str], order: int
) -> None:
    trained = model(tmp_path_factory.mktemp("lm"), sentences, order)
    for state in range(len(trained.automaton.backoff_S)):
        logprobs = [lm.step(trained.automaton, state, id_)[0] for word, id_ in trained.ids.items() if word != lm.START]
        assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-5)


def test_a_sentence_weighs_what_its_words_weigh_and_unknown_words_have_a_weight(tmp_path: Path) -> None:
    trained = model(tmp_path, SENTENCES, 3)
    turn, on, the, end = trained.logprobs(["turn", "on", "the"])
    assert turn / lm.LN10 == pytest.approx(LMPLZ["<s> turn"][0], abs=1e-6)
    assert on / lm.LN10 == pytest.approx(LMPLZ["<s> turn on"][0], abs=1e-6)
    unknown = trained.logprobs(["cheese"])[0] / lm.LN10
    assert unknown == pytest.approx(LMPLZ["<unk>"][0] - 0.30103, abs=1e-6)
    assert trained.order == 3
    assert end < the < 0


def test_the_order_of_sentences_is_no_matter() -> None:
    sentences = random_sentences(50, 9, 0)
    assert list(kneser_ney.arpa(sentences, 3)) == list(kneser_ney.arpa(sentences[::-1], 3))


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(DataError, match="no words"):
        list(kneser_ney.arpa(["", "  ", "<s>"], 3))


def test_a_file_may_be_gzipped_and_its_contexts_missing(tmp_path: Path) -> None:
    (tmp_path / "some.arpa.gz").write_bytes(gzip.compress(MISSING_CONTEXT.encode()))
    loaded = lm.read(str(tmp_path / "some.arpa.gz"))
    logprobs = [logprob / lm.LN10 for logprob in loaded.logprobs(["a", "b", "a", "b", "b", "new"])]
    # a after <s>; b backs off from a; `a b a` is there; b, then `b b`, and no `<unk>` in the file
    assert logprobs == pytest.approx([-1, -2.5, -0.2, -2.5, -0.1, -100.25, -4], abs=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "words",
        "\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n\n\\end\\\n",
        "\\data\\\nngram 1=1\n\n\\2-grams:\n-1\ta\n\n\\end\\\n",
        "\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\n-1\tb\n\n\\end\\\n",
        "\\data\\\nngram 1=1\n\n\\1-grams:\nmany\ta\n\n\\end\\\n",
        "\\data\\\nngram 1=1\nngram 2=1\n\n\\1-grams:\n-1\ta\n\n\\2-grams:\n-1\ta b\n\n\\end\\\n",
    ],
)
def test_a_malformed_arpa_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.arpa").write_text(text)
    with pytest.raises(DataError, match="ARPA"):
        lm.read(str(tmp_path / "bad.arpa"))


@pytest.mark.parametrize("order", [2, 3, 4])
def test_kenlm_reads_the_same(tmp_path: Path, order: int) -> None:
    kenlm = pytest.importorskip("kenlm")
    trained = model(tmp_path, random_sentences(500, 30, 1), order)
    kenlm_model = kenlm.Model(str(tmp_path / "made.arpa"))
    for sentence in random_sentences(300, 33, 2):
        log10 = [logprob / lm.LN10 for logprob in trained.logprobs(sentence.split())]
        assert log10 == pytest.approx([score for score, _, _ in kenlm_model.full_scores(sentence)], abs=1e-4)


def test_every_word_is_found_among_many() -> None:
    graph = lm.Graph()
    for word in range(100):
        graph.add([word], -word, 0.0)
    for first, second in pairwise(range(100)):
        graph.add([first, second], 1000.0 + first, 0.0)
    automaton = graph.automaton()
    for word in range(99):
        weight, state = lm.step(automaton, 0, word)
        assert weight == -word
        assert lm.step(automaton, state, word + 1)[0] == 1000.0 + word
        assert lm.step(automaton, state, word)[0] == -word


def test_a_file_that_is_no_model_is_recognised_by_its_beginning(tmp_path: Path) -> None:
    text = "a remark\n\n" + "\n".join(kneser_ney.arpa(random_sentences(3000, 500, 0), 3)) + "\n"
    (tmp_path / "plain.arpa").write_text(text)
    (tmp_path / "small.arpa.gz").write_bytes(gzip.compress(text.encode()))
    Store("memory://models").replace("far.arpa", text.encode())
    assert len(text) > 2 * (1 << 16)
    for uri in (tmp_path / "plain.arpa", tmp_path / "small.arpa.gz", "memory://models/far.arpa"):
        lm.check(str(uri))
        lm.read(str(uri))
    cut = gzip.compress(text.encode())[:20] + bytes(200)
    for data in (
        b"",
        b"mmap lm http://kheafield.com/code format version 5\n\0",
        text[text.index("-1") :].encode(),
        cut,
    ):
        (tmp_path / "other").write_bytes(data)
        with pytest.raises(DataError, match="not a language model"):
            lm.check(str(tmp_path / "other"))
    for nowhere in (str(tmp_path / "nowhere"), str(tmp_path), "memory://models/nowhere"):
        with pytest.raises(StorageError, match="cannot read"):
            lm.check(nowhere)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("nan\ta\t-0.5", "not finite"),
        ("-inf\ta\t-0.5", "not finite"),
        ("-1\ta\tinf", "not finite"),
        ("0.3\ta\t-0.5", "above 0"),
    ],
)
def test_numbers_that_are_no_log_probabilities_are_refused(row: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "odd.arpa").write_text(MISSING_CONTEXT.replace("-1\ta\t-0.5", row))
    with pytest.raises(DataError) as caught:
        lm.read(str(tmp_path / "odd.arpa"))
    assert why in caught.value.why


def test_a_word_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.arpa").write_text(MISSING_CONTEXT.replace("-2\tb\t", "-2\ta\t"))
    with pytest.raises(DataError) as caught:
        lm.read(str(tmp_path / "odd.arpa"))
    assert "a word is listed twice" in caught.value.why
