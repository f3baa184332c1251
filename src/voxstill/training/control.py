"""Change a training while it runs: which options `EXP/control.json` may change, and the status that a training reports.

A training reports in `EXP/control/training.json` what it has made of the request: see `storage.control`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError
from voxstill.storage.control import Options, Status
from voxstill.training.budget import check_schedule
from voxstill.training.summary import Segment

CHANGEABLE: dict[str, tuple[str, ...]] = {
    "train": (
        *("steps", "epochs", "max_minutes", "lr_factor"),
        *("log_every", "checkpoint_every", "keep_every", "loader_workers"),
    ),
    "monitor": ("log_level",),
}
"""Options that a running training can change, by section."""
NAME = "training"
"""The name of the file of its status, and of the lease of its folder."""
_BY_COMMAND = ("plan", "augment", "train")
"""Sections of which a command can change what a request cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus(Status):
    """What a training reports of itself."""

    started: str
    """When its process started, by the count of its machine."""
    since: int | None
    """Steps that it had made when it started to work by the request; None for what it was started with."""
    train: Mapping[str, object]
    """The options of `train` that a request can change, as they are now."""
    log_level: str = "info"


def parse_overrides(overrides: Sequence[str]) -> Options:
    """Parse `section.key=value` into options by section; ConfigError for one that is unknown or cannot be changed."""
    tree = config.tree(overrides)
    config.validated(Config, tree)
    return checked(tree)


def checked(options: Mapping[str, object]) -> Options:
    """Options by section; ConfigError if one is none that a running training can change, whatever its value."""
    for section, values in options.items():
        if section in CHANGEABLE and not isinstance(values, Mapping):
            raise ConfigError(
                "the request cannot be read",
                code="change-refused",
                why=f"`{section}` is not a mapping of options",
                fix="withdraw it: voxstill control EXP --clear",
            )
        for name in values if isinstance(values, Mapping) else [""]:
            if name not in CHANGEABLE.get(section, ()):
                raise _fixed(f"{section}.{name}" if name else section)
    return {section: values for section, values in options.items() if isinstance(values, Mapping)}


def _fixed(name: str) -> ConfigError:
    if name == "train.lr":
        fix = "set `train.lr_factor`, by which the learning rate is multiplied"
    elif name.partition(".")[0] in _BY_COMMAND:
        fix = f"stop it with SIGTERM, and run: voxstill train CONFIG --continue EXP --set {name}=..."
    else:
        fix = "leave it out; only a new training can use it"
    can = ", ".join(f"`{section}.{other}`" for section, names in CHANGEABLE.items() for other in names)
    return ConfigError(
        f"a running training cannot change `{name}`", code="change-refused", why=f"it can change {can}", fix=fix
    )


def apply(options: Mapping[str, object], started: Config) -> Config:
    """The configuration that a training was started with, with requested options by section over it.

    ConfigError if one is wrong or cannot be changed.
    """
    cfg = with_options(started, checked(options))
    check_schedule(cfg.train)
    return cfg


def with_options(cfg: Config, options: Options) -> Config:
    """The configuration with other values of options, by section; ConfigError if one is wrong."""
    sections = {}
    for name, values in options.items():
        section = getattr(cfg, name)
        changed = config.validated(type(section), {**section.model_dump(), **values}, f"{name}.")
        sections[name] = section.model_copy(update={option: getattr(changed, option) for option in values})
    return cfg.model_copy(update=sections)


def with_segment(cfg: Config, segment: Segment) -> Config:
    """The configuration with what a request has changed."""
    options: dict[str, dict[str, object]] = {}
    for name, (_, after) in segment.changed.items():
        section, _, option = name.partition(".")
        options.setdefault(section, {})[option] = after
    return with_options(cfg, options)


def shown(cfg: Config) -> dict[str, object]:
    """The options of `train` that a request can change, with their values."""
    return {name: getattr(cfg.train, name) for name in CHANGEABLE["train"]}


def changes(before: Config, after: Config) -> dict[str, tuple[object, object]]:
    """The options that a request has changed, as they were and as they are."""
    pairs = {
        f"{section}.{name}": tuple(getattr(getattr(cfg, section), name) for cfg in (before, after))
        for section, names in CHANGEABLE.items()
        for name in names
    }
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}
