"""A configuration is refused with one message that names the option, the reason and the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import create_model

import voxstill
from voxstill.cli import main
from voxstill.core import config, legacy
from voxstill.core.config import explain, loading
from voxstill.core.errors import ConfigError
from voxstill.core.monitor import start_logging
from voxstill.teachers import registry
from voxstill.teachers.echo import EchoOptions, EchoTeacher

WRONG = [
    # what is set, what the message must name, what the fix must offer
    ("trian.steps=4", "trian", "train"),
    ("train.stpes=4", "train.stpes", "train.steps"),
    ("steps=4", "steps", "train.steps"),
    ("budget_ms=1000", "budget_ms", "plan.budget_ms"),
    ("source.url=x", "source.url", "source.uri"),
    ("segment.max=3000", "segment.max", "segment.max_ms"),
    ("filter.min_confidense=0.5", "filter.min_confidense", "filter.min_confidence"),
    ("train.steps=-4", "train.steps", "≥ 1"),
    ("train.steps=0", "train.steps", "≥ 1"),
    ("train.steps=no", "train.steps", "whole number"),
    ("train.steps=1.5", "train.steps", "whole number"),
    ("train.steps=true", "train.steps", "whole number"),
    ("train.max_minutes=0", "train.max_minutes", "> 0"),
    ("train.max_minutes=1:30", "train.max_minutes", "min"),
    ("train.lr=.inf", "train.lr", "number"),
    ("train.lr=.nan", "train.lr", "number"),
    ("train.lr=fast", "train.lr", "number"),
    ("train.warmup=1.5", "train.warmup", "< 1"),
    ("train.seed_mode=debgu", "train.seed_mode", "debug"),
    ("train.precision=fp8", "train.precision", "fp"),
    ("train.preset=fine_tuen", "train.preset", "fine_tune"),
    ("train.preset=[fine_tune]", "train.preset", "fine_tune"),
    ("student.freeze_layers=2", "student.freeze_layers", "≤ 1"),
    ("train.name=../up", "train.name", "text"),
    (f"train.name={'a' * 201}", "train.name", "text"),
    ("train.distill={layers: {top: 2}}", "`train.distill.layers` cannot be 'top'", "whole number to whole number"),
    ("plan.weights={human: much}", "`plan.weights.human` cannot be 'much'", "number"),
    ("student.size=huge", "student.size", "tiny"),
    ("student.units=words", "student.units", "word"),
    ("student=small", "student", "mapping"),
    ("source=3", "source", "mapping"),
    ("source.uri=3", "source.uri", "text"),
    ("source.channels=left", "`source.channels` cannot be 'left'", "mix | split or whole number"),
    ("source.dev_share=1", "source.dev_share", "< 1"),
    ("segment.max_ms=10", "segment.max_ms", "≥ 100"),
    ("segment.vad=on", "segment.vad", "auto"),
    ("engine.name=spark", "engine.name", "ray"),
    ("engine=spark", "engine.name", "ray"),
    ("engine.chunk=0", "engine.chunk", "≥ 1"),
    ("filter.keep_share=60", "filter.keep_share", "≤ 1"),
    ("shard.format=mp3", "shard.format", "flac"),
    ("plan.batches_per_step=0", "plan.batches_per_step", "≥ 1"),
    ("augment.noise_prob=2", "augment.noise_prob", "≤ 1"),
    ("evaluate.split=valid", "evaluate.split", "train"),
    ("work.home=x", "work.home", "voxstill explain"),
]


@pytest.mark.parametrize(("override", "named", "offered"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_option_is_one_message_with_a_fix(
    override: str, named: str, offered: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["label", str(tmp_path), "--set", override]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    what, why, fix, more = captured.err.splitlines()
    assert what.startswith("error: ")
    assert named in what
    assert why.startswith("  why: ")
    assert offered in fix
    assert more.startswith("  more: voxstill explain ")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("train: [1, 2", "not YAML at line"),
        ("- a\n- b\n", "not a mapping"),
        ("train:\n  steps: 3\n  steps: 4\n", "not YAML"),
        ("just words", "not a mapping"),
        ("teacher: {name: pocketsfinx}\ntrain: {steps: 1}", "pocketsfinx"),
        ("teacher: {name: pocketsphinx, gramar: x}\ntrain: {steps: 1}", "teacher.gramar"),
        ("teacher: {name: echo, substitute: 2}\ntrain: {steps: 1}", "teacher.substitute"),
        ("teacher: {name: transformers}\ntrain: {steps: 1}", "teacher.model"),
        ("source: {uri: nowhere}", "the training has no end"),
        ("source: {uri: nowhere}\ntrain: {max_minutes: 1, seed_mode: debug}", "debug"),
        ("source: {uri: nowhere}\ntrain: {steps: 1, devices: 2}\nplan: {batches_per_step: 3}", "plan.batches_per_step"),
    ],
)
def test_a_wrong_file_is_one_message(text: str, named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        f"work: {tmp_path / 'work'}\nengine: inline\n{text}" if not text.startswith(("- ", "just")) else text
    )
    assert main(["run", str(path)]) in (2, 3)
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message


def test_a_missing_file_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", str(tmp_path / "none.yaml")]) == 2
    assert "voxstill init" in capsys.readouterr().err


def test_yaml_is_read_as_version_1_2() -> None:
    cfg = config.load(None, ["train.lr=3e-4", "train.name=no"])
    assert cfg.train.lr == 3e-4
    assert cfg.train.name == "no"


@pytest.mark.parametrize("recipe", ["0509253742921204", "1234567890123456", "1234e56789012345", "00e0000000000000"])
def test_a_recipe_that_looks_like_a_number_is_text(recipe: str) -> None:
    cfg = config.load(None, [f"train.corpora=[{{work: elsewhere, shards: {recipe}}}]"])
    assert cfg.train.corpora[0].shards == recipe
    assert config.changed(cfg, f"filter.second_teacher={recipe}").filter.second_teacher == recipe


def test_an_override_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not an override"):
        voxstill.load_config(None, ["train.devices=2"])  # type: ignore[arg-type]


def test_a_seed_of_sixteen_digits_is_a_number(tmp_path: Path) -> None:
    cfg = config.load(None, ["seed=1234567890123456"])
    assert cfg.seed == 1234567890123456
    path = tmp_path / "a.yaml"
    path.write_text(config.dump(cfg), encoding="utf-8")
    assert config.load(str(path)) == cfg
    with pytest.raises(ConfigError, match="seed"):
        config.load(None, ["seed=0e23456789012345"])


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("seed: 1\ntrain: {steps: 1, epochs: 1, lr: 0.1}\n")
    environment = {"VOXSTILL__TRAIN__STEPS": "2", "VOXSTILL__TRAIN__EPOCHS": "2", "OTHER": "x"}
    cfg = config.load(str(path), ["train.epochs=3"], environment)
    assert (cfg.seed, cfg.train.lr, cfg.train.steps, cfg.train.epochs) == (1, 0.1, 2, 3)


def test_a_teacher_and_an_engine_may_be_named_by_a_word() -> None:
    cfg = config.load(None, ["engine=inline", "engine.chunk=7", "teacher=reference"])
    assert (cfg.engine.name, cfg.engine.chunk, cfg.teacher.name) == ("inline", 7, "reference")


def test_the_template_is_a_configuration_and_holds_every_option(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(config.template())
    cfg = config.load(str(path))
    assert cfg.source.uri == "path/to/audio"
    for entry in config.options():
        if not entry.path.startswith("demo."):
            assert entry.path.rpartition(".")[2] + ":" in config.template()


def test_a_section_within_a_section_can_be_set_in_the_template(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in config.template().splitlines()]
    start = lines.index("  distill:")
    path = tmp_path / "my.yaml"
    path.write_text("\n".join(["work: w", "train:", lines[start], *lines[start + 1 : start + 4]]).replace("null", "a"))
    assert config.load(str(path), []).train.distill == config.Distill(checkpoint="a")


def test_every_option_has_a_sentence() -> None:
    for entry in config.options():
        assert entry.meaning.endswith((".", ":", ")")), entry.path


@settings(deadline=None, max_examples=40)
@example(1, 1.0, "debug", "\x85Îw")  # a line break to YAML
@given(st.integers(1, 10**6), st.floats(1e-6, 1.0), st.sampled_from(["debug", "production"]), st.text(max_size=20))
def test_what_is_dumped_is_read_back_the_same(steps: int, lr: float, mode: str, language: str) -> None:
    tree = {"train": {"steps": steps, "lr": lr, "seed_mode": mode}, "source": {"language": language}}
    cfg = config.validated(config.Config, tree)
    assert config.validated(config.Config, loading._yaml().load(config.dump(cfg))) == cfg


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an override"):
        config.load(None, ["train.steps"])


def test_without_batches_per_step_a_step_has_a_batch_for_each_device() -> None:
    assert config.load(None, ["train.devices=4"]).plan.batches_per_step == 4
    assert config.load(None, ["train.devices=4", "plan.batches_per_step=8"]).plan.batches_per_step == 8
    assert config.load(None, ["train.devices=4", "plan.budget_ms=9000"]).plan == config.Plan(
        batches_per_step=4, budget_ms=9000
    )
    assert config.load(None, []).plan.batches_per_step == 1
    again = config.load(None, ["train.devices=2"])
    assert config.Config.model_validate(again.model_dump()) == again


def test_a_preset_of_training_sets_what_was_not_set_by_the_task() -> None:
    for task, wanted in (
        ("recognition", (5, 1e-4, 32, 1 / 3)),
        ("classes", (10, 5e-5, 64, 0.5)),
        ("speakers", (3, 2e-4, 128, 1.0)),
    ):
        cfg = config.load(None, ["train.preset=fine_tune", f"student.task={task}"])
        assert (cfg.train.epochs, cfg.train.lr, cfg.plan.max_utterances, cfg.student.freeze_layers) == wanted
        assert (cfg.train.schedule, cfg.student.freeze_features) == ("tri_stage", True)
        assert cfg.train.preset is None  # what is kept is what it stands for
        assert config.Config.model_validate(cfg.model_dump()) == cfg
        assert config.Config(student=config.Student(task=task), train=config.Train(preset="fine_tune")) == cfg


def test_an_option_that_is_set_wins_over_the_preset_of_training(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("train: {preset: fine_tune, lr: 0.5, steps: 7}\nplan: {max_utterances: 3, budget_ms: 5000}\n")
    cfg = config.load(str(path), ["student.freeze_layers=0", "student.freeze_features=false"])
    assert (cfg.train.lr, cfg.train.steps, cfg.train.epochs) == (0.5, 7, None)
    assert (cfg.plan.max_utterances, cfg.plan.budget_ms) == (3, 5000)
    assert (cfg.student.freeze_layers, cfg.student.freeze_features) == (0, False)
    assert cfg.train.schedule == "tri_stage"
    # with nothing set there is nothing to expand
    assert config.load(None, []) == config.Config()


def test_speakers_keep_their_voices_unless_it_is_asked_for() -> None:
    cfg = config.load(None, ["student.task=speakers"])
    assert (cfg.augment.tempo, cfg.augment.vtlp) == (0, 0)
    cfg = config.load(None, ["student.task=speakers", "augment.tempo=0.05"])
    assert (cfg.augment.tempo, cfg.augment.vtlp) == (0.05, 0)
    assert config.load(None, ["student.task=classes"]).augment.tempo == 0.1


RENAMED = {
    # former name, with a value, and the name of today
    "train.thaw": (0.5, "train.unfreeze_share"),
    "train.stall_s": (9.0, "train.step_timeout_s"),
    "augment.warp": (0.2, "augment.vtlp"),
    "augment.rooms": ("rooms", "augment.rirs"),
    "augment.room_prob": (0.5, "augment.rir_prob"),
    "augment.masks_from": (0.1, "augment.spec_augment_start"),
    "evaluate.resamples": (200, "evaluate.bootstrap_draws"),
    "plan.slots": (8, "plan.batches_per_step"),
    "plan.dialect_times": ({"north": 2.0}, "plan.dialect_sampling_rate"),
}


def value_of(cfg: config.Config, path: str) -> object:
    section, name = path.split(".")
    return getattr(getattr(cfg, section), name)


@pytest.mark.parametrize("former", RENAMED)
def test_a_former_name_is_taken_for_that_of_today_wherever_it_is_set(
    former: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value, name = RENAMED[former]
    section, leaf = former.split(".")
    path, text = tmp_path / "old.yaml", json.dumps(value)
    path.write_text(f"{section}: {{{leaf}: {text}}}\n")
    start_logging()
    explain._WARNED_OF.clear()
    for cfg in (
        config.load(str(path)),
        config.load(None, [f"{former}={text}"]),
        config.load(None, [f"{section}={{{leaf}: {text}}}"]),
        config.load(None, [], {f"VOXSTILL__{section}__{leaf}".upper(): text}),
    ):
        assert value_of(cfg, name) == value
        assert config.load(None, [f"{name}={text}"]) == cfg
    [warning] = [line for line in capsys.readouterr().err.splitlines() if former in line]
    assert "WARNING" in warning
    assert f"`{name}`" in warning
    assert former not in {option.path for option in config.options()}
    assert f" {leaf}:" not in config.template()


def test_two_names_of_one_option_in_one_place_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text("train: {unfreeze_share: 0.5, thaw: 0.2}\n")
    environment = {"VOXSTILL__TRAIN__THAW": "0.5", "VOXSTILL__TRAIN__UNFREEZE_SHARE": "0.5"}
    for read in (
        lambda: config.load(str(path)),
        lambda: config.load(None, ["train={thaw: 0.2, unfreeze_share: 0.5}"]),
        lambda: config.load(None, ["train.thaw=0.2", "train.unfreeze_share=0.5"]),
        lambda: config.load(None, [], environment),
    ):
        with pytest.raises(ConfigError, match=r"`train.unfreeze_share` is set twice.*\n.*`train.thaw` was renamed"):
            read()


def test_a_later_place_wins_whichever_name_it_uses(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("train: {thaw: 0.5}\n")
    assert config.load(str(path), ["train.unfreeze_share=0.2"]).train.unfreeze_share == 0.2
    assert config.load(str(path), ["train.thaw=0.3"]).train.unfreeze_share == 0.3
    path.write_text("train: {unfreeze_share: 0.5}\n")
    assert config.load(str(path), [], {"VOXSTILL__TRAIN__THAW": "0.2"}).train.unfreeze_share == 0.2


def test_a_snapshot_of_version_0_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    sections = {kind.__name__.lower(): dict(table) for kind, table in legacy.OPTIONS.items()}
    sections |= {"evaluate": {"split": "test", "resamples": 300}}
    sections["train"] |= {"stall_s": 600.0, "thaw": 0.5}
    path.write_text(json.dumps(sections))
    cfg = config.load(str(path))
    assert cfg.evaluate.bootstrap_draws == 300
    assert cfg.train == config.Train(unfreeze_share=0.5)
    assert cfg.augment == config.Augment()


def test_a_teachers_options_have_former_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options = create_model("Options", __base__=EchoOptions, voice=(int, config.option(0, formerly=("accent", "tone"))))
    monkeypatch.setattr(EchoTeacher, "Options", options)
    for name in ("voice", "accent", "tone"):
        section = registry.options(config.Teacher.model_validate({"name": "echo", name: 3}))
        assert config.identity(section) == {"accent": 3}  # its first name: recipes outlive a new one
    with pytest.raises(ConfigError, match=r"`teacher.voice` is set twice"):
        registry.options(config.Teacher.model_validate({"name": "echo", "tone": 3, "voice": 3}))


def test_the_keys_of_a_mapping_of_numbers_may_be_text_as_in_json() -> None:
    cfg = config.load(None, ['train.distill={"layers": {"2": 4}}'])
    assert cfg.train.distill.layers == {2: 4}
