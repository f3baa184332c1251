"""explain: every option, those of each teacher too."""

from __future__ import annotations

import pytest

from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.pipeline.options import explained
from voxstill.teachers.registry import TEACHERS


def test_every_option_is_explained_with_its_sentence() -> None:
    rows = explained(None)
    paths = [row.path for row in rows]
    assert [option.path for option in config.options()] == [
        path for path in paths if path in {o.path for o in config.options()}
    ]
    for name, teacher in TEACHERS.all():
        for option in config.options(teacher.Options, "teacher."):
            assert any(row.path == option.path and row.meaning.startswith(f"({name}) ") for row in rows)
    assert all(row.meaning.strip().endswith((".", ")")) for row in rows if row.path != "work")


def test_a_section_is_its_own_options_alone() -> None:
    rows = explained("plan")
    assert rows
    assert all(row.path.startswith("plan.") for row in rows)
    assert [row.path for row in explained("seed")] == ["seed"]


def test_a_section_that_does_not_exist_is_a_configuration_error_that_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match="trian") as caught:
        explained("trian")
    assert "train" in caught.value.why
