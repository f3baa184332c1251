"""What the documents say is so: commands run or parse, configurations load, Python runs, links and options exist."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import judged
import quickstart
import voxstill
from command_lines import parse
from hub import hub_server
from narrow_models import narrow
from quickstart import arguments, blocks
from tones import speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.records import Label, Recording
from voxstill.nn.students import SHAPES
from voxstill.pipeline.options import explained
from voxstill.storage.store import Store
from voxstill.storage.tables import read
from voxstill.teachers import registry

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/voxstill"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
HISTORY = {ROOT / "CHANGELOG.md", *ROOT.glob("docs/decisions/*.md")}
"""Pages that say what was: the files that they name may be gone."""
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
OPTIONS = {row.path for row in explained(None)}
SECTIONS = {path.partition(".")[0] for path in OPTIONS if "." in path}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(page: Path) -> list[str]:
    return [
        line.removeprefix("$ ").removesuffix(" &")
        for _, content in blocks(page, "console", "bash")
        for line in content.splitlines()
        if line.removeprefix("$ ").startswith(("voxstill ", "make "))
    ]


def every(*languages: str) -> list[Any]:
    return [
        pytest.param(content, id=f"{name_of(page)}-{number}")
        for page in PAGES
        for number, (_, content) in enumerate(blocks(page, *languages), 1)
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_parses(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for command in commands(page):
        program, *rest = shlex.split(command)
        if program == "make":
            assert set(rest) <= targets, command
        else:
            _, common, _ = parse(rest)
            config.load(None, common.overrides)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_named_exists(page: Path) -> None:
    named = re.findall(r"`(\w+\.\w+)(?:: [^`]*)?`", page.read_text(encoding="utf-8"))
    endings = {"py", "md", "yaml", "json", "jsonl", "toml", "tsv", "txt", "html", "log"}
    options = {name for name in named if name.partition(".")[0] in SECTIONS and name.partition(".")[2] not in endings}
    sections = {path.rpartition(".")[0] for path in OPTIONS}
    assert options <= OPTIONS | sections


def test_the_index_of_decisions_has_a_line_for_every_one() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    rows = re.findall(r"^\| \[(\d+)\]\((.+?)\) \| .+ \|$", (ROOT / "docs/decisions/index.md").read_text("utf-8"), re.M)
    assert rows == [(page.name[:4], page.name) for page in pages]
    for page in pages:
        assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]}: ")


def test_every_option_of_the_filter_is_explained() -> None:
    text = (ROOT / "docs/filter.md").read_text(encoding="utf-8")
    assert {path for path in OPTIONS if path.startswith("filter.") and path not in text} == set()


@pytest.mark.parametrize(
    "content", [*every("yaml"), *(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("examples/**/*.yaml")))]
)
def test_every_configuration_loads(content: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(content, encoding="utf-8")
    teacher = config.load(str(path)).teacher
    kind = registry.find(teacher.name)
    config.validated(kind.Options, teacher.model_extra or {}, prefix="teacher.")


@pytest.mark.parametrize("content", every("python"))
def test_every_python_block_is_python(content: str) -> None:
    ast.parse(content)


def test_the_architecture_draws_the_layers_that_imports_are_checked_against() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    [layers] = [contract["layers"] for contract in contracts["contracts"] if contract["type"] == "layers"]
    picture = ARCHITECTURE.partition("```\n")[2].partition("```")[0]
    assert [re.split(r"  +", line)[0].removesuffix(".py") for line in picture.splitlines()] == layers


def test_the_architecture_has_every_package_in_its_table() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.M)) == packages


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=name_of)
def test_every_file_and_function_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/]+/\w+\.py)(?::([\w.]+))?`", text)
    paths += [
        (f"{name.replace('.', '/')}.py", member)
        for name, member in re.findall(r"`([\w.]+):([\w.]+)`", text)
        if name.startswith("voxstill.")
    ]
    for name, member in paths:
        homes = [home / name for home in (PACKAGE, PACKAGE.parent, ROOT) if (home / name).is_file()]
        assert homes, name
        assert not member or is_defined(homes[0], member), f"{name}:{member}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=name_of)
def test_every_file_of_the_repository_named_exists(page: Path) -> None:
    for name in re.findall(r"`((?:examples|monitoring|tools|tests|benchmarks)/[\w./-]+)`", page.read_text("utf-8")):
        assert (ROOT / name).exists(), name


def is_defined(path: Path, member: str) -> bool:
    """Whether a file defines a function, a class or, after a dot, a method of it."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in member.split("."):
        definitions = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
        if not definitions:
            return False
        body = definitions[0].body
    return True


def test_the_sizes_of_students_are_those_built() -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| (\w+) \| [\d.]+ million \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    built = [(size, *map(str, (shape.hidden, shape.layers, shape.heads))) for size, shape in SHAPES.items()]
    assert documented == built


def test_the_examples_of_the_filter_are_right() -> None:
    for _, content in blocks(ROOT / "docs/filter.md", "python"):
        exec(compile(content, "docs/filter.md", "exec"), {})


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the quickstart has it: recordings of digits with a manifest, and the examples."""
    narrow(monkeypatch)
    monkeypatch.chdir(tmp_path)
    quickstart.make(tmp_path)
    return tmp_path


def test_the_quickstart_can_be_followed_to_its_end(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = []
    for language, content in blocks(ROOT / "docs/quickstart.md", "console", "yaml", "jsonl", "python"):
        if language == "yaml":
            (corpus / "my.yaml").write_text(content, encoding="utf-8")
            (corpus / "my.yaml").write_text(config.dump(config.load("my.yaml", quickstart.QUICK)), encoding="utf-8")
        elif language == "jsonl":
            for line in content.splitlines():
                assert (corpus / "recordings" / json.loads(line)["audio"]).exists() or "train-00" in line
        elif language == "python":
            exec(compile(content, "docs/quickstart.md", "exec"), {})
        else:
            for line in content.splitlines():
                program, *rest = arguments(line.removeprefix("$ "))
                if program == "voxstill" and rest[0] != "demo":
                    assert cli.main([*rest, "--log-level", "warning"]) == 0, f"{line}\n{capsys.readouterr().err}"
                    ran.append(rest[0])
    steps = {"index", "label", "filter", "shard", "train", "evaluate"}
    assert set(ran) == {"init", "run", "plan", "transcribe", "verify", "explain", *steps}
    out = capsys.readouterr().out
    assert "broken.flac not audio" in out
    [run] = (corpus / "exp").iterdir()
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    assert {path.name for path in run.iterdir() if f"`{path.name}" not in page} == set()
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {name for row in logged for name in row if f"`{name}`" not in page} == {"split"}  # told with its value
    assert (corpus / "subtitles/long.srt").exists()
    assert sum(recording.error is not None for recording in read(Store("work/mine"), "recordings", Recording)) == 1


def test_the_voices_of_the_quickstart_are_a_corpus_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    [(_, line)] = blocks(ROOT / "docs/quickstart.md", "bash")
    assert cli.main([*shlex.split(line)[1:], "--hours", "0.05"]) == 0, capsys.readouterr().err
    rows = [json.loads(row) for row in Path("recordings/manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["split"] for row in rows} == {"train", "dev", "test"}
    assert all((Path("recordings") / row["audio"]).parts[1] == "audio" for row in rows)


def test_the_page_on_shipping_runs(
    tone_student: Path,
    streaming_tone_student: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = ROOT / "docs/shipping.md"
    monkeypatch.chdir(tmp_path)
    work = judged.corpus(tmp_path / "corpus")
    Path("work").mkdir()
    work.rename("work/mine")
    judged.experiment(tmp_path / "exp/2026-11-22_mine", tone_student, tmp_path / "work/mine")
    live = {"kind": "rnnt", "size": "tiny", "streaming": True}
    judged.experiment(tmp_path / "exp/2026-11-25_live", streaming_tone_student, tmp_path / "work/mine", student=live)
    samples_T, _ = speak("ba du ko")
    for name in ("call.flac", "call.wav"):
        Path(name).write_bytes(codec.encode(samples_T, "wav" if name.endswith("wav") else "flac"))
    for line in commands(page):
        if " push " in line:  # the address of the Hub is read when its library is loaded
            with hub_server() as hub:
                command = [sys.executable, "-m", "voxstill", *shlex.split(line)[1:]]
                subprocess.run(command, env=os.environ | hub.environment(), check=True, timeout=200)
                assert "owner/name/model.onnx" in hub.files
            continue
        more = ["--set", "engine=inline"] if "evaluate" in line else []
        assert cli.main([*shlex.split(line)[1:], *more]) == 0, f"{line}\n{capsys.readouterr().err}"
    assert capsys.readouterr().out.count("ba du ko\n") == 4
    names: dict[str, Any] = {name: pytest.importorskip(name) for name in ("onnxruntime", "onnx_asr", "sherpa_onnx")}
    names |= {"samples": samples_T[None].astype(np.float32) / 32768, "lengths": np.array([len(samples_T)])}
    for _, content in blocks(page, "python"):
        exec(compile(content, "docs/shipping.md", "exec"), names)
    assert capsys.readouterr().out.strip() == "ba du ko"
    assert names["log_probs"].shape[1] == names["frames"][0]


def test_the_python_of_the_documents_runs_from_recordings_to_transcripts(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quickstart.write_config()
    names: dict[str, Any] = {}
    for _, content in blocks(ROOT / "docs/python.md", "python"):
        exec(compile(content, "docs/python.md", "exec"), names)
    out = capsys.readouterr().out
    assert "16 utterances, 1 damaged files" in out
    assert "recordings/broken.flac not audio" in out


def test_the_table_of_python_names_is_complete() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    kinds = {name for name in voxstill.__all__ if name.endswith("Error")} | {"Interrupted", "Config", "Transcript"}
    assert {name for name in set(voxstill.__all__) - kinds if not re.search(rf"`{name}[`(]", page)} == set()


def test_the_teacher_of_the_documents_is_loaded_by_its_entry_point(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs/teachers.md"
    package = corpus / "site"
    info = package / "voxstill_transcripts-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: voxstill-transcripts\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[voxstill.teachers]\ntranscripts = transcripts:TranscriptsTeacher\n")
    [(_, code)] = blocks(page, "python")
    [(_, project)] = blocks(page, "toml")
    assert code == (ROOT / "examples/teacher/transcripts.py").read_text(encoding="utf-8")
    assert project == (ROOT / "examples/teacher/pyproject.toml").read_text(encoding="utf-8")
    (package / "transcripts.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(package)
    transcripts = [{"id": f"test-{n:02}", "text": "one", "confidence": 0.5} for n in (0, 4)]
    Path("transcripts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in transcripts), encoding="utf-8")
    Path("my.yaml").write_text("engine: {name: inline, max_failed_share: 1.0}\n", encoding="utf-8")
    assert cli.main(["index", "recordings/manifest.jsonl", "--work", "work/mine", "--config", "my.yaml"]) == 0
    capsys.readouterr()
    [command] = [command for command in commands(page) if "name: transcripts" in command]
    assert cli.main([*arguments(command)[1:], "--json"]) == 0, capsys.readouterr().err
    figures = json.loads(capsys.readouterr().out)
    assert (figures["labels"], figures["failed"]) == (16, 14)
    labels = list(read(Store("work/mine"), f"labels/{figures['recipe']}", Label))
    assert {label.text for label in labels if label.error is None} == {"one"}
    assert {label.error for label in labels if label.error is not None} == {"the file has no line for it"}
    assert cli.main(["explain", "teacher.file"]) == 0
    assert "(transcripts) JSONL file" in capsys.readouterr().out
