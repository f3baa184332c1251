"""Language-model weights tuned on the dev split: what is judged, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from judged import Run, corpus, experiment, texts_of_splits
from tones import TEXTS, speak
from voxstill import cli
from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.core.records import Verdict
from voxstill.evaluation import results
from voxstill.nn import students
from voxstill.nn.log_mel import LogMel
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.text import tokenizer
from voxstill.training.check import check

TUNED = "decode={beam: 4, lm: 'LM', lm_weight: 9.0, word_bonus: -5.0, tune: true}"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A language model that expects one word where several are said."""
    folder = tmp_path_factory.mktemp("lm")
    (folder / "texts.txt").write_text("ba\n" * 9 + "\n".join(TEXTS))
    assert cli.main(["train-lm", str(folder / "texts.txt"), "--output", str(folder / "words.arpa")]) == 0
    return str(folder / "words.arpa")


def test_the_judged_split_is_decoded_with_weights_tuned_on_dev(
    tone_student: Path, work: Path, words: str, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, work)
    by_hand = TUNED.replace("LM", words).replace(", tune: true", "")
    before = run("evaluate", exp, "--set", by_hand)
    assert "tuning" not in before
    [kept] = results.read_all(exp / "evaluation")

    figures = run("evaluate", exp, "--set", TUNED.replace("LM", words))
    tuning = figures["tuning"]
    assert (tuning["split"], tuning["references"], tuning["utterances"]) == ("dev", "human", 2)
    assert tuning["words"] == sum(len(text.split()) for text in TEXTS[:2])
    assert tuning["wer_before"] > tuning["wer_after"] == 0
    assert {name: figures["decode"][name] for name in ("lm_weight", "word_bonus")} == {
        name: tuning[name] for name in ("lm_weight", "word_bonus")
    }
    assert (figures["utterances"], figures["wer"]) == (len(TEXTS), 0)  # the dev split is not judged
    gain = tuning["gain"]
    assert gain["wer_before"] == before["wer"] > 0
    assert gain["difference"] == pytest.approx(figures["wer"] - before["wer"])
    assert gain["interval"][0] <= gain["difference"] <= gain["interval"][1]
    assert (gain["blocks"], gain["blocks_are"], gain["exact"]) == (len(TEXTS), "speakers", True)
    assert figures.keys() - {"tuning"} == before.keys()

    stored = results.read_all(exp / "evaluation")
    assert kept.path in [result.path for result in stored]
    [tuned] = [result for result in stored if result.path != kept.path]
    weights = f"lm_weight {tuning['lm_weight']}, word_bonus {tuning['word_bonus']}"
    assert results.decoding_in_full(tuned.figures) == f"beam-4-lm-tune, words.arpa, {weights}"
    compared = run("compare", kept.path, tuned.path)
    assert {name: compared[name] for name in gain if name != "wer_before"} == {
        name: gain[name] for name in gain if name != "wer_before"
    }

    assert cli.main(["evaluate", str(exp), "--set", TUNED.replace("LM", words)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tuning ")]
    assert "human texts of 2 utterances of dev" in line
    assert ", p = " in line


def test_an_experiment_that_is_tuned_finds_its_own_result(
    tone_student: Path, work: Path, words: str, tmp_path: Path, run: Run
) -> None:
    decode = {"beam": 4, "lm": words, "lm_weight": 9.0, "word_bonus": -5.0}
    exp = experiment(tmp_path / "exp", tone_student, work, decode={**decode, "tune": True})
    tuned = run("evaluate", exp)
    run("evaluate", exp, "--set", "decode.tune=false")
    own = results.own(results.read_all(exp / "evaluation"), config.load(str(exp / "config.yaml"), [], {}))
    assert [result.figures["decode"] for result in own if result.recogniser == results.STUDENT] == [tuned["decode"]]


def test_without_human_texts_the_kept_labels_tell_what_was_said(
    tone_student: Path, words: str, tmp_path: Path, run: Run
) -> None:
    dev = [{"id": f"d{i}", "text": None, "split": "dev", "samples": speak(text)[0]} for i, text in enumerate(TEXTS)]
    work = corpus(tmp_path / "corpus", [*texts_of_splits(num_dev=0), *dev])
    teacher = {"name": "transformers", "model": str(tone_student)}
    exp = experiment(tmp_path / "exp", tone_student, work, teacher=teacher, filter={"min_chars_per_s": 7.0})
    tune = ("evaluate", exp, "--set", TUNED.replace("LM", words))
    run("label", work, "--config", exp / "config.yaml")
    assert "nothing to tune weights on" in run(*tune, code=3)["error"]  # no filter has judged the labels
    run("filter", work, "--config", exp / "config.yaml")
    [prefix] = Path(work, "verdicts").iterdir()
    judged = tables.read(Store(str(work)), f"verdicts/{prefix.name}", Verdict)
    kept = [row.utterance_id for row in judged if row.kept and row.utterance_id.startswith("d")]
    assert 0 < len(kept) < len(TEXTS)
    tuning = run(*tune)["tuning"]
    assert (tuning["references"], tuning["utterances"]) == ("labels", len(kept))
    assert tuning["words"] == sum(len(TEXTS[int(id_[1:])].split()) for id_ in kept)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--on", "dev"), 2, "cannot be combined"),
        (("--set", "decode={tune: true}"), 2, "nothing to tune"),
        (("--set", "decode={tune: true}", "--set", "evaluate.lm_order=2"), 2, "`decode.lm` is not set"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    tone_student: Path,
    work: Path,
    words: str,
    tmp_path: Path,
    run: Run,
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, work)
    assert message in run("evaluate", exp, "--set", TUNED.replace("LM", words), *options, code=code)["error"]
    assert not results.read_all(exp / "evaluation")


def test_a_corpus_without_words_for_the_dev_split_is_a_data_error(
    tone_student: Path, words: str, tmp_path: Path, run: Run
) -> None:
    exp = experiment(tmp_path / "exp", tone_student, corpus(tmp_path / "corpus", texts_of_splits(num_dev=0)))
    error = run("evaluate", exp, "--set", TUNED.replace("LM", words), code=3)["error"]
    assert "nothing to tune weights on" in error
    assert "0 utterances" in error


def test_a_dev_split_that_cannot_be_read_is_a_data_error(
    tone_student: Path, words: str, tmp_path: Path, run: Run
) -> None:
    work = corpus(tmp_path / "corpus", texts_of_splits(num_dev=2))
    exp = experiment(tmp_path / "exp", tone_student, work)
    for path in (tmp_path / "corpus").glob("d*.flac"):
        path.unlink()
    error = run("evaluate", exp, "--set", TUNED.replace("LM", words), code=3)["error"]
    assert "2 utterances cannot be read, and the other 0 have none" in error


def test_transcribing_tunes_nothing(tone_student: Path, work: Path, words: str, run: Run) -> None:
    audio = next(work.parent.glob("*.flac"))
    error = run("transcribe", tone_student, audio, "--set", TUNED.replace("LM", words), code=2)["error"]
    assert "in transcription" in error


def test_a_transducer_is_refused(work: Path, words: str, tmp_path: Path, run: Run) -> None:
    vocabulary = tokenizer.train(TEXTS, "word", 9)
    students.build("tiny", len(vocabulary.pieces), dropout=0.0, seed=0, kind="rnnt").save_pretrained(tmp_path / "model")
    vocabulary.save(tmp_path / "model", LogMel().extractor, "rnnt")
    error = run("evaluate", tmp_path / "model", "--work", work, "--set", TUNED.replace("LM", words), code=2)["error"]
    assert "it is not a CTC model" in error


def test_a_training_of_what_cannot_be_tuned_does_not_begin(words: str) -> None:
    tuned = [TUNED.replace("LM", words), "train.steps=1"]
    check(config.load(None, tuned))
    with pytest.raises(ConfigError, match=r"weights are only tuned for CTC students"):
        check(config.load(None, [*tuned, "student.kind=rnnt"]))
