"""The teacher `corrected`: its labels are what people judged, and its recipe changes with every judgement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import DataError, TeacherError
from voxstill.core.records import Label, Utterance
from voxstill.labelling import label
from voxstill.labelling.transcribe import Transcribe
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.storage import corrections, tables, workdir
from voxstill.storage.corrections import Correction
from voxstill.storage.store import Store

NUM = 12


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    """A corpus without human texts, labelled by a teacher."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUM):
        soundfile.write(tmp_path / f"{number}.wav", rng.normal(0, 900, 9_000 + number).astype(np.int16), 16_000)
        rows.append({"audio": f"{number}.wav", "id": f"u{number}", "text": f"one two three {number}"})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = Config.model_validate(
        {
            "work": str(tmp_path / "work"),
            "source": {"uri": str(tmp_path / "manifest.jsonl")},
            "engine": {"name": "inline", "chunk": 5},
            "teacher": {"name": "echo", "substitute": 0.4},
        }
    )
    indexing.index(cfg)
    labelling.label_utterances(cfg)
    return cfg


def labels_of(cfg: Config) -> dict[str, Label]:
    figures = labelling.label_utterances(cfg)
    rows = tables.read(Store(cfg.work), workdir.prefix("labels", figures.recipe), Label)
    return {row.utterance_id: row for row in rows}


def judge(cfg: Config, id_: str, judgement: str, text: str | None = None, label: str | None = None) -> None:
    work = Store(cfg.work)
    [recipe] = workdir.finished_recipes(work, "utterances")
    [utterance] = [row for row in tables.read(work, f"utterances/{recipe}", Utterance) if row.id == id_]
    if label is None:
        label = labels_of(cfg)[id_].text
    row = Correction(
        utterance_id=id_,
        audio=utterance.audio,
        judgement=judgement,  # type: ignore[arg-type]
        label=label,
        text=text,
        time=f"2026-01-01T{len(tables.parts(work, corrections.PREFIX)):06}",
        judge="ada",
    )
    corrections.append(work, [row])


def corrected(cfg: Config, *more: str) -> Config:
    return config.changed(cfg, f"teacher={{name: corrected, work: {cfg.work}{''.join(f', {one}' for one in more)}}}")


def test_what_was_judged_is_learnt_and_the_rest_is_that_of_another_teacher(cfg: Config) -> None:
    echo = labels_of(cfg)
    judge(cfg, "u1", "right")
    judge(cfg, "u2", "wrong")
    judge(cfg, "u3", "corrected", "what was said")
    judge(cfg, "u4", "wrong")
    judge(cfg, "u4", "withdrawn")
    alone = labels_of(corrected(cfg))
    assert {id_: row.text for id_, row in alone.items() if row.error is None} == {
        "u1": echo["u1"].text,
        "u3": "what was said",
    }
    assert alone["u2"].error == "judged wrong, and nobody wrote what was said"
    assert alone["u4"].error == "nobody has judged it"
    whole = labels_of(corrected(cfg, f"of: {echo['u1'].recipe}"))
    assert {id_: row.text for id_, row in whole.items() if row.error is None} == {
        **{id_: row.text for id_, row in echo.items() if id_ != "u2"},
        "u3": "what was said",
    }
    assert whole["u1"].words == echo["u1"].words
    assert whole["u5"].mean_logprob == echo["u5"].mean_logprob
    assert whole["u1"].mean_logprob is None


def test_another_judgement_is_another_recipe(cfg: Config) -> None:
    judge(cfg, "u1", "right")
    first = labelling.label_utterances(corrected(cfg)).recipe
    assert labelling.label_utterances(corrected(cfg)).recipe == first
    judge(cfg, "u2", "right")
    assert labelling.label_utterances(corrected(cfg)).recipe != first


def test_without_judgements_there_is_nothing_to_learn(cfg: Config) -> None:
    with pytest.raises(TeacherError, match="has no judgements"):
        labelling.label_utterances(corrected(cfg))


def test_a_judgement_of_other_audio_is_not_taken(cfg: Config) -> None:
    judge(cfg, "u1", "right")
    judge(cfg, "u2", "right")
    work = Store(cfg.work)
    row = corrections.latest(work)["u1"]
    corrections.append(work, [Correction(**{**tables.to_columns(row), "audio": "0" * 16, "time": "2027"})])  # type: ignore[arg-type]
    assert labels_of(corrected(cfg))["u1"].error == "nobody has judged it"


def test_labels_have_no_judgement_that_came_after_they_were_named(cfg: Config) -> None:
    judge(cfg, "u1", "right")
    task = label.task(corrected(cfg).teacher)
    Transcribe(task).open()
    judge(cfg, "u2", "right")
    with pytest.raises(TeacherError, match="changed while labelling started"):
        Transcribe(task).open()


def test_what_nobody_has_judged_is_no_failure(cfg: Config) -> None:
    judge(cfg, "u1", "right")
    judge(cfg, "u2", "wrong")
    figures = labelling.label_utterances(corrected(cfg))
    assert (figures.labels, figures.failed, figures.unjudged, figures.exit_code) == (NUM, 0, NUM - 1, 0)


def test_a_label_that_was_judged_wrong_says_nothing_of_another_teachers(cfg: Config) -> None:
    judge(cfg, "u1", "wrong", label="of another teacher")
    echo = labels_of(cfg)
    assert labels_of(corrected(cfg, f"of: {echo['u1'].recipe}"))["u1"].text == echo["u1"].text


def test_where_all_judgements_were_taken_back_the_labels_are_those_of_the_other_teacher(cfg: Config) -> None:
    echo = labels_of(cfg)
    judge(cfg, "u1", "corrected", "what was said")
    judge(cfg, "u1", "withdrawn")
    labels = labels_of(corrected(cfg, f"of: {echo['u1'].recipe}"))
    assert {id_: row.text for id_, row in labels.items()} == {id_: row.text for id_, row in echo.items()}


def test_labels_of_older_judgements_are_not_taken_for_those_of_today(cfg: Config) -> None:
    judge(cfg, "u1", "corrected", "what was said")
    labels_of(corrected(cfg))
    judge(cfg, "u1", "withdrawn")
    judge(cfg, "u2", "right")
    with pytest.raises(DataError, match="label"):
        filtering.filter_labels(corrected(cfg))
