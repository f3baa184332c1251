"""The rows of a new joined file are those of a join by id, whatever the order and the parts of the tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from voxstill.core.records import Label, Utterance
from voxstill.explorer import assembly, joined
from voxstill.explorer.staging import Sources, TableSource, run
from voxstill.storage import tables
from voxstill.storage.store import Store


def write(work: Store, prefix: str, rows: list[Utterance] | list[Label], rng: np.random.Generator) -> None:
    """Rows in parts of different lengths, one of them empty."""
    ends = [0, *sorted(rng.integers(0, len(rows), 5)), len(rows)]
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        part = rows[start:stop]
        work.create(f"{prefix}/{number:03}.parquet", tables.to_parquet(part, Utterance if "utt" in prefix else Label))
    work.create(f"{prefix}/999.parquet", tables.to_parquet([], Utterance if "utt" in prefix else Label))


@pytest.mark.parametrize(("block_rows", "held_rows"), [(7, 7), (7, 1000), (1000, 1000)])
@pytest.mark.parametrize("seed", range(5))
def test_each_utterance_has_the_first_label_of_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, block_rows: int, held_rows: int
) -> None:
    monkeypatch.setattr(assembly, "BLOCK_ROWS", block_rows)
    monkeypatch.setattr(assembly, "HELD_ROWS", held_rows)
    monkeypatch.setattr(assembly, "_ROW_GROUP", 3)  # several insertions at once
    rng, work = np.random.default_rng(seed), Store(str(tmp_path))
    numbers = [int(number) for number in rng.integers(0, 40, 60)]  # some twice
    utterances = [
        Utterance(id=f"u{number}", recording_id="r", uri="/a.wav", end_ms=place, text=f"human {place}")
        for place, number in enumerate(numbers)
    ]
    labels = [
        Label(utterance_id=f"u{number}", recipe="r", teacher="t@1", text=f"label {place}")
        for place, number in enumerate(rng.integers(0, 60, 80))
    ]
    removed = frozenset(["u3", "u4", "u50"])
    write(work, "utterances/u", utterances, rng)
    write(work, "labels/l", labels, rng)
    sources = Sources(
        tables=(
            TableSource(role="utterances", prefix="utterances/u", kind=Utterance),
            TableSource(role="labels", prefix="labels/l", kind=Label, title="t", is_main=True),
        ),
        removed=removed,
        removed_identity="removed",
    )
    with joined.opened(joined.ensure(work, lambda: sources, tmp_path / "explorer")[0], read_only=True) as file:
        rows = run(file, 'SELECT "row", id, human, label_l FROM rows')
        [(num_strays,)] = run(file, "SELECT num FROM strays WHERE prefix = 'labels/l'")
    first_label: dict[str, str] = {}
    for label in labels:
        first_label.setdefault(label.utterance_id, label.text)
    first_place: dict[str, int] = {}
    for place, utterance in enumerate(utterances):
        if utterance.id not in removed:
            first_place.setdefault(utterance.id, place)
    assert rows == [(place, id_, utterances[place].text, first_label.get(id_)) for id_, place in first_place.items()]
    kept = [label.utterance_id for label in labels if label.utterance_id not in removed]
    assert num_strays == sum(id_ not in first_place for id_ in kept)
