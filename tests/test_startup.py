"""What a command imports: with nothing to do neither Ray nor a teacher, and to transcribe nothing that trains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from judged import corpus
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec

RUN = """
import atexit, json, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
from voxstill.cli import main
sys.exit(any([main(words) for words in json.loads(sys.argv[1])]))
"""
OF_WORK = {"ray", "torch", "transformers", "lightning_fabric", "numba", "onnxruntime"}
"""What no step needs that finds its table finished."""
OF_TRAINING = {
    *("ray", "numba", "lightning_fabric", "tensorboard", "pyarrow", "onnxruntime", "av", "kaldialign"),
    *("voxstill.engine", "voxstill.evaluation", "voxstill.indexing", "voxstill.labelling", "voxstill.training"),
    *("voxstill.tasks.recognition", "voxstill.tasks.classification", "voxstill.data", "voxstill.scoring"),
}
"""What nobody needs who transcribes a short file greedily."""


def run(*commands: Sequence[object]) -> tuple[str, set[str]]:
    """Commands in a process of their own: what they printed, and the modules that were loaded after them."""
    command = [sys.executable, "-c", RUN, json.dumps([list(map(str, words)) for words in commands])]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout, set(process.stderr.splitlines()[-1].split())


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder in which every step up to the shards has ended."""
    rows = [{"id": f"u{i}", "text": text, "split": "train"} for i, text in enumerate(TEXTS)]
    folder = corpus(tmp_path_factory.mktemp("corpus"), rows)
    for step in ("label", "filter", "shard"):
        assert cli.main([step, str(folder), "--set", "engine=inline", "--set", "teacher=echo"]) == 0
    return folder


@pytest.mark.parametrize("engine", ["ray", "inline"])
def test_a_step_with_nothing_to_do_starts_no_ray_and_loads_no_model(work: Path, engine: str) -> None:
    steps: list[tuple[object, ...]] = [("index", work.parent / "manifest.jsonl", "--work", work)]
    steps += [(step, work) for step in ("label", "filter", "shard")]
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.parquet")}
    options = ["--set", f"engine={engine}", "--set", "teacher=echo", "--set", "engine.max_failed_share=1"]
    _, modules = run(*((*step, *options) for step in steps))
    assert not modules & OF_WORK
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.parquet")} == before


def test_a_checkpoint_transcribes_without_what_trains_and_judges(tone_student: Path, tmp_path: Path) -> None:
    (tmp_path / "speech.flac").write_bytes(codec.encode(speak(TEXTS[0], 0)[0], "flac"))
    text, modules = run(("transcribe", tone_student, tmp_path / "speech.flac"))
    assert text.strip() == TEXTS[0]
    assert "torch" in modules
    assert not modules & OF_TRAINING
