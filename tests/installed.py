"""Other packages as pip leaves them: a file of code, and a name in a group of entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str, code: str, value: str = "VALUE"
) -> None:
    """Install the package `other-NAME`, whose one module has the code; `name` is its entry point, for `value`."""
    module = f"other_{name.replace('-', '_')}"
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: other-{name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{value}\n")
    (folder / f"{module}.py").write_text(code)
    sys.modules.pop(module, None)  # of another test
    monkeypatch.syspath_prepend(str(folder))
