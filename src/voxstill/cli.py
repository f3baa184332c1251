"""One command from the command line: data to standard output, the rest to standard error, an exit code by error kind.

The only place that catches VoxstillError and that prints results. Commands are the files of `commands/`; `--help` loads
no torch, no ray and no audio library.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import pkgutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated

import typer

from voxstill import commands
from voxstill.core.command import Command, CommonOptions, LogLevel, Panel
from voxstill.core.command_line import ShellCommand, ShellGroup
from voxstill.core.monitor import LogFormat
from voxstill.core.result import Result
from voxstill.core.terminal import printable
from voxstill.core.version import __version__

Run = Callable[[Command, CommonOptions, Mapping[str, object]], int]
INTERRUPTED = 130
PANELS: tuple[Panel, ...] = ("Start", "Corpus", "Training", "Evaluation", "Inference")
GROUPS = {"score": "Score files of hypotheses or speaker turns that any tool wrote."}
_COMMON = "Common options"
_OPTIONS = {
    "json": Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else.", rich_help_panel=_COMMON)
    ],
    "overrides": Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="section.key=value, repeatable.", rich_help_panel=_COMMON),
    ],
    "config": Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="YAML configuration.", rich_help_panel=_COMMON)
    ],
    "log_level": Annotated[
        LogLevel | None, typer.Option("--log-level", help="Default: info.", rich_help_panel=_COMMON)
    ],
    "log_format": Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="Messages as text (default) or JSON.", rich_help_panel=_COMMON),
    ],
    "yes": Annotated[bool, typer.Option("--yes", help="Ask nothing.", rich_help_panel=_COMMON)],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, the code of the error's kind, 2 for a wrong command line or 130 when interrupted."""
    _print_any_character()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        application(names=args or None)(args, prog_name="voxstill")  # the shell completes without arguments
    except SystemExit as left:
        return _exit_code(left)
    except OSError as error:  # of printing: `execute` reports those of commands
        return _report_unprinted(error)
    except KeyboardInterrupt:  # `execute` and Typer report those after the files of the commands are loaded
        print("interrupted before the command started", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return 0


def application(run: Run | None = None, names: Collection[str] | None = None) -> typer.Typer:
    """Every command with its options; `run` is called with the one of the command line, `execute` by default.

    Commands that are not in `names` are only listed in the help: Typer takes 3 ms to read the options of one.
    """
    run = run or execute
    top = typer.Typer(
        cls=ShellGroup,
        help="Distil a large speech recogniser into a small one.",
        epilog="Start with `voxstill demo`, then `voxstill init > my.yaml` and `voxstill run my.yaml`.",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    top.callback()(_top)
    groups = {name: typer.Typer(cls=ShellGroup, rich_markup_mode="rich") for name in GROUPS}
    for command in all_commands():
        parent = top if command.group is None else groups[command.group]
        for name in (command.name, *command.aliases):
            parent.command(
                name,
                cls=ShellCommand,
                help=command.help,
                rich_help_panel=command.panel if command.group is None else None,
                hidden=name != command.name,
            )(_runner(command, run) if names is None or name in names else _listed)
        if command.group is not None and command.group not in {group.name for group in top.registered_groups}:
            about = GROUPS[command.group]
            top.add_typer(groups[command.group], name=command.group, help=about, rich_help_panel=command.panel)
    return top


def all_commands() -> list[Command]:
    """The commands of the files in `commands/`, in the order of the help."""
    members = [
        member
        for module in pkgutil.iter_modules(commands.__path__)
        for member in vars(importlib.import_module(f"{commands.__name__}.{module.name}")).values()
        if isinstance(member, Command)
    ]
    return sorted(members, key=lambda command: (PANELS.index(command.panel), command.position))


def _show_version(wanted: bool) -> None:
    if wanted:
        _print(f"voxstill {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def _listed() -> None:
    """Stand for a command in the help."""


def _runner(command: Command, execute: Run) -> Callable[..., None]:
    """A function with the parameters of the command and the common options, as Typer reads them."""
    own = list(inspect.signature(command.function, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotation,
            default=False if name in ("json", "yes") else None,
        )
        for name, annotation in _OPTIONS.items()
    ]

    def runner(
        *,
        json: bool,
        overrides: Sequence[str] | None,
        config: str | None,
        log_level: LogLevel | None,
        log_format: LogFormat | None,
        yes: bool,
        **values: object,
    ) -> None:
        options = CommonOptions(
            json=json,
            overrides=overrides or [],
            config=config,
            log_level=log_level,
            log_format=log_format,
            yes=yes,
            show=lambda result: _show(result, as_json=json),
        )
        code = execute(command, options, values)
        if code:
            raise typer.Exit(code)

    parameters = [*own, *common]
    runner.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    runner.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return runner


def execute(command: Command, options: CommonOptions, values: Mapping[str, object]) -> int:
    """Run a command and print its result or its error; returns the exit code, once the end is in the metrics."""
    from voxstill.core import heartbeat, monitor, world
    from voxstill.core.metrics import endpoint

    monitor.start_logging(options.log_level or "info", options.log_format or "text")
    world.pin_threads(1)
    world.skip_collection_at_exit()
    try:
        with heartbeat.running(command.name):
            return _execute(command, options, values)
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            endpoint.end()


def _execute(command: Command, options: CommonOptions, values: Mapping[str, object]) -> int:
    from voxstill.core import monitor, run_mark, world
    from voxstill.core.errors import StorageError, VoxstillError, system_code

    try:
        with run_mark.marked(command.name, is_whole_process=True):
            result = command(options, **values)
    except VoxstillError as error:
        monitor.show_error(str(error), error.code)
        return error.exit_code
    except OSError as error:  # what no layer below could put in better words: a full disk while a report is written
        message = StorageError(
            f"cannot use `{error.filename}`" if error.filename else "a file cannot be read or written",
            code=system_code(error),
            why=error.strerror or str(error),
            fix="check the path, the permissions and the free space; the same command resumes where this one stopped",
        )
        monitor.show_error(str(message), message.code)
        monitor.log.debug("where it happened", exc_info=error)
        return message.exit_code
    except KeyboardInterrupt:
        again = "resumes where this one stopped" if command.resumes else "starts from the beginning"
        monitor.show_error(f"interrupted: the same command {again}")
        return INTERRUPTED
    if result is None:
        return 0
    if world.is_first():
        _show(result, as_json=options.json)
    return result.exit_code


def _show(result: Result, *, as_json: bool) -> None:
    ensure_ascii = not _has_every_character(sys.stdout)
    _print(json.dumps(result.to_dict(), ensure_ascii=ensure_ascii) if as_json else result.to_text())


def _print_any_character() -> None:
    """From now on, escape what the encoding of the output lacks instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or not _has_every_character(stream)):
            stream.reconfigure(errors="backslashreplace")


def _has_every_character(stream: object) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def _exit_code(left: SystemExit) -> int:
    closed = left.__context__
    if isinstance(closed, BrokenPipeError):  # Rich and Typer say 1, whatever was being printed: the help or an error
        return getattr(closed.__context__, "exit_code", 0)
    return left.code if isinstance(left.code, int) else int(left.code is not None)


def _report_unprinted(error: OSError) -> int:
    from voxstill.core.errors import StorageError, system_code

    message = StorageError(
        "the output cannot be written",
        code=system_code(error),
        why=error.strerror or str(error),
        fix="free some space, or write it elsewhere",
    )
    sys.stdout = None  # else Python fails again when it flushes the rest at the end
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr)  # noqa: T201
    return message.exit_code


def _print(text: str) -> None:
    try:
        print(printable(text), flush=True)  # noqa: T201
    except BrokenPipeError:  # `| head` has read enough
        sys.stdout = None


if __name__ == "__main__":
    sys.exit(main())
