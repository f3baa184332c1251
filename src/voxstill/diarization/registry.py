"""Diarization engines by the name of the `diarize` section: files in `engines/`, or other packages' entry points."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import cast

from voxstill.core import config
from voxstill.core.config import Diarize, identity
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.core.plugins import Misfit, Registry
from voxstill.diarization.turns import DiarizationEngine

METHODS = ("load", "turns", "close")


def create(section: Diarize) -> DiarizationEngine | None:
    """Construct the engine of the section with validated options, loading nothing; None where diarization is off.

    ConfigError for an unknown name, wrong options, or a package that is not installed.
    """
    if section.name is None:
        _refuse_options_of_none(section)
        return None
    engine = ENGINES.find(section.name)
    package, extra = getattr(engine, "needs", ("", ""))
    if package and find_spec(package) is None:
        raise ConfigError(
            f"the diarization engine `{section.name}` is not installed",
            why=f"there is no package `{package}` here",
            fix=f"pip install 'voxstill[{extra}]'",
        )
    return engine(_options(section))


def identity_of(section: Diarize) -> dict[str, object]:
    """What a recipe hashes of the section: the engine and those of its options that differ; nothing where it is off."""
    if section.name is None:
        _refuse_options_of_none(section)
        return {}
    return {"name": section.name, **identity(_options(section))}


def all_options() -> Iterator[tuple[str, type[config.Section]]]:
    """Name and options class of every engine; a broken plug-in is left out, and named."""
    ENGINES.warn_of_taken_names()
    for name in ENGINES.built_in():
        with contextlib.suppress(ConfigError):
            yield name, ENGINES.find_built_in(name).Options
    for name in ENGINES.plugins():
        try:
            options = ENGINES.find_plugin(name).Options
        except ConfigError as error:
            log.warning("left out: %s: %s", error.what, error.why)
            continue
        yield name, options


def _options(section: Diarize) -> config.Section:
    """The options of the engine that the section names, defaults among them; ConfigError where they are wrong."""
    engine = ENGINES.find(cast("str", section.name))
    return config.validated(engine.Options, section.model_extra or {}, prefix="diarize.")


def _refuse_options_of_none(section: Diarize) -> None:
    if section.model_extra:
        raise ConfigError(
            f"`diarize.{next(iter(section.model_extra))}` is set and `diarize.name` is not",
            why="options of diarization are those of an engine",
            fix=f"set `diarize.name` to one of {', '.join(ENGINES.names())}",
        )


def _misfit(engine: object) -> Misfit | None:
    """What of the protocol an engine lacks."""
    fix = "give it the methods of `voxstill.diarization.turns.DiarizationEngine`"
    if not isinstance(engine, type):
        return Misfit(f"{engine!r} is no class", "name the class of the engine")
    if missing := [method for method in METHODS if not callable(getattr(engine, method, None))]:
        return Misfit(f"`{engine.__name__}` has no method {' and no '.join(f'`{name}`' for name in missing)}", fix)
    own_options = getattr(engine, "Options", None)
    if not (isinstance(own_options, type) and issubclass(own_options, config.Section)):
        why = f"`{engine.__name__}.Options` is no class of options"
        return Misfit(why, "give it a class `Options` below `voxstill.core.config.Section`")
    return None


ENGINES: Registry[type[DiarizationEngine]] = Registry(
    noun="diarization engine",
    option="diarize.name",
    package="voxstill.diarization.engines",
    group="voxstill.diarization",
    misfit=_misfit,
)
