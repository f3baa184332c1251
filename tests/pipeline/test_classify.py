"""Class and speaker students in use: what `voxstill classify` and `voxstill embed` give, also beside `transformers`."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import voxstill
from checkpoints import write_waveform_checkpoint
from tones import voiced
from voxstill import cli
from voxstill.audio import codec, vad
from voxstill.core import pcm
from voxstill.core.config import Augment, Student
from voxstill.evaluation import results
from voxstill.nn import checkpoints, classifiers

NAMES = ["ba", "du", "ko"]
WORDS = (("ba", "ann"), ("du", "bob"))


def write_student(folder: Path, task: classifiers.Task, checkpoint: str | None = None) -> Path:
    """A student that has learnt nothing, as an experiment folder holds it."""
    about = {"target": "speaker" if task == "speakers" else "text", "text": "basic"}
    model = classifiers.new(Student(task=task, checkpoint=checkpoint), NAMES, 0, about)
    model.save_pretrained(folder / "model")
    extractor = checkpoints.make_frontend(model.config, Augment(), None, checkpoint).extractor
    (folder / "model" / "preprocessor_config.json").write_text(json.dumps(dict(extractor)))
    return folder


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each task, and one of each that `transformers` has a class for."""
    folder = tmp_path_factory.mktemp("students")
    wav2vec2 = str(write_waveform_checkpoint(folder / "start", "Wav2Vec2", norm="layer", head="ForCTC"))
    tasks: tuple[classifiers.Task, ...] = ("classes", "speakers")
    return {
        **{task: write_student(folder / task, task) for task in tasks},
        **{f"wav2vec2 {task}": write_student(folder / f"w2v-{task}", task, wav2vec2) for task in tasks},
    }


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, one that is none, and a file of another kind."""
    folder = tmp_path_factory.mktemp("audio")
    for i, (word, speaker) in enumerate(WORDS):
        (folder / f"{word}.flac").write_bytes(codec.encode(voiced(word, speaker, i), "flac"))
    (folder / "broken.wav").write_bytes(b"no audio")
    (folder / "notes.txt").write_text("no audio")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main([*map(str, words), "--json"]) == code
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return figures


def test_each_recording_has_its_likeliest_classes_and_a_bad_one_its_reason(
    capsys: pytest.CaptureFixture[str], students: dict[str, Path], audio: Path
) -> None:
    figures = run(capsys, "classify", students["classes"], audio, code=3)
    assert figures["skipped"] == 1
    first, broken, second = figures["results"]
    assert [Path(row["audio"]).name for row in (first, broken, second)] == ["ba.flac", "broken.wav", "du.flac"]
    assert broken["classes"] == []
    assert broken["error"].startswith("not audio")
    for row in (first, second):
        chances = [one["probability"] for one in row["classes"]]
        assert row["error"] is None
        assert {one["name"] for one in row["classes"]} == set(NAMES)
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1, abs=1e-5)
    assert cli.main(["classify", str(students["classes"]), str(audio), "--top", "1"]) == 3
    out, err = capsys.readouterr()
    best = first["classes"][0]
    assert out.splitlines()[0] == f"{audio / 'ba.flac'}: {best['name']} {best['probability']:.1%}"
    assert len(out.splitlines()) == 2
    assert "broken.wav: not audio" in err


def test_standard_input_is_classified(
    capsys: pytest.CaptureFixture[str], students: dict[str, Path], audio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((audio / "ba.flac").read_bytes())))
    piped, named = run(capsys, "classify", students["classes"], "-", audio / "ba.flac")["results"]
    assert piped["audio"] == "-"
    assert piped["classes"] == named["classes"]


def test_a_long_recording_is_the_mean_over_its_parts(students: dict[str, Path], audio: Path, tmp_path: Path) -> None:
    cfg = voxstill.load_config(None, "segment.max_ms=700", "segment.vad=never")
    samples_T = np.concatenate([voiced(word, speaker, i) for i, (word, speaker) in enumerate(WORDS)])
    spans = vad.segment(samples_T, cfg.segment)
    assert len(spans) > 1
    parts_T = [samples_T[pcm.ms_to_samples(start) : pcm.ms_to_samples(end)] for start, end in spans]
    names = []
    for i, part_T in enumerate([samples_T, *parts_T]):
        names.append(tmp_path / f"{i}.wav")
        names[-1].write_bytes(codec.encode(part_T, "wav"))
    whole, *parts = voxstill.classify(students["classes"], names, cfg, top=3).results
    by_name = [{row.name: row.probability for row in part.classes} for part in parts]
    for row in whole.classes:
        expected = np.average([chances[row.name] for chances in by_name], weights=[len(part) for part in parts_T])
        assert row.probability == pytest.approx(expected, abs=1e-5)


def test_many_recordings_are_as_each_alone(students: dict[str, Path], audio: Path, tmp_path: Path) -> None:
    """Short ones share a batch, long ones are cut, and what cannot be read or is too short is in its place."""
    rng = np.random.default_rng(0)
    names = [audio / "broken.wav"]
    for i in range(14):
        words = [voiced(*WORDS[int(rng.integers(2))], int(rng.integers(100))) for _ in range(int(rng.integers(1, 6)))]
        samples_T = np.ones(20, np.int16) if i == 7 else np.concatenate(words)
        names.append(tmp_path / f"{i}.flac")
        names[-1].write_bytes(codec.encode(samples_T, "flac"))
    cfg = voxstill.load_config(None, "segment.max_ms=1000", "segment.vad=never")
    for task in ("speakers", "wav2vec2 speakers"):
        together = voxstill.embed(students[task], names, cfg).embeddings
        alone = [voxstill.embed(students[task], [name], cfg).embeddings[0] for name in names[:9]]
        assert [row.audio for row in together] == list(map(str, names))
        assert [row.error for row in together[:9]] == [row.error for row in alone]
        assert {row.error is None for row in together} == {True, False}
        for row, other in zip(together, alone, strict=False):
            if row.embedding is not None:
                assert row.embedding == pytest.approx(other.embedding, abs=1e-5)


def test_silence_has_a_warning_and_what_is_too_short_an_error(students: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(codec.encode(np.zeros(16_000, np.int16), "wav"))
    (tmp_path / "b.wav").write_bytes(codec.encode(np.ones(20, np.int16), "wav"))
    cfg = voxstill.load_config(None, "segment.vad=always")
    [silent, short] = voxstill.classify(students["wav2vec2 classes"], [tmp_path]).results
    assert (silent.error, silent.warning) == (None, "silent: all samples are 0")
    assert len(silent.classes) == len(NAMES)
    [unspoken] = voxstill.embed(students["speakers"], [tmp_path / "a.wav"], cfg).embeddings
    assert short.error == unspoken.error == "too short, or without speech"


def test_embeddings_have_unit_length_and_are_written(
    capsys: pytest.CaptureFixture[str], students: dict[str, Path], audio: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "new" / "voices.jsonl"
    figures = run(capsys, "embed", students["speakers"], audio, "--output", lines, code=3)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert rows == figures["embeddings"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert cli.main(["embed", str(students["speakers"]), str(audio)]) == 3
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    run(capsys, "embed", students["speakers"], audio, "--output", tmp_path / "voices.npz", code=3)
    arrays = np.load(tmp_path / "voices.npz")
    assert arrays["audio"].tolist() == [rows[0]["audio"], rows[2]["audio"]]
    assert np.linalg.norm(arrays["embeddings"], axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert np.array_equal(arrays["embeddings"], np.array([rows[0]["embedding"], rows[2]["embedding"]], np.float32))
    assert cli.main(["embed", str(students["speakers"]), str(audio), "--output", str(tmp_path / "a.csv")]) == 2
    assert ".npz or .jsonl" in capsys.readouterr().err


def test_two_recordings_are_compared_by_the_threshold_of_the_newest_result(
    capsys: pytest.CaptureFixture[str], students: dict[str, Path], audio: Path, tmp_path: Path
) -> None:
    experiment = write_student(tmp_path / "exp", "speakers")
    compared = ["embed", experiment, audio / "ba.flac", audio / "du.flac", "--compare"]
    before = run(capsys, *compared)
    first, second = (np.array(row["embedding"]) for row in before["embeddings"])
    assert before["comparison"]["cosine"] == pytest.approx(float(first @ second), abs=1e-5)
    assert before["comparison"]["threshold"] is before["comparison"]["same"] is None
    corpus = results.Corpus(work="work/voices", utterances="r")
    figures = {"split": "test", "normalizer": "none", "threshold": before["comparison"]["cosine"] + 1e-3}
    results.write(experiment / "evaluation", results.Evaluation(figures=figures).of(corpus))
    (experiment / "config.yaml").write_text("student: {task: speakers}")
    for model in (experiment, experiment / "model"):
        compared[1] = model
        after = run(capsys, *compared)["comparison"]
        assert (after["threshold"], after["same"]) == (figures["threshold"], False)
        assert (experiment / "evaluation" / after["judged"]).is_dir()
    same = run(capsys, "embed", experiment, audio / "ba.flac", audio / "ba.flac", "--compare")["comparison"]
    assert (round(same["cosine"], 5), same["same"]) == (1, True)
    broken = run(capsys, "embed", experiment, audio / "ba.flac", audio / "broken.wav", "--compare", code=3)
    assert "comparison" not in broken
    assert cli.main(["embed", str(experiment), str(audio), "--compare"]) == 2
    assert "3 are given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [("classify", "speakers", "voxstill embed"), ("embed", "classes", "voxstill classify")],
)
def test_a_student_of_another_task_is_refused_with_the_command_that_takes_it(
    capsys: pytest.CaptureFixture[str], students: dict[str, Path], audio: Path, command: str, kind: str, message: str
) -> None:
    assert cli.main([command, str(students[kind]), str(audio)]) == 2
    assert message in capsys.readouterr().err


def test_recognisers_are_refused(capsys: pytest.CaptureFixture[str], tone_student: Path, audio: Path) -> None:
    assert cli.main(["classify", str(tone_student), str(audio)]) == 2
    assert "voxstill transcribe" in capsys.readouterr().err


def test_a_student_is_taken_from_the_hub_by_its_name(
    capsys: pytest.CaptureFixture[str],
    students: dict[str, Path],
    audio: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit, folder = "0123456789abcdef" * 2 + "01234567", tmp_path / "models--owner--classes"
    shutil.copytree(students["classes"] / "model", folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    expected = voxstill.classify(students["classes"], [audio / "ba.flac"])
    for name in ("owner/classes", "owner/classes@main"):
        assert voxstill.classify(name, [audio / "ba.flac"]) == expected
    assert cli.main(["classify", "owner/none", str(audio)]) == 3
    assert "`owner/none` cannot be fetched from the Hugging Face Hub" in capsys.readouterr().err


def test_plain_transformers_gives_the_same_classes_and_embeddings(students: dict[str, Path], audio: Path) -> None:
    from transformers import AutoFeatureExtractor, AutoModelForAudioClassification, AutoModelForAudioXVector

    def plain(model_class: Any, kind: str) -> tuple[Any, Any]:
        folder = students[kind] / "model"
        inputs = AutoFeatureExtractor.from_pretrained(folder)(
            pcm.to_float(voiced(*WORDS[0], 0)), sampling_rate=16_000, return_tensors="pt"
        )
        model = model_class.from_pretrained(folder).eval()
        with torch.no_grad():
            return model.config, model(**inputs)

    [row] = voxstill.classify(students["wav2vec2 classes"], [audio / "ba.flac"]).results
    config, outputs = plain(AutoModelForAudioClassification, "wav2vec2 classes")
    chances = dict(zip(config.id2label.values(), outputs.logits.softmax(1)[0].tolist(), strict=True))
    assert {one.name: one.probability for one in row.classes} == pytest.approx(chances, abs=1e-4)
    [voice] = voxstill.embed(students["wav2vec2 speakers"], [audio / "ba.flac"]).embeddings
    _, outputs = plain(AutoModelForAudioXVector, "wav2vec2 speakers")
    expected = torch.nn.functional.normalize(outputs.embeddings, dim=1)[0].tolist()
    assert voice.embedding == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("task", ["classes", "speakers"])
def test_transformers_has_no_class_for_a_fast_conformer_and_says_so(students: dict[str, Path], task: str) -> None:
    from transformers import AutoModelForAudioClassification, AutoModelForAudioXVector

    plain = AutoModelForAudioClassification if task == "classes" else AutoModelForAudioXVector
    with pytest.raises(ValueError, match="ParakeetEncoderConfig"):
        plain.from_pretrained(students[task] / "model")
