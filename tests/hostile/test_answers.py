"""Odd answers of a teacher are rows with a reason: none ends the job, and none is believed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from installed import install
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.records import Label, Utterance, Word
from voxstill.labelling.answers import checked
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.teachers.teacher import Transcription

ODD = {
    "half a surrogate pair": 'Transcription(text="a \\ud800 b")',
    "bytes": 'Transcription(text=b"yes")',
    "no text": "Transcription(text=None)",
    "nothing": "None",
    "a text alone": '"yes"',
    "another language": 'Transcription(text="yes", language="\\udc80")',
    "a count above int64": 'Transcription(text="yes", num_tokens=2**63)',
    "a negative count": 'Transcription(text="yes", num_tokens=-1)',
    "a count that is none": 'Transcription(text="yes", num_tokens=1.5)',
    "NaN": 'Transcription(text="yes", mean_logprob=math.nan)',
    "too sure": 'Transcription(text="yes", mean_logprob=0.5)',
    "infinitely sure": 'Transcription(text="yes", mean_logprob=math.inf)',
    "a confidence in words": 'Transcription(text="yes", mean_logprob="-1")',
    "another finish": 'Transcription(text="yes", finish="done")',
    "no words": 'Transcription(text="yes", words=None)',
    "a word that is text": 'Transcription(text="yes", words=("yes",))',
    "a time that is NaN": 'Transcription(text="yes", words=(Word(text="yes", start_ms=0, end_ms=math.nan),))',
    "a negative time": 'Transcription(text="yes", words=(Word(text="yes", start_ms=-1, end_ms=5),))',
    "reversed times": 'Transcription(text="yes", words=(Word(text="yes", start_ms=6, end_ms=5),))',
    "a probability above 1": 'Transcription(text="yes", words=(Word(text="yes", start_ms=0, end_ms=5, prob=7.0),))',
    "a word that is half a pair": 'Transcription(text="yes", words=(Word(text="\\ud800", start_ms=0, end_ms=5),))',
    "an error that is half a pair": 'Transcription(finish="failed", error="\\ud800")',
    "no reason": 'Transcription(finish="failed")',
    "an error that is an error": 'Transcription(finish="failed", error=ValueError("x"))',
}
FINE = {
    "plain": 'Transcription(text="yes")',
    "surest": 'Transcription(text="yes", mean_logprob=0.0, num_tokens=1)',
    "of numpy": 'Transcription(text="yes", mean_logprob=np.float32(-0.5), num_tokens=np.int64(1))',
    "unsure": 'Transcription(text="yes", mean_logprob=-math.inf)',
    "empty word": 'Transcription(text="yes", words=(Word(text="yes", start_ms=5, end_ms=5, prob=1),))',
}
PLUGIN = """
import math
import numpy as np
from voxstill.core.config import Section
from voxstill.core.records import Word
from voxstill.teachers.echo import EchoTeacher
from voxstill.teachers.teacher import Transcription
class Options(Section): ...
class Odd(EchoTeacher):
    Options = Options
    def __init__(self, options): ...
    def revision(self): return "1"
    def transcribe_batch(self, clips):
        answers = [eval(clip.utterance.text) for clip in clips]
        return answers if len(clips) % 5 else answers[1:]
"""


def test_each_odd_answer_is_a_row_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, "voxstill.teachers", "odd", PLUGIN, "Odd")
    (tmp_path / "a.wav").write_bytes(codec.encode(np.full(1600, 100, np.int16), "wav"))
    common = {"recording_id": "r", "uri": str(tmp_path / "a.wav"), "end_ms": 100}
    rows = [Utterance(id=name, text=answer, **common) for name, answer in (ODD | FINE).items()]  # type: ignore[arg-type]
    work = Store(str(tmp_path / "work"))
    work.create("utterances/test/0.parquet", tables.to_parquet(rows, Utterance))
    work.write_json(f"utterances/test/{tables.SUCCESS}", {"recipe": "test", "utterances": len(rows), "hours": 0.0})
    options = ("teacher=odd", "engine={name: inline, workers: 1, teachers: 1, attempts: 1, max_failed_share: 1.0}")
    assert cli.main(["label", work.root, *(word for option in options for word in ("--set", option))]) == 0
    labels = {row.utterance_id: row for row in tables.read(work, "labels", Label)}
    assert labels.keys() == {row.id for row in rows}
    assert {name for name, row in labels.items() if row.error is None} == set(FINE)
    for name in ODD:
        assert "the answer of the teacher cannot be used: " in (labels[name].error or ""), name
        assert (labels[name].finish, labels[name].text, labels[name].words) == ("failed", "", ())
    assert labels["of numpy"].mean_logprob == -0.5


@pytest.mark.parametrize("answers", [None, [], [Transcription(), Transcription()], iter([Transcription()])])
def test_another_number_of_answers_is_no_answer(answers: list[Transcription]) -> None:
    with pytest.raises(ValueError, match=r"the teacher returned .* for 1 clips"):
        checked(answers, 1)


_ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()


@given(
    st.builds(
        Transcription,
        text=_ANYTHING,
        language=_ANYTHING,
        mean_logprob=_ANYTHING,
        num_tokens=_ANYTHING,
        finish=_ANYTHING | st.just("stop"),
        words=st.lists(st.builds(Word, text=_ANYTHING, start_ms=_ANYTHING, end_ms=_ANYTHING, prob=_ANYTHING)),
        error=_ANYTHING,
    )
)
def test_whatever_a_teacher_says_a_table_holds_what_is_left(answer: Transcription) -> None:
    (kept,) = checked([answer], 1)
    label = Label(
        utterance_id="u",
        recipe="r",
        teacher="t",
        text=kept.text,
        language=kept.language,
        mean_logprob=kept.mean_logprob,
        num_tokens=kept.num_tokens,
        finish=kept.finish,
        words=tuple(kept.words),
        error=kept.error,
    )
    (row,) = tables.from_parquet(tables.to_parquet([label], Label), Label)
    assert row.mean_logprob is None or not (math.isnan(row.mean_logprob) or row.mean_logprob > 0.01)
    assert json.dumps(row.text).encode()
