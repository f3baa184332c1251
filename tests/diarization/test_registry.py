"""Engines by name: those of voxstill, those of other packages, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from installed import install
from voxstill.core import config
from voxstill.core.config import Config, Diarize
from voxstill.core.errors import ConfigError
from voxstill.diarization import registry, weights
from voxstill.diarization.turns import Turn

PLUGIN = """
from voxstill.core.config import Section, option
from voxstill.diarization.turns import Turn
class Options(Section):
    split_ms: int = option(1000)
class Halves:
    Options = Options
    def __init__(self, options): self.options = options
    def load(self): pass
    def close(self): pass
    def turns(self, samples_T):
        end = len(samples_T) // 16
        cut = min(end, self.options.split_ms)
        return [Turn(start_ms=0, end_ms=cut, speaker=1), Turn(start_ms=cut, end_ms=end, speaker=2)]
"""


def test_an_engine_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "voxstill.diarization", "halves", PLUGIN, "Halves")
    engine = registry.create(Diarize.model_validate({"name": "halves", "split_ms": 400}))
    assert engine is not None
    assert engine.turns(b"\0" * 16_000) == [  # type: ignore[arg-type]  # it asks for the length alone
        Turn(start_ms=0, end_ms=400, speaker=1),
        Turn(start_ms=400, end_ms=1000, speaker=2),
    ]
    assert registry.identity_of(Diarize.model_validate({"name": "halves", "split_ms": 1000})) == {"name": "halves"}
    assert "diarize.split_ms" in [
        f"diarize.{name}" for _, kind in registry.ENGINES.all() for name in kind.Options.model_fields
    ]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"name": "embeded"}, "unknown diarization engine `embeded`"),
        ({"name": "embedded", "speakers": 2}, "`diarize.speakers`"),
        ({"name": "embedded", "max_speakers": 0}, "`diarize.max_speakers`"),
        ({"max_speakers": 3}, "`diarize.max_speakers` is set and `diarize.name` is not"),
        ({"name": "command", "command": []}, "`diarize.command` is empty"),
        ({"name": "sherpa-onnx", "segmentation": "no.onnx", "embedding": "no.onnx"}, "`no.onnx` is not a file"),
    ],
)
def test_wrong_options_are_told_by_their_names(options: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.create(Diarize.model_validate(options))
    assert what in error.value.what


def test_a_package_that_lacks_a_method_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "voxstill.diarization", "lacking", PLUGIN.replace("turns(", "find("), "Halves")
    with pytest.raises(ConfigError, match="does not fit") as error:
        registry.create(Diarize(name="lacking"))
    assert "no method `turns`" in error.value.why


def test_without_its_weights_the_embedded_engine_names_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "_PACKAGE", "no-such-package")
    with pytest.raises(ConfigError) as error:
        registry.create(Diarize(name="embedded"))
    assert error.value.fix == "pip install --no-deps resemblyzer==0.1.4"


def test_a_name_is_a_section_and_off_is_the_default() -> None:
    assert config.load(None, ["diarize=embedded", "diarize.max_speakers=3"]).diarize.name == "embedded"
    assert registry.create(Config().diarize) is None
    assert registry.identity_of(Config().diarize) == {}
    assert registry.identity_of(Diarize(name="embedded")) == {"name": "embedded", "revision": 1}


def test_headers_alone_have_no_voices() -> None:
    with pytest.raises(ConfigError, match=r"segment\.measure"):
        config.load(None, ["diarize=embedded", "segment.measure=header"])
