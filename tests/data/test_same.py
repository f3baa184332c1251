"""The global batches are the same bits whoever reads them, and whenever somebody is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import finish, start
from hashes import SLOTS, read
from noise_corpus import write_corpus
from voxstill.storage.store import Store
from waiting import until


def lines_of(*paths: Path) -> dict[tuple[int, int], str]:
    """Hash of each batch by step and slot; a line that a kill cut short counts for nothing."""
    rows = [line.split() for path in paths for line in path.read_text().splitlines()]
    return {(int(row[0]), int(row[1])): row[2] for row in rows if len(row) == 3 and len(row[2]) == 64}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, int], str]]:
    folder = tmp_path_factory.mktemp("same")
    write_corpus(Store(str(folder / "work")))
    read(str(folder / "work"), 0, 1, 0, 0, 0.0, folder / "out")
    return folder / "work", lines_of(folder / "out")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), (4, 1), (8, 3)])
def test_any_ranks_with_any_workers_read_the_same_bits(
    undisturbed: tuple[Path, dict[tuple[int, int], str]], tmp_path: Path, ranks: int, workers: int
) -> None:
    root, wanted = undisturbed
    outs = [tmp_path / f"out{rank}" for rank in range(ranks)]
    for rank, out in enumerate(outs):
        read(str(root), rank, ranks, workers, 0, 0.0, out)
    assert lines_of(*outs) == wanted


@pytest.mark.parametrize(("before", "after"), [((1, 3), (2, 1)), ((2, 1), (1, 0))])
def test_a_killed_run_goes_on_with_the_same_bits_on_other_ranks_and_workers(
    undisturbed: tuple[Path, dict[tuple[int, int], str]],
    tmp_path: Path,
    before: tuple[int, int],
    after: tuple[int, int],
) -> None:
    root, wanted = undisturbed
    steps = len(wanted) // SLOTS
    ranks, workers = before
    outs = [tmp_path / f"killed{rank}" for rank in range(ranks)]
    log = tmp_path / "log"
    readers = [start(read, str(root), rank, ranks, workers, 0, 0.3, out, log=log) for rank, out in enumerate(outs)]
    until(lambda: all(out.exists() and len(lines_of(out)) >= 2 * SLOTS // ranks for out in outs))
    for reader in readers:
        reader.kill()
        reader.join()
    written = lines_of(*outs)
    first = min(step for step in range(steps) if any((step, slot) not in written for slot in range(SLOTS)))
    assert 0 < first < steps
    ranks, workers = after
    more = [tmp_path / f"resumed{rank}" for rank in range(ranks)]
    readers = [start(read, str(root), rank, ranks, workers, first, 0.0, out, log=log) for rank, out in enumerate(more)]
    finish(*readers, log=log)
    assert {at: digest for at, digest in written.items() if at[0] < first} | lines_of(*more) == wanted
