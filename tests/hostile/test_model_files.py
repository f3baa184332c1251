"""Files of a model that others have written are errors in words, whatever the libraries that read them raise."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import write_waveform_checkpoint, write_whisper_checkpoint
from voxstill.core.config import Config, Student
from voxstill.core.errors import DataError, first_line
from voxstill.nn import checkpoints
from voxstill.storage import checked_json
from voxstill.storage.rundir import RunDir
from voxstill.tasks import classification
from voxstill.text.pretrained import CheckpointVocabulary, WhisperTokenizer
from voxstill.text.tokenizer import Vocabulary

READERS: dict[str, Callable[[Path], object]] = {
    "whisper": lambda folder: WhisperTokenizer(str(folder), "en", 51_865),
    "ctc": lambda folder: CheckpointVocabulary(folder, 0, 6),
    "student": Vocabulary.load,
}
BPE = {"type": "BPE", "vocab": {}, "merges": []}
ODD = {
    "deep": 50_000 * "[",
    "long number": f'{{"model": {"9" * 5000}}}',
    "of another type": '{"version": "1.0", "added_tokens": "x", "model": []}',
    "no bytes": "",
    "no vocabulary": '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": "b"}, "merges": [1]}}',
    "unknown decoder": json.dumps({"version": "1.0", "added_tokens": [], "decoder": {"type": 1}, "model": BPE}),
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
@pytest.mark.parametrize("reader", READERS)
def test_a_broken_tokenizer_is_an_error_in_words(tmp_path: Path, reader: str, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(DataError) as caught:
        READERS[reader](tmp_path)
    assert caught.value.why


def test_the_tokenizer_of_another_model_is_none_of_whisper(tmp_path: Path) -> None:
    write_waveform_checkpoint(tmp_path, "Wav2Vec2")
    vocabulary = {"<unk>": 0, "a": 1, "b": 2}
    model = {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(DataError, match="contains no Whisper tokenizer"):
        WhisperTokenizer(str(tmp_path), "en", 51_865)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "config.json"])
@pytest.mark.parametrize(
    "content", ['"x"', "[]", 50_000 * "[", '{"unk_token": {"a": 1}, "vocab_size": [], "model_type": 3}']
)
def test_each_file_of_a_checkpoint_may_be_odd(tmp_path: Path, name: str, content: str) -> None:
    """It is refused, or what is in it is not read."""
    write_whisper_checkpoint(tmp_path, ["abc"])
    (tmp_path / name).write_text(content)
    for read in (checkpoints.load, READERS["whisper"], lambda folder: CheckpointVocabulary(folder, 0, 6)):
        with contextlib.suppress(DataError):
            read(tmp_path)


def test_classes_of_an_experiment_that_are_not_what_was_written_are_refused(tmp_path: Path) -> None:
    cfg = Config(student=Student(task="classes", target="dialect"))
    run, file = RunDir(tmp_path), tmp_path / "corpus" / "classes.json"
    file.parent.mkdir()
    for kept in (checked_json.encode({"classes": ["east", "west"]}), b'["east", "west"]'):  # today's and version 0.1's
        file.write_bytes(kept)
        assert classification.rebuild(cfg, run)[2].names == ["east", "west"]
    whole = checked_json.encode({"classes": ["east", "west"]})
    flipped = [bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]]) for at in range(len(whole))]
    for broken in (*flipped, b"", b"null", b"[" * 100_000, b'["a", 1]', b'{"classes": "ab"}', whole[:-1]):
        file.write_bytes(broken)
        with pytest.raises(DataError, match="contains no classes of a student"):
            classification.rebuild(cfg, run)
    file.unlink()
    with pytest.raises(DataError, match="contains no classes of a student"):
        classification.rebuild(cfg, run)


def test_an_error_without_words_is_named_by_its_kind() -> None:
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("a\nb")) == "a"
