from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from voxstill.core.config import Config, Decode
from voxstill.evaluation import grammar_table, results
from voxstill.evaluation.results import STUDENT, Corpus, Evaluation, StoredResult

TEXTS = {"a": "one two", "b": "three", "c": "four five six"}
WRONG = {"a": "one oh", "b": "three", "c": "four"}
FREE = {"teacher": "sphinx@free", "without_grammar": True}


def stored(
    folder: Path, hypotheses: dict[str, str], ids: Sequence[str] = "abc", recogniser: str = STUDENT, **figures: Any
) -> StoredResult:
    """A result of some of the utterances, as the judging of a recogniser keeps it."""
    files = {
        name: "".join(json.dumps({"id": id_, "text": texts[id_], "speaker": id_}) + "\n" for id_ in ids)
        for name, texts in ((results.REFERENCES, TEXTS), (results.HYPOTHESES, hypotheses))
    }
    evaluation = Evaluation(figures={"split": "test", "normalizer": "basic", "rtfx": 2.0, **figures}, files=files)
    evaluation = evaluation.of(Corpus(work="work", utterances="u"), recogniser)
    results.write(folder, evaluation)
    result = results.read(folder / results.name_of(evaluation.figures))
    assert result is not None
    return result


def decode(**options: Any) -> dict[str, Any]:
    return Decode(**options).model_dump()


@pytest.fixture
def student(tmp_path: Path) -> StoredResult:
    return stored(tmp_path, TEXTS, decode=decode(grammar="g.jsgf"))


@pytest.fixture
def greedy(tmp_path: Path) -> StoredResult:
    return stored(tmp_path, WRONG, decode=decode())


def rows(cfg: Config, student: StoredResult, teacher: StoredResult, *beside: StoredResult) -> list[tuple[Any, ...]]:
    table = grammar_table.of_results(cfg, student, teacher, [student, teacher, *beside])
    assert table is not None
    return [(table.utterances, table.of), *((row.system, row.grammar, row.wer) for row in table.rows)]


def test_all_four_are_judged_on_what_the_teacher_transcribed_anew(
    tmp_path: Path, student: StoredResult, greedy: StoredResult
) -> None:
    teacher = stored(tmp_path, TEXTS | {"c": "nine"}, recogniser="sphinx@1", teacher="sphinx@1")
    free = stored(tmp_path, WRONG | {"b": "tree"}, "ab", "sphinx@free without grammar", **FREE)
    cfg = Config.model_validate({"teacher": {"name": "pocketsphinx", "grammar": "g.jsgf"}})
    assert rows(cfg, student, teacher, greedy, free) == [
        (2, 3),
        ("teacher", True, 0.0),
        ("teacher", False, pytest.approx(2 / 3)),
        ("student", True, 0.0),
        ("student", False, pytest.approx(1 / 3)),
    ]


def test_a_teacher_that_was_not_judged_without_its_grammar_leaves_all_utterances(
    tmp_path: Path, student: StoredResult, greedy: StoredResult
) -> None:
    teacher = stored(tmp_path, TEXTS, recogniser="sphinx@1", teacher="sphinx@1")
    cfg = Config.model_validate({"teacher": {"name": "pocketsphinx", "grammar": "g.jsgf"}})
    assert [row[:2] for row in rows(cfg, student, teacher, greedy)] == [
        (3, 3),
        ("teacher", True),
        ("student", True),
        ("student", False),
    ]


def test_a_teacher_that_has_no_grammar_has_one_row(tmp_path: Path, student: StoredResult, greedy: StoredResult) -> None:
    teacher = stored(tmp_path, WRONG, recogniser="other@1", teacher="other@1")
    table = rows(Config(), student, teacher, greedy)
    assert table[:2] == [(3, 3), ("teacher", False, 0.5)]
    assert len(table) == 4


def test_there_is_no_table_without_a_grammar_or_a_result_beside_it(student: StoredResult, greedy: StoredResult) -> None:
    assert grammar_table.of_results(Config(), greedy, None, [student, greedy]) is None
    assert grammar_table.of_results(Config(), student, None, [student]) is None


def test_the_text_has_a_line_for_each_row(student: StoredResult, greedy: StoredResult) -> None:
    table = grammar_table.of_results(Config(), student, None, [student, greedy])
    assert table is not None
    head, *lines = table.to_text().splitlines()
    assert head.startswith("on 3 of 3 utterances")
    assert [line.split()[:4] for line in lines] == [
        ["student", "with", "grammar", "0.0%"],
        ["student", "without", "grammar", "50.0%"],
    ]
    assert all(line.endswith("2.0x") for line in lines)


def test_utterances_without_words_have_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS, "a", "")
    silent = [stored(tmp_path, WRONG, "a", decode=decode(grammar=grammar)) for grammar in ("g.jsgf", None)]
    assert grammar_table.of_results(Config(), silent[0], None, silent) is None
