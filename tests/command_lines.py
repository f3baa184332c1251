"""Reading a command line as voxstill does, without running the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voxstill import cli
from voxstill.core.command import Command, CommonOptions


def parse(arguments: Sequence[str]) -> tuple[Command, CommonOptions, dict[str, Any]]:
    """The command, its common options and its own ones; SystemExit where the line is wrong."""
    parsed: list[tuple[Command, CommonOptions, dict[str, Any]]] = []

    def keep(command: Command, options: CommonOptions, values: Mapping[str, object]) -> int:
        parsed.append((command, options, dict(values)))
        return 0

    try:
        cli.application(keep, arguments or None)(list(arguments), prog_name="voxstill")
    except SystemExit as left:
        if left.code:
            raise
    [line] = parsed
    return line
