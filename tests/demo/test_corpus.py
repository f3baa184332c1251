import json
from pathlib import Path

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.core.config import Demo
from voxstill.demo import corpus
from voxstill.synthesis.voices import ACCENTS
from voxstill.text import jsgf

SMALL = Demo(train_utterances=12, dev_utterances=6, test_utterances=6)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def manifest_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.make(tmp_path_factory.mktemp("corpus"), SMALL, seed=3)


def test_equal_seeds_give_equal_bytes(manifest_path: Path, tmp_path: Path) -> None:
    corpus.make(tmp_path, SMALL, seed=3)
    files = sorted(path.relative_to(manifest_path.parent) for path in manifest_path.parent.rglob("*.*"))
    assert len(files) >= 26
    assert all((manifest_path.parent / file).read_bytes() == (tmp_path / file).read_bytes() for file in files)


def test_the_manifest_keeps_the_texts_to_itself(manifest_path: Path) -> None:
    manifest, texts = rows(manifest_path), rows(manifest_path.parent / "texts.jsonl")
    assert all("text" not in row for row in manifest)
    assert [row["id"] for row in manifest] == [row["id"] for row in texts]
    assert all(row["text"] for row in texts)


def test_every_file_of_the_manifest_is_there_and_holds_a_second_or_more(manifest_path: Path) -> None:
    for row in rows(manifest_path):
        samples_T = codec.decode((manifest_path.parent / row["audio"]).read_bytes()).samples_T
        assert 0.5 < len(samples_T) / 16_000 < 8
        assert np.abs(samples_T).max() < 32767


def test_no_voice_is_in_two_splits() -> None:
    splits: dict[str, set[str]] = {}
    for command in corpus.draw(Demo(), seed=0):
        splits.setdefault(command.variant, set()).add(command.split)
    assert all(len(voice_splits) == 1 for voice_splits in splits.values())
    assert sum("test" in voice_splits for voice_splits in splits.values()) >= 6
    assert len(splits) >= 24


def test_every_accent_comes_with_every_noise_level_about_as_often() -> None:
    commands = [command for command in corpus.draw(Demo(), seed=0) if command.split == "train"]
    for accent in ACCENTS:
        for dataset in corpus.SNRS_DB:
            share = sum(command.accent == accent and command.dataset == dataset for command in commands) / len(commands)
            assert share == pytest.approx(1 / 20, rel=0.25)


def test_a_larger_corpus_begins_with_the_smaller_one() -> None:
    larger = SMALL.model_copy(update={"train_utterances": 50})
    assert corpus.draw(larger, seed=1)[:12] == corpus.draw(SMALL, seed=1)[:12]


def test_noise_is_as_loud_as_its_name_says() -> None:
    rng = np.random.default_rng(0)
    babble = [rng.integers(-9000, 9000, 20_000).astype(np.int16) for _ in range(8)]
    speech_T = (8000 * np.sin(np.arange(16_000))).astype(np.int16)
    for command in corpus.draw(SMALL, seed=0)[:12]:
        quiet = corpus.mix(_with(command, "clean"), speech_T, babble).astype(float)
        for dataset, snr_db in corpus.SNRS_DB.items():
            noise = corpus.mix(_with(command, dataset), speech_T, babble) - quiet
            spoken = quiet[np.abs(quiet) > 0]
            if snr_db is not None:
                assert 10 * np.log10(np.mean(spoken**2) / np.mean(noise**2)) == pytest.approx(snr_db, abs=0.2)


def _with(command: corpus.Command, dataset: str) -> corpus.Command:
    import dataclasses

    return dataclasses.replace(command, dataset=dataset)


def test_the_grammar_has_some_fifty_words() -> None:
    text = (Path(corpus.__file__).parent / "commands.jsgf").read_text()
    assert 45 <= len(jsgf.parse(text).words()) <= 60
