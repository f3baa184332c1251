"""Options of decoding that exclude one another say so at once."""

from __future__ import annotations

import pytest

from voxstill.core import config
from voxstill.core.errors import ConfigError


@pytest.mark.parametrize("other", ["boost: [coffee]", "lm: a.arpa", "beam: 8"])
def test_a_grammar_goes_with_no_other_search_with_or_without_a_beam(other: str) -> None:
    with pytest.raises(ConfigError, match=r"`decode.grammar` and `decode\..*` cannot be combined"):
        config.load(None, [f"decode={{grammar: a.jsgf, {other}}}"])


def test_phrases_alone_need_a_beam() -> None:
    with pytest.raises(ConfigError, match=r"has no effect with `decode\.beam: 1`"):
        config.load(None, ["decode={boost: [coffee]}"])
