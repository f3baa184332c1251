"""The text search: it finds the rows of which a text contains what is asked for, and no others, however they came."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.core.records import Label, Utterance
from voxstill.explorer import joined, staging, word_index
from voxstill.explorer.corpus import Corpus
from voxstill.explorer.filters import ROW, Filter, Order
from voxstill.explorer.staging import Sources, TableSource
from voxstill.storage import tables
from voxstill.storage.store import Store

NUM = 400
PIECES = (
    *"abcdeABCDE äÄöß éÉ жЖдД σςΣ 中文字 \u3000かな。\u9fff\ua000𠀀가ก 😀 %_'\"\\()*?[]",
    "中文",
    "\n",
    "the ",
    "light ",
    "Straße ",
    "50% ",
    "it's ",
)
SOURCES = Sources(
    tables=(
        TableSource(role="utterances", prefix="utterances/u", kind=Utterance),
        TableSource(role="labels", prefix="labels/first", kind=Label, title="first", is_main=True),
        TableSource(role="labels", prefix="labels/second", kind=Label, title="second"),
    )
)


def random_texts(rng: np.random.Generator, num: int) -> list[str]:
    return ["".join(rng.choice(PIECES, rng.integers(0, 40))) for _ in range(num)]


def add(work: Store, name: str, ids: list[str], texts: dict[str, list[str]]) -> None:
    """Parts of utterances, with their human texts, and of the labels of each teacher."""
    utterances = [
        Utterance(id=id_, recording_id="r", uri="/a.wav", end_ms=900, text=text)
        for id_, text in zip(ids, texts["human"], strict=True)
    ]
    work.create(f"utterances/u/{name}.parquet", tables.to_parquet(utterances, Utterance))
    for teacher in ("first", "second"):
        labels = [
            Label(utterance_id=id_, recipe="r", teacher="t@1", text=text)
            for id_, text in zip(ids, texts[teacher], strict=True)
        ]
        work.create(f"labels/{teacher}/{name}.parquet", tables.to_parquet(labels, Label))


@pytest.fixture(scope="module", params=["built", "grown"])
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Corpus, list[list[str]]]]:
    """A corpus and the texts of each of its rows; the file was made at once, or half of it was added."""
    folder, rng = tmp_path_factory.mktemp("searched"), np.random.default_rng(0)
    work, path = Store(str(folder / "work")), folder / "explorer"
    texts = {name: random_texts(rng, NUM) for name in ("human", "first", "second")}
    for start in (0, NUM // 2):
        half = slice(start, start + NUM // 2)
        add(work, f"{start:06}", [f"id{k}" for k in range(NUM)[half]], {name: of[half] for name, of in texts.items()})
        if request.param == "grown" and not start:
            joined.ensure(work, lambda: SOURCES, path)
    corpus = Corpus(joined.ensure(work, lambda: SOURCES, path)[0])
    yield corpus, [list(row) for row in zip(*texts.values(), strict=True)]
    corpus.close()


def folded(text: str) -> str:
    return text.lower().replace("ς", "σ")


def queries(rng: np.random.Generator, texts: list[list[str]]) -> Iterator[str]:
    """Pieces of texts of any length in another case, and what is in none."""
    for _ in range(60):
        text = texts[rng.integers(len(texts))][rng.integers(3)]
        start = rng.integers(0, max(1, len(text)))
        piece = text[start : start + rng.choice([1, 2, 3, 4, 5, 8, 20])]
        yield rng.choice([piece, piece.lower(), piece + rng.choice(list("abж中%"))])
    yield from (
        "%",
        "_",
        "'",
        '"',
        "\\",
        "50%",
        "it's",
        "' OR 1=1 --",
        "zzzz",
        "id7",
        "the light",
        "light  the",
        "it's\tlight",
        "e \n l",
    )


def test_it_finds_what_a_search_of_every_text_finds(searched: tuple[Corpus, list[list[str]]]) -> None:
    corpus, texts = searched
    for query in queries(np.random.default_rng(1), texts):
        wanted = query.strip()
        expected = [
            number
            for number, of_row in enumerate(texts)
            if any(folded(wanted) in folded(text) for text in of_row) or wanted == f"id{number}"
        ]
        matches = [row["row"] for row in corpus.page(Filter(text=wanted), Order(column=ROW), 500)]
        assert matches == expected, wanted
        assert corpus.totals(Filter(text=wanted))["utterances"] == len(expected), wanted


def test_words_and_whole_texts_give_the_same_rows(searched: tuple[Corpus, list[list[str]]]) -> None:
    corpus, texts = searched
    for query in list(queries(np.random.default_rng(2), texts))[::2]:
        wanted = folded(query.strip()) or "中中"
        by_words, by_texts = (
            word_index.rows_with(corpus._numbers, wanted, NUM, by_words=by_words) for by_words in (True, False)
        )
        assert np.array_equal(by_words, by_texts), wanted


@pytest.mark.parametrize(
    ("letters", "space", "is_shorter"),
    [("abcdefgh", " ", True), ("的一是不了人我在", "", True), ("กขคงจฉชซ", "", False)],
)
def test_words_are_searched_where_they_are_fewer_than_the_texts(
    tmp_path: Path, letters: str, space: str, is_shorter: bool
) -> None:
    rng, work = np.random.default_rng(0), Store(str(tmp_path / "work"))
    texts = [space.join(rng.choice(list(letters), 25)) for _ in range(100)]
    add(work, "0", [f"id{k}" for k in range(100)], dict.fromkeys(("human", "first", "second"), texts))
    corpus = Corpus(joined.ensure(work, lambda: SOURCES, tmp_path / "explorer")[0])
    assert word_index.is_shorter(corpus._numbers) == is_shorter
    wanted = texts[7][3:8].strip()
    assert corpus.totals(Filter(text=wanted))["utterances"] == sum(wanted in text for text in texts)
    corpus.close()


def test_more_searches_at_once_than_are_kept_answer_as_alone(
    searched: tuple[Corpus, list[list[str]]],
) -> None:
    corpus, texts = searched
    wanted = [text[:3].strip() for text, *_ in texts if text[:3].strip()][:30]
    alone = {text: corpus.totals(Filter(text=text))["utterances"] for text in wanted}
    exported = corpus.export(Filter(text=wanted[0]), [corpus.columns["id"]])
    first = next(exported)
    with ThreadPoolExecutor(12) as pool:
        at_once = list(pool.map(lambda text: corpus.totals(Filter(text=text))["utterances"], wanted * 3))
    assert at_once == [alone[text] for text in wanted] * 3
    assert len([first, *exported]) == alone[wanted[0]]


@given(st.lists(st.integers(0, 2**20)), st.integers(0, 2**31))
def test_words_are_sorted_by_all_of_their_bits(numbers: list[int], first_row: int) -> None:
    number_P, row_P = np.array(numbers, np.int32), first_row + np.arange(len(numbers)) // 2
    pairs = word_index._sorted(number_P, row_P).tolist()
    assert [divmod(pair, 2**32) for pair in pairs] == sorted(zip(numbers, row_P.tolist(), strict=True))


LETTERS = st.characters(codec="utf-8", max_codepoint=0x52F).filter(lambda one: one not in "µßİŉſǰͅΐΰϐϑϕϖϰϱϵ")
"""Latin, Greek and Cyrillic but for letters with another fold, such as `ß`, which Python takes as `ss`."""


@given(st.lists(st.one_of(LETTERS, st.sampled_from("σςΣ ")).map(str)).map("".join))
def test_texts_are_folded_as_python_folds_them(text: str) -> None:
    assert duckdb.execute(f"SELECT {staging.folded('?')}", [text]).fetchone() == (text.casefold(),)
