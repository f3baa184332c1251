"""What our command lines have beyond Typer's: long options may be cut short, and a wrong choice is answered with the
nearest. In the help, flags take no value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


# The contexts are those of Typer's own copy of Click, which has no public name: hence `ignore[override]`.
class ShellCommand(TyperCommand):
    """A command such as `voxstill label`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return its arguments and options."""
        return _without_values_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read its part of the command line; returns what is left over."""
        with _nearest_choice(ctx):
            return super().parse_args(ctx, _with_whole_names(ctx, self.get_params(ctx), args))


class ShellGroup(TyperGroup):
    """A command that others stand below: `voxstill` and `voxstill score`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return its options."""
        return _without_values_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read its part of the command line; returns what is left over."""
        with _nearest_choice(ctx):
            return super().parse_args(ctx, _with_whole_names(ctx, self.get_params(ctx), args))


def _without_values_of_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""  # else the help shows `<bool>`, as if a value had to follow
    return params


def _with_whole_names(ctx: typer.Context, params: Sequence[Any], args: Sequence[str]) -> list[str]:
    """The arguments with the whole name of every long option that is cut short; the values of options stay."""
    options = {name: param for param in params for name in param.opts if name.startswith("--")}
    whole: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--" or not (arg.startswith("-") or ctx.allow_interspersed_args):
            return [*whole, arg, *rest]  # what follows are not options, or are those of a command below
        name, equals, value = arg.partition("=")
        if name.startswith("--"):
            name = _whole_name(ctx, list(options), name)
            arg = f"{name}{equals}{value}"
        whole.append(arg)
        if rest and not equals and name in options and not options[name].is_flag:
            whole.append(rest.pop(0))
    return whole


def _whole_name(ctx: typer.Context, names: Sequence[str], name: str) -> str:
    if name in names:
        return name
    candidates = sorted(whole for whole in names if whole.startswith(name))
    if len(candidates) > 1 and not ctx.resilient_parsing:  # the shell completes a line that is not finished
        ctx.fail(f"Option {name!r} is ambiguous: it could be {', '.join(candidates)}.")
    return candidates[0] if len(candidates) == 1 else name


@contextmanager
def _nearest_choice(ctx: typer.Context) -> Iterator[None]:
    """Word the error of a choice that there is not, and name the nearest one."""
    try:
        yield
    except typer.BadParameter as error:
        cause: Any = error.__cause__  # that of pydantic, where the value has not the type of the option
        choices = [] if error.param is None else [item.value for item in error.param.shell_complete(ctx, "")]
        if cause is not None and choices:
            value = str(cause.errors()[0]["input"])
            near = difflib.get_close_matches(value, choices, n=1)
            error.message = f"{value!r} is not one of {', '.join(map(repr, choices))}." + (
                f" Did you mean {near[0]!r}?" if near else ""
            )
        raise
