"""Text that is nested without end is an error of ours, not one of the interpreter's stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxstill.core import config
from voxstill.core.errors import ConfigError, DataError
from voxstill.text import jsgf


@pytest.mark.parametrize(
    "text",
    [
        "teacher: " + 2_000 * "[",
        "teacher: " + 3_000 * "{a: ",
        2_000 * "[" + 2_000 * "]",
        "teacher: {" + 200_000 * "[" + ": a}",  # on which the parser takes quadratic time
        "teacher:\n  " + 4_000 * "- " + "a",
    ],
    ids=["open", "mappings", "closed", "very deep", "blocks"],
)
def test_a_deep_configuration_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        config.load(str(tmp_path / "deep.yaml"))
    assert "nested too deeply" in caught.value.why


def test_a_deep_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        config.load(None, ["teacher.name=" + 2_000 * "["])


def test_a_deep_grammar_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be used"):
        jsgf.parse("#JSGF V1.0;\ngrammar g;\npublic <a> = " + 50_000 * "(" + "a" + 50_000 * ")" + ";\n")
    with pytest.raises(DataError, match="line 3"):
        jsgf.parse("#JSGF V1.0;\ngrammar g;\npublic <a> = a" + 50_000 * "+" + ";\n")
