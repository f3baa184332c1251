"""What version 0.1 has made or begun is found under the names that it gave, and goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import create_model
from safetensors.torch import load_file

from recipes import recipes_of_0_1
from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core import config, legacy
from voxstill.core.config import Config
from voxstill.core.monitor import start_logging
from voxstill.core.records import fingerprint
from voxstill.labelling import label
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.pipeline import recipes
from voxstill.pipeline import shard as sharding
from voxstill.pipeline.train import train
from voxstill.storage import workdir
from voxstill.storage.figures import IndexFigures, LabelFigures, TableFigures
from voxstill.storage.rundir import RunDir
from voxstill.storage.store import Store
from voxstill.teachers import registry
from voxstill.teachers.echo import EchoOptions
from voxstill.training.experiment import train_settings

GOLDEN: dict[tuple[str, ...], dict[str, str]] = {
    (): {
        "utterances": "9084997864f0e127",
        "labels": "976423354cb1d8ce",
        "scores": "4248d942cde093b9",
        "verdicts": "3f6af159bcd1f467",
        "shards": "662f18ebf76a0148",
        "unlabelled": "953da3b459d1d9f1",
        "train": "ad22f4bcd6eb798b",
        "pretrain": "5e7d5f93981564bf",
    },
    ("seed=1",): {
        "utterances": "7c47d83c9748235c",
        "shards": "c5b2f677242cebf6",
        "unlabelled": "6bcfa7f6fa77d426",
        "train": "77916a88548ab61a",
        "pretrain": "03317476d24f5d8b",
    },
    ("segment.max_ms=20000",): {"utterances": "26b8b9f591873c55"},
    ("source.language=de", "source.dev_speakers=[ann]"): {"utterances": "efb35bc85fc758aa"},
    ("source.uri=elsewhere", "engine.chunk=7", "train.devices=2", "plan.slots=1"): {},
    ("teacher={name: echo, substitute: 0.5, seed: 3}",): {"labels": "1ff6bbf22c932ff3"},
    ("teacher={name: echo, substitute: 0.0}",): {"labels": "b70beb8e2af383ef"},
    ("teacher={name: openai, base_url: 'http://127.0.0.1:1/v1', model: whisper-1, temperature: 0.0, retries: 9}",): {
        "labels": "3862920fd3b58fc0"
    },
    ("teacher=reference",): {"labels": "2cecbde00847afe9"},
    ("filter.keep_share=0.6", "filter.phrases=[thank you]"): {
        "scores": "86a92775e0c37933",
        "verdicts": "d2136568df3ee74c",
    },
    ("evaluate.normalizer=whisper",): {"scores": "3e05abac5030f738", "verdicts": "6bd33967068b644b"},
    ("shard.format=wav",): {"shards": "f053dbe778d6093b", "unlabelled": "1e65917609f19465"},
    ("train.devices=4",): {"train": "da34cdf9b6dc07d7", "pretrain": "d402c1571fa2f1db"},
    ("train.preset=fine_tune", "student.checkpoint=some/name", "train.thaw=0.5"): {
        "train": "8763958e48cace62",
        "pretrain": "f09bc7684bfc85bd",
    },
    ("student.task=speakers",): {"train": "9a9279f0d7005b3b"},
    ("augment={rooms: rooms, room_prob: 0.5, warp: 0.2, masks_from: 0.1}",): {"train": "74fd9fcd511cbd66"},
    ("plan={slots: 8, dialect_times: {north: 2.0}}",): {"train": "10aab5bcb24749f9", "pretrain": "a7c530b3239ebac7"},
    ("train.lr=0.001", "train.stall_s=5.0", "train.log_every=1"): {
        "train": "b871afcfee3142a7",
        "pretrain": "532541de720dd0e7",
    },
    ("train.activation_checkpointing=true",): {"train": "abd30a176620bd2e", "pretrain": "8b8a4d926cf094b8"},
    ("pretrain.method=best_rq", "student.size=small"): {"train": "271b7516f66f9f9f", "pretrain": "26067a1cc359e0b7"},
    ("pretrain.mask_prob=0.5",): {"pretrain": "18695d0a0d601014"},
}
"""Names that 0.1 itself gave: its overrides, over a teacher `echo`, and what they change of the first row."""


def load(folder: Path, *overrides: str) -> Config:
    return config.load(None, [f"work={folder}", "teacher=echo", *overrides])


@pytest.mark.parametrize("overrides", GOLDEN, ids=" ".join)
def test_names_are_those_that_0_1_gave(overrides: tuple[str, ...], tmp_path: Path) -> None:
    assert recipes_of_0_1(load(tmp_path, *overrides)) == {**GOLDEN[()], **GOLDEN[overrides]}


def test_an_option_that_0_1_did_not_have_has_no_name_there_once_it_is_set() -> None:
    section = config.Shard(max_mb=7)
    grown = create_model("Grown", __base__=config.Shard, added=(int, config.option(3)))
    assert legacy.recipe("shard", grown(max_mb=7), "v", 0) == legacy.recipe("shard", section, "v", 0)
    assert legacy.recipe("shard", grown(max_mb=7, added=4), "v", 0) is None
    teacher = config.Teacher.model_validate({"name": "echo", "seed": 3, "added": 4})
    options = create_model("Options", __base__=EchoOptions, added=(int, config.option(3)))
    assert legacy.labels("echo@1", teacher, options(seed=3, added=4)) is None
    before = legacy.labels("echo@1", config.Teacher.model_validate({"name": "echo", "seed": 3}), EchoOptions(seed=3))
    assert legacy.labels("echo@1", teacher, options(seed=3)) == before


def test_a_section_that_means_something_else_now_has_no_name_in_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.Shard, "schema_version", 2)
    assert legacy.recipe("shard", config.Shard(), "v", 0) is None


STEPS = ("utterances", "labels", "verdicts", "shards")
MAKE: dict[str, Callable[[Config], TableFigures]] = {
    "utterances": indexing.index,
    "labels": labelling.label_utterances,
    "verdicts": filtering.filter_labels,
    "shards": sharding.shard,
}


def corpus(folder: Path) -> Config:
    """A configuration whose source is a few utterances in a language of tones."""
    rows = []
    folder.mkdir(parents=True)
    for number in range(12):
        samples_T, _ = speak(TEXTS[number % len(TEXTS)], number)
        (folder / f"{number}.wav").write_bytes(codec.encode(samples_T, "wav"))
        split = "dev" if number % 4 == 3 else "train"
        rows.append({"audio": f"{number}.wav", "text": TEXTS[number % len(TEXTS)], "split": split, "speaker": "ann"})
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return config.load(
        None,
        [
            *(f"work={folder / 'work'}", f"source.uri={folder / 'manifest.jsonl'}"),
            *("engine={name: inline, chunk: 4}", "teacher={name: echo, delete: 0.0, seed: 3}"),
            *("filter={min_chars_per_s: 0.0, frame_ms: 1}", "shard.utterances=3", "student.normalization=utterance"),
            "train={steps: 4, checkpoint_every: 2, keep_every: 2, seed_mode: debug, loader_workers: 0}",
            "train.optimizer=adamw",
            *("plan.budget_ms=6000", f"train.root={folder / 'exp'}"),
        ],
    )


def name_in_0_1(cfg: Config, kind: str) -> str:
    """The name that 0.1 gave to a table of this work folder, where those before it have the names of 0.1."""
    work, task = Store(cfg.work), label.task(cfg.teacher)
    utterances = legacy.recipe("segment", cfg.segment, cfg.source, cfg.seed)
    if kind == "utterances":
        name = utterances
    elif kind == "labels":
        name = legacy.labels(task.name, cfg.teacher, registry.options(cfg.teacher))
    else:
        source = workdir.named(work, IndexFigures, str(utterances))
        labels = workdir.named(work, LabelFigures, name_in_0_1(cfg, "labels"))
        name = legacy.recipe("filter", cfg.filter, recipes.scores_recipe(cfg, source, labels))
        if kind == "shards":
            name = legacy.recipe("shard", cfg.shard, name, cfg.seed)
    assert name is not None
    return name


def made_by_0_1(cfg: Config) -> dict[str, str]:
    """The tables as 0.1 leaves them, and their names."""
    names = {}
    for kind in STEPS:
        names[kind] = name_in_0_1(cfg, kind)
        begun = Path(cfg.work) / kind / names[kind] / "_begun"  # so the step goes on under this name
        begun.parent.mkdir(parents=True)
        begun.touch()
        assert MAKE[kind](cfg).recipe == names[kind]
        begun.unlink()
    return names


def content(cfg: Config) -> dict[str, bytes]:
    root = Path(cfg.work)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] not in ("control", "control.json", "leases", "logs")
    }


def test_tables_of_0_1_are_found_through_the_whole_chain_and_none_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = corpus(tmp_path / "corpus")
    names = made_by_0_1(cfg)
    before = content(cfg)
    workdir._tell_former.cache_clear()
    start_logging()
    capsys.readouterr()  # what the log of another test has added until now
    assert {kind: MAKE[kind](cfg).recipe for kind in STEPS} == names
    assert recipes.finished_shards(cfg).recipe == names["shards"]
    assert content(cfg) == before
    lines = capsys.readouterr().err.splitlines()
    for kind in STEPS:
        [message] = [line for line in lines if f"an earlier version made or started these {kind}" in line]
        assert names[kind] in message


@pytest.mark.parametrize("unfinished", STEPS)
def test_a_table_that_0_1_began_goes_on_under_its_name(tmp_path: Path, unfinished: str) -> None:
    cfg = corpus(tmp_path / "corpus")
    names = made_by_0_1(cfg)
    before = content(cfg)
    table = Path(cfg.work) / unfinished / names[unfinished]
    first, *others = sorted(path.stem for path in table.glob("*.parquet"))
    (table / "_SUCCESS.json").unlink()
    for path in table.glob(f"{first}.*") if others else ():
        path.unlink()
    assert content(cfg) != before
    for kind in STEPS:
        assert MAKE[kind](cfg).recipe == names[kind]
    assert content(cfg).keys() == before.keys()
    parts = {key for key in before if not key.endswith((".json", "_manifest"))}
    assert all(content(cfg)[key] == before[key] for key in parts)


def test_a_table_of_today_comes_before_one_of_0_1(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "corpus")
    today = indexing.index(cfg).recipe
    old = name_in_0_1(cfg, "utterances")
    shutil.copytree(Path(cfg.work) / "utterances" / today, Path(cfg.work) / "utterances" / old)
    assert indexing.index(cfg).recipe == today != old


def test_an_option_that_is_set_to_another_value_is_another_table(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "corpus")
    names = made_by_0_1(cfg)
    louder = cfg.model_copy(update={"filter": cfg.filter.model_copy(update={"max_repeats": 9})})
    assert filtering.filter_labels(louder).recipe != names["verdicts"]
    assert recipes.finished_shards(cfg).recipe == names["shards"]


def test_labels_begun_by_0_1_go_on_when_the_pace_of_the_teacher_is_changed(tmp_path: Path) -> None:
    work = Store(str(tmp_path))
    teacher = {"name": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m", "temperature": 0.0}
    task = label.task(config.Teacher.model_validate(teacher))
    old = legacy.labels(task.name, task.teacher, registry.options(task.teacher))
    (tmp_path / "labels" / str(old)).mkdir(parents=True)
    (tmp_path / "labels" / str(old) / "part.parquet").touch()
    assert label.task(config.Teacher.model_validate({**teacher, "retries": 9}), work).recipe == old
    assert label.task(config.Teacher.model_validate({**teacher, "language": "en"}), work).recipe != old


def test_an_experiment_that_0_1_began_goes_on_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = corpus(tmp_path / "corpus")
    for kind in STEPS:
        MAKE[kind](cfg)
    run = RunDir(Path(train(cfg).path))
    weights = load_file(run.model / "model.safetensors")
    shards = recipes.finished_shards(cfg).recipe
    old = legacy.experiment(cfg, train_settings(cfg), shards)
    environment = {**json.loads(run.environment.read_text()), "recipe": old}
    run.environment.write_text(json.dumps(environment))
    summary = json.loads(run.summary.read_text())
    run.summary.write_text(json.dumps({name: value for name, value in summary.items() if name != "loss_unit"}))
    assert train(cfg).path == str(run.path)  # it is finished
    shutil.rmtree(run.model)
    run.summary.unlink()
    for folder in run.checkpoints.glob("epoch=*"):  # as if it had been killed after step 2
        if int(folder.name.rpartition("=")[2]) > 2:
            shutil.rmtree(folder)
    run.last.unlink()
    run.last.symlink_to(next(run.checkpoints.glob("*step=2")).name)
    start_logging()
    assert train(cfg).path == str(run.path)
    assert f"version 0.1 started `{run.path}`" in capsys.readouterr().err
    again = load_file(run.model / "model.safetensors")
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]


def test_shards_made_again_under_another_name_are_not_trained_on_again(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "corpus")
    for kind in STEPS:
        MAKE[kind](cfg)
    run = RunDir(Path(train(cfg).path))
    environment = json.loads(run.environment.read_text())
    for name in (legacy.experiment, lambda _, settings, shards: fingerprint("train", settings, shards)):
        environment |= {"recipe": name(cfg, train_settings(cfg), "0123456789abcdef")}
        environment["data"]["recipe"] = "0123456789abcdef"
        run.environment.write_text(json.dumps(environment))
        assert train(cfg).path == str(run.path)
    environment["data"]["sidecars_sha256"] = "of other shards"
    run.environment.write_text(json.dumps(environment))
    assert train(cfg).path != str(run.path)


def test_an_experiment_whose_name_ends_alike_is_another(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "corpus")
    for kind in STEPS:
        MAKE[kind](cfg)
    longer = cfg.model_copy(update={"train": cfg.train.model_copy(update={"name": f"my_{cfg.train.name}"})})
    assert train(longer).path != train(cfg).path
