"""Several teachers side by side, and what they agree on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from voxstill import engine
from voxstill.cli import main
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.labelling import label
from voxstill.pipeline import compare_teachers
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import label as labelling
from voxstill.storage import tables
from voxstill.storage.store import Store

from .test_prepare import WORDS, config, corpus, finish_labels, voices, write_tables

ERRS = {"substitute": 0.3, "delete": 0.05, "vocabulary": list(WORDS)}


def spoken(folder: Path, work: str, num: int) -> list[Utterance]:
    """Utterances with audio and human texts, and labels of nobody."""
    rows = corpus(num, uri=str(folder / "{}.wav"))
    utterances = [dataclasses.replace(row, text=row.text or "one two") for row, _ in rows]
    voices(folder, [(row, None) for row in utterances])
    write_tables(config(work), [(row, None) for row in utterances], 10)
    shutil.rmtree(Path(work) / "labels")
    return utterances


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """A work folder with labels of three teachers that err in their own ways, and their recipes."""
    folder = tmp_path_factory.mktemp("work")
    work = str(folder / "work")
    spoken(folder, work, 200)
    recipes = []
    for seed, chunk in ((1, 4), (2, 4), (3, 7)):
        cfg = config(work, chunk, teacher={"name": "echo", "seed": seed, **ERRS})
        recipes.append(labelling.label_utterances(cfg).recipe)
    return work, recipes


def agreed(work: str, of: list[str], engine: str = "inline") -> Config:
    return config(work, engine={"name": engine, "chunk": 4, "workers": 1}, teacher={"name": "consensus", "of": of})


def test_teachers_are_compared_with_each_other_and_the_human_texts(
    labelled: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    work, recipes = labelled
    result = compare_teachers.compared(config(work), recipes).to_dict()
    assert [row["recipe"] for row in result["teachers"]] == recipes
    assert all(0.2 < row["wer"] < 0.5 for row in result["teachers"])
    assert all(0.3 < rate < 0.8 for i, rates in enumerate(result["apart"]) for j, rate in enumerate(rates) if i != j)
    assert len(result["different"]) == compare_teachers.MOST_DIFFERENT
    assert result["different"][0]["apart"] >= result["different"][-1]["apart"] > 0
    assert set(result["different"][0]["heard"]) == set(recipes)
    assert main(["compare-teachers", work, *recipes, "--set", "engine.name=inline"]) == 0
    assert "largest disagreements" in capsys.readouterr().out


def test_a_comparison_is_a_page_with_audio(
    labelled: tuple[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, recipes = labelled
    page = tmp_path / "pages" / "compared.html"
    more = ["--report", str(page), "--price-per-hour", "2", "--set", "engine.name=inline"]
    assert main(["compare-teachers", work, *recipes, "--json", *more]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["report"] == str(page)
    for row in result["teachers"]:
        assert row["work_s"] == pytest.approx(3600 * result["hours"] / row["rtfx"])
        assert row["cost"] == pytest.approx(2 * row["work_s"] / 3600)
    html = page.read_text(encoding="utf-8")
    assert html.count("<audio") == compare_teachers.MOST_DIFFERENT
    assert all(recipe in html for recipe in recipes)
    assert all(row["id"] in html for row in result["different"])
    assert main(["compare-teachers", work, *recipes, *more]) == 0
    assert "cost of labelling" in capsys.readouterr().out
    for wrong in ("-1", "nan", "cheap"):
        assert main(["compare-teachers", work, f"--price-per-hour={wrong}"]) == 2


def test_three_teachers_agree_on_better_labels_than_the_best_of_them_has(labelled: tuple[str, list[str]]) -> None:
    work, recipes = labelled
    cfg = agreed(work, recipes)
    figures = labelling.label_utterances(cfg)
    assert figures.failed == 0
    assert labelling.label_utterances(cfg) == figures  # nothing is done twice
    rows = compare_teachers.compared(cfg, [*recipes, figures.recipe]).teachers
    assert rows[-1].wer < 0.8 * min(row.wer for row in rows[:-1])
    verdicts = filtering.filter_labels(cfg)  # the line goes on from it, and what they agree on is surer
    assert verdicts.labels == figures.recipe
    assert verdicts.wer_after < verdicts.wer_before


def test_a_consensus_under_ray_has_the_bytes_of_inline(labelled: tuple[str, list[str]]) -> None:
    work, recipes = labelled
    store = Store(work)

    def label_parts(engine: str) -> dict[str, bytes]:
        cfg = agreed(work, recipes[:2], engine)
        recipe = labelling.label_utterances(cfg).recipe
        parts = {key: store.read(key) for key in tables.parts(store, f"labels/{recipe}")}
        shutil.rmtree(Path(work) / "labels" / recipe)
        return parts

    one = label_parts("inline")
    assert one == label_parts("ray")
    engine.shutdown()
    assert one


def test_a_teacher_without_labels_is_an_error(labelled: tuple[str, list[str]], tmp_path: Path) -> None:
    work, recipes = labelled
    with pytest.raises(DataError, match="no finished labels of the recipe `nobody`"):
        labelling.label_utterances(agreed(work, [recipes[0], "nobody"]))
    with pytest.raises(ConfigError, match="two different recipes"):
        labelling.label_utterances(agreed(work, [recipes[0]]))
    cfg = config(str(tmp_path / "alone"))
    write_tables(cfg, corpus(10), 5)
    with pytest.raises(DataError, match="two are needed"):
        compare_teachers.compared(cfg)


def test_an_utterance_on_which_all_fail_is_a_failed_label(tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    rows = spoken(tmp_path, work, 30)
    first, second = rows[0].id, rows[1].id
    of = []
    for seed, fails in ((1, [first, second]), (2, [first])):
        teacher: dict[str, Any] = {"name": "echo", "seed": seed, "fail_on": fails}
        of.append(labelling.label_utterances(config(work, teacher=teacher)).recipe)
    figures = labelling.label_utterances(agreed(work, of))
    assert figures.failed == 1
    labels = {row.utterance_id: row for row in tables.read(Store(work), f"labels/{figures.recipe}", Label)}
    assert labels[first].error is not None
    assert labels[second].error is None
    assert labels[second].text == rows[1].text
    assert json.dumps(figures.options)


def finished(work: str, teacher: dict[str, Any], labels: list[Label]) -> str:
    """Labels of a teacher as `voxstill label` leaves them; their recipe."""
    cfg = config(work, teacher=teacher)
    store, task = Store(work), label.task(cfg.teacher)
    store.create(f"{task.prefix}/all.parquet", tables.to_parquet(labels, Label))
    finish_labels(cfg)
    return task.recipe


def verdicts(cfg: Config) -> dict[str, str | None]:
    return {
        row.utterance_id: row.reason
        for row in tables.read(Store(cfg.work), f"verdicts/{filtering.filter_labels(cfg).recipe}", Verdict)
    }


def measures(work: str) -> list[str]:
    return sorted(path.name for path in (Path(work) / "scores").iterdir())


def test_labels_that_a_second_teacher_contradicts_are_dropped_and_a_new_threshold_measures_nothing(
    tmp_path: Path,
) -> None:
    work, echo = str(tmp_path), {"name": "echo"}
    loose = {"min_chars_per_s": 0.0, "max_chars_per_s": 1e9, "frame_ms": 1}
    rows = [
        (dataclasses.replace(utterance, text="one two three four", split="train"), None) for utterance, _ in corpus(40)
    ]
    write_tables(config(work), rows, 10)
    ids = [utterance.id for utterance, _ in rows]
    common = {"recipe": "", "teacher": "echo@1"}
    judged = finished(work, echo, [Label(utterance_id=id_, text="one two three four", **common) for id_ in ids])
    texts = dict.fromkeys(ids, "one two three four") | {ids[0]: "one two three five", ids[1]: "six", ids[2]: ""}
    del texts[ids[3]]  # it has no label of this
    second = finished(
        work, {**echo, "seed": 2}, [Label(utterance_id=i, text=text, **common) for i, text in texts.items()]
    )

    def reasons(**more: Any) -> dict[str, str | None]:
        return {i: why for i, why in verdicts(config(work, teacher=echo, filter={**loose, **more})).items() if why}

    assert reasons() == {}
    assert len(measures(work)) == 1
    assert reasons(second_teacher="echo") == dict.fromkeys(ids[:3], "disagreement")  # the one other of that name
    assert len(there := measures(work)) == 2
    assert reasons(second_teacher=second, max_disagreement=0.5) == dict.fromkeys(ids[1:3], "disagreement")
    assert measures(work) == there
    third = finished(work, {**echo, "seed": 3}, [Label(utterance_id=id_, text="seven", **common) for id_ in ids[:20]])
    assert reasons(second_teacher=third) == dict.fromkeys(ids[:20], "disagreement")
    assert len(measures(work)) == 3
    with pytest.raises(DataError, match="several other labels") as wrong:
        reasons(second_teacher="echo")
    assert second in str(wrong.value)
    assert third in str(wrong.value)
    with pytest.raises(DataError, match="no other labels"):
        reasons(second_teacher="vllm")
    with pytest.raises(ConfigError, match="they agree with themselves"):
        reasons(second_teacher=judged)
