"""Parts of a table agree on their number, in a folder as in a bucket, until the table is finished."""

from __future__ import annotations

import concurrent.futures
import logging

import pytest

from voxstill.core.config import Engine
from voxstill.core.errors import ConfigError, StorageError
from voxstill.storage import parts, workdir
from voxstill.storage.figures import ScoreFigures
from voxstill.storage.parts import Part
from voxstill.storage.store import Store

TABLE = "scores/abc"
SMALL = Engine(chunk=8)


def test_parts_agree_until_the_table_is_finished(store: Store) -> None:
    with parts.hold(store, TABLE, "filter", Part(1, 2), SMALL), parts.hold(store, TABLE, "filter", Part(2, 2), SMALL):
        for part, cfg in ((Part(1, 3), SMALL), (Part(3, 3), Engine(chunk=9))):
            with pytest.raises(ConfigError, match="made in 2 parts"), parts.hold(store, TABLE, "filter", part, cfg):
                pass
        for other in (None, Part(2, 2)):
            with pytest.raises(StorageError, match="being written"), parts.hold(store, TABLE, "filter", other, SMALL):
                pass
        workdir.finish(store, ScoreFigures(recipe="abc"))
        with pytest.raises(StorageError, match=r"--part \d/2"), parts.hold(store, TABLE, "filter", Part(1, 3), SMALL):
            pass  # nothing is left of the agreement, and those who made it still run
        assert not store.exists(f"{TABLE}/{parts.AGREED}")
    with parts.hold(store, TABLE, "filter", Part(1, 3), SMALL):
        pass


def test_parts_of_one_table_are_made_of_one_table(store: Store) -> None:
    """The same id may be other audio in another table of utterances."""
    with parts.hold(store, TABLE, "label", Part(1, 2), SMALL, of="utterances/a"):
        other = parts.hold(store, TABLE, "label", Part(2, 2), SMALL, of="utterances/b")
        with pytest.raises(ConfigError, match="would be of `utterances/b`"), other:
            pass
        with parts.hold(store, TABLE, "label", Part(2, 2), SMALL, of="utterances/a"):
            pass


def test_of_two_numbers_of_parts_at_once_one_is_agreed_on(store: Store) -> None:
    def take(total: int) -> int | None:
        try:
            with parts.hold(store, TABLE, "filter", Part(1, total), SMALL):
                return total
        except (ConfigError, StorageError):
            return None

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        taken = {total for total in pool.map(take, range(2, 8)) if total is not None}
    assert len(taken) <= 1


@pytest.mark.parametrize(
    ("left", "is_done", "message"),
    [
        (("0", "2", "4"), True, "part 2 of 4 is done; 2 of 4 parts are still missing: 1, 3"),
        (("3",), True, "part 2 of 4 is done; 1 of 4 parts is still missing: 4"),
        (("1",), True, "part 2 of 4 is not done, the same command resumes; 1 of 4 parts is still missing: 2"),
        (("2",), False, "part 2 of 4 is not done, the same command resumes; 1 of 4 parts is still missing: 3"),
        ((), True, None),
    ],
)
def test_what_is_missing_is_said(
    caplog: pytest.LogCaptureFixture, left: tuple[str, ...], is_done: bool, message: str | None
) -> None:
    with caplog.at_level(logging.INFO, "voxstill"):
        finished = parts.is_finished("label", Part(2, 4), left, is_done=is_done)
    assert finished == (message is None)
    assert caplog.messages == ([] if message is None else [f"label: {message}"])
