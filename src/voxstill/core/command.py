"""What every command has: its place in the help, the common options, and a result that is printed.

A command is one file in `commands/` with one function under `@command(...)`. Its parameters are its arguments and
options as Typer reads them, and the first is the `CommonOptions`. It returns a
`core.result.Result`; `cli.py` prints it. One that continues after its result shows it by `CommonOptions.show`, and
returns None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from voxstill.core.result import Result

if TYPE_CHECKING:
    from voxstill.core.config import Config
    from voxstill.core.monitor import LogFormat

Panel = Literal["Start", "Corpus", "Training", "Evaluation", "Inference"]
LogLevel = Literal["debug", "info", "warning", "error"]
Split = Literal["train", "dev", "test"]
TranscriptFormat = Literal["kaldi", "text", "jsonl", "trn", "stm", "ctm", "seglst"]
ContinueOption = Annotated[
    str | None,
    typer.Option(
        "--continue",
        metavar="EXP",
        help="Continue this experiment, or from this checkpoint of it, with other options.",
    ),
]
FormOption = Annotated[
    TranscriptFormat | None,
    typer.Option("--form", help="Of both files; default: by ending, else Kaldi's `id words ...`."),
]
LanguageOption = Annotated[
    str | None, typer.Option("--lang", metavar="LANGUAGE", help="Normalizer of this language: en, zh, tr, ar, ...")
]
NormalizerOption = Annotated[
    str | None, typer.Option("--normalizer", metavar="NAME", help="none, basic, zh, tr, ar, whisper, whisper:FILE.")
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="K/N",
        help="Only part K of N, while other commands do the others; auto: from Slurm or Kubernetes.",
    ),
]
WorkArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="WORK",
        show_default=False,
        help="Work folder, or prefix of a bucket; default: `work` of the configuration.",
    ),
]
AllowTeacherOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-teacher",
        metavar="TEACHER",
        help="A teacher that `voxstill control` may switch to: a name, or options as YAML.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options that every command takes."""

    json: bool = False
    overrides: Sequence[str] = ()
    config: str | None = None
    log_level: LogLevel | None = None
    log_format: LogFormat | None = None
    yes: bool = False
    show: Callable[[Result], None] = field(default=lambda _: None, compare=False)
    """Prints a result now, while the command continues."""

    def load(self, *overrides: str, base: str | None = None) -> Config:
        """Load the configuration: file, environment, what the command line implies, `--set`; and follow `monitor`."""
        from voxstill.core import config, monitor, world
        from voxstill.core.metrics import endpoint
        from voxstill.core.metrics.process import METRICS, Disk

        implied = [f"monitor.log_level={self.log_level}"] if self.log_level else []
        implied += [f"monitor.log_format={self.log_format}"] if self.log_format else []
        cfg = config.load(base or self.config, [*overrides, *self.overrides, *implied], world.environment())
        monitor.set_level(cfg.monitor.log_level)
        monitor.set_format(cfg.monitor.log_format)
        METRICS.add("disk of the work folder", Disk("work", cfg.work))
        endpoint.serve(cfg.monitor, _run_name(cfg))
        return cfg

    def load_work(self, work: str | None, *overrides: str) -> Config:
        """`load` with the work folder of the command line, else of the configuration; BadParameter without either."""
        cfg = self.load(*([] if work is None else [work_override(work)]), *overrides)
        return self.with_work(cfg)

    @staticmethod
    def with_work(cfg: Config) -> Config:
        """The configuration; BadParameter where neither it nor the command line has named a work folder."""
        if "work" not in cfg.model_fields_set:
            raise typer.BadParameter("there is no work folder: name WORK, or set `work` in the configuration")
        return cfg


def _run_name(cfg: Config) -> str:
    """What Prometheus calls the run: its `train.name`, where that is set, else the last folder of `work`."""
    named = "name" in cfg.train.model_fields_set
    return cfg.train.name if named else cfg.work.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the shell: its name, its function and its place in the help."""

    name: str
    function: Callable[..., Result | None]
    panel: Panel
    position: int
    """Place in its panel."""
    aliases: tuple[str, ...] = ()
    group: str | None = None
    """The command that it is a part of: `score` of `score words`."""
    resumes: bool = False
    """Whether it resumes where it was interrupted."""

    def __call__(self, options: CommonOptions, **values: object) -> Result | None:
        """Run it."""
        return self.function(options, **values)

    @property
    def help(self) -> str:
        """What it does: the docstring of its function."""
        return " ".join((self.function.__doc__ or "").split())


def command(
    name: str, *aliases: str, panel: Panel, position: int, group: str | None = None, resumes: bool = False
) -> Callable[[Callable[..., Result | None]], Command]:
    """Make a function a command of the shell."""
    return lambda function: Command(name, function, panel, position, aliases, group, resumes)


def work_override(work: str) -> str:
    """The override that names the work folder."""
    return override("work", work)


def override(option: str, value: object) -> str:
    """`option=value` as `--set` takes it, whatever characters the value has."""
    return f"{option}={json.dumps(value)}"


def price(text: str) -> float:
    """Read a price, 0 or more."""
    return _not_negative(text, "price", "2.5")


def seconds(text: str) -> float:
    """Read a time in seconds, 0 or more."""
    return _not_negative(text, "time in seconds", "0.25")


def milliseconds(text: str) -> int:
    """Read a length of time in ms: `300s`, `5m`, `1.5h` or `90000ms`; a number alone is seconds."""
    number = text.rstrip("hms")
    unit = {"ms": 1, "s": 1000, "": 1000, "m": 60_000, "h": 3_600_000}.get(text[len(number) :])
    try:
        value = float(number) * (unit or math.nan)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"`{text}` is not a time: write 300s, 5m or 90000ms")
    return round(value)


def _not_negative(text: str, what: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"`{text}` is not a {what}: write a number such as {example}")
    return value
