"""Whatever happens to files of a finished work folder, `verify` names each of them, and `--repair` makes them again.

Bits are flipped, ends cut off and files removed, several at a time, drawn from a seed.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from seeds import seeded_random
from torture import runs
from voxstill import cli
from voxstill.core.config import Config, load
from voxstill.pipeline.verify import verify
from voxstill.storage import manifest, tables

FILES = 20
"""Of a work folder, in which something is broken at a time."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("whole")
    source = runs.corpus(folder / "audio", 60)
    path = str(runs.configure(folder, source))
    for command in (
        ["index", str(source), "--work", str(folder / "work")],
        *([step, str(folder / "work")] for step in ("label", "filter", "shard")),
    ):
        assert cli.main([*command, "--config", path]) == 0
    return load(path, [], {})


def strike(path: Path, chance: random.Random) -> str:
    """Flip a bit, cut the end off or remove the file; say which."""
    data = bytearray(path.read_bytes())
    kind = chance.choice(["flipped", "flipped", "cut", "removed"])
    if path.name == manifest.NAME and kind == "removed":  # without both accounts a table is one that was never finished
        kind = "cut"
    if kind == "removed":
        path.unlink()
        return kind
    if kind == "flipped":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    else:
        del data[chance.randrange(len(data)) :]
    path.write_bytes(data)
    return kind


def table_of(name: str) -> str:
    """The table that a file is of; that of the utterances speaks for the recordings too."""
    return name.rpartition("/")[0].replace("recordings/", "utterances/")


def test_every_broken_file_is_named_and_made_again(finished: Config, torture: Any) -> None:
    work = Path(finished.work)
    whole = work.with_name("calm")
    shutil.copytree(work, whole)
    expected = runs.kept(whole)
    chance = seeded_random()
    rounds = torture.count(short=1, full=200)
    for _ in range(rounds):
        accounts = [path for name in (tables.SUCCESS, manifest.NAME) for path in whole.rglob(name)]
        names = [*expected, *(str(path.relative_to(whole)) for path in accounts)]
        struck = {name: strike(work / name, chance) for name in chance.sample(sorted(names), FILES)}
        broken = {row.path for row in verify(finished.work, finished).broken}
        unnamed = {name: struck[name] for name in struck.keys() - broken}
        # without its manifest nobody knows which parts a table had
        assert all(f"{table_of(name)}/{manifest.NAME}" in struck for name in unnamed), unnamed
        result = verify(finished.work, finished, repair=True)
        assert result.exit_code == 0, result.to_text()
        assert not verify(finished.work, finished).broken
        now = runs.kept(work)
        others = {name for name in now.keys() | expected.keys() if now.get(name) != expected.get(name)}
        assert not others, {name: struck.get(name) for name in others}
    torture.tell("files of a work folder", f"{rounds * FILES} broken, all named and made again to the same bytes")
