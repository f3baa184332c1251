"""Sources whose texts are learnt from as they are, beside others that a teacher labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manifests import wav
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, TeacherError
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.evaluation import teacher as teacher_evaluation
from voxstill.filtering.measures import ScoreRow
from voxstill.labelling import label, retry_failed, supervised
from voxstill.pipeline import compare_teachers, export_labels, filter_report, tune_filter
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.plan import plan_
from voxstill.pipeline.shard import shard
from voxstill.pipeline.verify import verify
from voxstill.storage import tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store
from voxstill.training.experiment import dataset_hours

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "nine")
ERRS = {"name": "echo", "substitute": 0.4, "vocabulary": ["zero", "eight"]}


def write_corpus(folder: Path, name: str, num: int, first: int = 0) -> str:
    """A manifest of clips, each with two words."""
    (folder / name).mkdir(exist_ok=True)
    rows = []
    for i in range(first, first + num):
        pitch_hz = 200 + 10 * i + 1000 * len(name)  # no two clips are duplicates
        (folder / name / f"{i}.wav").write_bytes(wav(pitch_hz, 1.0))
        text = f"{WORDS[i % 8]} {WORDS[(i // 8 + 3) % 8]}"
        rows.append({"id": f"{name}{i}", "audio": f"{name}/{i}.wav", "text": text, "speaker": f"{name}-{i % 4}"})
    manifest = folder / f"{name}-{first}.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(manifest)


def sources(folder: Path, num: int = 24) -> list[dict[str, Any]]:
    real = {"uri": write_corpus(folder, "real", num), "dataset": "real", "dev_share": 0.0}
    texts = {"uri": write_corpus(folder, "voices", num), "dataset": "voices", "supervised": True, "split": "train"}
    return [real, texts]


def configured(folder: Path, of: list[dict[str, Any]], **more: Any) -> Config:
    tree = {
        "work": str(folder / "work"),
        "source": of,
        "engine": {"name": "inline", "chunk": 10},
        "teacher": ERRS,
    }
    return Config.model_validate(tree | more)


def labels_of(cfg: Config) -> dict[str, Label]:
    rows = tables.read(Store(cfg.work), label.task(cfg.teacher).prefix, Label)
    return {row.utterance_id: row for row in rows}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A work folder with finished labels of two sources."""
    folder = tmp_path_factory.mktemp("mixed")
    cfg = configured(folder, sources(folder))
    index(cfg)
    label_utterances(cfg)
    return cfg


def test_a_supervised_source_has_its_texts_for_labels_and_the_others_have_those_of_the_teacher(
    labelled: Config,
) -> None:
    utterances = {row.id: row for row in tables.read(Store(labelled.work), "utterances", Utterance)}
    reference = label.task(config.Teacher(name="reference"))
    assert supervised.reference_task() == reference
    rows = labels_of(labelled)
    assert rows.keys() == utterances.keys()
    wrong = 0
    for id_, row in rows.items():
        assert row.error is None
        if id_.startswith("voices"):
            assert (row.teacher, row.recipe) == (reference.name, reference.recipe)
            assert (row.text, row.mean_logprob) == (utterances[id_].text, None)
            assert utterances[id_].split == "train"
        else:
            assert row.teacher == label.task(labelled.teacher).name
            assert row.mean_logprob is not None
            wrong += row.text != utterances[id_].text
    assert wrong
    figures = label_utterances(labelled)
    assert (figures.labels, figures.supervised, figures.failed, figures.finished) == (48, 24, 0, True)
    assert figures.teacher == label.task(labelled.teacher).name
    assert figures.teachers is None


def test_no_teacher_is_asked_about_a_supervised_source_and_its_speed_is_not_of_it(tmp_path: Path) -> None:
    real, texts = sources(tmp_path, 4)
    cfg = configured(tmp_path, [real, texts], teacher={**ERRS, "fail_on": [f"voices{i}" for i in range(4)]})
    index(cfg)
    assert label_utterances(cfg).failed == 0
    alone = configured(tmp_path, [texts], work=str(tmp_path / "alone"))
    assert index(alone).teacher_hours == 0
    figures = label_utterances(alone)
    assert (figures.labels, figures.supervised, figures.rtfx) == (4, 4, 0.0)


def test_a_limit_counts_what_the_teacher_labels(tmp_path: Path) -> None:
    cfg = configured(tmp_path, sources(tmp_path, 12))
    index(cfg)
    figures = label_utterances(cfg, max_chunks=1)
    assert (figures.supervised, figures.finished) == (12, False)
    assert 12 < figures.labels < 24
    assert label_utterances(cfg).finished


def test_the_filter_judges_texts_by_no_confidence_and_keeps_a_share_of_the_pseudo_labels_alone(
    labelled: Config,
) -> None:
    half = labelled.model_copy(update={"filter": config.Filter(keep_share=0.5, min_confidence=0.05)})
    figures = filter_labels(half)
    verdicts = list(tables.read(Store(half.work), f"verdicts/{figures.recipe}", Verdict))
    kept = [row.utterance_id for row in verdicts if row.kept]
    assert sum(id_.startswith("voices") for id_ in kept) == 24
    num_real = sum(row.utterance_id.startswith("real") for row in verdicts)
    assert len(kept) - 24 == pytest.approx(num_real / 2, abs=1)
    by_hand = filter_labels(labelled)
    scores = tables.read(Store(labelled.work), f"scores/{by_hand.scores}", ScoreRow)
    wrong = [row.score for row in scores if row.score.split != "test" and row.score.errors is not None]
    assert {row.utterance_id[:4] for row in wrong} == {"real"}
    assert by_hand.wer_before == sum(row.errors or 0 for row in wrong) / sum(row.reference_words or 0 for row in wrong)
    tuned = tune_filter.tune(labelled)
    assert tuned.labels == sum(id_.startswith("real") for id_ in labels_of(labelled))


def test_other_rules_hold_for_texts_too(tmp_path: Path) -> None:
    real, texts = sources(tmp_path, 4)
    manifest = Path(texts["uri"])
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    rows[0]["text"] = "one " * 7
    rows[1].pop("text")
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = configured(tmp_path, [real, texts])
    index(cfg)
    figures = label_utterances(cfg)
    assert (figures.failed, figures.supervised) == (1, 4)
    assert labels_of(cfg)["voices1"].error == "the manifest has no text for this utterance"
    verdicts = tables.read(Store(cfg.work), f"verdicts/{filter_labels(cfg).recipe}", Verdict)
    reasons = {row.utterance_id: row.reason for row in verdicts if row.utterance_id.startswith("voices")}
    assert reasons == {"voices0": "repeated", "voices1": "failed", "voices2": None, "voices3": None}
    again = label_utterances(cfg, retry_failed=True)
    assert (again.labels, again.failed, again.finished) == (8, 1, True)


def test_a_second_teacher_and_a_consensus_leave_texts_as_they_are(tmp_path: Path) -> None:
    cfg = configured(tmp_path, sources(tmp_path, 10))
    index(cfg)
    seeds = [cfg.model_copy(update={"teacher": config.Teacher(**ERRS, seed=seed)}) for seed in (0, 1)]
    recipes = [label_utterances(one).recipe for one in seeds]
    judged = seeds[0].model_copy(update={"filter": config.Filter(second_teacher=recipes[1], max_disagreement=0.0)})
    figures = filter_labels(judged)
    assert figures.reasons["disagreement"] > 0
    rows = tables.read(Store(cfg.work), f"verdicts/{figures.recipe}", Verdict)
    assert all(row.kept for row in rows if row.utterance_id.startswith("voices"))
    comparison = compare_teachers.compared(cfg, recipes)
    assert comparison.utterances == 10
    assert comparison.hours == pytest.approx(10 / 3600)
    agreed = cfg.model_copy(update={"teacher": config.Teacher(name="consensus", of=recipes)})
    assert label_utterances(agreed).supervised == 10
    texts = {id_: row for id_, row in labels_of(agreed).items() if id_.startswith("voices")}
    assert texts == {id_: row for id_, row in labels_of(seeds[0]).items() if id_.startswith("voices")}
    filter_labels(agreed)


def test_labels_of_the_other_kind_are_not_taken_over(tmp_path: Path) -> None:
    real, texts = sources(tmp_path, 6)
    before = configured(tmp_path, [real, {**texts, "supervised": False}])
    index(before)
    label_utterances(before)
    after = configured(tmp_path, [real, texts])
    index(after)
    for refused in (label_utterances, filter_labels):
        with pytest.raises(DataError, match="are of another kind than their source") as caught:
            refused(after)
        assert "--retry-failed" in (caught.value.fix or "")
    pseudo = {id_: row for id_, row in labels_of(before).items() if id_.startswith("real")}
    figures = label_utterances(after, retry_failed=True)
    assert (figures.labels, figures.supervised, figures.finished) == (12, 6, True)
    rows = labels_of(after)
    assert {id_: row for id_, row in rows.items() if id_.startswith("real")} == pseudo
    assert all(row.teacher.startswith("reference@") for id_, row in rows.items() if id_.startswith("voices"))
    with pytest.raises(DataError, match="are of another kind than their source"):
        label_utterances(before)
    assert label_utterances(before, retry_failed=True).supervised is None
    assert not any(row.teacher.startswith("reference@") for row in labels_of(before).values())


def test_a_removal_of_labels_of_the_other_kind_that_was_ended_goes_on(tmp_path: Path) -> None:
    real, texts = sources(tmp_path, 4)
    before = configured(tmp_path, [real, {**texts, "supervised": False}])
    index(before)
    work, table = Store(before.work), f"labels/{label_utterances(before).recipe}"
    [part] = tables.parts(work, table)
    after = configured(tmp_path, [real, texts])
    index(after)
    ids = [f"voices{i}" for i in range(4)]
    plan = {"replaced_by": {part: f"{table}/rest.parquet"}, "of_other_kind": ids}
    work.write_json(f"{table}/{retry_failed.PLAN}", plan)  # as a kill leaves it
    assert label_utterances(after).supervised == 4
    assert not work.exists(part)


def test_both_sources_grow(tmp_path: Path) -> None:
    real, texts = sources(tmp_path, 6)
    cfg = configured(tmp_path, [real, texts])
    for step in (index, label_utterances, filter_labels, shard):
        step(cfg)
    more = [
        {**one, "uri": [one["uri"], write_corpus(tmp_path, name, 5, 20)]}
        for one, name in ((real, "real"), (texts, "voices"))
    ]
    grown = configured(tmp_path, more)
    indexed = index(grown)
    assert (indexed.utterances, indexed.supervised) == (22, 11)
    figures = label_utterances(grown)
    assert (figures.labels, figures.supervised) == (22, 11)
    assert filter_labels(grown).judged == sum(num for name, num in indexed.splits.items() if name != "test")
    assert shard(grown).generation == 2
    assert verify(grown.work, grown).exit_code == 0


def test_a_source_without_texts_cannot_be_supervised(tmp_path: Path) -> None:
    write_corpus(tmp_path, "bare", 2)
    bare = {"uri": str(tmp_path / "bare"), "supervised": True}
    with pytest.raises(DataError, match=r"the supervised source `.*bare` has no text") as caught:
        index(configured(tmp_path, [*sources(tmp_path, 2), bare]))
    assert "a column `text`" in (caught.value.fix or "")


def test_a_teacher_that_fails_on_all_it_is_asked_about_ends_the_step_beside_texts_too(tmp_path: Path) -> None:
    cfg = configured(tmp_path, sources(tmp_path, 3), teacher={**ERRS, "fail_on": [f"real{i}" for i in range(3)]})
    index(cfg)
    with pytest.raises(TeacherError, match="failed on all 3 utterances"):
        label_utterances(cfg)


def test_the_split_of_a_source_is_that_of_all_in_it(tmp_path: Path) -> None:
    write_corpus(tmp_path, "test", 3)
    manifest = write_corpus(tmp_path, "voices", 3)
    rows = [{**json.loads(line), "split": "test"} for line in Path(manifest).read_text().splitlines()]
    Path(manifest).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split in ("train", "dev", "test"):
        work = str(tmp_path / f"work-{split}")
        of = [{"uri": uri, "split": split} for uri in (manifest, str(tmp_path / "test"))]
        assert index(configured(tmp_path, of, work=work)).splits == {split: 6}
    assert index(configured(tmp_path, of, work=work)).splits == {"test": 6}


def test_a_source_of_one_split_names_no_speakers_of_another() -> None:
    for name in ("test_speakers", "dev_speakers"):
        with pytest.raises(ConfigError, match=rf"`source\.split` is `train` and `source\.{name}` is set"):
            Config.model_validate({"source": {"uri": "a", "split": "train", name: ["ann"]}})


def test_a_teacher_is_not_judged_by_texts_that_it_was_given(labelled: Config, caplog: pytest.LogCaptureFixture) -> None:
    utterances = list(tables.read(Store(labelled.work), "utterances", Utterance))
    real = [row for row in utterances if not row.supervised]
    assert teacher_evaluation.labels_all(real)
    assert not caplog.records
    assert not teacher_evaluation.labels_all(utterances)
    assert "24 of 48 utterances are of supervised sources" in caplog.text


def test_what_is_exported_says_who_made_a_label(labelled: Config, tmp_path: Path) -> None:
    filter_labels(labelled)
    output = str(tmp_path / "labels.jsonl")
    export_labels.export_labels(labelled, output, kept=True)
    rows = [json.loads(line) for line in Path(output).read_text().splitlines()]
    assert {row["id"] for row in rows} >= {f"voices{i}" for i in range(24)}


def test_weights_mix_texts_and_pseudo_labels(labelled: Config) -> None:
    filter_labels(labelled)
    shards = shard(labelled)
    samples = list(tables.read(Store(labelled.work), f"shards/{shards.recipe}", Sample))
    assert {row.teacher for row in samples if row.info.dataset == "voices"} == {supervised.reference_task().name}
    plan = config.Plan(batches_per_step=1, budget_ms=4000, weights={"real": 0.5, "voices": 0.5})
    even = plan_(labelled.work, None, 0, labelled.model_copy(update={"plan": plan}))
    assert even.hours_by_dataset is not None
    assert even.hours_by_dataset["real"] == pytest.approx(even.hours_by_dataset["voices"], rel=0.1)
    assert f"data sets: {dataset_hours(even.hours_by_dataset)}\n" in even.to_text()
    uneven = plan.model_copy(update={"weights": {"real": 0.25, "voices": 0.75}})
    hours = plan_(labelled.work, None, 0, labelled.model_copy(update={"plan": uneven})).hours_by_dataset
    assert hours is not None
    assert hours["voices"] / hours["real"] == pytest.approx(3, rel=0.1)


def test_the_hours_to_learn_from_are_counted_by_data_set(labelled: Config) -> None:
    figures = filter_labels(labelled)
    kept = tables.read(Store(labelled.work), f"verdicts/{figures.recipe}", Verdict)
    ids = [row.utterance_id for row in kept if row.kept]
    num_real = sum(id_.startswith("real") for id_ in ids)
    hours = filter_report.kept_hours(labelled, figures)
    assert hours == pytest.approx({"real": num_real / 3600, "voices": 24 / 3600})
