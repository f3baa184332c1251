"""Results: their JSON is read back to an equal result, and what they hold that is not in it changes nothing."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pkgutil
import sys
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import voxstill
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import Word
from voxstill.core.result import Result
from voxstill.pipeline.run_result import RunResult, SideResult
from voxstill.pipeline.transcribe import Transcript

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2))
OF_A_TYPE: dict[object, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(),
    float: NUMBERS,
    bool: st.booleans(),
    object: JSON,
    Any: JSON,
    types.NoneType: st.none(),
}
FIGURES = st.dictionaries(TEXTS.filter(lambda name: not name.startswith("dev_")), JSON, max_size=3)


def result_types(base: type[Result] = Result) -> Iterator[type[Result]]:
    """Every result of the package."""
    for kind in base.__subclasses__():
        # a class with slots is made twice, and the first one is no longer there
        if kind.__module__.startswith("voxstill.") and getattr(sys.modules[kind.__module__], kind.__name__) is kind:
            yield kind
        yield from result_types(kind)


def import_everything() -> None:
    for module in pkgutil.walk_packages(voxstill.__path__, "voxstill."):
        importlib.import_module(module.name)


import_everything()
ALL = sorted(set(result_types()), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in OF_A_TYPE:
        return OF_A_TYPE[hint]
    if origin in (Union, types.UnionType):
        return st.one_of([values(member) for member in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if dataclasses.is_dataclass(hint):
        return st.deferred(lambda: examples(hint))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values(arguments[0]), max_size=2).map(tuple)
        return st.tuples(*map(values, arguments))
    if origin is not None and len(arguments) == 2:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    return st.lists(values(arguments[0]), max_size=2)


@functools.cache  # hypothesis checks each new strategy
def examples(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a dataclass; what is not in its JSON is left out."""
    hints = get_type_hints(kind)
    fields = {
        field.name: values(hints[field.name])
        for field in dataclasses.fields(kind)
        if field.metadata.get("in_json", True)
    }
    if kind.__name__ == "SideResult":
        fields["with_lm"] = st.none()  # no end else
    if kind.__name__ == "TrainingSummary":
        fields["dev_metric"] = st.just("dev_wer")
    if kind.__name__ in ("ReportResult", "Evaluation"):
        fields["figures"] = FIGURES
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_result_is_read_back_from_its_json(kind: type[Result], data: st.DataObject) -> None:
    result = data.draw(examples(kind))
    assert kind.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_what_lies_within_a_result_is_rebuilt() -> None:
    word = Word(text="ba", start_ms=0, end_ms=80)
    [again] = Transcript.from_dict(
        {"audio": "a", "text": "ba", "words": [dataclasses.asdict(word)], "error": None}
    ).words
    assert again == word
    side = {"wer": 0.1, "cer": 0.1, "interval": [0.0, 0.2], "rtfx": 1.0, "by_dataset": None}
    run = RunResult.from_dict(
        {"teacher": side, "student": {**side, "with_lm": side}, "steps": [], "seconds": 1.0, "report": "page.html"}
    )
    assert isinstance(run.student.with_lm, SideResult)
    assert run.student.with_lm.interval == (0.0, 0.2)


@pytest.mark.parametrize(("report", "code"), [("page.html", 0), ("", StorageError.exit_code)])
def test_a_run_without_its_page_ends_with_the_exit_code_of_storage(report: str, code: int) -> None:
    side = {"wer": None, "cer": None, "interval": None, "rtfx": None, "by_dataset": None}
    step = {"step": "report", "result": report, "seconds": 1.0, "figures": {}}
    run = RunResult.from_dict({"teacher": side, "student": side, "steps": [step], "seconds": 1.0, "report": report})
    assert run.exit_code == code
    assert run.to_text().splitlines()[-1] == f"report: {report or 'not written'}"


@pytest.mark.parametrize("words", [[5], [{"text": "ba"}]])
def test_a_result_whose_parts_are_something_else_is_a_data_error(words: list[object]) -> None:
    with pytest.raises(DataError, match="these are not "):
        Transcript.from_dict({"audio": "a", "text": "ba", "words": words, "error": None})
