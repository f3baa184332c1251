"""A recipe stays what it was when the configuration grows, and follows every option that changes what is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from recipes import LABELS, recipes
from voxstill.core import config
from voxstill.core.config import Config, Section, identity, option
from voxstill.filtering import measures, rules
from voxstill.storage.store import Store
from voxstill.teachers.echo import EchoOptions, EchoTeacher
from voxstill.teachers.openai import OpenAIOptions

GOLDEN: dict[tuple[str, ...], dict[str, str]] = {
    (): {
        "utterances": "4248847ee8b44839",
        "labels": "84e11b5e9f17b942",
        "scores": "4248d942cde093b9",
        "verdicts": "6c9361ebf62da33c",
        "shards": "25edfa86e068bc39",
        "unlabelled": "26609ef54aafb8f6",
        "train": "fcb295e94f57d526",
        "pretrain": "11297d459d813e38",
    },
    ("seed=1",): {
        "utterances": "f5c49feb1f9d87a1",
        "shards": "6eabc68c47d8d600",
        "unlabelled": "75412608fdef9b10",
        "train": "bddf93131941f46d",
        "pretrain": "ab612e098dce90f7",
    },
    ("segment.max_ms=20000",): {"utterances": "f17991557aef767c"},
    ("source.language=de", "source.dev_speakers=[ann]"): {"utterances": "5badac3ad0e597ba"},
    ("diarize=embedded",): {"utterances": "7472bf266ee3acf5"},
    ("diarize={name: embedded, max_speakers: 8}",): {"utterances": "7472bf266ee3acf5"},
    ("diarize={name: embedded, num_speakers: 2}",): {"utterances": "13cb5917b61c5a25"},
    ("diarize.name=null",): {},
    ("source.uri=elsewhere", "engine.chunk=7", "train.devices=2", "plan.batches_per_step=1"): {},
    ("teacher={name: echo, substitute: 0.5, seed: 3}",): {"labels": "6dfeff34f9ddb0f4"},
    ("teacher={name: echo, substitute: 0.0}",): {},
    ("teacher={name: openai, base_url: 'http://127.0.0.1:1/v1', model: whisper-1, temperature: 0.0, retries: 9}",): {
        "labels": "a07ca49ebd3bf77d"
    },
    ("teacher={name: openai, base_url: 'http://127.0.0.1:1/v1', model: whisper-1, language: null}",): {
        "labels": "6417dbdd40aa49e6"  # that of the row before, until its default of `language` was changed
    },
    ("teacher=reference",): {"labels": "43a5c8a45b52bcc2"},
    ("filter.keep_share=0.6", "filter.phrases=[thank you]"): {
        "scores": "86a92775e0c37933",
        "verdicts": "b865fed12338b259",
    },
    ("evaluate.normalizer=whisper",): {"scores": "3e05abac5030f738", "verdicts": "4575b0a01e22ba7a"},
    ("shard.format=wav",): {"shards": "6ccc585711f95bc5", "unlabelled": "2f5f5ad71156571c"},
    ("train.devices=4",): {"train": "e9793950edb25c9c", "pretrain": "86279a9328381718"},
    ("train.preset=fine_tune", "student.checkpoint=some/name", "train.unfreeze_share=0.5"): {
        "train": "6a5ca78e946afbea",
        "pretrain": "713f118a0da179b5",
    },
    ("student.task=speakers",): {"train": "8f0e603b59414750"},
    ("augment={rirs: rooms, rir_prob: 0.5, vtlp: 0.2, spec_augment_start: 0.1}",): {"train": "531467377777bf03"},
    ("plan={batches_per_step: 8, dialect_sampling_rate: {north: 2.0}}",): {
        "train": "8ed522190fe785b3",
        "pretrain": "3071c9e6a9c3269b",
    },
    ("train.lr=0.001", "train.step_timeout_s=5.0", "train.log_every=1"): {
        "train": "05e554bce5384f15",
        "pretrain": "031fb2a81863cc1e",
    },
    ("train.activation_checkpointing=true",): {"train": "eb397f287a753c50", "pretrain": "fb4ca16e5e5c4e31"},
    ("pretrain.method=best_rq", "student.size=small"): {"train": "6d507b81948a916c", "pretrain": "987eaa8a649e16cd"},
    ("pretrain.mask_prob=0.5",): {"pretrain": "33f6bbe277f1668e"},
}
"""Overrides, over a teacher `echo`, and the recipes that they change; the first row has all of them.

A row that fails here makes work done with this version be done again: raise the section's `schema_version` where that
is meant, and say so in CHANGELOG.md.
"""
SECTIONS = [name for name, field in Config.model_fields.items() if isinstance(Config().__dict__[name], Section)]
OF_NO_RECIPE = ("cache.", "engine.", "monitor.", "decode.", "demo.", "evaluate.", "serve.")
"""Sections of which only what is named in `OF_A_RECIPE` makes a table or a student another one."""
OF_A_RECIPE = {"evaluate.normalizer"}
OTHER = {
    "teacher.name": "reference",
    "diarize.name": "embedded",
    "source.language": "de",
    "segment.max_ms": 9000,
    "train.corpora": [{"work": "other"}],
    "train.name": "other",
    "filter.second_teacher": "second",
    "student.checkpoint": "some/name",
    "train.distill.layers": {2: 4},
}
"""Values other than the default, where none can be made up by the type."""


def load(folder: Path, *overrides: str) -> Config:
    return config.load(None, [f"work={folder}", "teacher=echo", *overrides])


@pytest.mark.parametrize("overrides", GOLDEN, ids=" ".join)
def test_recipes_are_those_that_are_written_down(overrides: tuple[str, ...], tmp_path: Path) -> None:
    assert recipes(load(tmp_path, *overrides)) == {**GOLDEN[()], **GOLDEN[overrides]}


def grown(section: BaseModel, default: int = 3, **set_to: int) -> Any:
    """The section with one more option, at its default where it is not set."""
    kind = create_model("Grown", __base__=type(section), added=(int, option(default)))
    return kind(**{**{name: getattr(section, name) for name in section.model_fields_set}, **set_to})


def raised(section: BaseModel) -> Any:
    """The section with a schema number of 2."""
    kind = type("Raised", (type(section),), {"__annotations__": {"schema_version": ClassVar[int]}, "schema_version": 2})
    return kind(**{name: getattr(section, name) for name in section.model_fields_set})


EXAMPLES = [getattr(Config(), name) for name in SECTIONS]
EXAMPLES += [config.Train(lr=0.1, steps=3), config.Plan(weights={"a": 1.0}), EchoOptions(), EchoOptions(seed=3)]
EXAMPLES += [OpenAIOptions(base_url="http://127.0.0.1:1", model="m")]


@pytest.mark.parametrize("section", EXAMPLES, ids=repr)
def test_an_option_more_changes_no_identity_until_it_is_set(section: Section) -> None:
    assert identity(grown(section)) == identity(section)
    assert identity(grown(section, added=3)) == identity(section)
    assert identity(grown(section, added=4)) != identity(section)
    assert identity(raised(section)) != identity(section)
    assert identity(raised(section)) == {**identity(section), "schema_version": 2}


@pytest.mark.parametrize(
    "name", ["source", "segment", "filter", "shard", "student", "plan", "augment", "train", "pretrain"]
)
def test_an_option_more_changes_no_recipe_until_it_is_set(name: str, tmp_path: Path) -> None:
    cfg = load(tmp_path, "train.lr=0.5", "filter.keep_share=0.5", "source.language=de")

    def of(section: Section) -> dict[str, str]:
        return recipes(cfg.model_copy(update={name: section}))

    section = getattr(cfg, name)
    assert of(grown(section)) == recipes(cfg)
    assert of(grown(section, added=4)) != recipes(cfg)
    assert of(raised(section)) != recipes(cfg)


def test_an_option_more_of_a_teacher_labels_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = load(tmp_path, "teacher.substitute=0.5")
    before = recipes(cfg)
    monkeypatch.setattr(EchoTeacher, "Options", type(grown(EchoOptions())))
    assert recipes(cfg) == before
    more = load(tmp_path, "teacher.substitute=0.5", "teacher.added=4")
    assert {kind for kind, recipe in recipes(more).items() if before[kind] != recipe} == {"labels"}
    monkeypatch.setattr(EchoTeacher, "Options", type(raised(EchoOptions())))
    assert recipes(cfg)["labels"] != before["labels"]


def test_a_former_default_that_makes_the_same_changes_no_identity() -> None:
    class Before(Section):
        batch: int = option(30)

    class Now(Section):
        batch: int | None = option(None, also_default=(30,))

    assert identity(Before()) == identity(Now()) == identity(Now(batch=30)) == {}
    assert identity(Before(batch=20)) == identity(Now(batch=20)) == {"batch": 20}


def test_another_name_for_an_option_changes_no_identity() -> None:
    before = create_model("Before", __base__=Section, warp=(int, option(3)))
    then = create_model("Then", __base__=Section, vtlp=(int, option(3, formerly=("warp",))))
    now = create_model("Now", __base__=Section, tract=(int, option(3, formerly=("warp", "vtlp"))))
    assert identity(before(warp=4)) == identity(then(vtlp=4)) == identity(now(tract=4))
    assert identity(before()) == identity(then()) == identity(now()) == {}


class Inner(Section):
    """A section within a section."""

    size: int = option(1)
    """What counts."""
    hands: int = option(1, pace=True)
    """What does not."""


class Outer(Section):
    """A section with sections in it."""

    inner: Inner = Inner()
    """One of them."""
    perhaps: Inner | None = option(None)
    """One that may be missing."""
    several: list[Inner] = option([])
    """Any number of them."""


def test_sections_within_sections_go_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity(Outer()) == identity(Outer(inner=Inner(hands=9))) == {}
    assert identity(Outer(inner=Inner(size=2, hands=9))) == {"inner": {"size": 2}}
    assert identity(Outer(perhaps=Inner())) == {"perhaps": {}}
    assert identity(Outer(several=[Inner(hands=2), Inner(size=2)])) == {"several": [{}, {"size": 2}]}
    monkeypatch.setattr(Inner, "schema_version", 2)
    assert identity(Outer()) == {"inner": {"schema_version": 2}}


def fields(kind: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def another(path: str, field: FieldInfo) -> object:
    """A value that is allowed and not the default."""
    if path in OTHER:
        return OTHER[path]
    default, kind = field.get_default(), field.annotation
    kinds = [kind] if get_origin(kind) in (None, list, dict, Literal) else list(get_args(kind))
    for kind in kinds:
        if get_origin(kind) is Literal:
            return next(value for value in get_args(kind) if value != default)
    limits = {
        name: getattr(rule, name) for rule in field.metadata for name in ("lt", "le", "gt", "ge") if hasattr(rule, name)
    }
    if bool in kinds:
        return not default
    if float in kinds or int in kinds:
        top = limits.get("le", limits.get("lt", float("inf")))
        number = (default or 0) + 1 if (default or 0) + 1 < top else (limits.get("ge", limits.get("gt", 0)) + top) / 4
        number = max(number, limits.get("ge", number))
        return float(number) if float in kinds else int(number)
    if get_origin(kinds[0]) is list:
        return ["other"]
    return {"other": 2.0} if get_origin(kinds[0]) is dict else "other"


@pytest.fixture
def second_labels(tmp_path: Path) -> Path:
    """A work folder with the labels of another teacher."""
    Store(str(tmp_path)).write_json("labels/second/_SUCCESS.json", {**LABELS.to_dict(), "recipe": "second"})
    return tmp_path


@pytest.mark.parametrize(("path", "field"), fields(), ids=lambda value: value if isinstance(value, str) else "")
def test_an_option_changes_a_recipe_unless_it_is_pace_or_of_no_recipe(
    path: str, field: FieldInfo, second_labels: Path, tone_student: Path
) -> None:
    # else they follow other options, or need them
    fixed = [f"work={second_labels}", "plan.batches_per_step=4", "evaluate.lm_order=2"]
    if path != "decode.grammar":
        fixed.append("decode.beam=4")
    if path == "student.streaming":
        fixed.append("student.kind=rnnt")
    student = str(tone_student)
    others = {"filter.aligner": student, "train.distill.checkpoint": student, "source": [config.Source(uri="other")]}
    others["train.optimizer"] = "muon"  # `adamw` is what there was before there was a choice
    value = others.get(path) or another(path, field)
    cfg = config.load(None, [*fixed, "teacher=echo"])
    *names, leaf = path.split(".")
    if not names:
        changed = cfg.model_copy(update={leaf: value})
    else:
        tree, section = cfg.model_dump(exclude_unset=True), cfg
        node = tree
        for name in names:
            section = getattr(section, name)
            node[name] = node = section.model_dump(exclude_unset=True)
        node[leaf] = value
        changed = config.validated(Config, tree)
    assert changed != cfg or path == "train.preset"
    if path == "work":
        return
    is_free = config.is_pace(field) or (path.startswith(OF_NO_RECIPE) and path not in OF_A_RECIPE)
    assert (recipes(changed) == recipes(cfg)) == is_free


def test_the_number_of_batches_in_a_step_counts_and_not_where_it_comes_from(tmp_path: Path) -> None:
    follows, explicit = load(tmp_path, "train.devices=4"), load(tmp_path, "plan.batches_per_step=4")
    assert recipes(follows) == recipes(explicit) != recipes(load(tmp_path))


def test_presets_count_as_what_they_stand_for(tmp_path: Path) -> None:
    preset = load(tmp_path, "train.preset=fine_tune", "student.task=classes")
    written_out = load(
        tmp_path,
        *("student={task: classes, freeze_layers: 0.5}", "plan.max_utterances=64"),
        "train={epochs: 10, lr: 5e-5, schedule: tri_stage, warmup: 0.1, hold: 0.5, final_lr: 0.05}",
    )
    assert recipes(preset) == recipes(written_out)


def test_every_sections_schema_is_a_number_above_zero() -> None:
    assert all(getattr(Config(), name).schema_version >= 1 for name in SECTIONS)
    assert all(re.fullmatch("[0-9a-f]{16}", recipe) for row in GOLDEN.values() for recipe in row.values())


def test_a_measure_that_is_added_makes_new_scores_and_no_new_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipes(load(tmp_path))
    wider = make_dataclass("Score", [("vowel_share", float, 0.0)], bases=(measures.Score,), frozen=True, kw_only=True)
    monkeypatch.setattr(measures, "Score", wider)
    after = recipes(load(tmp_path))
    assert {name for name in before if before[name] != after[name]} == {"scores"}


def test_a_rule_without_an_option_that_is_added_makes_new_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recipes(load(tmp_path))
    rule = rules.Rule("silent", lambda columns, cfg: columns["words"] == 0, "no word")
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, rule))
    after = recipes(load(tmp_path))
    assert {name for name in before if before[name] != after[name]} == {"verdicts"}
