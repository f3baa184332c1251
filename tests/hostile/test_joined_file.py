"""The joined file of the explorer: names of folders that are SQL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from voxstill.core.records import Label, Utterance
from voxstill.explorer import joined
from voxstill.explorer.corpus import Corpus
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
