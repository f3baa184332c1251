"""The line on recordings of real people, and on files that nobody should have to hear."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from voxstill.audio import codec
from voxstill.core import pcm
from voxstill.core.records import Label, Recording, Utterance
from voxstill.storage import tables
from voxstill.storage.store import Store

pytestmark = pytest.mark.slow
GRAMMAR = Path(__file__).parents[2] / "examples" / "digits.jsgf"
Data = Callable[[str], Path]
Command = Callable[..., dict[str, Any]]


def test_every_awkward_file_is_labelled_or_a_row_with_its_reason(
    shared_data: Data, voxstill: Command, tmp_path: Path
) -> None:
    source, work = shared_data("nasty-audio") / "files", tmp_path / "work"
    engine = ("--set", "engine={name: inline, chunk: 4, max_failed_share: 1.0}")
    teacher = ("--set", f"teacher={{name: pocketsphinx, grammar: '{GRAMMAR}'}}")
    indexed = voxstill("index", source, "--work", work, *engine)
    labelled = voxstill("label", work, *engine, *teacher)
    store = Store(str(work))
    recordings = list(tables.read(store, f"recordings/{indexed['recipe']}", Recording))
    utterances = list(tables.read(store, f"utterances/{indexed['recipe']}", Utterance))
    labels = list(tables.read(store, f"labels/{labelled['recipe']}", Label))
    assert sorted(recording.uri for recording in recordings) == sorted(map(str, source.iterdir()))
    damaged = [recording for recording in recordings if recording.error is not None]
    assert all(recording.duration_ms for recording in recordings if recording.error is None)
    assert indexed["damaged"] == len(damaged) == sum(indexed["reasons"].values())
    assert sorted(utterance.utterance_id for utterance in labels) == sorted(row.id for row in utterances)
    assert labelled["labels"] == indexed["utterances"] == len(utterances)
    assert labelled["quarantined"] == 0
    print(f"{len(recordings)} files, {len(damaged)} damaged {indexed['reasons']}, {len(labels)} labels")  # noqa: T201


def test_hebrew_yes_and_no_are_learnt_from_human_texts(shared_data: Data, voxstill: Command, tmp_path: Path) -> None:
    config = Path(__file__).parents[2] / "examples/yesno.yaml"
    here = {
        "source.uri": shared_data("yesno-hebrew") / "manifest.jsonl",
        "work": tmp_path / "work",
        "train.root": tmp_path / "exp",
        "train.max_minutes": "null",  # in which a busy machine would make fewer steps
        "train.steps": 140,
        "plan.budget_ms": 8000,  # two of the files, all of which are known after fewer than these steps
    }
    student = voxstill("run", config, *(f"--set={key}={value}" for key, value in here.items()))["student"]
    print(f"yesno: WER {student['wer']:.2%} on {student['path']}")  # noqa: T201
    assert student["wer"] <= 0.05  # docs/results/corpora.md has the figure of a machine with nothing else to do


def test_free_speech_gets_words_with_times_in_order(shared_data: Data, voxstill: Command, tmp_path: Path) -> None:
    files = sorted((shared_data("librispeech-unlabelled-30") / "audio").iterdir(), key=lambda file: file.stat().st_size)
    work = tmp_path / "work"
    voxstill("index", *files[:2], "--work", work, "--set", "engine=inline")
    labelled = voxstill("label", work, "--set", "engine=inline", "--set", "teacher=pocketsphinx")
    labels = list(tables.read(Store(str(work)), f"labels/{labelled['recipe']}", Label))
    assert len(labels) == 2
    for label in labels:
        assert label.error is None
        assert label.text
        assert [word.text for word in label.words] == label.text.split()
        assert all(word.start_ms < word.end_ms for word in label.words)
        assert all(before.end_ms <= after.start_ms for before, after in pairwise(label.words))
    longest_ms = max(pcm.samples_to_ms(len(codec.decode(file.read_bytes()).samples_T)) for file in files[:2])
    assert max(label.words[-1].end_ms for label in labels) <= longest_ms


def test_three_imperfect_teachers_agree_on_better_labels_than_the_best_of_them_has(
    shared_data: Data, voxstill: Command, tmp_path: Path
) -> None:
    folder, work = shared_data("fsdd"), tmp_path / "work"
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()][::30]
    source = tmp_path / "manifest.jsonl"
    source.write_text("".join(json.dumps(row | {"audio": str(folder / row["audio"])}) + "\n" for row in rows))
    inline = ("--set", "engine=inline")
    voxstill("index", source, "--work", work, *inline)
    common = f"name: pocketsphinx, grammar: '{GRAMMAR}'"
    dictionary = f"dictionary: '{GRAMMAR.parent / 'fsdd/digits.dict'}'"
    teachers = [
        f"{{{common}, {dictionary}, noise_floor_db: 40.0}}",
        f"{{{common}, {dictionary}, noise_floor_db: 30.0, pad_ms: 100}}",
        f"{{{common}, {dictionary}, noise_floor_db: 45.0, language_weight: 4.0}}",
    ]
    of = [voxstill("label", work, *inline, "--set", f"teacher={teacher}")["recipe"] for teacher in teachers]
    agreed = voxstill("label", work, *inline, "--set", f"teacher={{name: consensus, of: [{', '.join(of)}]}}")["recipe"]
    comparison = voxstill("compare-teachers", work, *of, agreed, *inline)
    *alone, together = (row["wer"] for row in comparison["teachers"])
    print(f"{len(rows)} digits: alone {[f'{rate:.1%}' for rate in alone]}, together {together:.1%}")  # noqa: T201
    assert together < min(alone)
