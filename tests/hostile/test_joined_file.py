"""The joined file of the explorer: names of folders that are SQL, files that others made or that are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from voxstill.core.records import Label, Utterance
from voxstill.explorer import joined
from voxstill.explorer.corpus import Corpus
from voxstill.explorer.errors import JoinedFileLost
from voxstill.explorer.filters import Filter, Order
from voxstill.explorer.staging import Sources, TableSource
from voxstill.storage import tables
from voxstill.storage.store import Store

UTTERANCES = TableSource(role="utterances", prefix="utterances/u", kind=Utterance)
FIRST = TableSource(role="labels", prefix="labels/first", kind=Label, title="first", is_main=True)


@pytest.fixture
def work(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "work"))


def write(work: Store, part: str, ids: Sequence[str], *labels: TableSource) -> None:
    """Add a part to the tables of utterances and of labels."""
    rows = [Utterance(id=id_, recording_id="r", uri="/a.wav", end_ms=900, text=f"human {id_}") for id_ in ids]
    work.create(f"{UTTERANCES.prefix}/{part}.parquet", tables.to_parquet(rows, Utterance))
    for source in labels:
        texts = [Label(utterance_id=id_, recipe="r", teacher="t@1", text=f"label {id_}") for id_ in ids]
        work.create(f"{source.prefix}/{part}.parquet", tables.to_parquet(texts, Label))


def texts(work: Store, folder: Path, source: TableSource) -> list[tuple[str, str | None]]:
    """The ids and the labels of one teacher that an explorer shows."""
    path, _ = joined.ensure(work, lambda: Sources(tables=(UTTERANCES, source)), folder)
    corpus = Corpus(path)
    try:
        column = corpus.columns[source.text_column]
        assert corpus.totals(Filter(text="label"))["utterances"] == corpus.about.num_rows
        return [(row["id"], row[source.text_column]) for row in corpus.page(Filter(), Order(column=column), 500)]
    finally:
        corpus.close()


@pytest.mark.parametrize(
    "name", ['"', '""', 'a" AS b, "c', "'", 'x", (SELECT content FROM read_text(chr(47))) AS "y', "a;--"]
)
def test_the_name_of_a_folder_is_no_sql(work: Store, tmp_path: Path, name: str) -> None:
    source = TableSource(role="labels", prefix=f"labels/{name}", kind=Label, title=name, is_main=True)
    write(work, "0", ["u0", "u1"], source)
    assert texts(work, tmp_path, source) == [("u0", "label u0"), ("u1", "label u1")]
    write(work, "1", ["u2"], source)  # taken into a copy
    assert texts(work, tmp_path, source)[2:] == [("u2", "label u2")]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT content FROM read_text('{path}')",
        "COPY (SELECT 1) TO '{path}'",
        "ATTACH '{path}' AS other",
        "INSTALL httpfs",
        "SET enable_external_access = true",
    ],
)
def test_sql_that_runs_in_the_file_opens_no_other(tmp_path: Path, query: str) -> None:
    import duckdb

    secret = tmp_path / "secret"
    secret.write_text("kept")
    with joined.opened(tmp_path / "corpus.duckdb") as file, pytest.raises(duckdb.Error):
        file.execute(query.format(path=secret))
    assert secret.read_text() == "kept"


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE MACRO lower(x) AS 'planted'",
        "CREATE MACRO duckdb_functions() AS TABLE SELECT 'x' AS function_name, true AS internal WHERE false;"
        " CREATE MACRO concat_ws(a, b, c) AS 'planted'",
        "ALTER TABLE rows RENAME TO others; CREATE VIEW rows AS SELECT * REPLACE ('planted' AS id) FROM others",
        "ALTER TABLE rows ALTER human SET DEFAULT 'planted'",
        "CREATE TABLE more (x INTEGER)",
        "CREATE INDEX more ON rows (id)",
        "CREATE SCHEMA more",
        "CREATE SEQUENCE more",
        "CREATE TYPE more AS ENUM ('x')",
        "CREATE TRIGGER more AFTER UPDATE ON rows FOR EACH STATEMENT DELETE FROM strays",
        "UPDATE about SET value = '[]'",
        "UPDATE about SET value = replace(value, '\"low\": null', '\"low\": \"planted\"') WHERE name = 'about'",
        "DELETE FROM about WHERE name = 'about'",
    ],
)
def test_a_file_with_more_than_a_build_makes_is_built_anew(
    work: Store, tmp_path: Path, planted: str, caplog: pytest.LogCaptureFixture
) -> None:
    import duckdb

    write(work, "0", ["u0"], FIRST)
    texts(work, tmp_path, FIRST)
    with duckdb.connect(str(tmp_path / "corpus.duckdb")) as file:
        file.execute(planted)
    write(work, "1", ["u1"], FIRST)
    assert texts(work, tmp_path, FIRST) == [("u0", "label u0"), ("u1", "label u1")]
    assert "is built again" in caplog.text


def test_a_flipped_bit_and_added_parts_cost_at_most_one_more_start(work: Store, tmp_path: Path) -> None:
    write(work, "0", [f"u{number}" for number in range(2000)], FIRST)
    texts(work, tmp_path, FIRST)
    path = tmp_path / "corpus.duckdb"
    good = path.read_bytes()
    write(work, "1", [f"v{number}" for number in range(200)], FIRST)
    for place in range(12_345, len(good), len(good) // 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
        assert len(texts_at_the_second_start(work, tmp_path)) == 500


def texts_at_the_second_start(work: Store, folder: Path) -> list[tuple[str, str | None]]:
    """The labels; blocks that were not read when parts were added are found to be damaged by the first question."""
    try:
        return texts(work, folder, FIRST)
    except JoinedFileLost:
        return texts(work, folder, FIRST)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_damaged_is_removed_but_not_a_newer_one(
    work: Store, tmp_path: Path, *, is_replaced: bool
) -> None:
    write(work, "0", [f"u{number}" for number in range(2000)], FIRST)
    first = texts(work, tmp_path, FIRST)
    path = tmp_path / "corpus.duckdb"
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2] + bytes(len(good) // 2))
    corpus = Corpus(path)
    if is_replaced:
        other = tmp_path / "other"
        other.write_bytes(good)
        other.replace(path)
    with pytest.raises(JoinedFileLost):
        corpus.page(Filter(), Order(column=corpus.columns["id"]), 5)
    corpus.close()
    assert path.exists() == is_replaced
    assert texts(work, tmp_path, FIRST) == first
