"""Writes `docs/reference/commands.md`: every command with its arguments and options, out of its definition.

    python tools/commands_page.py

A test compares the page with what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from voxstill import cli

PAGE = Path(__file__).parents[1] / "docs/reference/commands.md"
HEAD = """# Commands

Every command of the shell. `voxstill COMMAND --help` prints the same. This page is written by `tools/commands_page.py`
out of the code.
"""
COMMON = "Common options"


def page() -> str:
    """The page, as Markdown."""
    top: Any = typer.main.get_command(cli.application())
    lines = [HEAD, f"## {COMMON}", "", "Every command takes these.", ""]
    lines += _options([param for param in top.commands["index"].params if _is_common(param)])
    for panel in cli.PANELS:
        lines += ["", f"## {panel}"]
        for name, command in top.commands.items():
            if command.rich_help_panel == panel and not command.hidden:
                lines += _command(name, command)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        yield from ("", f"### `voxstill {name}`", "", command.help)
        for inner, subcommand in command.commands.items():
            yield from _command(f"{name} {inner}", subcommand)
        return
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not _is_common(param)]
    usage = " ".join(["voxstill", name, *(_argument(param) for param in arguments), "[OPTIONS]"])
    yield from ("", f"### `voxstill {name}`", "", " ".join(command.help.split()), "", "```text", usage, "```")
    if any(param.help for param in arguments):
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| `{_argument(param)}` | {_cell(param.help)} |" for param in arguments)
    if options:
        yield ""
        yield from _options(options)


def _options(options: list[Any]) -> list[str]:
    lines = ["| option | meaning |", "|---|---|"]
    for param in options:
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
        lines.append(f"| {names}{_value(param)} | {_cell(param.help)}{_default(param)} |")
    return lines


def _value(param: Any) -> str:
    """What follows an option: its choices, or a name for its value."""
    if param.is_flag:
        return ""
    values = [param.metavar] if param.metavar else _choices(param.type_descriptor.annotation)
    return " " * bool(values) + r" \| ".join(f"`{value}`" for value in values)


def _choices(annotation: Any) -> list[str]:
    """The texts that a type allows, where it names them."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]


def _default(param: Any) -> str:
    is_shown = param.show_default and not param.is_flag and param.default is not None
    return f" Default: `{param.default}`." if is_shown else ""


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return name if param.required or name.startswith("[") else f"[{name}]"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _is_common(param: Any) -> bool:
    return getattr(param, "rich_help_panel", None) == COMMON


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
