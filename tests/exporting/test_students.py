"""Exported students of every kind: onnxruntime computes what torch computes, whatever the runtime puts around it."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from checkpoints import write_overfitted_wav2vec2, write_whisper_checkpoint
from shared_folders import made_once
from small_students import Normalization, write_student
from tones import TEXTS, speak
from voxstill.core import pcm
from voxstill.core.config import Decode
from voxstill.core.errors import ConfigError, DataError
from voxstill.decoding import exported
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer
from voxstill.exporting import folder as folders
from voxstill.exporting import other_files, sherpa, student
from voxstill.nn import mel, students

SPOKEN = [speak(text, i)[0] for i, text in enumerate(TEXTS)]
KINDS: list[tuple[students.Kind, Normalization]] = [
    (kind, norm) for kind in ("ctc", "rnnt", "tdt") for norm in ("utterance", "level")
]


def exported_to(source: Path, target: Path) -> Path:
    target.mkdir()
    loaded = student.load(source)
    folders.write_models(loaded, source, target)
    folders.write_manifest(target, loaded, "small", "0", {})
    return target


def loaded(path: Path, decoding: Decode | None = None) -> Recognizer:
    recognizer = Recognizer(RecognizerOptions(model=str(path), dtype="float32"), decoding)
    recognizer.load()
    return recognizer


Pairs = Callable[[students.Kind, Normalization], tuple[Path, Path]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """The model folder of a student of any kind, and its export."""

    @functools.cache
    def pair(kind: students.Kind, normalization: Normalization) -> tuple[Path, Path]:
        place = tmp_path_factory.mktemp("student")
        source = write_student(place / "model", kind, normalization)
        return source, exported_to(source, place / "exported")

    return pair


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def pair(request: pytest.FixtureRequest, pairs: Pairs) -> tuple[Path, Path]:
    """The model folder of a student, and its export."""
    return pairs(*request.param)


def run(path: Path, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, inputs)
    return outputs


def test_it_writes_what_the_student_in_torch_writes(pair: tuple[Path, Path]) -> None:
    ours, theirs = (loaded(path).transcribe_batch(SPOKEN) for path in pair)
    assert [hypothesis.token_ids for hypothesis in ours] == [hypothesis.token_ids for hypothesis in theirs]
    assert any(hypothesis.text for hypothesis in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert [(word.text, word.start_ms, word.end_ms) for word in one.words] == [
            (word.text, word.start_ms, word.end_ms) for word in other.words
        ]
        assert other.score == pytest.approx(one.score, abs=1e-3)


def test_a_beam_writes_the_same_too(pair: tuple[Path, Path]) -> None:
    ours, theirs = (loaded(path, Decode(beam=4)).transcribe_batch(SPOKEN) for path in pair)
    assert [hypothesis.token_ids for hypothesis in ours] == [hypothesis.token_ids for hypothesis in theirs]


@pytest.mark.parametrize("gain", [0.02, 1.0, 5.0])
def test_from_samples_and_from_log_mels_are_the_same_at_any_level(pair: tuple[Path, Path], gain: float) -> None:
    _, target = pair
    model = exported.read(target)
    samples_T = np.clip(SPOKEN[0] * gain, -32768, 32767).astype(np.int16)
    wave_BT, length_B = pcm.to_float(samples_T)[None], np.array([len(samples_T)])
    inputs = onnx.load(str(target / model.main)).graph.input
    mel_FD = mel.log_mels(samples_T)
    from_mels = run(target / model.main, {inputs[0].name: mel_FD.T[None], "length": np.array([len(mel_FD)])})
    name = exported.CTC_SAMPLES if model.kind == "ctc" else exported.ENCODER_SAMPLES
    from_samples = run(target / name, {"samples": wave_BT, "length": length_B})
    np.testing.assert_allclose(from_samples[0], from_mels[0], atol=2e-2 if gain < 0.1 else 5e-3)
    assert from_samples[1].tolist() == [-(-len(mel_FD) // 8)]


def test_padding_of_any_value_changes_nothing(pair: tuple[Path, Path]) -> None:
    """sherpa-onnx pads with -23.03 after it has normalised."""
    _, target = pair
    model = exported.read(target)
    name = onnx.load(str(target / model.main)).graph.input[0].name
    mel_DF = mel.log_mels(SPOKEN[1]).T
    alone = run(target / model.main, {name: mel_DF[None], "length": np.array([mel_DF.shape[1]])})[0]
    padded_BDF = np.full((2, 80, 150), -23.03, np.float32)
    padded_BDF[0, :, : mel_DF.shape[1]] = mel_DF
    batch = run(target / model.main, {name: padded_BDF, "length": np.array([mel_DF.shape[1], 150])})[0]
    axis = 1 if model.kind == "ctc" else 2
    np.testing.assert_allclose(np.take(batch[:1], range(alone.shape[axis]), axis), alone, atol=1e-3)


def test_features_that_a_runtime_has_normalised_are_as_good_as_raw_ones(pair: tuple[Path, Path]) -> None:
    _, target = pair
    model = exported.read(target)
    if model.normalization == "level":
        pytest.skip("nobody normalises these")
    mel_FD = mel.log_mels(SPOKEN[0])
    normalised_FD = (mel_FD - mel_FD.mean(0)) / (mel_FD.std(0) + 1e-5)  # by the population, as sherpa-onnx does
    raw, normalised = (
        run(target / model.main, {"audio_signal": x_FD.T[None], "length": np.array([len(x_FD)])})[0]
        for x_FD in (mel_FD, normalised_FD)
    )
    np.testing.assert_allclose(normalised, raw, atol=5e-3)


def test_sherpa_onnx_takes_the_folder(pair: tuple[Path, Path]) -> None:
    pytest.importorskip("sherpa_onnx")
    _, target = pair
    model = exported.read(target)
    assert len(sherpa.transcribe(target, model, SPOKEN)) == len(SPOKEN)


def test_sherpa_onnx_streams_a_streaming_student(exported_streaming_tone_student: Path) -> None:
    pytest.importorskip("sherpa_onnx")
    model = exported.read(exported_streaming_tone_student)
    assert (model.main, model.chunks_ms) == ("encoder.560ms.onnx", [560, 160])
    assert sherpa.transcribe(exported_streaming_tone_student, model, SPOKEN) == list(TEXTS)


def test_only_a_streaming_student_is_exported_in_chunks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a streaming student"):
        student.load(write_student(tmp_path / "model", "rnnt", "level"), (560,))


def test_onnx_asr_takes_it_or_refuses_it_in_words(pair: tuple[Path, Path]) -> None:
    onnx_asr = pytest.importorskip("onnx_asr")
    _, target = pair
    model = exported.read(target)
    if model.normalization == "level":  # it would normalise each band
        with pytest.raises(ValueError, match=f"voxstill-{model.kind}"):
            onnx_asr.load_model("voxstill/student", str(target))
        return
    theirs = onnx_asr.load_model(f"nemo-conformer-{model.kind}", str(target), providers=["CPUExecutionProvider"])
    texts = [theirs.recognize(pcm.to_float(samples_T)).replace("<unk>", "") for samples_T in SPOKEN]
    assert [" ".join(text.split()) for text in texts] == [
        hypothesis.text for hypothesis in loaded(target).transcribe_batch(SPOKEN)
    ]


def test_the_metadata_are_those_without_which_sherpa_onnx_ends_its_process(pair: tuple[Path, Path]) -> None:
    _, target = pair
    model = exported.read(target)
    metadata = {entry.key: entry.value for entry in onnx.load(str(target / model.main)).metadata_props}
    symbols = (target / exported.TOKENS).read_text(encoding="utf-8").splitlines()
    assert symbols[model.blank_id] == f"<blk> {len(symbols) - 1}"
    assert metadata["vocab_size"] == str(len(symbols) - (model.kind != "ctc"))
    assert metadata["subsampling_factor"] == "8"
    assert metadata["normalize_type"] == ("" if model.normalization == "level" else "per_feature")


@pytest.mark.parametrize("name", ["model.onnx", "tokens.txt", "tokenizer.json", "export.json"])
@pytest.mark.parametrize("flip", [255, 1])
def test_a_damaged_file_is_an_error_that_names_it(pairs: Pairs, tmp_path: Path, name: str, flip: int) -> None:
    target = shutil.copytree(pairs("ctc", "level")[1], tmp_path / "exported")
    content = bytearray((target / name).read_bytes())
    content[len(content) // 2] ^= flip
    (target / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        loaded(target)


def test_a_wav2vec_2_takes_samples_with_the_blank_first(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    # the same as that of tests/teachers
    source = made_once(tmp_path_factory, "letters", lambda folder: write_overfitted_wav2vec2(folder, SPOKEN, TEXTS))
    target = exported_to(source, tmp_path / "exported")
    ours, theirs = loaded(source), loaded(target)
    assert [hypothesis.text for hypothesis in theirs.transcribe_batch(SPOKEN)] == [
        hypothesis.text for hypothesis in ours.transcribe_batch(SPOKEN)
    ]
    assert (exported.read(target).blank_id, theirs.vocabulary.pieces[0]) == (0, "")
    for one, other in zip(ours.align(SPOKEN, TEXTS), theirs.align(SPOKEN, TEXTS), strict=True):
        assert one.logprob is not None
        assert other.logprob == pytest.approx(one.logprob, abs=1e-3)
    [short] = theirs.transcribe_batch([SPOKEN[0][:200]])
    assert (short.text, short.error) == ("", None)
    if sherpa.is_installed():
        assert sherpa.transcribe(target, exported.read(target), SPOKEN) == [
            hypothesis.text for hypothesis in theirs.transcribe_batch(SPOKEN)
        ]


def test_an_encoder_decoder_is_refused_with_what_exports_it(tmp_path: Path) -> None:
    write_whisper_checkpoint(tmp_path, TEXTS)
    with pytest.raises(ConfigError) as error:
        student.load(tmp_path)
    assert "optimum" in error.value.fix


def test_the_manifest_has_the_checksum_of_every_file(pairs: Pairs, tmp_path: Path) -> None:
    target = shutil.copytree(pairs("ctc", "level")[1], tmp_path / "exported")
    model = exported.read(target)
    assert {*model.files, exported.MANIFEST} == {path.name for path in target.iterdir()}
    assert exported.faults(target, model) == {}
    (target / "vocab.txt").unlink()
    assert exported.faults(target, model) == {"vocab.txt": "it is missing"}
    assert json.loads((target / "config.json").read_text())["model_type"] == "voxstill-ctc"


@pytest.mark.parametrize("kind", ["ctc", "rnnt"])
def test_files_for_other_programs_are_compared_too(pairs: Pairs, tmp_path: Path, kind: students.Kind) -> None:
    target = shutil.copytree(pairs(kind, "utterance")[1], tmp_path / "exported")
    other_files.check(target, exported.read(target), SPOKEN)
    name = "model.samples.onnx" if kind == "ctc" else "decoder_joint-model.onnx"
    graph = onnx.load(str(target / name))
    weights = max(graph.graph.initializer, key=lambda weight: len(weight.raw_data))
    values = onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array((1.5 * values).astype(values.dtype), weights.name))
    onnx.save(graph, str(target / name))
    model = exported.read(target)
    model = dataclasses.replace(model, files={**model.files, name: exported.digest(target / name)})
    with pytest.raises(DataError, match=f"`{name}` does not compute the same"):
        other_files.check(target, model, SPOKEN)
