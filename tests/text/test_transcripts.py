from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.errors import ConfigError, DataError
from voxstill.text.transcripts import FORMS, TranscriptSegment, form_of, join_by_segment, read

FILES = {
    "ref": "a one two\nb\nc\tthree\u3000four\n",
    "ref.jsonl": '{"id": 1, "text": "one", "speaker": "ann", "start_ms": 0, "end_ms": 5}\n\n{"id":"b","text":null}\n',
    "ref.trn": "one two (ann-1)\n;; a remark\n(bob_2)\n",
    "ref.stm": ";; a remark\nm 1 ann 0.5 1.25 <o,f0> one two\nm 1 bob 2 3\n",
    "ref.ctm": "m 1 0.5 0.25 one 0.9\nm 2 7 1 two\n",
    "ref.json": '[{"session_id": "m", "speaker": "ann", "words": "one", "start_time": "1.5", "end_time": 2}]',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_every_form_is_read(folder: Path) -> None:
    def rows(name: str, form: str | None = None) -> list[TranscriptSegment]:
        return read(str(folder / name), form)

    assert [(row.id, row.text) for row in rows("ref")] == [("a", "one two"), ("b", ""), ("c", "three\u3000four")]
    assert rows("ref", "text")[1] == TranscriptSegment(id="2", text="b")
    assert rows("ref.jsonl") == [
        TranscriptSegment(id="1", text="one", speaker="ann", start_ms=0, end_ms=5),
        TranscriptSegment(id="b", text=""),
    ]
    assert rows("ref.trn") == [
        TranscriptSegment(id="ann-1", text="one two", speaker="ann"),
        TranscriptSegment(id="bob_2", text="", speaker="bob"),
    ]
    first, second = rows("ref.stm")
    assert (first.text, first.speaker, first.session, first.channel) == ("one two", "ann", "m", "1")
    assert (first.start_ms, first.end_ms, second.text) == (500, 1250, "")
    assert [(row.text, row.channel, row.start_ms, row.end_ms) for row in rows("ref.ctm")] == [
        ("one", "1", 500, 750),
        ("two", "2", 7000, 8000),
    ]
    assert rows("ref.json") == [
        TranscriptSegment(id="m-1", text="one", speaker="ann", session="m", start_ms=1500, end_ms=2000),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.trn", "one two\n", r"a\.trn:1 cannot be read"),
        ("a.trn", "one { two / too } (a-1)\n", "alternatives"),
        ("a.stm", "m 1 ann 0.5\n", r"a\.stm:1"),
        ("a.stm", ";;\nm 1 ann x 2 one\n", r"a\.stm:2"),
        ("a.ctm", "m 1 0.5 one\n", r"a\.ctm:1"),
        ("a.ctm", "m 1 0.5 inf one\n", r"a\.ctm:1"),
        ("a.jsonl", '{"id": "a"}\n', r"a\.jsonl:1"),
        ("a.jsonl", '{"id": "a", "text": "", "start_ms": 0.5}\n', r"a\.jsonl:1"),
        ("a.jsonl", "one\n", r"a\.jsonl:1"),
        ("a.json", "[{}]", "segment 1"),
        ("a.json", "{}", r"a\.json:1"),
    ],
)
def test_a_line_that_is_not_of_its_form_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read(str(tmp_path / name))


def test_a_file_that_is_not_utf_8_and_an_unknown_form_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a \xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read(str(tmp_path / "a.txt"))
    with pytest.raises(ConfigError, match="unknown format `xml`"):
        read(str(tmp_path / "a.txt"), "xml")


@settings(deadline=None)
@given(st.text())
def test_a_name_has_a_form(ending: str) -> None:
    assert form_of(f"file.{ending}") in FORMS
    assert form_of("file.TRN") == "trn"


def test_words_go_to_the_segment_that_ends_after_their_middle() -> None:
    def segment(id_: str, start_ms: int, end_ms: int, text: str = "") -> TranscriptSegment:
        return TranscriptSegment(id=id_, text=text, session="m", channel="1", start_ms=start_ms, end_ms=end_ms)

    segments = [segment("b", 2000, 3000), segment("a", 0, 1000)]
    words = [
        segment("", 900, 1050, "two"),
        segment("", 0, 10, "one"),
        segment("", 1500, 1600, "between"),
        segment("", 2900, 3000, "three"),
        segment("", 4500, 4600, "after"),
        TranscriptSegment(id="", text="elsewhere", session="n", channel="1", start_ms=0, end_ms=10),
    ]
    assert {row.id: row.text for row in join_by_segment(segments, words)} == {
        "a": "one two",
        "b": "between three after",
        "n-1": "elsewhere",
    }
