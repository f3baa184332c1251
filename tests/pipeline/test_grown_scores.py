"""Scores of a corpus that has grown: what was measured before is not measured again, and nothing is there twice."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill import engine
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.monitor import log
from voxstill.core.records import Label, Utterance
from voxstill.filtering import measures
from voxstill.filtering.measures import PARTS, Score
from voxstill.indexing.recipe import utterances_recipe
from voxstill.labelling import label, label_figures
from voxstill.pipeline import recipes
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.verify import verify
from voxstill.storage import manifest, removals, tables, workdir
from voxstill.storage.figures import IndexFigures
from voxstill.storage.removals import Removal
from voxstill.storage.store import Store

_numbers = count()
SIZE = 3
"""Utterances in a part."""


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the log says of how much was measured."""
    lines: list[str] = []
    monkeypatch.setattr(log, "info", lambda message, *values: lines.append(message % values))
    return lines


def configured(work: str, *overrides: str) -> Config:
    return config.load(None, [f"work={work}", "engine={name: inline, chunk: 3}", "teacher=echo", *overrides])


def rows(numbers: Sequence[int]) -> list[tuple[Utterance, Label]]:
    chance = random.Random(numbers[0] if numbers else 0)
    utterances = [Utterance(id=f"u{i}", recording_id=f"r{i}", uri=f"{i}.wav", end_ms=900 + i) for i in numbers]
    texts = [" ".join(chance.choices(("one", "two", "three"), k=chance.randint(0, 6))) for _ in numbers]
    return [
        (utterance, Label(utterance_id=utterance.id, recipe="", teacher="echo@1", text=text))
        for utterance, text in zip(utterances, texts, strict=True)
    ]


def add(cfg: Config, numbers: Sequence[int], *, labelled: bool = True) -> None:
    """Add parts of utterances, named after what is in them, with their labels, as `index` and `label` do."""
    work, recipe, task = Store(cfg.work), utterances_recipe(cfg), label.task(cfg.teacher)
    for chunk in engine.chunks_of(rows(numbers), SIZE, lambda row: row[0].id):
        utterances, labels = zip(*chunk.items, strict=True)
        work.create(f"utterances/{recipe}/{chunk.id}.parquet", tables.to_parquet(utterances, Utterance))
        if labelled:
            own = [dataclasses.replace(row, recipe=task.recipe, teacher=task.name) for row in labels]
            work.create(f"{task.prefix}/{chunk.id}.parquet", tables.to_parquet(own, Label))
    num = sum(1 for _ in tables.read(work, f"utterances/{recipe}", Utterance))
    workdir.finish(work, IndexFigures(recipe=recipe, utterances=num))
    figures = label_figures.count(work, task)
    listing = tables.parts_hash(work, task.prefix)
    workdir.finish(work, dataclasses.replace(figures, listing=listing))


def stored(cfg: Config) -> dict[str, bytes]:
    """The newest scores and verdicts, by their keys."""
    work, figures = Store(cfg.work), filter_labels(cfg)
    prefixes = workdir.prefix("scores", figures.scores), workdir.prefix("verdicts", figures.recipe)
    return {key: work.read(key) for prefix in prefixes for key in tables.parts(work, prefix)}


def measured(messages: list[str]) -> tuple[int, int]:
    """Parts that were measured and parts that were taken over, by the last line that says so."""
    line = r"filter: labels of (\d+) parts are measured now, those of (\d+) were measured before"
    [*_, (new, old)] = [match.groups() for message in messages if (match := re.fullmatch(line, message))]
    return int(new), int(old)


def broken(cfg: Config) -> list[str]:
    """What is broken of scores and verdicts."""
    paths = [row.path for row in verify(cfg.work, cfg).broken]
    return [path for path in paths if path.startswith(("scores", "verdicts"))]


@settings(max_examples=4, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=3).map(sorted), st.integers(0, 9))
def test_scores_after_growth_are_those_of_a_filter_from_scratch(ends: list[int], seed: int) -> None:
    number = next(_numbers)
    grown, scratch = (configured(f"memory://test-grown-{number}-{name}") for name in ("grown", "scratch"))
    bounds = [seed * 100 + end for end in (0, *ends)]
    for first, last in pairwise(bounds):
        add(grown, range(first, last))
        filter_labels(grown)
        add(scratch, range(first, last))
    assert stored(grown) == stored(scratch)
    prefix = workdir.prefix("scores", filter_labels(grown).scores)
    ids = [score.utterance_id for score in tables.read(Store(grown.work), prefix, Score)]
    assert sorted(ids) == sorted(f"u{i}" for i in range(bounds[0], bounds[-1]))


def test_only_new_labels_are_measured_of_a_corpus_that_has_grown(messages: list[str]) -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(PARTS * SIZE * 2))
    filter_labels(cfg)
    assert measured(messages) == (2 * PARTS, 0)
    add(cfg, range(1000, 1000 + 4 * SIZE))
    filter_labels(cfg)
    assert measured(messages) == (4, 2 * PARTS)
    add(cfg, range(2000, 2000 + SIZE))
    filter_labels(cfg)
    assert measured(messages) == (1, 2 * PARTS + 4)
    assert broken(cfg) == []


def test_labels_that_are_measured_otherwise_are_measured_again(messages: list[str]) -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(SIZE * 4))
    filter_labels(cfg)
    filter_labels(config.changed(cfg, "filter.phrases=[one two]"))
    assert measured(messages) == (4, 0)
    work, task = Store(cfg.work), label.task(cfg.teacher)
    key = tables.parts(work, task.prefix)[0]
    labels = [dataclasses.replace(row, text="four") for row in tables.from_parquet(work.read(key), Label)]
    work.replace(key, tables.to_parquet(labels, Label))
    add(cfg, range(SIZE * 4))
    filter_labels(cfg)
    assert measured(messages) == (1, 3)


def test_after_a_removal_only_its_part_is_measured_again(messages: list[str]) -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(SIZE * 4))
    filter_labels(cfg)
    removal = Removal(id="u4", uri="4.wav", end_ms=904, time="2026-01-01T00:00:00+00:00")
    removals.append(Store(cfg.work), [removal])
    figures = filter_labels(cfg)
    assert (figures.judged, figures.removed) == (SIZE * 4 - 1, 1)
    assert measured(messages) == (1, 3)


def test_a_damaged_part_of_scores_is_not_taken_over(messages: list[str]) -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(SIZE * 2 * PARTS))
    work, figures = Store(cfg.work), filter_labels(cfg)
    key, whole = next(iter(stored(cfg).items()))
    work.replace(key, whole[:-8] + b"12345678")
    add(cfg, range(1000, 1000 + SIZE))
    assert filter_labels(cfg).judged == figures.judged + SIZE
    assert measured(messages) == (PARTS + 1, PARTS)


def test_a_filter_that_was_ended_before_the_index_grew_scores_nothing_twice() -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(SIZE * 3 * PARTS))
    work, figures = Store(cfg.work), filter_labels(cfg)
    scores = workdir.prefix("scores", figures.scores)
    for table in (scores, workdir.prefix("verdicts", figures.recipe)):  # as if it had been ended after two parts
        work.delete(f"{table}/{tables.SUCCESS}")
        for key in tables.parts(work, table)[2 if table == scores else 0 :]:
            work.delete(key)
    add(cfg, range(1000, 1000 + SIZE * 5), labelled=False)
    again = filter_labels(cfg)
    assert (again.recipe, again.judged) == (figures.recipe, figures.judged)
    ids = [score.utterance_id for score in tables.read(work, scores, Score)]
    assert sorted(ids) == sorted(set(ids))
    assert len(ids) == figures.judged
    assert len(tables.parts(work, scores)) == 4
    assert broken(cfg) == []


def test_a_filter_of_a_grown_corpus_that_was_ended_goes_on_to_the_same_bytes(messages: list[str]) -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(SIZE * 2 * PARTS))
    filter_labels(cfg)
    add(cfg, range(1000, 1000 + SIZE))
    work, figures, calm = Store(cfg.work), filter_labels(cfg), stored(cfg)
    for table in (workdir.prefix("scores", figures.scores), workdir.prefix("verdicts", figures.recipe)):
        for key in (f"{table}/{tables.SUCCESS}", *tables.parts(work, table)[:1]):
            work.delete(key)
    assert stored(cfg) == calm
    assert measured(messages)[0] <= 1


def test_scores_of_an_earlier_version_are_read_and_measured_anew_where_labels_are_added(messages: list[str]) -> None:
    cfg = configured(f"memory://test-grown-{next(_numbers)}")
    add(cfg, range(SIZE * 2))
    work, figures = Store(cfg.work), filter_labels(cfg)
    prefix = workdir.prefix("scores", figures.scores)
    [key] = tables.parts(work, prefix)
    work.replace(key, tables.to_parquet(tables.from_parquet(work.read(key), Score), Score))
    assert [row.part for row in tables.read(work, prefix, measures.ScoreRow)] == [None] * SIZE * 2
    add(cfg, range(1000, 1000 + SIZE))
    assert filter_labels(cfg).judged == 3 * SIZE
    assert measured(messages) == (3, 0)


def test_utterances_whose_labels_were_there_before_them_are_judged(messages: list[str]) -> None:
    """Labels of another table of utterances, or copied from another work folder."""
    cfg = configured("memory://test-grown-labels-before")
    work, utterances = Store(cfg.work), f"utterances/{utterances_recipe(cfg)}"
    add(cfg, range(12))
    held_back = {key: work.read(key) for key in tables.parts(work, utterances)[:2]}
    for key in (*held_back, f"{utterances}/{manifest.NAME}"):
        work.delete(key)
    workdir.finish(work, IndexFigures(recipe=utterances_recipe(cfg), utterances=12 - 2 * SIZE))
    before = filter_labels(cfg)
    assert before.judged == 12 - 2 * SIZE
    for key, data in held_back.items():
        work.create(key, data)
    workdir.finish(work, IndexFigures(recipe=utterances_recipe(cfg), utterances=12))
    after = filter_labels(cfg)
    assert after.judged == 12
    assert after.recipe != before.recipe
    assert recipes.finished_verdicts(cfg) == after
    assert filter_labels(cfg) == after
    add(cfg, range(12, 12 + SIZE), labelled=False)
    assert filter_labels(cfg) == after
