"""Writes `docs/reference/errors.md`: each code with its explanation and the messages that have it, out of the code.

    python tools/errors_page.py

A test compares the page with what this writes.
"""

from __future__ import annotations

import ast
import errno
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import errors
from voxstill.core.explanations import explanations

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/voxstill"
PAGE = ROOT / "docs/reference/errors.md"
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


def page() -> str:
    """The page, as Markdown."""
    everywhere = places()
    lines = [HEAD + "\n".join(f"| `{kind}` | {_exit_code(kind)} | {_cell(text)} |" for kind, text in KINDS.items())]
    lines += ["", "## Codes", ""]
    for code, explanation in _EXPLANATIONS.items():
        own = [place for place in everywhere if code in place.codes]
        lines += [f"### {code}", "", _kinds_of(code, own), "", explanation, "", *_table(own)]
    passed_on = _table([place for place in everywhere if PASSED_ON in place.codes])
    lines += ["## Passed on", "", "These messages have the code of the error that they pass on.", "", *passed_on]
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


def _kinds_of(code: str, own: list[Place]) -> str:
    """The kinds of the errors that have a code, or that have it where none is passed."""
    kinds = [kind for kind in KINDS if getattr(errors, kind).code == code or kind in {place.kind for place in own}]
    return "; ".join(f"`{kind}`, exit code {_exit_code(kind)}" for kind in kinds)


def _exit_code(kind: str) -> int:
    return int(getattr(errors, kind).exit_code)


def _table(own: list[Place]) -> list[str]:
    rows = {(text, place.fix) for place in own for text in place.texts}
    if not rows:
        return []
    lines = [f"| {_cell(text)} | {_cell(fix)} |" for text, fix in sorted(rows)]
    return ["| message | fix |", "|---|---|", *lines, ""]


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
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
