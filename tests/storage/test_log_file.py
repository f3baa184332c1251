"""The log of a step lies in its work folder, in a bucket too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from voxstill.core import monitor
from voxstill.core.monitor import log
from voxstill.storage import log_file
from voxstill.storage.store import Store
from waiting import until


@pytest.fixture(autouse=True)
def log_to_standard_error() -> Iterator[None]:
    monitor.start_logging("error")
    yield
    assert not any(isinstance(handler, logging.FileHandler) for handler in log.handlers)


def text(work: Store) -> str:
    return "".join(work.read(entry.key).decode() for entry in work.list("logs/label"))


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_what_is_logged_is_kept_beside_the_tables(tmp_path: Path, place: str) -> None:
    work = Store(str(tmp_path) if place == "folder" else f"memory://{tmp_path.name}/work")
    with log_file.kept(work, "label"):
        log.info("hello of %s", place)
        log.warning("mind this")
    log.info("afterwards")
    assert f"INFO    hello of {place}" in text(work)
    assert "WARNING mind this" in text(work)
    assert "afterwards" not in text(work)


def test_in_a_bucket_it_is_there_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "UPLOAD_S", 0.05)
    work = Store(f"memory://{tmp_path.name}/work")
    with log_file.kept(work, "label"):
        log.info("hello")
        until(lambda: "hello" in text(work))


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor.start_logging("info")
    (tmp_path / "logs").write_text("a file where the folder would be")
    with log_file.kept(Store(str(tmp_path)), "label"):
        log.info("goes on")
    assert "no log file is written" in capsys.readouterr().err


def test_an_error_of_the_step_is_raised_and_in_the_log(tmp_path: Path) -> None:
    def fails() -> None:
        with log_file.kept(Store(str(tmp_path)), "label"):
            log.info("before")
            raise OSError(28, "No space left on device", "label")

    with pytest.raises(OSError, match="No space"):
        fails()
    assert "before" in text(Store(str(tmp_path)))
