"""Text becomes tokens and the same text again, for us and for `transformers` alike."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import DataError
from voxstill.core.records import Word
from voxstill.text import tokenizer
from voxstill.text.pretrained import CheckpointVocabulary
from voxstill.text.tokenizer import UNKNOWN, Vocabulary

letters = st.characters(categories=("Ll", "Lo", "Nd"), include_characters="'-.é語")
phrases = st.lists(st.text(letters, min_size=1, max_size=8), min_size=1, max_size=6).map(" ".join)


@pytest.mark.parametrize("units", ["word", "character"])
@given(corpus=st.lists(phrases, min_size=1, max_size=5))
def test_every_text_of_the_corpus_comes_back_as_it_was(units: Any, corpus: list[str]) -> None:
    vocabulary = tokenizer.train(corpus, units, 200)
    assert vocabulary.pieces[0] == UNKNOWN
    assert len(set(vocabulary.pieces)) == len(vocabulary.pieces) == vocabulary.blank_id
    for text in corpus:
        ids, times = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert 0 not in ids
        assert vocabulary.blank_id not in ids
        assert times == [(-1, -1)] * len(ids)


@given(phrases, st.data())
def test_times_of_tokens_share_out_the_words_and_never_leave_them(text: str, data: st.DataObject) -> None:
    spoken = text.split()
    cuts = sorted(data.draw(st.lists(st.integers(0, 9000), min_size=2 * len(spoken), max_size=2 * len(spoken))))
    words = [
        Word(text=word, start_ms=start, end_ms=end)
        for word, start, end in zip(spoken, cuts[::2], cuts[1::2], strict=True)
    ]
    ids, times = tokenizer.train([text], "character", 0).encode(text, words)
    assert len(ids) == len(times) == len("".join(spoken))
    position = 0
    for word in words:
        own = times[position : position + len(word.text)]
        assert (own[0][0], own[-1][1]) == (word.start_ms, word.end_ms)
        assert all(first[1] == second[0] for first, second in itertools.pairwise(own))
        position += len(word.text)


def test_word_times_whose_words_are_not_those_of_the_text_are_not_used() -> None:
    vocabulary = tokenizer.train(["one two"], "word", 200)
    words = [Word(text="one", start_ms=0, end_ms=9)]
    assert vocabulary.encode("one two", words)[1] == [(-1, -1), (-1, -1)]


def test_auto_takes_words_where_few_differ_and_characters_else() -> None:
    assert tokenizer.train(["a b", "b c"], "auto", 3).unit == "word"
    assert tokenizer.train(["a b", "b c"], "auto", 2).unit == "character"
    assert tokenizer.train(["a b", "b c"], "auto", 2, fallback="bpe").unit == "bpe"
    assert tokenizer.train(["b b a"], "auto", 3).pieces == (UNKNOWN, "▁b", "▁a")


BOOK = ["the theme of the thesis", "these other things", "lower lowest newer newest", "the low new theme"] * 5


def test_byte_pairs_join_what_is_frequent_and_decode_to_every_text() -> None:
    vocabulary = tokenizer.train(BOOK, "bpe", 0, bpe_pieces=40)
    assert (len(vocabulary.pieces), vocabulary.pieces[0], vocabulary.unit) == (40, UNKNOWN, "bpe")
    assert "▁the" in vocabulary.pieces
    letters = tokenizer.train(BOOK, "character", 0)
    for text in BOOK:
        ids, _ = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert len(ids) < len(letters.encode(text)[0])
    assert 0 in vocabulary.encode("the ∂")[0]


def test_byte_pairs_are_the_same_in_every_process_and_no_more_than_there_are() -> None:
    script = (
        "import sys; from voxstill.text import tokenizer; texts = sys.argv[1].split('|');"
        "print(tokenizer.train(texts, 'bpe', 0, bpe_pieces=60))"
    )
    command = [sys.executable, "-c", script, "|".join(BOOK)]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second
    few = tokenizer.train(["ab ab"], "bpe", 0, bpe_pieces=512)
    assert set(few.pieces) <= {UNKNOWN, "a", "b", "▁", "▁a", "ab", "▁ab"}
    assert few.decode(few.encode("ab ab")[0]) == "ab ab"


def test_times_are_shared_out_over_the_characters_of_pieces() -> None:
    vocabulary = tokenizer.train(BOOK, "bpe", 0, bpe_pieces=40)
    word = Word(text="themes", start_ms=100, end_ms=700)
    ids, times = vocabulary.encode("themes", [word])
    assert len(ids) > 1
    sizes = [len(vocabulary.pieces[i].lstrip("▁")) for i in ids]
    assert [end - start for start, end in times] == [100 * size for size in sizes]
    assert (times[0][0], times[-1][1]) == (100, 700)


def test_a_corpus_without_a_word_is_a_data_error() -> None:
    with pytest.raises(DataError, match="no text"):
        tokenizer.train(["", " "], "auto", 10)


def test_characters_outside_the_corpus_are_unknown() -> None:
    assert tokenizer.train(["one"], "word", 9).encode("one more")[0] == [1, 0]


@pytest.mark.parametrize("units", ["word", "character", "bpe"])
@settings(max_examples=8, deadline=None)
@given(corpus=st.lists(phrases, min_size=1, max_size=4))
def test_transformers_reads_the_saved_vocabulary_and_tokenizes_as_we_do(
    units: Any, corpus: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from transformers import AutoProcessor

    from voxstill.nn.log_mel import LogMel

    folder: Path = tmp_path_factory.mktemp("vocabulary")
    vocabulary = tokenizer.train(corpus, units, 200)
    vocabulary.save(folder, LogMel().extractor)
    assert Vocabulary.load(folder).pieces == vocabulary.pieces
    assert Vocabulary.load(folder).encode(corpus[0]) == vocabulary.encode(corpus[0])
    hf_tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
    assert hf_tokenizer.pad_token_id == vocabulary.blank_id
    for text in corpus:
        ids = vocabulary.encode(text)[0]
        assert hf_tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        path = [path_id for id_ in ids for path_id in (id_, id_, vocabulary.blank_id)]
        assert hf_tokenizer.decode(path, skip_special_tokens=True) == text
    pieces = CheckpointVocabulary(folder, vocabulary.blank_id, len(vocabulary.pieces) + 1)
    assert [pieces.encodings(text) for text in corpus] == [[vocabulary.encode(text)[0]] for text in corpus]
    assert pieces.encodings("%") == pieces.encodings("") == []


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": {}}'])
def test_a_folder_without_a_vocabulary_is_a_data_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match="vocabulary"):
        Vocabulary.load(tmp_path)
