"""A configuration that is read is complete, in range and spelt right: defaults <- YAML <- environment <- `--set`.

One option costs one line, with its sentence beneath it; `voxstill explain` and `voxstill init` print just these lines.
YAML is read as version 1.2: `3e-4` is a number, `no` is a word and `1:30` is text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from voxstill.core.config.explain import Option, both_names, options_of, renamed, validated
from voxstill.core.config.root import Config
from voxstill.core.config.section import NAMED_SECTIONS, section_of
from voxstill.core.errors import ConfigError

ENVIRONMENT_PREFIX = "VOXSTILL__"


LIVE = {"source": ["  uri: path/to/audio"], "teacher": ["  name: pocketsphinx"], "train": ["  max_minutes: 10.0"]}
"""What nobody can leave out of a first configuration."""


def load(
    path: str | None = None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Config:
    """The configuration of file, environment and `key=value` overrides, later ones winning.

    Raises ConfigError with the dotted path of the first option that is wrong.
    """
    below = renamed(Config, _read_yaml(path)) if path else {}
    spellings: dict[str, str] = {}
    for name, text in sorted((environment or {}).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            dotted = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _set_current(below, dotted, _scalar(text, name), name, spellings)
    return validated(Config, tree(overrides, below))


def options_in_snapshot(path: str) -> frozenset[str]:
    """The options that there were when an experiment began, as `section.option`: it keeps all of them."""
    sections = renamed(Config, _read_yaml(path)).items()
    return frozenset(
        f"{name}.{option}" for name, section in sections if isinstance(section, dict) for option in section
    )


def load_snapshot(path: str) -> Config:
    """The configuration that an experiment keeps; an option that came later is as it was before there was a choice."""
    options = renamed(Config, _read_yaml(path))
    student = options.get("student")
    if isinstance(student, dict) and "normalization" not in student and student.get("checkpoint") is None:
        options["student"] = {**student, "normalization": "utterance"}
    train = options.get("train", {})
    if isinstance(train, dict) and "optimizer" not in train:
        options["train"] = {**train, "optimizer": "adamw"}
    return validated(Config, options)


def tree(overrides: Sequence[str], below: Mapping[str, object] | None = None) -> dict[str, object]:
    """`key=value` overrides as a tree of options, over one that there is; nothing but their form is checked."""
    options = dict(below or {})
    spellings: dict[str, str] = {}
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(
                f"{override!r} is not an override",
                code="config-unreadable",
                why=f"it is a {type(override).__name__}",
                fix='write "section.key=value", one string per override',
            )
        dotted, equals, text = override.partition("=")
        if not equals or not dotted.strip():
            raise ConfigError(
                f"`--set {override}` is not an override",
                code="config-unreadable",
                why="it has no `=`",
                fix="write --set section.key=value",
            )
        value = _scalar(text, f"--set {override}")
        _set_current(options, dotted.strip(), value, f"--set {override}", spellings)
    return options


def changed(config: Config, *overrides: str) -> Config:
    """The configuration with `key=value` overrides over it; what was not set before stays unset."""
    return validated(Config, tree(overrides, config.model_dump(exclude_unset=True)))


def current_name(dotted: str) -> str:
    """The dotted path of today of an option or a section; a former name is warned of once."""
    node: object = {}
    for name in reversed(dotted.split(".")):
        node = {name: node}
    names = []
    node = renamed(Config, cast("dict[str, object]", node))
    while isinstance(node, Mapping) and node:
        [(name, node)] = node.items()
        names.append(name)
    return ".".join(names)


def options(kind: type[BaseModel] = Config, prefix: str = "") -> Iterator[Option]:
    """Every option below a section, or all of them, in the order they are written."""
    return options_of(kind, prefix)


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back to an equal one."""
    stream = io.StringIO()
    _yaml().dump(config.model_dump(), stream)
    return stream.getvalue()


def template() -> str:
    """A commented configuration: what must be said stands plain, everything else is there with its default."""
    lines = [
        "# voxstill configuration. Commented options show their defaults: remove `# ` to change one.",
        "# All steps:  voxstill run THIS_FILE      Every option:  voxstill explain",
        "",
        "work: work/mine",
        f"# seed: {Config().seed}",
        f"# rounds: {Config().rounds}",
        "",
    ]
    for name, field in Config.model_fields.items():
        kind = section_of(field)
        if kind is None or name == "demo":
            continue
        doc = (kind.__doc__ or "").strip().splitlines()[0]
        live = LIVE.get(name, [])
        lines += [f"{name}:  # {doc}" if live else f"# {name}:  # {doc}", *live]
        for entry in options(kind):
            unit = f" [{entry.unit}]" if entry.unit else ""
            section, _, option = entry.path.rpartition(".")
            if any(line.strip().startswith(f"{entry.path}:") for line in live):
                lines.append(f"  # ^{unit} {entry.meaning}")
                continue
            if section and f"#   {section}:" not in lines:
                lines.append(f"#   {section}:")
            indent = "  " if section else ""
            lines.append(f"#   {indent}{option}: {_inline(entry.default)}  #{unit} {entry.meaning}")
        lines.append("")
    return "\n".join(lines)


def _inline(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return '""' if value == "" else str(value)


def _set(tree: dict[str, object], dotted: str, value: object, where: str) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        below = tree.setdefault(section, {})
        if below is None or (isinstance(below, str) and section in NAMED_SECTIONS):
            below = tree[section] = {} if below is None else {"name": below}
        if not isinstance(below, dict):
            raise ConfigError(
                f"`{where}` is below `{section}`, which is not a section",
                code="config-unreadable",
                why=f"`{section}` is {below!r}",
                fix=f"set `{section}` as a whole" if isinstance(below, list) else "see voxstill explain",
            )
        tree = below
    tree[key] = value


def _set_current(tree: dict[str, object], dotted: str, value: object, where: str, spellings: dict[str, str]) -> None:
    """Set an option by its name of today; `spellings` are the names that options have by the same source."""
    branch: dict[str, object] = {}
    _set(branch, dotted, value, where)
    names = []
    node: object = renamed(Config, branch)
    for _ in dotted.split("."):
        assert isinstance(node, dict)
        [(name, node)] = node.items()
        names.append(name)
    current = ".".join(names)
    if spellings.setdefault(current, dotted) != dotted:
        raise both_names(current, [other for other in (dotted, spellings[current]) if other != current])
    _set(tree, current, node, where)


def _yaml() -> Any:
    from ruamel.yaml import YAML  # half of this module's import time, and `voxstill --help` needs none of it
    from ruamel.yaml.representer import SafeRepresenter
    from ruamel.yaml.resolver import VersionedResolver

    class Resolver(VersionedResolver):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            if isinstance(value, str) and _RECIPE.fullmatch(value):
                return self.DEFAULT_SCALAR_TAG
            return super().resolve(kind, value, implicit)

    class Representer(SafeRepresenter):
        def represent_str(self, data: str) -> Any:
            odd = any(char in data for char in "\x85\u2028\u2029")  # line breaks to YAML, unless they are escaped
            return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if odd else None)

    Representer.add_representer(str, Representer.represent_str)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.Resolver = Resolver
    yaml.default_flow_style = False  # one option a line
    yaml.sort_base_mapping_type_on_output = False
    return yaml


_RECIPE = re.compile(r"[0-9a-f]{16}")
"""Some recipes are of digits alone, or of digits and one `e`: they are text, not numbers."""
_MAX_BYTES = 4 << 20
_MAX_DEPTH = 100
_BRACKETS = re.compile(r"[\[\]{}]")
_TOO_DEEP = "its brackets are nested too deeply"


def _parse(text: str) -> Any:
    """What a YAML text holds; RecursionError where its brackets are nested too deeply, on which it would take long."""
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        if depth > _MAX_DEPTH:
            raise RecursionError
    return _yaml().load(text)


def _read_yaml(path: str) -> dict[str, object]:
    from ruamel.yaml.error import YAMLError

    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            why = f"it is longer than {_MAX_BYTES >> 20} MiB"
            raise ConfigError(
                f"configuration `{path}` is not read", code="config-unreadable", why=why, fix="check the path"
            )
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"configuration `{path}` cannot be read",
            code="config-unreadable",
            why=error.strerror or str(error),
            fix=f"check the path, or write a new one: voxstill init > {path}",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"configuration `{path}` is not text", code="config-unreadable", why=str(error), fix="save it as UTF-8"
        ) from None
    try:
        tree = _parse(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(
            f"configuration `{path}` is not YAML{where}",
            code="config-unreadable",
            why=str(why),
            fix="compare with the output of: voxstill init",
        ) from None
    except RecursionError:
        raise ConfigError(
            f"configuration `{path}` cannot be used",
            code="config-unreadable",
            why=_TOO_DEEP,
            fix="compare with the output of: voxstill init",
        ) from None
    except Exception as error:  # of the constructor of a value, which may be any
        raise ConfigError(
            f"configuration `{path}` cannot be used",
            code="config-unreadable",
            why=f"it has a value that cannot be read: {_shortened(error)}",
            fix="compare with the output of: voxstill init",
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"configuration `{path}` is not a mapping",
            code="config-unreadable",
            why=f"its top level is a {type(tree).__name__}",
            fix="start each section with `name:`; see voxstill init",
        )
    return tree


def _scalar(text: str, where: str) -> object:
    from ruamel.yaml.error import YAMLError

    try:
        return _parse(text)
    except YAMLError as error:
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(
            f"the value in `{where}` is not YAML", code="config-unreadable", why=str(why), fix="put quotes round it"
        ) from None
    except RecursionError:
        raise ConfigError(
            f"the value in `{where[:60]}` cannot be used", code="config-unreadable", why=_TOO_DEEP, fix="shorten it"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"the value in `{where[:60]}` cannot be read",
            code="config-unreadable",
            why=_shortened(error),
            fix="put quotes round it",
        ) from None


def _shortened(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
