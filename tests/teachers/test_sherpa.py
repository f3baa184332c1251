"""sherpa-onnx as a teacher: an exported student says there what it says here, of the right clip."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("sherpa_onnx")
pytest.importorskip("onnx")

from checkpoints import write_onnx
from tones import TEXTS, WORD_MS, speak
from voxstill.core.errors import ConfigError, TeacherError
from voxstill.core.records import UtteranceInfo
from voxstill.teachers.sherpa import Kind, SherpaOptions, SherpaTeacher, arguments
from voxstill.teachers.teacher import Clip


@pytest.fixture(scope="module")
def exported(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_onnx(tone_student, tmp_path_factory.mktemp("sherpa") / "model")


def opened(model: Path, **options: Any) -> SherpaTeacher:
    teacher = SherpaTeacher(SherpaOptions(model=str(model), **{"kind": "nemo_ctc", **options}))
    teacher.load()
    return teacher


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_every_clip_gets_its_own_text_in_order(exported: Path, spoken: list[Clip], batch_size: int) -> None:
    results = opened(exported, batch_size=batch_size).transcribe_batch(spoken)
    assert [result.text for result in results] == list(TEXTS)
    assert {result.error for result in results} == {None}
    assert [result.num_tokens for result in results] == [len(text.split()) for text in TEXTS]


def test_words_have_the_times_of_the_audio_and_no_confidence(exported: Path, spoken: list[Clip]) -> None:
    for i, (text, result) in enumerate(zip(TEXTS, opened(exported).transcribe_batch(spoken), strict=True)):
        assert [word.text for word in result.words] == text.split()
        for word, span in zip(result.words, speak(text, i)[1], strict=True):
            assert word.start_ms == pytest.approx(span.start_ms, abs=WORD_MS)
            assert word.start_ms < word.end_ms <= len(spoken[i].samples_T) // 16
            assert word.prob is None
        assert result.mean_logprob is None  # CTC gives none there


def test_clips_that_cannot_be_transcribed_are_errors_of_their_own(
    exported: Path, spoken: list[Clip], poisoned: list[Clip]
) -> None:
    results = opened(exported).transcribe_batch(poisoned)
    assert [results[0].text, results[-1].text] == list(TEXTS[:2])
    assert [result.error for result in results] == [
        None,
        "no audio",
        "no audio",
        None,
        None,
        None,
    ]  # 31 s are not too long
    assert opened(exported).transcribe_batch([]) == []
    assert np.array_equal(poisoned[0].samples_T, spoken[0].samples_T)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_model_gets_its_own_arguments(kind: Kind, tmp_path: Path) -> None:
    import sherpa_onnx

    for name in ("tokens.txt", "encoder-epoch-99.onnx", "decoder-epoch-99.onnx", "joiner.onnx", "model.onnx"):
        (tmp_path / name).touch()
    signature = inspect.signature(getattr(sherpa_onnx.OfflineRecognizer, f"from_{kind}"))
    signature.bind(**arguments(SherpaOptions(model=str(tmp_path), kind=kind), tmp_path, None))


def test_missing_or_damaged_files_are_errors(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model in") as caught:
        SherpaTeacher(SherpaOptions(model=str(tmp_path)))
    assert "tokens.txt" in caught.value.why
    with pytest.raises(ConfigError, match="is the encoder"):
        opened(exported, kind="transducer")
    with pytest.raises(ConfigError, match="is the model"):
        opened(exported, int8=True)


def test_a_damaged_file_is_an_error(exported: Path, tmp_path: Path) -> None:
    shutil.copy(exported / "tokens.txt", tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(TeacherError, match="cannot be loaded by sherpa-onnx"):
        opened(tmp_path)


def test_the_revision_is_of_the_package_and_the_files(exported: Path, tmp_path: Path) -> None:
    def revision(folder: Path) -> str:
        return SherpaTeacher(SherpaOptions(model=str(folder))).revision()

    other = tmp_path / "model"
    shutil.copytree(exported, other)
    assert revision(other) == revision(exported)
    (other / "tokens.txt").write_text("")
    assert revision(other) != revision(exported)


def write_sense_voice(folder: Path) -> Path:
    """A model in the form of a SenseVoice that writes nothing but the language that it was asked for."""
    import onnx
    import torch

    codes = ("auto", "zh", "en", "ja", "ko", "yue")

    class Net(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, x_length: torch.Tensor, language: torch.Tensor, text_norm: torch.Tensor
        ) -> torch.Tensor:
            of_language = torch.eye(16)[language + 1][:, None]
            tags = torch.eye(16)[7:10][None].expand(x.shape[0], -1, -1)
            text = torch.eye(16)[language + 10][:, None].expand(-1, x.shape[1], -1)
            unused = (x.sum() + x_length.sum() + text_norm.sum()) * 0
            return torch.cat([of_language, tags, text], 1) + unused

    folder.mkdir()
    torch.onnx.export(
        Net(),
        (torch.zeros(2, 9, 560), *(torch.tensor(pair, dtype=torch.int32) for pair in ((9, 9), (0, 1), (0, 0)))),
        str(folder / "model.onnx"),
        input_names=["x", "x_length", "language", "text_norm"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "N", 1: "T"}, **{name: {0: "N"} for name in ("x_length", "language", "text_norm")}},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(str(folder / "model.onnx"))
    metadata: dict[str, object] = {f"lang_{code}": i for i, code in enumerate(codes)}
    metadata |= {"model_type": "sense_voice_ctc", "vocab_size": 16, "normalize_samples": 0, "with_itn": 0}
    metadata |= {"lfr_window_size": 7, "lfr_window_shift": 6, "without_itn": 1}
    metadata |= {"neg_mean": ",".join(["0"] * 560), "inv_stddev": ",".join(["1"] * 560)}
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=str(value))
    onnx.save(model, str(folder / "model.onnx"))
    tokens = ["<blk>", *(f"<|{code}|>" for code in codes), "<|a|>", "<|b|>", "<|c|>", *(f"▁{code}" for code in codes)]
    (folder / "tokens.txt").write_text("".join(f"{token} {i}\n" for i, token in enumerate(tokens)), encoding="utf-8")
    return folder


def test_a_sense_voice_transcribes_each_clip_in_the_language_of_its_manifest(
    spoken: list[Clip], tmp_path: Path
) -> None:
    names = ("en-US", "japanese", None, "de", "zho", "en")
    clips = [
        Clip(utterance=replace(spoken[0].utterance, info=UtteranceInfo(language=name)), samples_T=spoken[0].samples_T)
        for name in names
    ]
    model = write_sense_voice(tmp_path / "model")

    def texts(**options: Any) -> list[str]:
        return [result.text for result in opened(model, kind="sense_voice", **options).transcribe_batch(clips)]

    assert texts() == ["en", "ja", "auto", "auto", "zh", "en"]
    assert texts(language="ko") == ["ko"] * len(clips)
    assert texts(language=None) == ["auto"] * len(clips)
