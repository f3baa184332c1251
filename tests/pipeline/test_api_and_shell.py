"""Everything that the shell can do is in `import voxstill`: every command, and each of its options."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from typer.main import get_command

import voxstill
from voxstill import cli
from voxstill.core import config
from voxstill.core.command import Command

FUNCTIONS = {"demo": "run_demo", "init": "create_config", "transcribe": "Recognizer.transcribe"}
"""Functions that have another name than their command."""
ELSEWHERE = {
    "clean WORK": "cfg.work",
    "compare --on": "cfg.evaluate.split",
    "compare --ref": "compare(references)",
    "compare --lang": "compare(language)",
    "control WORK_OR_EXP": "control_training(experiment)",
    "control --stop-after-epoch": "control_training(stop_after_epoch)",
    "control --set": "control(overrides)",
    "compare-teachers WORK": "cfg.work",
    "doctor --batch": "replay(batch)",
    "evaluate --on": "cfg.evaluate.split",
    "evaluate --work": "cfg.work",
    "explore WORK": "cfg.work",
    "export --to": "export(output)",
    "export-labels WORK": "cfg.work",
    "estimate CONFIG": "load_config(file)",
    "estimate --price": "estimate(price)",
    "explain --hear": "preview_augmentation(cfg)",
    "explain --output": "preview_augmentation(output)",
    "filter WORK": "cfg.work",
    "filter --tune": "tune_filter(cfg)",
    "index SOURCE": "cfg.source.uri",
    "index --work": "cfg.work",
    "init --yes": "create_config(overwrite)",
    "label WORK": "cfg.work",
    "plan --budget": "cfg.plan.budget_ms",
    "plan --seed": "cfg.seed",
    "plan --layout": "cfg.plan.layout",
    "pretrain CONFIG": "load_config(file)",
    "push EXP_OR_FOLDER": "push(model)",
    "push OWNER/NAME": "push(name)",
    "remove WORK": "cfg.work",
    "run CONFIG": "load_config(file)",
    "run --max-batches": "cfg.train.steps",
    "run --rehearse": "dry_run(cfg)",
    "score meeting --collar": "score_meetings(collar_s)",
    "score meeting --lang": "score_meetings(language)",
    "score speakers --collar": "score_speakers(collar_s)",
    "score words --lang": "score_words(language)",
    "shard WORK": "cfg.work",
    "shard SOURCE": "repack(sources)",
    "shard --from": "repack(sources)",
    "train CONFIG": "load_config(file)",
    "pretrain --continue": "pretrain(experiment)",
    "train --continue": "train(experiment)",
    "transcribe MODEL": "Recognizer.from_pretrained(model)",
    "transcribe --format": "write_transcripts(form)",
    "transcribe --microphone": "Recognizer.transcribe(audio)",
    "transcribe --output": "write_transcripts(folder)",
}
"""Arguments and options that are not a parameter of the same name: the parameter or the option of the configuration."""
COMMON = {"--json", "--set", "--config", "--log-level", "--log-format", "--yes"}
"""Options of every command: `to_dict()`, the two of `load_config`, the logger `voxstill`, and what nobody is asked."""


def title(command: Command) -> str:
    return command.name if command.group is None else f"{command.group} {command.name}"


def function_of(command: Command) -> str:
    plural = {"score meeting": "score_meetings"}
    return (
        FUNCTIONS.get(command.name) or plural.get(title(command)) or title(command).replace(" ", "_").replace("-", "_")
    )


def parameters(function: str) -> set[str]:
    value: object = voxstill
    for part in function.split("."):
        value = getattr(value, part)
    assert callable(value)
    return set(inspect.signature(value).parameters)


def options() -> list[tuple[Command, str, str]]:
    """Every argument and option of every command: how it is written, and its name in Python."""
    top: Any = get_command(cli.application())
    rows = []
    for command in cli.all_commands():
        parent = top if command.group is None else top.commands[command.group]
        for parameter in parent.commands[command.name].params:
            is_option = parameter.param_type_name == "option"
            written = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
            if written not in COMMON:
                rows.append((command, written, parameter.name))
    return rows


def is_there(home: str) -> bool:
    if home.startswith("cfg."):
        return home.removeprefix("cfg.") in {option.path for option in config.options()}
    function, _, parameter = home.removesuffix(")").partition("(")
    return parameter in parameters(function)


@pytest.mark.parametrize("command", cli.all_commands(), ids=title)
def test_every_command_is_a_function(command: Command) -> None:
    assert parameters(function_of(command))


@pytest.mark.parametrize(
    ("command", "written", "name"), options(), ids=lambda value: title(value) if isinstance(value, Command) else value
)
def test_every_option_is_a_parameter_or_in_the_table(command: Command, written: str, name: str) -> None:
    home = ELSEWHERE.get(f"{title(command)} {written}", f"{function_of(command)}({name})")
    assert is_there(home), f"`{title(command)} {written}` is not in Python: {home}"


def test_the_table_has_nothing_that_is_gone() -> None:
    known = {f"{title(command)} {written}" for command, written, _ in options()}
    common = {"control --set", "init --yes"}
    assert ELSEWHERE.keys() - common <= known
    assert all(is_there(ELSEWHERE[name]) for name in common)


def test_the_options_of_every_command_are_those_that_python_has_another_way_for() -> None:
    top: Any = get_command(cli.application())
    for command in (top.commands["label"], top.commands["score"].commands["words"]):
        assert {parameter.opts[0] for parameter in command.params[-len(COMMON) :]} == COMMON
