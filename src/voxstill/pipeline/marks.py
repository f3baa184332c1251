"""What a step starts bears the mark of its run, with the work folder in it: `voxstill reap WORK` finds it by that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec, TypeVar

from voxstill.core import run_mark
from voxstill.core.config import Config
from voxstill.storage.uri import normalize_root

P = ParamSpec("P")
T = TypeVar("T")
Step = Callable[Concatenate[Config, P], T]


def marked_as(command: str, cfg: Config) -> AbstractContextManager[None]:
    """While the block runs, this process and what it starts are of `command` and of the work folder."""
    return run_mark.marked(command, normalize_root(cfg.work))


def marks_children(command: str) -> Callable[[Step[P, T]], Step[P, T]]:
    """Make a function of a configuration mark what it starts as of `command` and of the work folder."""

    def decorate(step: Step[P, T]) -> Step[P, T]:
        @functools.wraps(step)
        def marking(cfg: Config, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with marked_as(command, cfg):
                return step(cfg, *args, **kwargs)

        return marking

    return decorate
