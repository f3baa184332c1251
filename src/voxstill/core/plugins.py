"""What the configuration names and a file implements: in a package of voxstill, or in another package by entry point.

The files of the package are the list of names. A file is imported when its name is asked for, and so is another
package's: one that is broken does not disturb those who want something else.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from typing import Generic, TypeVar, cast

from voxstill.core.config import Section
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why an object does not follow the protocol, and what to do about it."""

    why: str
    fix: str


def class_misfit(value: object, methods: Sequence[str], protocol: str) -> Misfit | None:
    """What a class lacks of a protocol of these methods and a class `Options`."""
    if not isinstance(value, type):
        return Misfit(f"{value!r} is not a class", f"give a class that implements `{protocol}`")
    if (misfit := methods_misfit(value, value, methods, protocol)) is not None:
        return misfit
    options = getattr(value, "Options", None)
    if not (isinstance(options, type) and issubclass(options, Section)):
        why = f"`{value.__name__}.Options` is not a class of options"
        return Misfit(why, "give it a class `Options` derived from `voxstill.core.config.Section`")
    return None


def methods_misfit(value: object, kind: type, methods: Sequence[str], protocol: str) -> Misfit | None:
    """Which of the methods of a protocol a class, or an object of the class `kind`, has not."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if not missing:
        return None
    why = f"`{kind.__name__}` has no method {' and no '.join(f'`{method}`' for method in missing)}"
    return Misfit(why, f"give it the methods of `{protocol}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry(Generic[T]):
    """The things of one kind, by name: the file `faster_whisper.py` is named `faster-whisper`."""

    noun: str
    """What messages call one of them."""
    option: str
    """The option that names one."""
    package: str
    """The package of voxstill in which each file has one of them."""
    group: str
    """The group of entry points of other packages."""
    misfit: Callable[[object], Misfit | None]
    """What is wrong with an object as one of them; None if it follows the protocol."""
    other_files: tuple[str, ...] = ()
    """The files of the package that have none."""

    def built_in(self) -> list[str]:
        """Names of those in voxstill, sorted."""
        return sorted(
            file.replace("_", "-")
            for file in _files(tuple(importlib.import_module(self.package).__path__))
            if file not in self.other_files
        )

    def plugins(self) -> list[str]:
        """Names of those in other packages, sorted, without those that voxstill has itself."""
        return sorted(set(self._entry_points()) - set(self.built_in()))

    def names(self) -> list[str]:
        """All names, those of voxstill first."""
        return [*self.built_in(), *self.plugins()]

    def find(self, name: str) -> T:
        """Import the one of that name; ConfigError if `check_name` or the import fails."""
        self.check_name(name)
        return self.find_built_in(name) if name in self.built_in() else self.find_plugin(name)

    def find_installed(self, name: str) -> T:
        """Import the one of that name; ConfigError if `find` fails, or the package that it `needs` is missing."""
        value = self.find(name)
        package, extra = getattr(value, "needs", ("", ""))
        if package and find_spec(package) is None:
            raise ConfigError(
                f"the {self.noun} `{name}` is not installed",
                code="missing-package",
                why=f"the package `{package}` is missing",
                fix=f"pip install 'voxstill[{extra}]'",
            )
        return value

    def check_name(self, name: str) -> None:
        """Raise ConfigError if there is none of that name, or where another package has taken one of voxstill's."""
        built_in, plugin = name in self.built_in(), name in self._entry_points()
        if built_in and plugin:
            raise self._name_taken(name)
        if built_in or plugin:
            return
        known_names = self.names()
        close_names = difflib.get_close_matches(name, known_names, n=1)
        raise ConfigError(
            f"unknown {self.noun} `{name}`",
            code="unknown-name",
            why=f"the {self.noun}s are {', '.join(known_names)}",
            fix=f"did you mean `{close_names[0]}`?" if close_names else f"set {self.option} to one of them",
        )

    def find_built_in(self, name: str) -> T:
        """Import one of voxstill; ConfigError if a package that it needs cannot be imported."""
        try:
            module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        except ImportError as error:
            raise self._import_error(f"`{name}`", error) from None
        members = [
            value
            for value in vars(module).values()
            if self.misfit(value) is None and (not isinstance(value, type) or value.__module__ == module.__name__)
        ]
        if len(members) != 1:
            raise TypeError(f"`{module.__name__}` must define one {self.noun}, and defines {len(members)}")
        return cast("T", members[0])

    def find_plugin(self, name: str) -> T:
        """Import one of another package; ConfigError if that fails in any way, or it does not follow the protocol.

        The message names the package.
        """
        entry_point = self._entry_points()[name]
        label = f"`{name}` of {_package_of(entry_point)}"
        try:
            with contextlib.redirect_stdout(sys.stderr):  # nothing else is written where the JSON of a command goes
                value = entry_point.load()
            misfit = self.misfit(value)
        except (Exception, SystemExit) as error:  # any code may stand there
            raise self._import_error(label, error) from error
        if misfit is not None:
            raise ConfigError(
                f"the {self.noun} {label} does not fit this version of voxstill",
                code="plugin-broken",
                why=misfit.why,
                fix=misfit.fix,
            )
        return cast("T", value)

    def all(self) -> Iterator[tuple[str, T]]:
        """Name and value of all that can be imported; a broken plug-in is left out, and named in a warning."""
        self.warn_of_taken_names()
        for name in self.built_in():
            with contextlib.suppress(ConfigError):
                yield name, self.find_built_in(name)
        for name in self.plugins():
            try:
                value = self.find_plugin(name)
            except ConfigError as error:
                log.warning("left out: %s: %s", error.what, error.why)
                continue
            yield name, value

    def warn_of_taken_names(self) -> None:
        """Warn of each plug-in that has the name of one of voxstill and is therefore left out."""
        for name in sorted(set(self._entry_points()) & set(self.built_in())):
            log.warning("left out: %s", self._name_taken(name).what)

    def _name_taken(self, name: str) -> ConfigError:
        package = _package_of(self._entry_points()[name])
        return ConfigError(
            f"{package} has a {self.noun} `{name}`, which is also the name of a built-in one",
            code="plugin-broken",
            why="it is not clear which of the two is meant",
            fix=f"give its entry point in the group `{self.group}` another name, or uninstall it",
        )

    def _entry_points(self) -> dict[str, EntryPoint]:
        return _entry_points(self.group)

    def _import_error(self, label: str, error: BaseException) -> ConfigError:
        missing = isinstance(error, ImportError)
        try:
            message = str(error)
        except Exception:  # an error may be of any class
            message = "its message cannot be read"
        return ConfigError(
            f"the {self.noun} {label} cannot be imported",
            code="plugin-broken",
            why=message if missing else f"{type(error).__name__}: {message}",
            fix="install the package that it needs" if missing else "update that package, or uninstall it",
        )


@functools.cache
def _files(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the modules in the folders of a package."""
    return tuple(module.name for module in pkgutil.iter_modules(folders))


def _entry_points(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name."""
    return _search(group, tuple((folder, _modified(folder)) for folder in sys.path))


def _modified(folder: str) -> int | None:
    """When something was last added to a folder or removed from it; None if there is none."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _search(group: str, _folders: tuple[tuple[str, int | None], ...]) -> dict[str, EntryPoint]:
    """Search the metadata of all packages: 10 ms, spent again where an installation has changed one of the folders."""
    try:
        return {entry_point.name: entry_point for entry_point in entry_points(group=group)}
    except Exception:  # the metadata of one package cannot be read
        return dict(_readable_entry_points(group))


def _readable_entry_points(group: str) -> Iterator[tuple[str, EntryPoint]]:
    """Entry points of the packages whose metadata can be read, by name; the others are named in warnings."""
    for distribution in distributions():
        try:
            chosen = distribution.entry_points.select(group=group)
            yield from [(entry_point.name, entry_point) for entry_point in chosen]
        except Exception as error:
            _warn_unreadable(str(getattr(distribution, "name", None)), f"{type(error).__name__}: {error}")


@functools.cache
def _warn_unreadable(package: str, why: str) -> None:
    log.warning("left out: the entry points of `%s`: %s", package, why)


def _package_of(entry_point: EntryPoint) -> str:
    """The distribution of an entry point as messages name it."""
    return f"the package `{entry_point.dist.name}`" if entry_point.dist else f"`{entry_point.value}`"
