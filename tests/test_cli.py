"""The command line: light to start, one object on standard output, and an exit code for each kind of trouble."""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import voxstill
from command_lines import parse
from voxstill import cli
from voxstill.core import config, monitor
from voxstill.core.errors import ConfigError, DataError, StorageError, TeacherError, TrainingError, VoxstillError
from voxstill.core.explanations import as_text, explanations
from voxstill.pipeline import options

HEAVY = (
    *("torch", "ray", "vllm", "transformers", "pyarrow", "numpy", "av", "soundfile", "onnxruntime", "pocketsphinx"),
    *("obstore", "lightning_fabric", "jinja2", "rich", "numba", "llvmlite"),
)
HELP = {"rich"}
"""What the help is drawn by."""


def commands() -> list[list[str]]:
    return [
        [*filter(None, [command.group]), name]
        for command in cli.all_commands()
        for name in (command.name, *command.aliases)
    ]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("start", ["import voxstill", "import voxstill.core.config", "import voxstill.cli"])
def test_a_light_import_loads_nothing_heavy(start: str) -> None:
    process = python(f"import sys\n{start}\nprint(*sorted(name.partition('.')[0] for name in sys.modules))")
    assert process.returncode == 0, process.stderr
    assert not set(process.stdout.split()) & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["label", "--help"], ["score", "words", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
        "from voxstill.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    process = python(code, *arguments)
    assert process.returncode == 0
    assert "Usage: voxstill" in process.stdout
    assert not {module.partition(".")[0] for module in process.stderr.split()} & (set(HEAVY) - HELP)


def test_help_takes_little_longer_than_that_of_any_typer_application() -> None:
    smallest = (
        "import typer\n"
        "app = typer.Typer(rich_markup_mode='rich')\n"
        "@app.command()\n"
        "def label(audio: str = '') -> None:\n"
        "    'Label audio.'\n"
        "app()\n"
    )

    def cpu_time_s(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The least of several, by turns: what else runs on the machine slows down single runs to twice the time.
    times = [(cpu_time_s("-m", "voxstill"), cpu_time_s("-c", smallest)) for _ in range(5)]
    ours, typers = map(min, zip(*times, strict=True))
    assert ours < 1.6 * typers


@pytest.mark.parametrize("args", [(), ("-h",), ("score", "-h"), ("label", "-h"), ("score", "words", "-h"), ("sc",)])
def test_commands_that_are_not_on_the_command_line_change_nothing_of_its_help(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def output(names: tuple[str, ...] | None) -> str:
        with pytest.raises(SystemExit):
            cli.application(names=names)(list(args), prog_name="voxstill")
        return "".join(capsys.readouterr())

    assert output(args) == output(None)


def test_training_needs_neither_ray_nor_vllm_nor_lhotse_nor_k2() -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in sys.argv[1:]:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import voxstill.pipeline.train, voxstill.pipeline.evaluate\n"
        "import voxstill.training.loop, voxstill.training.parallel\n"
        "print('here')\n"
    )
    process = python(
        code, "ray", "vllm", "lhotse", "k2", "pocketsphinx", "espeakng_loader", "torchaudio", "torchvision"
    )
    assert (process.returncode, process.stdout.strip()) == (0, "here"), process.stderr


@pytest.mark.parametrize("name", commands(), ids=" ".join)
def test_every_command_has_help_and_the_common_options(name: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *name, "--help")
    assert code == 0
    assert all(option in out for option in ("--json", "--set", "--config", "--log-level", "--log-format", "--yes"))


def test_the_commands_that_scripts_rely_on_are_there() -> None:
    assert {" ".join(name) for name in commands()} >= {
        "init",
        "create-config",
        "align",
        "explain",
        "index",
        "label",
        "filter",
        "shard",
        "train",
        "evaluate",
        "transcribe",
        "classify",
        "diarize",
        "embed",
        "run",
        "demo",
        "control",
        "compare",
        "compare-teachers",
        "report",
        "clean",
        "remove",
        "verify",
        "doctor",
        "estimate",
        "plan",
        "pretrain",
        "train-lm",
        "voices",
        "score words",
        "score speakers",
        "score meeting",
    }


def test_python_m_voxstill_is_voxstill() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "voxstill", "--version"], capture_output=True, text=True, check=True
    )
    assert process.stdout == f"voxstill {voxstill.__version__}\n"


@pytest.mark.parametrize(
    ("wrong", "suggestion"), [(["shar", "work"], "shard"), (["label", "work", "--max-chunsk", "3"], "--max-chunks")]
)
def test_a_misspelt_command_or_option_is_answered_with_the_right_one(
    wrong: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *wrong)
    assert (code, out) == (2, "")
    assert suggestion in err


def test_the_shell_completes_commands_and_options() -> None:
    environment = {
        **os.environ,
        "_VOXSTILL_COMPLETE": "complete_bash",
        "COMP_WORDS": "voxstill comp",
        "COMP_CWORD": "1",
    }
    process = subprocess.run(
        [sys.executable, "-m", "voxstill"], env=environment, capture_output=True, text=True, check=False
    )
    assert set(process.stdout.split()) >= {"compare", "compare-teachers"}


def test_sources_to_repack_follow_one_flag() -> None:
    _, _, values = parse(["shard", "work", "--from", "a.tar", "b.tar", "--json"])
    assert (values["work"], [*values["source"], *values["more"]]) == ("work", ["a.tar", "b.tar"])


def test_the_log_level_of_the_configuration_holds_unless_the_command_line_names_one() -> None:
    for arguments, level in (
        (["--set", "monitor.log_level=error"], "error"),
        (["--set", "monitor.log_level=error", "--log-level", "debug"], "debug"),
        ([], "info"),
    ):
        monitor.start_logging()
        parse(["label", "work", *arguments])[1].load()
        assert monitor.level() == level


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, f"voxstill {voxstill.__version__}\n")


@pytest.mark.parametrize(
    "wrong", [[], ["distil"], ["explain", "--nonsense"], ["transcribe", "m", "a", "--format", "x"]]
)
def test_a_wrong_command_line_is_exit_code_two_with_nothing_on_standard_output(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *wrong)
    assert (code, out) == (2, "")
    assert "Usage" in err


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "plan"], ["init"], ["create-config"]])
def test_json_is_one_object_on_standard_output_and_nothing_else(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    assert out.count("\n") == 1
    figures = json.loads(out)
    assert isinstance(figures, dict)
    assert not [key for key in figures if key.startswith("_")]


def test_explain_has_every_option_with_its_unit_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", "--json")
    rows = {row["path"]: row for row in json.loads(out)["options"]}
    for option in config.options():
        row = rows[option.path]
        assert (row["unit"], row["meaning"], row["type"]) == (option.unit, option.meaning, option.type)
        assert row["default"] == json.loads(json.dumps(option.default))
    _, text, _ = run(capsys, "explain")
    assert all(f"{path} " in text for path in rows)


@pytest.mark.parametrize("code", ["disk-full", "table-broken", "other-error"])
def test_explain_prints_what_a_code_means(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = run(capsys, "explain", code)
    assert (exit_code, out) == (0, f"{as_text(explanations()[code])}\n")


def test_explain_takes_a_code_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = run(capsys, "explain", "disk-full", "--json")
    assert exit_code == 0
    assert json.loads(out) == {"code": "disk-full", "explanation": as_text(explanations()["disk-full"])}


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("disk-ful", "`disk-full`"), ("no-permissions", "`no-permission`"), ("diskfull", "`disk-full`"), ("a-b", "page")],
)
def test_explain_suggests_the_code_that_is_near(wrong: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, err = run(capsys, "explain", wrong)
    assert (exit_code, out) == (2, "")
    assert near in err.splitlines()[2]


def test_init_prints_a_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "init")
    file = tmp_path / "my.yaml"
    file.write_text(out)
    source = config.load(str(file)).source
    assert isinstance(source, config.Source)
    assert source.uri == "path/to/audio"


def test_init_overwrites_a_file_only_with_yes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "new" / "my.yaml"
    assert run(capsys, "init", "--output", str(file))[0] == 0
    assert config.load(str(file))
    file.write_text("mine")
    code, out, err = run(capsys, "create-config", "--output", str(file))
    assert (code, out, file.read_text()) == (2, "", "mine")
    assert "--yes" in err
    assert run(capsys, "init", "--output", str(file), "--yes")[0] == 0
    assert config.load(str(file))
    assert run(capsys, "init", "--output", str(file / "below"))[0] == 4


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [(ConfigError, 2), (DataError, 3), (StorageError, 4), (TeacherError, 5), (TrainingError, 6), (VoxstillError, 1)],
)
def test_an_error_is_printed_with_why_and_fix_and_exits_by_its_kind(
    kind: type[VoxstillError],
    exit_code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: str | None) -> list[Any]:
        raise kind("it broke", why="it was old", fix="buy another")

    monkeypatch.setattr(options, "explained", fails)
    code, out, err = run(capsys, "explain", "--json")
    assert (code, out) == (exit_code, "")
    assert err == f"error: it broke\n  why: it was old\n  fix: buy another\n  more: voxstill explain {kind.code}\n"


def test_real_errors_exit_by_their_kind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work, model = str(tmp_path / "work"), str(tmp_path / "model")
    (tmp_path / "file").write_text("")
    cases = {
        2: [
            ["explain", "nonsense"],
            ["run", str(tmp_path / "gone.yaml")],
            ["label", work, "--set", "engine.nmae=ray"],
            ["label", work, "--set", "engine"],
            ["transcribe", model, "a.wav"],
            ["train", str(tmp_path / "file"), "--set", "train.lr=fast"],
        ],
        3: [["label", work], ["filter", work], ["shard", work]],
        4: [["index", str(tmp_path / "file"), "--work", str(tmp_path / "file" / "work"), "--set", "engine=inline"]],
    }
    for wanted, lines in cases.items():
        for arguments in lines:
            code, out, err = run(capsys, *arguments, "--json")
            assert (code, out) == (wanted, ""), (arguments, err)
            assert "error: " in err, arguments
            assert "Traceback" not in err, arguments
            assert "  fix: " in err, arguments
            assert "  more: voxstill explain " in err.splitlines()[-1], arguments
            assert "Traceback" not in err


def test_the_environment_sets_options_and_the_command_line_wins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOXSTILL__PLAN__SLOTS", "4")
    assert parse(["label", "w"])[1].load().plan.batches_per_step == 4
    cfg = parse(["label", "w", "--set", "plan.batches_per_step=2", "--set", "seed=7"])[1].load()
    assert (cfg.plan.batches_per_step, cfg.seed) == (2, 7)


def test_control_c_is_130_and_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str | None) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "explained", interrupted)
    code, out, err = run(capsys, "explain")
    assert (code, out) == (130, "")
    assert err == "interrupted: the same command starts from the beginning\n"


def test_control_c_while_the_commands_are_loaded_is_130_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", interrupted)
        code = cli.main(["explain"])
    assert (code, *capsys.readouterr()) == (130, "", "interrupted before the command started\n")


def test_only_commands_that_resume_say_so() -> None:
    resuming = {command.name for command in cli.all_commands() if command.resumes}
    assert resuming == {"index", "label", "filter", "shard", "train", "pretrain", "run", "demo"}


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "voxstill.cli", "explain"]
    process = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("limit", [("--max-chunks", "0"), ("--max-chunks", "-1"), ("--limit-hours", "nan")])
def test_a_limit_that_is_not_above_zero_is_refused(
    limit: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["label", str(tmp_path), *limit]) == 2
    assert "it must be above 0" in capsys.readouterr().err
