"""Options that are not set: new trainings take the defaults of today, those of before keep theirs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config as configuration
from voxstill.storage.rundir import RunDir

SETTINGS = """
work: {folder}/work
engine: inline
source: {{dev_share: 0, test_share: 0}}
plan: {{budget_ms: 6000}}
train: {{steps: 2, loader_workers: 0, seed_mode: debug, validate_every: 2, root: {folder}/exp}}
"""


pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration whose work folder has shards."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    path = folder / "my.yaml"
    path.write_text(SETTINGS.format(folder=folder))
    rows = []
    for number, text in enumerate((*TEXTS, *TEXTS)):
        (folder / f"{number}.flac").write_bytes(codec.encode(speak(text, number)[0], "flac"))
        rows.append(json.dumps({"id": f"u{number}", "audio": f"{number}.flac", "text": text, "split": "train"}))
    (folder / "all.jsonl").write_text("\n".join(rows) + "\n")
    words = ["shard", str(folder / "work"), "--from", str(folder / "all.jsonl"), "--config", str(path)]
    assert cli.main(words) == 0
    return path


def train(capsys: pytest.CaptureFixture[str], config: Path, root: Path, *words: str) -> RunDir:
    capsys.readouterr()
    assert cli.main(["train", str(config), "--set", f"train.root={root}", *words, "--json"]) == 0
    return RunDir(Path(json.loads(capsys.readouterr().out)["path"]))


def extractor(run: RunDir) -> dict[str, Any]:
    own: dict[str, Any] = json.loads((run.model / "processor_config.json").read_text())["feature_extractor"]
    return own


def made_before_there_was_a_choice(run: RunDir, *names: str) -> None:
    """The snapshot of the configuration as earlier versions wrote it, without these options."""
    lines = run.config.read_text().splitlines(keepends=True)
    run.config.chmod(0o644)
    run.config.write_text("".join(line for line in lines if line.strip().partition(":")[0] not in names))


ALONE = """
import json, sys
sys.modules["voxstill"] = None  # whoever asks for it fails
import soundfile, torch
from transformers import AutoModelForCTC, AutoProcessor
processor, model = AutoProcessor.from_pretrained(sys.argv[1]), AutoModelForCTC.from_pretrained(sys.argv[1]).eval()
rows = []
for path in sys.argv[2:]:
    inputs = processor(soundfile.read(path, dtype="float32")[0], sampling_rate=16000, return_tensors="pt")
    with torch.inference_mode():
        rows.append(model(**inputs).logits.log_softmax(-1)[0].tolist())
print(json.dumps(rows))
"""


def test_a_new_recogniser_has_level_with_varied_gain_and_the_same_outputs_in_transformers_alone(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    import soundfile
    import torch

    from voxstill.decoding.recognizer import Recognizer, RecognizerOptions

    run = train(capsys, config, tmp_path)
    cfg = configuration.load_snapshot(str(run.config))
    assert (cfg.student.normalization, cfg.augment.gain_db, cfg.train.optimizer) == ("level", 12.0, "muon")
    assert extractor(run)["feature_extractor_type"] == "NemotronAsrStreamingFeatureExtractor"
    paths = [str(config.parent / f"{number}.flac") for number in range(4)]
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, str(run.model), *paths], capture_output=True, text=True, check=False
    )
    assert alone.returncode == 0, alone.stderr[-2000:]
    recognizer = Recognizer(RecognizerOptions(model=str(run.model), dtype="float32"))
    recognizer.load()
    log_probs = recognizer.log_probs([soundfile.read(path, dtype="int16")[0] for path in paths])
    for row, row_FV in zip(json.loads(alone.stdout.splitlines()[-1]), log_probs, strict=True):
        alone_FV = torch.tensor(row[: len(row_FV)])  # a frame of padding may follow
        # the tones are a little louder than the range of levels, which `transformers` does not know
        assert torch.allclose(alone_FV, torch.from_numpy(row_FV), atol=0.05)


def test_an_experiment_of_before_there_was_a_choice_is_gone_on_with_as_it_was(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    words = ["--set", "student.normalization=utterance", "--set", "train.optimizer=adamw"]
    before = train(capsys, config, tmp_path, *words)
    made_before_there_was_a_choice(before, "normalization", "optimizer")
    cfg = configuration.load_snapshot(str(before.config))
    assert (cfg.student.normalization, cfg.train.optimizer) == ("utterance", "adamw")
    assert train(capsys, config, tmp_path).path == before.path
    longer = train(capsys, config, tmp_path, "--set", "train.steps=3", "--continue", str(before.path))
    assert configuration.load_snapshot(str(longer.config)).train.optimizer == "adamw"
    assert extractor(longer)["feature_extractor_type"] == "ParakeetFeatureExtractor"
    chosen = train(capsys, config, tmp_path, "--set", "student.normalization=level", "--set", "train.optimizer=muon")
    assert chosen.path != before.path
    assert train(capsys, config, tmp_path).path == chosen.path


def test_an_experiment_goes_on_with_its_optimizer_and_may_be_given_the_other(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    before = train(capsys, config, tmp_path, "--set", "train.optimizer=adamw")
    chosen = train(capsys, config, tmp_path)  # what was set then is no default of before
    assert chosen.path != before.path
    assert configuration.load_snapshot(str(chosen.config)).train.optimizer == "muon"
    shutil.rmtree(chosen.path)
    made_before_there_was_a_choice(before, "optimizer")
    assert train(capsys, config, tmp_path).path == before.path
    for optimizer, steps in (("muon", 3), ("adamw", 4)):
        words = [
            "--set",
            f"train.optimizer={optimizer}",
            "--set",
            f"train.steps={steps}",
            "--continue",
            str(before.path),
        ]
        changed = train(capsys, config, tmp_path, *words)
        assert configuration.load_snapshot(str(changed.config)).train.optimizer == optimizer
    new = train(capsys, config, tmp_path, "--set", "seed=5")
    assert configuration.load_snapshot(str(new.config)).train.optimizer == "muon"


def test_a_student_from_a_checkpoint_has_the_normalization_of_that(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    level = train(capsys, config, tmp_path)
    more = train(capsys, config, tmp_path, "--set", f"student.checkpoint={level.model}")
    assert extractor(more) == extractor(level)
    assert configuration.load_snapshot(str(more.config)).train.optimizer == "adamw"
    words = ["--set", f"student.checkpoint={level.model}", "--set", "student.normalization=utterance"]
    assert cli.main(["train", str(config), "--set", f"train.root={tmp_path}", *words]) == 2
    assert "a checkpoint has its own" in capsys.readouterr().err


def test_a_step_of_many_batches_has_a_larger_window_but_in_an_experiment_that_began_with_the_smaller(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    options = ("plan.batches_per_step=33", "plan.max_utterances=1", "train.steps=1")
    words = [word for option in options for word in ("--set", option)]
    before = train(capsys, config, tmp_path, *words, "--set", "plan.window=65536")
    assert train(capsys, config, tmp_path, *words).path == before.path
    longer = train(capsys, config, tmp_path, *words, "--set", "train.steps=2", "--continue", str(before.path))
    assert configuration.load_snapshot(str(longer.config)).plan.window == 65_536
    new = train(capsys, config, tmp_path, *words, "--set", "seed=5")
    assert configuration.load_snapshot(str(new.config)).plan.window == 33 * 2_048
    few = train(capsys, config, tmp_path, "--set", "seed=5")
    assert configuration.load_snapshot(str(few.config)).plan.window == 65_536
