"""Word times that a manifest has beside a text: read from its rows, and used where they fit text and audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests import entries_in, wav
from voxstill.core.errors import DataError
from voxstill.core.records import Word
from voxstill.indexing.formats import word_times
from voxstill.indexing.formats.entry import SourceEntry

ONE, TWO = ("one", 100, 400), ("two", 400, 900)


def timed(word: object, start: object, end: object) -> dict[str, Any]:
    return {"word": word, "start": start, "end": end}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([timed("one", 0.1, 0.4), timed("two", 0.4, 0.9)], (ONE, TWO)),
        ([timed(" one", 0.1, 0.4), {"text": "two", "start": 0.4, "duration": 0.5}], (ONE, TWO)),
        ([timed("one", 0.1, 0.4), {"word": "two", "start_ms": 400, "end_ms": 900, "probability": 1}], (ONE, TWO)),
        ([timed("", 0, 0.1), timed("one", 0.1, 0.4), timed("two", 0.4, 0.9)], (ONE, TWO)),  # a pause
        ([timed("one", 0.1, 0.1)], (("one", 100, 100),)),
        ([timed("one", 0.1, 0.5), timed("two", 0.4, 0.9)], (("one", 100, 500), TWO)),
        (None, None),
        ([], None),
        ("", None),
        ([timed("", 0, 0.1)], None),
        ("one two", word_times.NOT_TIMED),
        (2, word_times.NOT_TIMED),
        (0, word_times.NOT_TIMED),
        (["one", "two"], word_times.NOT_TIMED),
        ([None], word_times.NOT_TIMED),
        ([timed(1, 0.1, 0.4)], word_times.NOT_TIMED),
        ([timed("one", 0.1, None)], word_times.NOT_TIMED),
        ([timed("one", None, 0.4)], word_times.NOT_TIMED),
        ([{"word": "one", "start": 0.1, "stop_frame": 4}], word_times.NOT_TIMED),
        ([timed("one", "0.1", 0.4)], word_times.NOT_TIMED),
        ([timed("one", 0.1, float("nan"))], word_times.NOT_TIMED),
        ([timed("one", True, 1e300)], word_times.NOT_TIMED),
        ([{**timed("one", 0.1, 0.4), "offset": 0.2}], word_times.NOT_TIMED),  # two starts
        ([timed("one", 0.4, 0.1)], word_times.OUT_OF_ORDER),
        ([timed("two", 0.4, 0.9), timed("one", 0.1, 0.4)], word_times.OUT_OF_ORDER),
        ([timed("one", 0.1, 0.9), timed("two", 0.2, 0.4)], word_times.OUT_OF_ORDER),
        ([timed("one", 0.1, 0.4)] * (word_times.MOST_WORDS + 1), word_times.TOO_MANY),
    ],
)
def test_words_are_read_or_there_is_a_reason(words: object, wanted: object) -> None:
    assert word_times.read_words(words, "m.jsonl:1") == wanted


@pytest.mark.parametrize(
    ("words", "text", "span_ms", "wanted"),
    [
        ((ONE, TWO), "one two", (0, 1000), ((100, 400), (400, 900))),
        ((ONE, TWO), " one  two ", (100, 1000), ((0, 300), (300, 800))),
        ((ONE, TWO), "one two", (120, 850), ((0, 280), (280, 730))),  # rounded, as the stretch may be
        ((ONE, TWO), None, (0, 1000), word_times.NO_TEXT),
        ((ONE, TWO), "one", (0, 1000), word_times.OTHER_WORDS),
        ((ONE, TWO), "One two", (0, 1000), word_times.OTHER_WORDS),
        ((ONE, TWO), "two one", (0, 1000), word_times.OTHER_WORDS),
        ((ONE, TWO), "one two", (0, 600), word_times.OUTSIDE),
        ((ONE, TWO), "one two", (400, 1000), word_times.OUTSIDE),
        ((("one", -300, 100),), "one", (0, 1000), word_times.OUTSIDE),
        (word_times.NOT_TIMED, "one", (0, 1000), word_times.NOT_TIMED),
        (None, "one", (0, 1000), None),
    ],
)
def test_times_start_with_the_utterance_and_fit_its_text_and_audio(
    words: Any, text: str | None, span_ms: tuple[int, int], wanted: object
) -> None:
    times = word_times.of_utterance(words, text, span_ms)
    if isinstance(times, tuple):
        assert [word.text for word in times] == ["one", "two"]
        times = tuple((word.start_ms, word.end_ms) for word in times)
    assert times == wanted


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_manifests_have_words_in_times_of_the_file(tmp_path: Path, ending: str) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    words = [timed("one", 0.1, 0.4), timed("two", 0.4, 0.9)]
    row = {"audio": "a.wav", "text": "one two", "start": 0.1, "end": 0.95, "words": words}
    rows = [row, row | {"start": 1.0, "end": 2.0, "words": None}]
    path = tmp_path / f"m.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    assert [entry.words for entry in entries_in(path)] == [(ONE, TWO), None]


def test_words_in_a_description_beside_its_audio_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "a.json").write_text(json.dumps({"words": [timed("one", 0.1, 0.4)]}))
    [entry] = entries_in(tmp_path)
    assert (entry.text, entry.words) == ("one", (ONE,))


def test_long_lists_of_words_in_parquet_are_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    word = pa.struct([("word", pa.string()), ("start", pa.float64()), ("end", pa.float64())])
    num = word_times.MOST_WORDS + 2
    equal = pa.array([timed("a", 0.0, 0.0)], word).take(pa.array([0] * (num + 1)))
    path = tmp_path / "m.parquet"

    def write(*ends: int) -> None:
        words = pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), equal)
        audio = pa.array([f"{number}.wav" for number in range(len(ends))])
        pq.write_table(pa.table({"audio": audio, "Words": words}), path)

    write(num, num + 1)
    assert [entry.words for entry in entries_in(path)] == [word_times.TOO_MANY, (("a", 0, 0),)]
    write(num)
    with pytest.raises(DataError, match="is not read") as caught:
        entries_in(path)
    assert f"{num:,} values in 1 rows" in caught.value.why


def test_metadata_without_words_are_those_of_earlier_versions() -> None:
    plain = SourceEntry(uri="a.wav", text="one")
    assert SourceEntry(uri="a.wav", text="one", words=word_times.NOT_TIMED).metadata == plain.metadata
    of_word = [SourceEntry(uri="a.wav", text="one", words=(word,)).metadata for word in (ONE, ("one", 100, 401))]
    assert len({plain.metadata, *of_word}) == 3


@pytest.mark.parametrize(
    ("alignment", "wanted"),
    [
        ({"word": [["one", 0.1, 0.3], ["", 0.4, 0.1], ["two", 0.5, 0.2, 0.9]]}, [("one", 300, 600), ("two", 700, 900)]),
        ({"word": [{"symbol": "one", "start": 0.1, "duration": 0.3}]}, [("one", 300, 600)]),
        ({"phone": [["w", 0.1, 0.3]]}, None),
        ({"word": []}, None),
        (None, None),
        ({"word": [["one", 0.1]]}, word_times.NOT_TIMED),
        ({"word": [["one", "0.1", 0.3]]}, word_times.NOT_TIMED),
        ({"word": ["one"]}, word_times.NOT_TIMED),
    ],
)
def test_alignments_of_lhotse_start_with_their_cut(tmp_path: Path, alignment: object, wanted: object) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    recording = {"sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "duration": 2.0}
    supervision = {"id": "s", "start": 0.0, "duration": 1.0, "text": "one two", "alignment": alignment}
    cut = {"id": "c", "start": 0.2, "duration": 1.0, "channel": 0, "type": "MonoCut"}
    path = tmp_path / "cuts.jsonl"
    path.write_text(json.dumps({**cut, "recording": recording, "supervisions": [supervision]}))
    [entry] = entries_in(path)
    assert entry.text == "one two"
    assert entry.words == (tuple(wanted) if isinstance(wanted, list) else wanted)


def test_an_utterance_holds_words_as_labels_do() -> None:
    assert word_times.of_utterance((ONE,), "one", (100, 900)) == (Word(text="one", start_ms=0, end_ms=300),)
