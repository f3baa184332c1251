"""Tables as earlier versions finished them."""

from __future__ import annotations

import json
from pathlib import Path

from voxstill.storage import manifest, tables


def without_account(table: Path) -> None:
    """A finished table without its manifest and without the checksum of its figures, as in version 0.1."""
    (table / manifest.NAME).unlink()
    success = table / tables.SUCCESS
    figures = json.loads(success.read_text())
    del figures["checksum"]
    success.write_text(json.dumps(figures))
