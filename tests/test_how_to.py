"""How-tos: each is followed to its end in its short form, and its sentences are short."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import forked
import quickstart
from checkpoints import write_overfitted_whisper, write_waveform_checkpoint
from narrow_models import narrow
from ray_nodes import cluster_environment, listens, node
from shared_folders import made_once
from voxstill import cli, load_config
from voxstill.audio import codec
from voxstill.core.records import Label
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.training.budget import check_schedule
from waiting import until

PAGES = sorted((quickstart.ROOT / "docs/how-to").glob("*.md"))
ON_RAY = quickstart.ROOT / "docs/how-to/ray.md"
MOST_WORDS = 30
SHORT = {
    "ENGINE__NAME": "inline",
    "TRAIN__STEPS": "4",
    "TRAIN__LOG_EVERY": "2",
    "TRAIN__LOADER_WORKERS": "0",
    "STUDENT__SIZE": "tiny",
}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of the quickstart after its `voxstill run`, with a second corpus, `read`; and a copy of it."""
    folder = tmp_path_factory.mktemp("followed") / "corpus"
    folder.mkdir()
    quickstart.make(folder)
    read = folder / "read"
    quickstart.write_manifest(read, quickstart.speak(read, first=5, prefix="read-"))
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        shorten(patch, folder)
        quickstart.write_config()
        assert cli.main(["run", "my.yaml", "--log-level", "warning"]) == 0
    return folder, shutil.copytree(folder, folder.with_name("copy"), symlinks=True)


@pytest.fixture
def corpus(followed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as it was, at the same place, for tables hold the paths of their audio."""
    folder, copy = followed
    shutil.rmtree(folder)
    shutil.copytree(copy, folder, symlinks=True)
    narrow(monkeypatch)
    shorten(monkeypatch, folder)
    return folder


def shorten(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let commands run in a folder, with short trainings."""
    patch.chdir(folder)
    for name, value in SHORT.items():
        patch.setenv(f"VOXSTILL__{name}", value)


@pytest.fixture(scope="session")
def replacements(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Small models and trainings in place of those that the pages name; the Whisper knows the recordings."""

    def make(folder: Path) -> None:
        rows = quickstart.speak(folder / "recordings")
        clips = [codec.decode((folder / "recordings" / row["audio"]).read_bytes()).samples_T for row in rows]
        write_overfitted_whisper(folder / "whisper", clips, [row["text"] for row in rows], languages=True)
        write_waveform_checkpoint(folder / "wav2vec2", "Wav2Vec2")

    folder = made_once(tmp_path_factory, "small-models", make)
    return {
        "openai/whisper-large-v3-turbo": str(folder / "whisper"),
        "openai/whisper-small": str(folder / "whisper"),
        "facebook/wav2vec2-base": str(folder / "wav2vec2"),
        "size: medium": "size: tiny",
        "train.max_minutes=10": "train.steps=8",
        # a search among ten words, still without a grammar; among all of its dictionary it takes half a minute
        "teacher.grammar=null": "teacher.grammar=null --set teacher.dictionary=examples/fsdd/digits.dict",
    }


@pytest.fixture
def running() -> Iterator[list[ForkServerProcess]]:
    """Commands in the background, which are ended."""
    processes: list[ForkServerProcess] = []
    yield processes
    for process in processes:
        process.terminate()
        process.join()


def words_of(command: str) -> list[str]:
    """The words of a command as the shell expands them."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], check=True, capture_output=True, text=True)
    return done.stdout.split("\0")[:-1]


def is_ready(port: str) -> bool:
    """Whether a server answers that it can work."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
        return bool(answer.status == 200)
    return False


def replaced(text: str, replacements: Mapping[str, str]) -> str:
    """A text with what is replaced in it, in this order."""
    return functools.reduce(lambda short, pair: short.replace(*pair), replacements.items(), text)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != ON_RAY], ids=lambda page: page.stem)
def test_a_how_to_can_be_followed(
    page: Path,
    corpus: Path,
    replacements: Mapping[str, str],
    running: list[ForkServerProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for language, content in quickstart.blocks(page, "console", "yaml", "python"):
        if language == "yaml":
            name = re.match(r"# (\S+\.yaml)\n", content)
            if name:
                Path(name[1]).write_text(replaced(content, replacements), encoding="utf-8")
            continue
        if language == "python":
            exec(compile(content, str(page), "exec"), {})
            continue
        for line in content.splitlines():
            program, *words = words_of(replaced(line, replacements).removeprefix("$ ").removesuffix(" &"))
            if line.endswith(" &"):
                assert program == "voxstill"
                running.append(forked.start(forked.command, words, log=tmp_path / "log"))
                until(functools.partial(is_ready, words[words.index("--port") + 1]), 120)
            elif program == "curl":
                subprocess.run([program, "--silent", *words], check=True)
            else:
                assert cli.main([*words, "--log-level", "warning"]) == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.slow
def test_the_how_to_on_ray_can_be_followed(
    corpus: Path, s3: Store, replacements: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two nodes and a server of S3, as without a GPU."""
    assert "write `name: transformers`, and leave `teacher_gpus` and `teacher_cpus` out" in ON_RAY.read_text()
    monkeypatch.setenv("VOXSTILL__ENGINE__NAME", "ray")
    for path in (corpus / "recordings").iterdir():
        s3.replace(f"audio/{path.name}", path.read_bytes())
    port = forked.free_port()
    here = {"10.0.0.1": "127.0.0.1", "6379": str(port)}
    without_gpu = {"name: vllm": "name: transformers", "  teacher_gpus: 1\n": "", "  teacher_cpus: 4\n": ""}
    [(_, content)] = quickstart.blocks(ON_RAY, "yaml")
    Path("ray.yaml").write_text(replaced(content, {**replacements, **here, **without_gpu}), encoding="utf-8")
    lines = [line for _, content in quickstart.blocks(ON_RAY, "sh", "console") for line in content.splitlines()]
    commands = [words_of(line.removeprefix("$ "))[1:] for line in lines if line.startswith("$ voxstill ")]
    environment = cluster_environment()
    with contextlib.ExitStack() as nodes:
        for line in lines:
            if line.startswith("ray start "):
                nodes.enter_context(node(*words_of(replaced(line, here))[2:], environment=environment))
                until(lambda: listens(port), every_s=0.2)
        log = tmp_path / "log"
        forked.finish(forked.start(forked.commands, commands, log=log, environment=environment), log=log)
    manifest = [json.loads(line) for line in Path("recordings/manifest.jsonl").read_text().splitlines()]
    labels = {label.utterance_id: label.text for label in tables.read(Store("s3://bucket/calls"), "labels", Label)}
    assert labels.items() >= {row["id"]: row["text"] for row in manifest if "id" in row}.items()
    assert [entry.key for entry in s3.list("calls/shards") if entry.key.endswith(".tar")] != []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_training_of_a_how_to_has_an_end_of_its_own(page: Path, tmp_path: Path) -> None:
    """The short form sets `train.steps`, which the reader of the page does not."""
    for number, (_, content) in enumerate(quickstart.blocks(page, "yaml")):
        name = re.match(r"# (\S+\.yaml)\n", content)
        if name and re.search(rf"voxstill (run|train) .*{re.escape(name[1])}", page.read_text(encoding="utf-8")):
            path = tmp_path / f"{number}.yaml"
            path.write_text(content, encoding="utf-8")
            check_schedule(load_config(path).train)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sentences_of_a_how_to_are_short(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|^\|.*$|^#.*$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    sentences = re.split(r"(?<=[.?!])\s+|\n\n|^- ", text, flags=re.M)
    assert [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS] == []
