"""Writes `docs/reference/errors.md`: every message of an error with its exit code, out of the code that raises it.

    python tools/errors_page.py

A test compares the page with what this writes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voxstill.core import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/voxstill"
PAGE = ROOT / "docs/reference/errors.md"
HEAD = """# Errors

Every error says what is wrong, why, and how to mend it. The exit code of a command is that of the kind of its error. 2
is also that of a wrong command line, and 1 that of anything unforeseen. In Python the kinds are classes of `voxstill`,
with `what`, `why`, `fix` and `exit_code`. Where a message has a name or a number, it stands here as `…`.

This page is written by `tools/errors_page.py` out of the code.
"""
ADVICE = {
    "ConfigError": """Nothing was begun. The message names the option or the argument. [Options](options.md) and
[commands](commands.md) have all of them; `voxstill explain SECTION` prints those of a section.""",
    "DataError": """A single bad file is never an error of this kind: it is a row with its reason in the table. This
is for what makes a step impossible: no audio at all, a table that is missing, broken or of another recipe.
`voxstill verify WORK` finds what is broken, and `--repair` mends it: [how](../how-to/resume.md).""",
    "StorageError": """A disk is full, a right is missing, a bucket or a web server does not answer. What was
written is whole, so the same command goes on once that is mended: [how](../how-to/resume.md). For buckets see
[sources](../sources.md#storage-and-teacher-failures).""",
    "TeacherError": """The teacher could not be loaded, or failed on everything that it was given. Single utterances
that it fails on are rows with their reason. See [teachers](../teachers.md).""",
    "TrainingError": """The training cannot start, or cannot go on. Checkpoints stay, and the same command resumes
from the newest. See [training](../training.md#failures-during-training) and, for memory,
[how](../how-to/memory.md).""",
    "ClusterError": """Machines or processes of the cluster are gone. Finished work is safe; run the same command
again. See [clusters](../cluster.md).""",
    "VoxstillError": "An error of no other kind.",
}


@dataclass(frozen=True, order=True)
class Message:
    """What an error says, with `…` for what is filled in."""

    what: str
    fix: str


def page() -> str:
    """The page, as Markdown."""
    messages = collected()
    lines = [HEAD]
    for kind, advice in ADVICE.items():
        code = getattr(errors, kind).exit_code
        lines += [f"## {kind}", "", f"Exit code {code}. {advice}", "", "| message | fix |", "|---|---|"]
        lines += [f"| {_cell(message.what)} | {_cell(message.fix)} |" for message in sorted(messages[kind])]
        lines.append("")
    return "\n".join(lines)


def collected() -> dict[str, set[Message]]:
    """The messages of all errors of the package, by kind."""
    messages: dict[str, set[Message]] = {kind: set() for kind in ADVICE}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ADVICE and node.args:
                fixes = [keyword.value for keyword in node.keywords if keyword.arg == "fix"]
                for what in _texts(node.args[0]):
                    if what.strip("… `"):
                        fix = next(iter(_texts(fixes[0])), "") if fixes else ""
                        messages[node.func.id].add(Message(what, fix))
    return messages


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
