"""Diarization engines by the name of the `diarize` section: files in `engines/`, or other packages' entry points."""

from __future__ import annotations

from functools import partial
from typing import cast

from voxstill.core import config
from voxstill.core.config import Diarize, identity
from voxstill.core.errors import ConfigError
from voxstill.core.plugins import Registry, class_misfit
from voxstill.diarization.turns import DiarizationEngine

METHODS = ("load", "turns", "close")


def create(section: Diarize) -> DiarizationEngine | None:
    """Construct the engine of the section with validated options, loading nothing; None if diarization is off.

    ConfigError for an unknown name, wrong options, or a package that is not installed.
    """
    if section.name is None:
        _refuse_options_of_none(section)
        return None
    return ENGINES.find_installed(section.name)(_options(section))


def identity_of(section: Diarize) -> dict[str, object]:
    """What a recipe hashes of the section: the engine, those of its options that differ, and its revision where it has
    one; nothing if diarization is off.
    """
    if section.name is None:
        _refuse_options_of_none(section)
        return {}
    revision = int(getattr(ENGINES.find(section.name), "revision", 0))
    return {"name": section.name, **identity(_options(section)), **({"revision": revision} if revision else {})}


def _options(section: Diarize) -> config.Section:
    """The options of the engine that the section names, defaults among them; ConfigError if they are wrong."""
    engine = ENGINES.find(cast("str", section.name))
    return config.validated(engine.Options, section.model_extra or {}, prefix="diarize.")


def _refuse_options_of_none(section: Diarize) -> None:
    if section.model_extra:
        raise ConfigError(
            f"`diarize.{next(iter(section.model_extra))}` is set and `diarize.name` is not",
            code="option-missing",
            why="the options of diarization depend on its engine",
            fix=f"set `diarize.name` to one of {', '.join(ENGINES.names())}",
        )


ENGINES: Registry[type[DiarizationEngine]] = Registry(
    noun="diarization engine",
    option="diarize.name",
    package="voxstill.diarization.engines",
    group="voxstill.diarization",
    misfit=partial(class_misfit, methods=METHODS, protocol="voxstill.diarization.turns.DiarizationEngine"),
)
