"""explain: every option, those of each teacher too."""

from __future__ import annotations

import pytest

from voxstill import config
from voxstill.commands import inspect
from voxstill.errors import ConfigError
from voxstill.teachers import registry


def test_every_option_is_explained_with_its_sentence() -> None:
    rows = inspect.explain(None)
    paths = [row.path for row in rows]
    assert [each.path for each in config.options()] == [
        path for path in paths if path in {o.path for o in config.options()}
    ]
    for name, kind in registry.all_options():
        for each in config.options(kind, "teacher."):
            assert any(row.path == each.path and row.meaning.startswith(f"({name}) ") for row in rows)
    assert all(row.meaning.strip().endswith((".", ")")) for row in rows if row.path != "work")


def test_a_section_is_its_own_options_alone() -> None:
    rows = inspect.explain("plan")
    assert rows
    assert all(row.path.startswith("plan.") for row in rows)
    assert [row.path for row in inspect.explain("seed")] == ["seed"]


def test_a_section_that_does_not_exist_is_a_configuration_error_that_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match="trian") as caught:
        inspect.explain("trian")
    assert "train" in caught.value.why
