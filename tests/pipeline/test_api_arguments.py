"""What the functions of `import voxstill` refuse: the same as the shell, and always by a ConfigError in words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxstill
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
