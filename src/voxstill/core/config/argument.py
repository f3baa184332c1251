"""The configuration as an argument of a function of `import voxstill`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from voxstill.core.config.root import Config
from voxstill.core.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def takes_config(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a ConfigError where its `cfg` is something else than a Config, as the name of a file."""
    place, parameter = next(
        (place, parameter)
        for place, parameter in enumerate(inspect.signature(function).parameters.values())
        if parameter.name == "cfg"
    )

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        cfg = args[place] if len(args) > place else kwargs.get("cfg", parameter.default)
        if not isinstance(cfg, Config) and cfg is not parameter.default:
            raise ConfigError(
                f"`cfg` cannot be {cfg!r:.100}",
                code="option-value",
                why="it is a configuration",
                fix="give what `voxstill.load_config(FILE, ...)` returns, or `voxstill.Config(...)`",
            )
        return function(*args, **kwargs)

    return checked
