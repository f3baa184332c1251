"""What a work folder holds, whatever its parts are called and however its rows are cut into them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

TABLES = ("recordings", "utterances", "labels", "scores", "verdicts")


def rows_of_work(work: Path) -> dict[str, Counter[str]]:
    """How often each row is in each table, without the recipes, which name parts; and the bytes of the shards."""
    rows: dict[str, Counter[str]] = {name: Counter() for name in TABLES}
    for name, counts in rows.items():
        for path in (work / name).rglob("*.parquet"):
            columns = pq.read_table(path)
            dropped = [column for column in ("recipe",) if column in columns.column_names]
            counts.update(map(repr, columns.drop_columns(dropped).to_pylist()))
    shards = sorted(path for path in (work / "shards").rglob("*") if path.suffix in {".tar", ".parquet"})
    rows["shards"] = Counter(f"{path.name} {path.read_bytes().hex()}" for path in shards)
    return rows
