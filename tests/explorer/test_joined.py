"""The joined file: it holds what the tables hold, grows with them, and is built anew where anything else changed."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from explorer_process import NUM, config_of, copy_corpus, num_rows_of, rows_of
from voxstill.core.config import Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.records import Label, Utterance
from voxstill.explorer import joined
from voxstill.explorer.corpus import Corpus
from voxstill.explorer.filters import ROW, Filter, Order
from voxstill.explorer.staging import Sources
from voxstill.pipeline import explore, remove
from voxstill.pipeline import label as labelling
from voxstill.storage import corrections, joined_file, removals, tables, workdir
from voxstill.storage.corrections import Correction
from voxstill.storage.store import Store


@pytest.fixture
def cfg(fresh_corpus: Config, tmp_path: Path) -> Config:
    return copy_corpus(fresh_corpus, tmp_path)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each file was made."""
    ways: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            ways.append(name if result is not False else "refused")
            return result

        return call

    monkeypatch.setattr(joined, "_build", counted("built", joined._build))
    monkeypatch.setattr(joined.growth, "take_in", counted("grown", joined.growth.take_in))
    return ways


def path_of(cfg: Config) -> Path:
    folder = joined_file.folder_of(cfg)
    assert folder is not None
    return folder / joined_file.FILE


def test_a_file_that_is_up_to_date_is_opened_as_it_is(cfg: Config, builds: list[str]) -> None:
    first = rows_of(cfg)
    assert len(first) == NUM
    assert rows_of(cfg) == first
    assert builds == ["built"]


def test_many_utterances_are_joined_in_blocks(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_of(cfg)
    path_of(cfg).unlink()
    monkeypatch.setattr(joined.assembly, "BLOCK_ROWS", 10)
    monkeypatch.setattr(joined.assembly, "HELD_ROWS", 10)
    assert rows_of(cfg) == whole


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_a_broken_file_is_built_anew(cfg: Config, builds: list[str], content: bytes | None) -> None:
    first = rows_of(cfg)
    path = path_of(cfg)
    path.write_bytes(path.read_bytes()[:20_000] if content is None else content)
    assert rows_of(cfg) == first
    assert builds == ["built", "built"]


def test_parts_that_were_added_are_taken_into_a_copy(cfg: Config, builds: list[str]) -> None:
    work = Store(cfg.work)
    expected = rows_of(cfg)
    [*_, labels] = [source for source in explore.sources_of(cfg).tables if source.role == "labels"]
    keys = tables.parts(work, labels.prefix)
    held = {key: work.read(key) for key in keys[len(keys) // 2 :]}
    for key in (*held, f"{labels.prefix}/{tables.SUCCESS}", f"{labels.prefix}/_manifest"):
        work.delete(key)
    partial = rows_of(cfg)
    assert sum(row[labels.text_column] is not None for row in partial) < NUM
    for key, data in held.items():
        work.create(key, data)
    assert rows_of(cfg) == expected
    assert builds == ["built", "built", "grown"]
    assert rows_of(cfg) == expected
    assert builds == ["built", "built", "grown"]


def test_utterances_that_were_added_come_with_what_is_known_of_them(cfg: Config, builds: list[str]) -> None:
    work, sources = Store(cfg.work), explore.sources_of(cfg)
    before = rows_of(cfg)
    new = Utterance(id="new", recording_id="r", uri="/new.wav", end_ms=900, text="Quite NEW")
    work.create(f"{sources.tables[0].prefix}/added.parquet", tables.to_parquet([new], Utterance))
    label = Label(utterance_id="new", recipe="r", teacher="echo@1", text="quite knew")
    work.create(f"{sources.tables[1].prefix}/added.parquet", tables.to_parquet([label], Label))
    workdir.finish(work, workdir.named(work, type(explore.recipes.finished_utterances(cfg)), sources.tables[0].prefix.rpartition("/")[2]))  # fmt: skip  # noqa: E501
    rows = rows_of(cfg)
    assert rows[:-1] == before
    assert (rows[-1]["id"], rows[-1]["human"], rows[-1]["kept"]) == ("new", "Quite NEW", None)
    assert rows[-1][sources.tables[1].text_column] == "quite knew"
    assert builds == ["built", "grown"]
    with explore.opened(cfg) as session:
        assert [row["id"] for row in session.corpus.page(Filter(text="knew"), Order(column=ROW), 5)] == ["new"]


def test_labels_of_another_teacher_build_the_file_anew(tmp_path: Path, cfg: Config, builds: list[str]) -> None:
    first = set(rows_of(cfg)[0])
    labelling.label_utterances(config_of(tmp_path, 0.1))
    assert len({*rows_of(cfg)[0]} - first) == 1
    assert builds == ["built", "built"]


def test_two_rows_of_an_id_are_one(cfg: Config) -> None:
    work, sources = Store(cfg.work), explore.sources_of(cfg)
    before = rows_of(cfg)
    again = [Label(utterance_id="u001", recipe="r", teacher="echo@1", text="another")]
    work.create(f"{sources.tables[2].prefix}/zzz.parquet", tables.to_parquet(again, Label))
    assert rows_of(cfg) == before


def test_processes_that_open_it_at_once_do_not_spoil_it(cfg: Config) -> None:
    arguments = (cfg.work, cfg.model_dump_json(exclude_unset=True))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(num_rows_of, [arguments] * 3) == [NUM] * 3
    folder = path_of(cfg).parent
    assert {path.name for path in folder.iterdir()} == {joined_file.FILE, "lock"}


def correction(id_: str, judgement: str = "right", time: str = "2026-01-01", text: str | None = None) -> Correction:
    return Correction(
        utterance_id=id_, audio="a", judgement=judgement, label=f"label of {id_}", text=text, time=time, judge="ada"
    )  # type: ignore[arg-type]


def test_what_is_removed_is_gone_from_the_file_and_from_judgements(cfg: Config) -> None:
    work = Store(cfg.work)
    corrections.append(work, [correction("u001", "corrected", text="a secret"), correction("u002")])
    corrections.append(work, [correction("u001")])
    assert "u001" in {row["id"] for row in rows_of(cfg)}
    with explore.opened(cfg) as session:
        remove.remove(cfg, ["u001"])
        session._refreshed_s = 0.0  # a second later
        session.refresh()
        assert "u001" not in {row["id"] for row in session.corpus.page(Filter(), Order(column=ROW), 500)}
        assert session.corpus.totals(Filter())["utterances"] == NUM - 1
    assert not path_of(cfg).exists()
    assert corrections.latest(work).keys() == {"u002"}
    for key in tables.parts(work, corrections.PREFIX):
        assert "u001" not in {row.utterance_id for row in tables.from_parquet(work.read(key), Correction)}
    rows = rows_of(cfg)
    assert len(rows) == NUM - 1
    assert "u001" not in {row["id"] for row in rows}
    data = path_of(cfg).read_bytes()
    assert b"u001" not in data
    assert len(removals.of(work)) == 1


def test_many_parts_of_judgements_become_one(cfg: Config) -> None:
    work = Store(cfg.work)
    for number in range(corrections.MANY_PARTS):
        corrections.append(work, [correction(f"u{number % 40:03}", time=f"2026-01-{number:02}")])
    before = corrections.latest(work)
    corrections.compact(work)
    assert corrections.latest(work) == before
    assert len(tables.parts(work, corrections.PREFIX)) == 1


def test_what_is_removed_while_another_process_builds_is_not_in_the_file(cfg: Config) -> None:
    folder = path_of(cfg).parent
    folder.mkdir(parents=True)
    ids: list[str] = []
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reader = threading.Thread(target=lambda: ids.extend(row["id"] for row in rows_of(cfg)))
        reader.start()
        time.sleep(0.5)  # it waits for the lock
        remove.remove(cfg, ["u001"])
    reader.join()
    assert len(ids) == NUM - 1
    assert b"u001" not in path_of(cfg).read_bytes()


def test_what_is_removed_while_it_is_read_is_not_in_the_file(cfg: Config) -> None:
    work = Store(cfg.work)
    removed: list[str] = []

    def sources() -> Sources:
        current = explore.sources_of(cfg)
        if not removed:  # it is listed already
            removed.append("u001")
            remove.remove(cfg, removed)
        return current

    path, _ = joined.ensure(work, sources, path_of(cfg).parent)
    assert b"u001" not in path.read_bytes()


def test_a_draft_that_a_killed_process_left_is_erased_with_the_file(cfg: Config) -> None:
    rows_of(cfg)
    draft = path_of(cfg).with_name("draft-corpus.duckdb")
    for path in (draft, draft.with_name(f"{draft.name}.wal")):
        path.write_bytes(b"u001")
    remove.remove(cfg, ["u001"])
    assert [path.name for path in path_of(cfg).parent.iterdir()] == ["lock"]


_SPILLS = """
import sys, time
from pathlib import Path
from voxstill.explorer.corpus import Corpus
corpus = Corpus(Path(sys.argv[1]))
corpus._spill.mkdir()
(corpus._spill / "texts").write_text("u001")
print("spilled", flush=True)
time.sleep(600)
"""


def test_what_a_killed_explorer_has_spilled_goes_with_the_next(cfg: Config) -> None:
    """That of one that runs stays; with `remove` all of it goes."""
    rows_of(cfg)
    path = path_of(cfg)
    with contextlib.ExitStack() as stack:
        killed, running = (
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", _SPILLS, str(path)], stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        )
        stack.callback(running.kill)
        stack.callback(killed.kill)
        for process in (killed, running):
            assert process.stdout is not None
            assert process.stdout.readline() == "spilled\n"
        killed.kill()
        killed.wait()
        assert len([spilled for spilled in path.parent.iterdir() if spilled.is_dir()]) == 2
        Corpus(path).close()
        [left] = (spilled for spilled in path.parent.iterdir() if spilled.is_dir())
        assert (left / "texts").exists()
        remove.remove(cfg, ["u001"])
        assert [other.name for other in path.parent.iterdir()] == ["lock"]


def test_who_may_not_write_the_folder_opens_the_file_that_is_there(
    cfg: Config, builds: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows_of(cfg)
    monkeypatch.setattr(explore, "_can_write", lambda _: False)
    assert len(rows_of(cfg)) == NUM
    assert builds == ["built"]
    path_of(cfg).unlink()
    assert len(rows_of(cfg)) == NUM
    assert builds == ["built", "built"]
    assert not path_of(cfg).exists()
    assert "is not saved" in caplog.text


def test_tables_are_those_that_the_file_was_built_from(cfg: Config) -> None:
    """Labels of another teacher may be finished while it is built."""
    work, last = Store(cfg.work), explore.sources_of(cfg)
    first = replace(last, tables=tuple(table for table in last.tables if table.role != "labels" or table.is_main))
    answers = iter([first, first])
    path, sources = joined.ensure(work, lambda: next(answers, last), path_of(cfg).parent)
    assert {teacher.name for teacher in joined.about(path).teachers} == {
        table.text_column for table in sources.tables if table.role == "labels"
    }


def test_parts_that_a_finished_table_does_not_have_are_refused_as_by_a_build(cfg: Config) -> None:
    rows_of(cfg)
    prefix = explore.sources_of(cfg).tables[0].prefix
    new = Utterance(id="new", recording_id="r", uri="/new.wav", end_ms=900)
    Store(cfg.work).create(f"{prefix}/added.parquet", tables.to_parquet([new], Utterance))
    with pytest.raises(DataError, match="is not the table that was finished"):
        rows_of(cfg)


def test_a_file_that_is_removed_before_it_is_copied_or_opened_is_built_again(
    cfg: Config, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows_of(cfg)
    ensure, added_parts = joined.ensure, joined.growth.added_parts
    files: list[Path] = []

    def remove_after(result: Any) -> Any:
        for path in files:
            path.unlink()
        files.clear()
        return result

    monkeypatch.setattr(joined, "ensure", lambda *arguments: remove_after(ensure(*arguments)))
    files.append(path_of(cfg))
    assert rows_of(cfg) == first
    monkeypatch.setattr(joined, "ensure", ensure)
    monkeypatch.setattr(joined.growth, "added_parts", lambda *arguments: remove_after(added_parts(*arguments)))
    files.append(path_of(cfg))
    prefix = next(table.prefix for table in explore.sources_of(cfg).tables if table.role == "labels")
    Store(cfg.work).create(f"{prefix}/zzz.parquet", tables.to_parquet([], Label))
    assert rows_of(cfg) == first
    assert builds == ["built"] * 3


def test_ctrl_c_while_the_database_works_is_one(tmp_path: Path) -> None:
    """The database raises this error for it, whatever the query."""
    with pytest.raises(KeyboardInterrupt), joined.opened(tmp_path / "corpus.duckdb"):
        raise RuntimeError("Query interrupted")


def test_what_does_not_fit_into_memory_is_beside_the_file(cfg: Config) -> None:
    with explore.opened(cfg) as session:
        [(folder,)] = session.corpus.ask("SELECT current_setting('temp_directory')")
        assert Path(folder).parent == path_of(cfg).parent
        Path(folder).mkdir()
    assert not Path(folder).exists()


def test_a_build_that_fails_says_why(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    fatal = "Failed to create checkpoint because of error: No space left on device"
    for error, code in (
        (MemoryError(), "out-of-memory"),
        (duckdb.OutOfMemoryException("could not allocate"), "out-of-memory"),
        (pa.ArrowMemoryError("malloc of size 1 failed"), "out-of-memory"),
        (pa.ArrowInvalid("no such offset"), "table-broken"),
        (duckdb.IOException('Could not write file "x": No space left on device'), "disk-full"),
        (duckdb.FatalException(fatal), "disk-full"),
        (duckdb.IOException('Cannot open file "x": Permission denied'), "no-permission"),
        (OSError(5, "Input/output error"), "storage-failed"),
        (RuntimeError("can't start new thread"), "too-few-resources"),
    ):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(joined.assembly, "_taken", fail)
        with pytest.raises(VoxstillError) as raised:
            rows_of(cfg)
        assert (raised.value.code, bool(raised.value.why), bool(raised.value.fix)) == (code, True, True)
        assert {path.name for path in path_of(cfg).parent.iterdir()} == {"lock"}


def test_neither_a_build_nor_opening_it_again_loads_pandas(cfg: Config) -> None:
    code = (
        "import sys; from explorer_process import num_rows_of\n"
        "assert num_rows_of((sys.argv[1], sys.argv[2])) == int(sys.argv[3])\n"
        "assert 'pandas' not in sys.modules"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", code, cfg.work, cfg.model_dump_json(exclude_unset=True), str(NUM)],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
