from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from voxstill.cli import main
from voxstill.core import config
from voxstill.core.errors import DataError
from voxstill.core.records import Label, Utterance
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import tune_filter
from voxstill.storage import corrections
from voxstill.storage.corrections import Correction, Judgement
from voxstill.storage.store import Store

from .test_prepare import corpus, settings_of, write_tables


def settings(folder: Path, **more: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings_of(str(folder / "work")) | more))
    return path


def test_thresholds_are_proposed_by_the_texts_of_the_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = settings(tmp_path)
    cfg = config.load(str(path))
    rows = corpus(200)
    write_tables(cfg, rows, 20)
    assert main(["filter", cfg.work, "--config", str(path), "--tune", "--json"]) == 0
    proposal = json.loads(capsys.readouterr().out)
    known = [utterance for utterance, label in rows if label is not None and utterance.text is not None]
    assert proposal["labels"] == len(known)
    assert not list((tmp_path / "work").glob("verdicts/*"))
    figures = filtering.filter_labels(cfg)
    assert proposal["as_set"]["wer"] is not None
    assert 0 < figures.kept <= 1
    assert main(["filter", cfg.work, "--config", str(path), "--tune"]) == 0
    assert "filter.keep_share" in capsys.readouterr().out


def test_texts_of_a_separate_file_count_too(tmp_path: Path) -> None:
    rows = corpus(100)
    references = {utterance.id: "turn on the light" for utterance, label in rows if label is not None}
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in references.items()))
    path = settings(tmp_path, evaluate={"texts": str(texts)})
    cfg = config.load(str(path))
    write_tables(cfg, rows, 20)
    assert tune_filter.tune(cfg).labels == len(references)


def test_without_any_human_text_there_is_nothing_to_tune_by(tmp_path: Path) -> None:
    cfg = config.load(str(settings(tmp_path)))
    write_tables(cfg, [(utterance, label) for utterance, label in corpus(60) if utterance.text is None], 20)
    with pytest.raises(DataError, match="no label can be compared with a human text"):
        tune_filter.tune(cfg)


def test_judgements_count_where_there_is_no_text(tmp_path: Path) -> None:
    rows = [(utterance, label) for utterance, label in corpus(60) if utterance.text is None and label is not None]
    (first, _), (second, _), (third, _), (fourth, _), *_ = rows
    labels = {utterance.id: label.text for utterance, label in rows if label is not None}
    cfg = config.load(str(settings(tmp_path)))
    write_tables(cfg, rows, 20)
    work = Store(cfg.work)

    def judge(utterance: Utterance, judgement: Judgement, label: str, text: str | None = None, audio: str = "") -> None:
        row = Correction(
            utterance_id=utterance.id,
            audio=audio or utterance.audio,
            judgement=judgement,
            label=label,
            text=text,
            time="2026",
            judge="ada",
        )
        corrections.append(work, [row])

    judge(first, "corrected", "whatever it was", "one two three four")
    judge(second, "wrong", labels[second.id])
    judge(third, "wrong", "another label than this one")
    judge(fourth, "right", labels[fourth.id], audio="0" * 16)
    tuned = tune_filter.tune(cfg)
    assert tuned.labels == 2
    assert tuned.words == 4 + max(1, len(labels[second.id].split()))


def test_a_share_that_equal_confidences_make_larger_is_a_warning_with_the_threshold_that_parts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = []
    for i in range(20):
        utterance = Utterance(id=f"u{i}", recording_id=f"r{i}", uri="", end_ms=1500, split="train", text="one two")
        logprob = 0.0 if i < 8 else math.log(2 / 3)
        label = Label(utterance_id=f"u{i}", recipe="", teacher="echo@1", text="one two", mean_logprob=logprob)
        rows.append((utterance, label))
    for share, warned in ((0.6, True), (0.4, False)):
        cfg = config.load(str(settings(tmp_path, filter={"keep_share": share})))
        if warned:
            write_tables(cfg, rows, 20)
        caplog.clear()
        assert filtering.filter_labels(cfg).kept == (1 if warned else 0.4)
        messages = [record.getMessage() for record in caplog.records if "keep_share" in record.getMessage()]
        assert len(messages) == warned
        if warned:
            assert "keeps 100.0 %" in messages[0]
            assert "12 of them have the confidence 0.667" in messages[0]
            assert "`filter.min_confidence=1.0` would keep 40.0 %" in messages[0]
