"""Values that no step writes on purpose: a page shows them, and pages, filters and histograms go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from voxstill.audio.read_utterances import Reading
from voxstill.core.records import Label, Utterance, UtteranceInfo
from voxstill.explorer import joined
from voxstill.explorer.app import Explorer
from voxstill.explorer.audio import Sounds
from voxstill.explorer.corpus import Corpus
from voxstill.explorer.session import Facts, Session
from voxstill.explorer.staging import Sources, TableSource
from voxstill.filtering.measures import Score
from voxstill.storage import tables
from voxstill.storage.store import Store

HOST = "127.0.0.1:80"
SOURCES = Sources(
    tables=(
        TableSource(role="utterances", prefix="utterances/u", kind=Utterance),
        TableSource(role="labels", prefix="labels/first", kind=Label, title="first", is_main=True),
        TableSource(role="scores", prefix="scores/s", kind=Score),
    )
)


def score(id_: str, disagreement: float) -> Score:
    return Score(
        utterance_id=id_,
        split="train",
        duration_ms=500,
        finished=True,
        characters=1,
        words=1,
        longest_word=1,
        min_frames=1,
        repeats=0,
        compression_ratio=1.0,
        known_phrase=False,
        other_language=False,
        disagreement=disagreement,
    )


@contextmanager
def served(
    folder: Path,
    texts: Sequence[str],
    logprobs: Sequence[float],
    scores: Sequence[float],
) -> Iterator[TestClient]:
    """The API over utterances with these texts, which are their speakers, too, and these labels and scores."""
    work = Store(str(folder / "work"))
    ids = [f"u{n}" for n in range(len(texts))]
    utterances = [
        Utterance(id=id_, recording_id="r", uri="/a.wav", end_ms=500, text=text, info=UtteranceInfo(speaker=text))
        for id_, text in zip(ids, texts, strict=True)
    ]
    labels = [
        Label(utterance_id=id_, recipe="r", teacher="t@1", text=text, mean_logprob=value)
        for id_, text, value in zip(ids, texts, logprobs, strict=True)
    ]
    measured = [score(id_, value) for id_, value in zip(ids, scores, strict=True)]
    work.create("utterances/u/0.parquet", tables.to_parquet(utterances, Utterance))
    work.create("labels/first/0.parquet", tables.to_parquet(labels, Label))
    work.create("scores/s/0.parquet", tables.to_parquet(measured, Score))
    corpus = Corpus(joined.ensure(work, lambda: SOURCES, folder / "explorer")[0])
    facts = Facts(title="t", utterances="utterances/u", main="label_first")
    session = Session(work, corpus, Sounds(work, Reading(None, 60.0, 4_000)), facts, str.split)
    guarded = Explorer(session, 80).app
    headers = {"Authorization": f"Bearer {guarded.token}", "Host": HOST}
    yield TestClient(guarded, base_url=f"http://{HOST}", raise_server_exceptions=False, headers=headers)
    session.close()


def answer(client: TestClient, path: str, **parameters: object) -> Any:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
    response = client.get(f"/api/{path}", params=texts)
    assert response.status_code == 200, (path, parameters, response.text)
    return response.json()


def keys_of_pages(client: TestClient, order: str) -> list[Any]:
    """The keys of all rows, a page for each row."""
    keys, after = [], None
    while True:
        page = answer(client, "rows", order=order, limit=1, **({} if after is None else {"after": after}))
        keys += [row["key"] for row in page["rows"]]
        if (after := page["next"]) is None:
            return keys


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_missing(tmp_path: Path, bad: float) -> None:
    logprobs = [math.log(0.5), math.nan if bad < 0 else bad, math.log(0.25), -math.inf]
    with served(tmp_path, list("abcd"), logprobs, [0.5, bad, 0.25, 1e30]) as client:
        columns = {column["name"]: column for column in answer(client, "about")["columns"]}
        assert columns["disagreement"]["high"] <= 1e30
        assert [row["disagreement"] for row in answer(client, "rows")["rows"]] == [0.5, None, 0.25, 1e30]
        assert answer(client, "utterances/1")["row"]["confidence"] is None
        assert answer(client, "utterances/3")["row"]["confidence"] == 0
        assert keys_of_pages(client, "disagreement") == [0.25, 0.5, 1e30, None]
        assert keys_of_pages(client, "-disagreement") == [1e30, 0.5, 0.25, None]
        assert keys_of_pages(client, "-confidence") == pytest.approx([0.5, 0.25, 0, None], nan_ok=True)
        for column in ("confidence", "disagreement"):
            histogram = answer(client, "histogram", column=column)
            assert (sum(histogram["counts"]), histogram["unknown"]) == (3, 1)
            for where, num in (({"min": -1}, 3), ({"in": [None]}, 1)):
                assert answer(client, "totals", filter={"where": [{"column": column, **where}]})["utterances"] == num


def test_texts_with_a_nul_are_sorted_filtered_and_searched_as_others(tmp_path: Path) -> None:
    texts = ["a\0b", "zz", "a\0c", "\0", "a", "\U0010ffff"]
    with served(tmp_path, texts, [-0.1] * len(texts), [0.5] * len(texts)) as client:
        for column in ("human", "label_first", "speaker"):
            assert keys_of_pages(client, column) == sorted(texts)
            assert keys_of_pages(client, f"-{column}") == sorted(texts, reverse=True)
        speakers = [one["value"] for one in answer(client, "facet", column="speaker")]
        assert sorted(speakers) == sorted(texts)
        for text in texts:
            where = [{"column": "speaker", "in": [text]}]
            assert [row["human"] for row in answer(client, "rows", filter={"where": where})["rows"]] == [text]
            matches = [row["human"] for row in answer(client, "rows", filter={"text": text})["rows"]]
            assert matches == [one for one in texts if text in one]


def test_texts_that_are_too_long_to_align_are_shown_as_they_are(tmp_path: Path) -> None:
    text = "one two three " * 1_700
    with served(tmp_path, [text, "short"], [-0.1, -0.1], [0.5, 0.5]) as client:
        human, label = answer(client, "utterances/0")["texts"]
        assert (human["text"], human["pairs"], human["words"]) == (text, [], 5_100)
        assert (label["text"], label["pairs"], label["errors"]) == (text, None, None)
        assert answer(client, "utterances/1")["texts"][1]["errors"] == 0
