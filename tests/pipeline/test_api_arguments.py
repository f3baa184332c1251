"""What the functions of `import voxstill` refuse: the same as the shell, and always by a ConfigError in words."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxstill
from manifests import wav
from voxstill.core.arguments import not_negative, whole_number

RTTM = "SPEAKER talk 1 0.0 4.0 <NA> <NA> ann <NA> <NA>\n"
STM = "talk 1 ann 0.0 2.0 turn it on\n"
NO_TIMES: list[Any] = [-1, -0.001, math.nan, math.inf, "1", None, True]


@pytest.mark.parametrize("collar_s", NO_TIMES)
def test_a_collar_is_a_time(tmp_path: Path, collar_s: Any) -> None:
    for name, text in (("a.rttm", RTTM), ("a.stm", STM)):
        (tmp_path / name).write_text(text)
    for score, name in ((voxstill.score_speakers, "a.rttm"), (voxstill.score_meetings, "a.stm")):
        with pytest.raises(voxstill.ConfigError, match="collar_s"):
            score(tmp_path / name, tmp_path / name, collar_s=collar_s)


@pytest.mark.parametrize("price", [value for value in NO_TIMES if value is not None])
def test_a_price_is_one(price: Any) -> None:
    with pytest.raises(voxstill.ConfigError, match="price_per_hour"):
        voxstill.compare_teachers(voxstill.Config(), price_per_hour=price)


@pytest.mark.parametrize("order", [0, 8, 99, 2.5, "3", True])
def test_the_order_of_a_language_model_is_from_1_to_7(tmp_path: Path, order: Any) -> None:
    (tmp_path / "texts.txt").write_text("turn it on\n")
    with pytest.raises(voxstill.ConfigError, match="order"):
        voxstill.train_lm(voxstill.Config(), tmp_path / "texts.txt", tmp_path / "a.arpa", order=order)
    assert not (tmp_path / "a.arpa").exists()


@pytest.mark.parametrize(
    ("option", "value"), [("epoch", -1), ("epoch", 0.5), ("ranks", 1.5), ("ranks", 0), ("ranks", "2"), ("ranks", True)]
)
def test_ranks_and_epochs_are_whole_numbers(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(voxstill.ConfigError, match=option):
        voxstill.plan(tmp_path, voxstill.Config(), **{option: value})


@pytest.mark.parametrize("section", [5, ["shard"], b"shard", "\udcff"])
def test_a_section_to_explain_is_a_text(section: Any) -> None:
    with pytest.raises(voxstill.ConfigError, match="section"):
        voxstill.explain(section)


def test_numbers_of_numpy_are_numbers() -> None:
    assert (whole_number("ranks", np.int32(2), 1), not_negative("collar_s", np.float32(0.5))) == (2, 0.5)


def test_names_that_do_not_exist_are_configuration_errors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a turn it on\n")
    for options in ({"form": "foo"}, {"normalizer": "foo"}):
        with pytest.raises(voxstill.ConfigError, match="foo"):
            voxstill.score_words(tmp_path / "a.txt", tmp_path / "a.txt", **options)


def test_a_configuration_of_keywords_is_checked_as_a_loaded_one_is(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(voxstill.ConfigError, match="`wrok`") as caught:
        voxstill.Config(wrok="here")
    assert "`work`" in caught.value.fix
    with pytest.raises(voxstill.ConfigError, match=r"train\.steps"):
        voxstill.Config(train={"steps": -1})
    assert voxstill.Config(augment={"warp": 0.2}) == voxstill.load_config(None, "augment.vtlp=0.2")
    with pytest.raises(voxstill.ConfigError, match="twice"):
        voxstill.Config(augment={"warp": 0.2, "vtlp": 0.1})


# ---------------------------------------------------------------------------------------------------- configurations


def configured() -> list[str]:
    """Everything of `import voxstill` that has a parameter `cfg`."""
    members = {name: getattr(voxstill, name) for name in voxstill.__all__}
    return [
        name
        for name, member in members.items()
        if (inspect.isfunction(member) or member is voxstill.Recognizer)
        and "cfg" in inspect.signature(member).parameters
    ]


@pytest.mark.parametrize("name", configured())
@pytest.mark.parametrize("value", ["my.yaml", {"seed": 3}, 0])
def test_the_name_of_a_file_is_no_configuration(name: str, value: Any) -> None:
    function = getattr(voxstill, name)
    parameters = inspect.signature(function).parameters.values()
    needed = {parameter.name: "x" for parameter in parameters if parameter.default is parameter.empty}
    with pytest.raises(voxstill.ConfigError, match="load_config"):
        function(**{**needed, "cfg": value})
    positional = [value if parameter.name == "cfg" else "x" for parameter in parameters][: len(needed) + 1]
    if value in positional:
        with pytest.raises(voxstill.ConfigError, match="load_config"):
            function(*positional)


# ---------------------------------------------------------------------------------------------------- lists of strings


def lists_of_strings() -> list[tuple[str, str]]:
    """Every parameter of `import voxstill` that is a list of strings or of paths, by its annotation."""
    rows = []
    for name in voxstill.__all__:
        function = getattr(voxstill, name)
        if inspect.isfunction(function):
            for parameter in inspect.signature(function).parameters.values():
                if re.search(r"(Sequence|Iterable|Collection|list)\[(str|Path)\b", str(parameter.annotation)):
                    rows.append((name, parameter.name))
    return rows


def call(name: str, parameter: str, value: Any, folder: Path) -> Any:
    """The result of a function, or its error, with values of no use for what else it needs."""
    function = getattr(voxstill, name)
    nowhere: dict[str, Any] = {"Config": voxstill.Config(work=str(folder / "work")), "str | Path": folder / "nowhere"}
    others = {
        other.name: nowhere[str(other.annotation)]
        for other in inspect.signature(function).parameters.values()
        if other.default is other.empty and other.name != parameter and other.kind is not other.VAR_POSITIONAL
    }
    try:
        return function(**others, **{parameter: value})
    except voxstill.VoxstillError as error:
        return type(error), str(error)


def test_there_are_lists_of_strings() -> None:
    assert {("repack", "sources"), ("remove", "ids"), ("evaluate", "by"), ("serve", "models")} <= set(
        lists_of_strings()
    )


@pytest.mark.parametrize(("name", "parameter"), lists_of_strings())
@pytest.mark.parametrize("value", [[1], [b"a"], b"a", 1, None], ids=repr)
def test_what_is_no_list_of_strings_is_refused(tmp_path: Path, name: str, parameter: str, value: Any) -> None:
    kind, message = call(name, parameter, value, tmp_path)
    assert kind is voxstill.ConfigError
    assert f"`{parameter}` cannot be" in message


@pytest.mark.parametrize(("name", "parameter"), [row for row in lists_of_strings() if row != ("remove", "ids")])
def test_one_string_or_path_is_a_list_of_one(tmp_path: Path, name: str, parameter: str) -> None:
    one = tmp_path / "several.letters"
    expected = call(name, parameter, [str(one)], tmp_path)
    assert call(name, parameter, str(one), tmp_path) == expected
    assert call(name, parameter, one, tmp_path) == expected
    assert call(name, parameter, iter([one]), tmp_path) == expected


@pytest.mark.parametrize("ids", ["12", b"12", Path("ids.txt"), [Path("ids.txt")]])
def test_removing_takes_a_list_of_ids(tmp_path: Path, ids: Any) -> None:
    kind, message = call("remove", "ids", ids, tmp_path)
    assert kind is voxstill.ConfigError
    assert "`ids` cannot be" in message
    assert "read_text().splitlines()" in message


def test_one_recording_is_diarized_and_not_its_letters(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(300, 1.0))
    cfg = voxstill.load_config(None, "diarize={name: command, command: [echo, '; no turns of']}")
    result = voxstill.diarize(tmp_path / "a.wav", cfg)
    assert [row.audio for row in result.recordings] == [str(tmp_path / "a.wav")]
    assert voxstill.diarize(str(tmp_path / "a.wav"), cfg) == result


# ------------------------------------------------------------------------------------------------------- other lists


@pytest.mark.parametrize(
    "pairs",
    [
        ("ab", "cd"),
        "ab",
        [("a", "b"), "cd"],
        [("a",)],
        [("a", None)],
        [(b"a", b"b")],
        [{"reference": "a", "hypothesis": "b"}],
        {("a", "b"): 1},
        [dict.fromkeys("ab").keys()],  # a set whose order is the same in each process
        ("a", "b", "c"),
        None,
        [1],
    ],
    ids=repr,
)
def test_what_is_no_pair_of_strings_is_not_scored(pairs: Any) -> None:
    with pytest.raises(voxstill.ConfigError, match="`pairs` cannot have"):
        voxstill.wer(pairs)


def test_pairs_may_come_one_by_one_and_in_lists() -> None:
    expected = voxstill.wer([("a b", "a c"), ("d", "d")])
    assert expected.errors == 1
    assert voxstill.wer(iter([["a b", "a c"], ["d", "d"]])) == expected
    assert voxstill.wer(np.array([["a b", "a c"], ["d", "d"]])) == expected  # type: ignore[arg-type]
    assert voxstill.wer([]).errors == 0


@pytest.mark.parametrize("streaming", [560, True, "560", [560, 560], [561], ["560"], [560.0], [[560]], None], ids=repr)
def test_chunk_sizes_are_a_list_of_known_ones(tmp_path: Path, streaming: Any) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(voxstill.ConfigError, match=r"`streaming=.*` has no valid chunk sizes") as caught:
        voxstill.export(tmp_path / "model", tmp_path / "out", voxstill.Config(), streaming=streaming)
    assert (caught.value.code, "streaming=[560, 160]" in caught.value.fix) == ("option-value", True)
