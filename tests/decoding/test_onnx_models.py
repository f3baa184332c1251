"""An exported student as a recogniser: the same answers, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tones import TEXTS, speak
from voxstill.audio import codec
from voxstill.core.config import Decode
from voxstill.core.errors import ConfigError
from voxstill.decoding.options import RecognizerOptions
from voxstill.decoding.recognizer import Recognizer

SPOKEN = [speak(text, i)[0] for i, text in enumerate(TEXTS)]
GRAMMAR = "#JSGF V1.0;\ngrammar tones;\npublic <s> = ba du ko | mi ba | ko du mi ba | du mi ko;\n"


@pytest.fixture(scope="module")
def target(exported_tone_student: Path) -> Path:
    return exported_tone_student


def opened(path: Path, decoding: Decode | None = None, **options: object) -> Recognizer:
    recognizer = Recognizer(RecognizerOptions(model=str(path), **options), decoding)  # type: ignore[arg-type]
    recognizer.load()
    return recognizer


@pytest.mark.parametrize(
    "options",
    [{}, {"beam": 8}, {"beam": 8, "boost": ["ba du"], "boost_weight": 0.5}, {"blank_penalty": 2.0}, {"grammar": "g"}],
    ids=str,
)
def test_every_way_to_decode_gives_the_answers_of_torch(
    tone_student: Path, target: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    if "grammar" in options:
        (tmp_path / "g.jsgf").write_text(GRAMMAR)
        options = {"grammar": str(tmp_path / "g.jsgf")}
    decoding = Decode.model_validate(options)
    ours, theirs = (opened(path, decoding).transcribe_batch(SPOKEN) for path in (tone_student, target))
    assert [hypothesis.text for hypothesis in theirs] == list(TEXTS)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token_ids, one.id) == (other.token_ids, other.id)
        assert [(word.start_ms, word.end_ms) for word in one.words] == [(w.start_ms, w.end_ms) for w in other.words]
        assert other.score == pytest.approx(one.score, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"beam": 8, "boost": ["ba du"]}], ids=str)
def test_phrases_of_a_call_give_the_answers_of_torch(
    tone_student: Path, target: Path, options: dict[str, object]
) -> None:
    decoding = Decode.model_validate({"boost_weight": 30.0} | options)
    phrases = ["mi mi", "ba"]
    ours, theirs = (opened(path, decoding).transcribe_batch(SPOKEN, phrases=phrases) for path in (tone_student, target))
    assert [hypothesis.text for hypothesis in theirs] == [hypothesis.text for hypothesis in ours] != list(TEXTS)


def test_along_a_grammar_there_are_no_phrases(target: Path, tmp_path: Path) -> None:
    (tmp_path / "g.jsgf").write_text(GRAMMAR)
    assert opened(target).takes_phrases
    assert not opened(target, Decode(grammar=str(tmp_path / "g.jsgf"))).takes_phrases


def test_log_probabilities_and_alignments_are_those_of_torch(tone_student: Path, target: Path) -> None:
    ours, theirs = opened(tone_student), opened(target)
    for penalty in (0.0, 1.5):
        for one_FV, other_FV in zip(ours.log_probs(SPOKEN, penalty), theirs.log_probs(SPOKEN, penalty), strict=True):
            np.testing.assert_allclose(other_FV, one_FV, atol=1e-3)
    with_words = [True] * len(TEXTS)
    for one, other in zip(ours.align(SPOKEN, TEXTS, with_words), theirs.align(SPOKEN, TEXTS, with_words), strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-3)
        assert one.words == other.words
    assert theirs.align(SPOKEN[:1], ["never heard"])[0].logprob is None
    assert (theirs.frame_ms, theirs.vocabulary.pieces) == (ours.frame_ms, ours.vocabulary.pieces)
    assert theirs.num_parameters == ours.num_parameters


def test_a_clip_too_short_to_transcribe_is_an_error_row_among_the_others(target: Path) -> None:
    hypotheses = opened(target).transcribe_batch([SPOKEN[0], np.zeros(0, np.int16), np.ones(159, np.int16), SPOKEN[1]])
    assert [hypothesis.text for hypothesis in hypotheses] == [TEXTS[0], "", "", TEXTS[1]]
    assert [hypothesis.error is None for hypothesis in hypotheses] == [True, False, False, True]


def test_transcribe_and_its_imports_load_no_torch(target: Path, tmp_path: Path) -> None:
    (tmp_path / "speech.wav").write_bytes(codec.encode(SPOKEN[0], "wav"))
    code = (
        "import sys\nfrom voxstill import cli\n"
        f"code = cli.main(['transcribe', {str(target)!r}, {str(tmp_path / 'speech.wav')!r}])\n"
        "heavy = {'torch', 'transformers', 'numba', 'ray'} & set(sys.modules)\n"
        "sys.exit(code or f'loaded: {heavy}' if heavy else code)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout.strip()) == (0, TEXTS[0]), process.stderr


def test_the_name_of_its_labels_follows_from_what_it_computes(target: Path) -> None:
    assert Recognizer(RecognizerOptions(model=str(target))).revision() == opened(target).revision()


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"language": "en"}, {"num_beams": 2}], ids=str)
def test_options_without_a_use_are_refused(target: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="has no effect"):
        opened(target, **options)


def test_a_file_that_is_no_model_is_refused_with_those_that_are(target: Path) -> None:
    with pytest.raises(ConfigError) as error:
        opened(target / "model.samples.onnx")
    assert error.value.why.endswith("are: model.onnx")
