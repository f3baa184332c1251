"""Writes `docs/reference/errors.md` and the Chinese page beside it: each code with its explanation and its messages.

    python tools/errors_page.py

The messages are those of the code, and the Chinese is in `tools/errors_zh.toml`. A test compares the pages with what
this writes.
"""

from __future__ import annotations

import ast
import errno
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import errors
from voxstill.core.explanations import explanations

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/voxstill"
DOCS = ROOT / "docs"
HEAD = """# Errors

Every error says what is wrong, why, and how to fix it. Its last line has its code, and `voxstill explain CODE` prints
the explanation of that code on this page. In Python the kinds are classes of `voxstill`, with `what`, `code`, `why`,
`fix` and `exit_code`. Names and numbers in a message are shown as `…`.

This page is written by `tools/errors_page.py` out of the code.

## Kinds

The exit code of a command is that of the kind of its error. 2 is also that of a wrong command line, 1 that of anything
unforeseen, and 130 that of an interrupted command, whose message has no code: there is nothing to fix.

| kind | exit code | what it means |
|---|---|---|
"""
KINDS = {
    "ConfigError": """Nothing was started. The message has the option or the argument: [options](options.md),
[commands](commands.md).""",
    "DataError": """Something makes a step impossible: no audio at all, a table that is missing, broken or of another
recipe. A single bad file never causes an error of this kind: it is a row with its reason in the table. `voxstill verify
WORK` finds what is broken, and `--repair` repairs it: [how](../how-to/resume.md).""",
    "StorageError": """A disk is full, a permission is missing, a bucket or a web server does not respond. What was
written is complete, so the same command resumes when the cause is fixed: [how](../how-to/resume.md).""",
    "TeacherError": """The teacher could not be loaded, or failed on all utterances. Single utterances
that it fails on are rows with their reason. See [teachers](../teachers.md).""",
    "TrainingError": """The training cannot start or continue. Checkpoints are kept, and the same command resumes from
the newest. See [training](../training.md#failures-during-training).""",
    "ClusterError": """Machines or processes of the cluster are lost or not available. Finished work is safe; run the
same command again. See [clusters](../cluster.md).""",
    "VoxstillError": "An error of no other kind.",
}
PASSED_ON = "passed on"
"""In place of the code of an error that has that of another."""
_EXPLANATIONS = explanations()
_SYSTEM_CODES = frozenset(errors.system_code(OSError(number, "")) for number in errno.errorcode)


@dataclass(frozen=True, order=True)
class Place:
    """A call that makes an error: where it stands, the kind, the codes that it can have, and what it says."""

    where: str
    kind: str
    codes: tuple[str, ...]
    texts: tuple[str, ...]
    """What it can say, with `…` for what is filled in."""
    fix: str


@dataclass(frozen=True)
class Wording:
    """The words of the page in one language, and its folder. Messages and fixes are those of the code in each."""

    folder: Path
    head: str
    codes: str
    kind: str
    semicolon: str
    columns: Sequence[str]
    passed_on: str
    kinds: Mapping[str, str]
    explanations: Mapping[str, str]

    @property
    def page(self) -> Path:
        """The file of the page."""
        return self.folder / "reference/errors.md"


def english() -> Wording:
    """The words of this file and of the code."""
    return Wording(
        folder=DOCS,
        head=HEAD,
        codes="Codes",
        kind="`{kind}`, exit code {exit_code}",
        semicolon="; ",
        columns=("message", "fix"),
        passed_on="## Passed on\n\nThese messages have the code of the error that they pass on.\n",
        kinds=KINDS,
        explanations=_EXPLANATIONS,
    )


def chinese() -> Wording:
    """The words of `tools/errors_zh.toml`; SystemExit where its kinds and codes are not those of the code."""
    path = ROOT / "tools/errors_zh.toml"
    wording = Wording(folder=DOCS / "zh", **tomllib.loads(path.read_text(encoding="utf-8")))
    wanted, translated = {*KINDS, *_EXPLANATIONS}, {*wording.kinds, *wording.explanations}
    if wanted != translated:
        sys.exit(f"{path.name} lacks {sorted(wanted - translated)} and has stale {sorted(translated - wanted)}")
    return wording


def page(wording: Wording) -> str:
    """The page, as Markdown."""
    everywhere = places()
    kinds = [f"| `{kind}` | {_exit_code(kind)} | {_cell(wording.kinds[kind])} |" for kind in KINDS]
    lines = [wording.head + "\n".join(kinds), "", f"## {wording.codes}", ""]
    for code in _EXPLANATIONS:
        own = [place for place in everywhere if code in place.codes]
        lines += [f"### {code}", "", _kinds_of(code, own, wording), "", wording.explanations[code].strip(), ""]
        lines += _table(own, wording)
    passed_on = _table([place for place in everywhere if PASSED_ON in place.codes], wording)
    lines += [wording.passed_on, *passed_on]
    return "\n".join(lines)


def places() -> list[Place]:
    """Every call of the package that makes an error with a code."""
    kinds = dict(zip(KINDS, KINDS, strict=True))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    for tree in trees.values():  # also of kinds that are defined where they are used
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.bases and (base := ast.unparse(node.bases[0])) in kinds:
                kinds.setdefault(node.name, kinds[base])
    del kinds[errors.Interrupted.__name__]  # which has no code
    return [
        _place(path, tree, node, kinds[node.func.id])
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args
    ]


def _place(path: Path, tree: ast.Module, node: ast.Call, kind: str) -> Place:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    fix = next(_texts(keywords["fix"]), "") if "fix" in keywords else ""
    where = f"{path.relative_to(ROOT)}:{node.lineno}"
    codes = tuple(sorted(_codes(keywords["code"], tree))) if "code" in keywords else ()
    return Place(where, kind, codes, tuple(text for text in _texts(node.args[0]) if text.strip("… `")), fix)


def _codes(node: ast.expr, tree: ast.Module) -> set[str]:
    """The codes that an expression in a file can be; where the file chooses one, all that it names."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.IfExp):
        return _codes(node.body, tree) | _codes(node.orelse, tree)
    if isinstance(node, ast.Call):
        return set(_SYSTEM_CODES)
    if ast.unparse(node) == "error.code":
        return {PASSED_ON}
    constants = {part.value for part in ast.walk(tree) if isinstance(part, ast.Constant)}
    return {code for code in _EXPLANATIONS if code in constants} | _SYSTEM_CODES


def _kinds_of(code: str, own: list[Place], wording: Wording) -> str:
    """The kinds of the errors that have a code, or that have it where none is passed."""
    kinds = [kind for kind in KINDS if getattr(errors, kind).code == code or kind in {place.kind for place in own}]
    return wording.semicolon.join(wording.kind.format(kind=kind, exit_code=_exit_code(kind)) for kind in kinds)


def _exit_code(kind: str) -> int:
    return int(getattr(errors, kind).exit_code)


def _table(own: list[Place], wording: Wording) -> list[str]:
    rows = {(text, place.fix) for place in own for text in place.texts}
    if not rows:
        return []
    lines = [f"| {_cell(text)} | {_cell(fix)} |" for text, fix in sorted(rows)]
    return [f"| {' | '.join(wording.columns)} |", "|---|---|", *lines, ""]


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can be: one, or those of both branches of a condition."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield "".join(next(_texts(side), "…") for side in (node.left, node.right))
    else:
        yield "…"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    for language, output in zip((english, chinese), sys.argv[1:] or (None, None), strict=False):
        words = language()
        Path(output or words.page).write_text(page(words), encoding="utf-8")
