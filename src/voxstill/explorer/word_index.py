"""An inverted index of the searched texts: which rows have a word, in tables of the joined file.

A text without a space is part of a row's texts just where it is part of one of their words. So a search looks through
the vocabulary, which is small, and reads the rows of the words that it finds. Of a text of several words the first is
the end of a word, the last the beginning of one, and the rows that have all of them are compared with it. What most
rows have several times, such as a letter, is looked for in the texts themselves.

Chinese and Japanese have no spaces: each of their characters is a word, or every text would be one.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxstill.explorer.filters import Clause
from voxstill.explorer.staging import run
from voxstill.storage.arrays import arrow_numbers, numpy_array

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Numbers = Callable[[str, Sequence[object]], Iterator[NDArray[np.integer]]]
"""The only column of a query, in pieces; the attached file is `corpus`."""
_HAS_BIT = "get_bit(?::BLOB::BIT, rows.row::INTEGER) = 1"
"""The condition that a row has its bit in a value; a bit for each row number, the first of a byte the highest."""
_FEW = 1 / 300
"""Share of the rows up to which a list of them is faster: the blocks of others are skipped."""
_TEXTS_AT_ONCE = 30_720
"""So few are split into words, and sorted, within the cache of a processor."""
_BLOCKS_AHEAD = 1
"""Ranges of rows whose words wait in memory."""
_RARE = 2
"""Rows of words, to all rows, below which reading them is faster than reading all texts."""
_REPEATED = 2
"""Rows of a word, on average, below which the vocabulary is not much shorter than the texts: they are read instead."""


_WORD = re.compile("[\u3000-\u9fff]|[^\u3000-\u9fff \n]+")
_FIRST_OF_THREE, _LAST_OF_THREE = np.uint8("\u3000".encode()[0]), np.uint8("\u9fff".encode()[0])
"""First bytes in UTF-8 of the characters that are words by themselves; of these bytes all have three."""


@contextlib.contextmanager
def creating(file: duckdb.DuckDBPyConnection) -> Iterator[Callable[[int, int], None]]:
    """Make the index of a new file while its rows are inserted.

    The block calls for each range of rows that it has inserted, from the first to before the last: its words are read
    by one thread and written by another.
    """
    run(file, "CREATE TABLE words (word VARCHAR, number INTEGER)")
    run(file, "CREATE TABLE postings (number INTEGER, row INTEGER)")
    run(file, "CREATE TABLE counts (number INTEGER, num INTEGER)")
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as readers, ThreadPoolExecutor(1) as writers:
        reader, writer = file.cursor(), file.cursor()

        def inserted(start: int, stop: int) -> None:
            query = f"SELECT row, search FROM rows WHERE row >= {start} AND row < {stop}"
            words = readers.submit(_read, reader, query)
            waiting.append(writers.submit(lambda: _write(writer, words.result())))
            if len(waiting) > _BLOCKS_AHEAD:
                waiting.popleft().result()

        yield inserted
        while waiting:
            waiting.popleft().result()


def add(file: duckdb.DuckDBPyConnection, query: str) -> None:
    """Add the words of the rows of a query for `row` and `search`; words that they have already may come again."""
    _write(file, _read(file, query))


class _Words(NamedTuple):
    """The words of some rows, and for each piece of these rows the code and the row of each occurrence."""

    words: pa.Array
    pieces: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]]


def _read(file: duckdb.DuckDBPyConnection, query: str) -> _Words:
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces = [_words(texts) for texts in file.sql(query).to_arrow_reader(_TEXTS_AT_ONCE)]
    pieces = [(word_P, row_P) for word_P, row_P in pieces if len(row_P)]
    if not pieces:
        return _Words(pa.nulls(0, pa.large_string()), [])
    encoded = pa.chunked_array([word_P for word_P, _ in pieces]).dictionary_encode().chunks
    words = pc.ascii_trim(encoded[0].dictionary, " \n")  # one word may have several codes, by what stands behind it
    codes = [numpy_array(chunk.indices) for chunk in encoded]
    return _Words(words, [(code_P, row_P) for code_P, (_, row_P) in zip(codes, pieces, strict=True)])


def _write(file: duckdb.DuckDBPyConnection, read: _Words) -> None:
    import pyarrow as pa

    codes = arrow_numbers(np.arange(len(read.words)))
    file.register("vocabulary", pa.table({"word": read.words, "code": codes}))
    run(
        file,
        "INSERT INTO words SELECT word, (SELECT coalesce(max(number) + 1, 0) FROM words) + row_number() OVER () - 1"
        " FROM (SELECT DISTINCT word FROM vocabulary) ANTI JOIN words USING (word)",
    )
    numbers = file.execute("SELECT number FROM vocabulary JOIN words USING (word) ORDER BY code").fetchnumpy()["number"]
    file.unregister("vocabulary")
    number_W = np.asarray(numbers, np.int32)
    sorted_pieces = [_sorted(number_W[code_P], row_P) for code_P, row_P in read.pieces]
    pair_P = np.concatenate([np.zeros(0, np.int64), *sorted_pieces])
    pair_P.sort(kind="stable")  # by the words: a search skips the blocks of others. What is sorted is only merged
    pair_P = pair_P[np.append(np.diff(pair_P) != 0, True)] if len(pair_P) else pair_P
    number_P = (pair_P >> 32).astype(np.int32)
    start_W = np.flatnonzero(np.diff(number_P, prepend=-1))
    pairs = {"number": arrow_numbers(number_P), "row": arrow_numbers(pair_P.astype(np.int32))}
    counts = {
        "number": arrow_numbers(number_P[start_W]),
        "num": arrow_numbers(np.diff(start_W, append=len(number_P)).astype(np.int32)),
    }
    for table, columns in (("postings", pairs), ("counts", counts)):
        file.register("new", pa.table(columns))
        run(file, f"INSERT INTO {table} SELECT * FROM new")
        file.unregister("new")


def _sorted(number_P: NDArray[np.int32], row_P: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of words in the high half and rows in the low one, sorted by the words; rows keep their order.

    By 16 bits at a time, for which NumPy counts values instead of comparing them: half of the time for a piece.
    """
    order_P = np.argsort(number_P.astype(np.uint16), kind="stable")
    order_P = order_P[np.argsort((number_P >> 16).astype(np.uint16)[order_P], kind="stable")]
    return number_P[order_P].astype(np.int64) << 32 | row_P[order_P]


def is_shorter(numbers: Numbers) -> bool:
    """Whether the vocabulary is so much shorter than the texts that a search of it is faster."""
    counts = numbers("SELECT unnest([(SELECT count(*) FROM corpus.words), (SELECT count(*) FROM corpus.postings)])", ())
    num_words, num_postings = np.concatenate(list(counts))
    return bool(_REPEATED * num_words <= num_postings)


def rows_with(numbers: Numbers, text: str, num_rows: int, *, by_words: bool) -> NDArray[np.bool_]:
    """Which rows have a text, folded as theirs, as a part of theirs; row numbers are below `num_rows`."""
    conditions = _conditions(text) if by_words else []
    counted = sorted(zip(_nums_postings(numbers, conditions), conditions, strict=True))
    rare = [one for num, one in counted if num < _RARE * num_rows]
    if not rare:
        return _among(num_rows, numbers("SELECT row FROM corpus.rows WHERE contains(search, ?)", (text,)))
    has_N = np.ones(num_rows, np.bool_)
    for sql, word in rare:
        query = f"SELECT row FROM corpus.postings WHERE number IN (SELECT number FROM corpus.words WHERE {sql})"
        has_N &= _among(num_rows, numbers(query, (word,)))
        if _is_few(has_N):
            break
    if _WORD.fullmatch(text):
        return has_N
    return _among(num_rows, numbers(*_comparison(has_N, text)))


def _conditions(text: str) -> Sequence[tuple[str, str]]:
    """Conditions in SQL, with their parameters, that some word of each row meets that has a text."""
    words = _WORD.findall(text)
    kinds = ["word = ?"] * len(words)
    if not "\u3000" <= text[0] <= "\u9fff":
        kinds[0] = "suffix(word, ?)"
    if not "\u3000" <= text[-1] <= "\u9fff":
        kinds[-1] = "prefix(word, ?)" if len(words) > 1 else "contains(word, ?)"
    return list(dict.fromkeys(zip(kinds, words, strict=True)))


def clause(has_N: NDArray[np.bool_]) -> Clause:
    """The condition that a row is one of these, by their numbers."""
    if _is_few(has_N):
        return Clause(sql="rows.row IN (SELECT unnest(?::INTEGER[]))", values=(np.flatnonzero(has_N).tolist(),))
    return Clause(sql=_HAS_BIT, values=(np.packbits(has_N).tobytes(),))


def _comparison(has_N: NDArray[np.bool_], text: str) -> tuple[str, Sequence[object]]:
    """The query for those of these rows that have a text; no others are compared with it."""
    if _is_few(has_N):
        query = (  # where the text is a parameter and no column, all rows are compared with it
            "SELECT rows.row FROM (SELECT unnest(?::INTEGER[]) AS row, ? AS text) AS candidates"
            " JOIN corpus.rows AS rows USING (row) WHERE contains(rows.search, candidates.text)"
        )
        return query, (np.flatnonzero(has_N).tolist(), text)
    compared = f"CASE WHEN {_HAS_BIT} THEN contains(search, ?) ELSE false END"
    return f"SELECT row FROM corpus.rows AS rows WHERE {compared}", (np.packbits(has_N).tobytes(), text)


def _is_few(has_N: NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(has_N) <= _FEW * len(has_N))


def _among(num_rows: int, pieces: Iterator[NDArray[np.integer]]) -> NDArray[np.bool_]:
    has_N = np.zeros(num_rows, np.bool_)
    for row_K in pieces:
        has_N[row_K] = True
    return has_N


def _nums_postings(numbers: Numbers, conditions: Sequence[tuple[str, str]]) -> Sequence[int]:
    """How many rows have the words of each condition, those with several of them counted for each."""
    if not conditions:
        return []
    sums = ", ".join(f"coalesce(sum(num) FILTER ({sql}), 0)::BIGINT" for sql, _ in conditions)
    query = (
        f"SELECT unnest([{sums}]) FROM corpus.counts JOIN corpus.words USING (number)"
        f" WHERE {' OR '.join(sql for sql, _ in conditions)}"
    )
    return [int(num) for piece in numbers(query, [word for _, word in conditions] * 2) for num in piece]


def _words(texts: pa.RecordBatch) -> tuple[pa.Array, NDArray[np.int64]]:
    """The words of texts with the spaces and line breaks behind them, and the row of each."""
    import pyarrow as pa

    texts = texts.filter(texts["search"].is_valid())
    search = texts["search"].cast(pa.large_string())
    _, offsets, data = search.buffers()
    offset_N = np.frombuffer(offsets, np.int64)[search.offset : search.offset + len(search) + 1]
    bytes_T = np.frombuffer(data or b"", np.uint8)
    if len(search) == 0 or offset_N[0] == offset_N[-1]:
        return pa.nulls(0, pa.large_string()), np.zeros(0, np.int64)
    begins_T = np.zeros(offset_N[-1] + 1, np.bool_)
    bytes_T = bytes_T[: offset_N[-1]]
    space_T = (bytes_T == ord(" ")) | (bytes_T == ord("\n"))
    np.logical_and(space_T[:-1], ~space_T[1:], out=begins_T[1:-1])
    character_K = np.flatnonzero(bytes_T - _FIRST_OF_THREE <= _LAST_OF_THREE - _FIRST_OF_THREE)  # below wraps around
    begins_T[character_K] = True
    begins_T[character_K + 3] = ~space_T[np.minimum(character_K + 3, len(space_T) - 1)]
    begins_T[offset_N] = True
    begins_T[: offset_N[0]] = False
    bound_P = np.flatnonzero(begins_T)
    row_N = numpy_array(texts["row"]).astype(np.int64)
    row_P = np.repeat(row_N, np.diff(bound_P.searchsorted(offset_N)))
    return pa.LargeStringArray.from_buffers(len(row_P), pa.py_buffer(bound_P.astype(np.int64)), data), row_P
