"""Values of another type than a format has, and numbers that no machine holds, are errors in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from manifests import refused, wav
from voxstill.core import config
from voxstill.core.errors import ConfigError, DataError
from voxstill.evaluation import recognition
from voxstill.storage import control
from voxstill.storage.store import Store
from voxstill.text import kneser_ney, lm, normalize, transcripts

LONG = "9" * 5000
HALF = r'{"id": "b", "text": "\ud83d"}'
PAIR = r'{"id": "a", "text": "\ud83d\ude00"}'
CUT = {
    "id": "c",
    "start": 0.0,
    "duration": 0.2,
    "channel": 0,
    "type": "MonoCut",
    "supervisions": [{"text": "a", "speaker": "x", "start": 0.0, "duration": 0.2}],
    "recording": {"sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "duration": 0.2},
}


@pytest.mark.parametrize("weights", ["{a: .nan}", "{a: 1, b: -.inf}", "{a: [1]}", "{.nan: 1}", "{1: 1}", "3"])
def test_a_weight_that_is_none_is_named_with_what_to_write(weights: str) -> None:
    with pytest.raises(ConfigError, match=r"option `plan\.weights(\.[ab])?` cannot be") as caught:
        config.load(None, [f"plan.weights={weights}"])
    assert caught.value.fix == "give mapping of text to number, in share"


@pytest.mark.parametrize("value", ["!!int x", "!!float x", "!!bool x", "2001-13-45", "!!binary x", LONG, "!!set [a]"])
def test_a_value_that_yaml_cannot_make_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "c.yaml").write_text(f"teacher: {{name: {value}}}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(str(tmp_path / "c.yaml"))
    assert len(str(caught.value)) < 1000
    with pytest.raises(ConfigError) as caught:
        config.load(None, [f"teacher.name={value}"])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "change",
    [
        {"recording": {"sources": 1.5}},
        {"recording": {"sources": [{"type": "file", "channels": 2, "source": "a.wav"}]}},
        {"supervisions": [{"start": "x"}, {"start": 1}]},
        {"supervisions": [{"text": "a", "speaker": {}}]},
    ],
)
def test_an_odd_cut_is_named_by_its_line(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "m.jsonl").write_text(json.dumps({**CUT, **change}) + "\n")
    assert "m.jsonl:1" in refused(tmp_path / "m.jsonl").what


@pytest.mark.parametrize(
    "content", [b"{", b"\xff", b"[1]", b'{"a": 1}', b"[" * 100_000, b'{"a": ' + LONG.encode() + b"}"]
)
def test_spellings_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "n.json").write_bytes(content)
    with pytest.raises(ConfigError, match="contains no spellings"):
        normalize.normalizer(f"whisper:{tmp_path}/n.json", "en")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"id": 1}', '{"id": [], "text": ""}', f'{{"id": {LONG}}}', 9000 * "[", HALF]
)
def test_texts_that_are_none_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "texts.jsonl").write_text(f'{{"id": "a", "text": "yes"}}\n{line}\n')
    with pytest.raises(DataError) as caught:
        recognition.hidden_texts(config.load(None, [f"evaluate.texts={tmp_path}/texts.jsonl"]))
    assert "texts.jsonl:2" in caught.value.what
    with pytest.raises(DataError):
        transcripts.read(str(tmp_path / "texts.jsonl"))


def test_two_texts_of_one_utterance_are_refused_and_one_text_twice_is_not(tmp_path: Path) -> None:
    lines = [PAIR, '{"id": "b", "text": "no"}', PAIR]
    cfg = config.load(None, [f"evaluate.texts={tmp_path}/texts.jsonl"])
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    assert recognition.hidden_texts(cfg) == {"a": "\U0001f600", "b": "no"}
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, '{"id": "b", "text": "yes"}']))
    with pytest.raises(DataError, match="has the id `b` twice"):
        recognition.hidden_texts(cfg)


@pytest.mark.parametrize("content", ["{", "[]", "1", f'{{"a": {LONG}}}', 100_000 * "[", "\ud800"])
def test_a_note_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / control.REQUEST).write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match="not a JSON object"):
        control.requested(Store(str(tmp_path)))


def test_lines_of_kaldi_with_odd_spaces_are_named(tmp_path: Path) -> None:
    """What is a space to text is none to bytes."""
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "wav.scp").write_text("u1 a.wav\n")
    (tmp_path / "utt2spk").write_text("u1 anna\n\x1c\n\x1c\n")
    assert "twice" in refused(tmp_path).what


def test_a_word_of_more_digits_than_python_reads_is_normalized() -> None:
    """A teacher may hear it; the rules of Whisper read numbers."""
    assert normalize.normalizer("whisper", "en")(f"It is, {LONG}!") == f"it is {LONG}"


@pytest.mark.parametrize("weight", ["nan", "inf", "-inf", "1e308", "-1e308", "0.1", "9" * 400])
def test_no_log_probability_of_a_language_model_is_above_0_or_infinite(tmp_path: Path, weight: str) -> None:
    arpa = "\n".join(kneser_ney.arpa(["a b", "b a"], 2))
    lines = arpa.split("\n")
    at = next(i for i, line in enumerate(lines) if line.endswith("\ta b"))
    odd = "\n".join([*lines[:at], f"{weight}\ta b", *lines[at + 1 :]])
    (tmp_path / "odd.arpa").write_text(odd)
    with pytest.raises(DataError, match="is not a language model"):
        lm.read(str(tmp_path / "odd.arpa"))
    if weight == "0.1":  # of a back-off weight nothing is wrong
        return
    at = next(i for i, line in enumerate(lines) if "\ta\t" in line)
    odd = "\n".join([*lines[:at], f"{lines[at].rpartition(chr(9))[0]}\t{weight}", *lines[at + 1 :]])
    (tmp_path / "odd.arpa").write_text(odd)
    with pytest.raises(DataError, match="is not a language model"):
        lm.read(str(tmp_path / "odd.arpa"))


@pytest.mark.parametrize("size", ["-4", LONG, "9" * 19, "x", "", "1.5"])
def test_a_number_of_ngrams_that_is_none_is_named(tmp_path: Path, size: str) -> None:
    arpa = "\n".join(kneser_ney.arpa(["a b"], 1))
    (tmp_path / "odd.arpa").write_text(re.sub("(ngram 1=).*", rf"\g<1>{size}", arpa))
    with pytest.raises(DataError) as caught:
        lm.read(str(tmp_path / "odd.arpa"))
    assert "does not have the number of n-grams" in caught.value.why
