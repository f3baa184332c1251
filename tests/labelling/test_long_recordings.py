"""Long recordings: chunks bounded by audio, each recording decoded as seldom as can be, works begun with other cuts."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from manifests import wav
from voxstill import engine
from voxstill.audio import codec, read_utterances
from voxstill.core.config import Config, Engine, Teacher
from voxstill.core.errors import ConfigError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label, Recording, Utterance
from voxstill.indexing.audio_estimate import estimated_ms
from voxstill.indexing.formats.entry import SourceEntry
from voxstill.indexing.scan import SourceFile
from voxstill.labelling import label
from voxstill.pipeline import index as indexing
from voxstill.storage import join, tables
from voxstill.storage.figures import LabelFigures
from voxstill.storage.parts import AGREED, Part, hold
from voxstill.storage.store import Store

UTTERANCES = "utterances/test"
TASK = label.task(Teacher(name="echo"))


def recordings(folder: Path, lengths: Sequence[int]) -> list[Utterance]:
    """Recordings of so many utterances of 100 ms."""
    rows = []
    for number, num in enumerate(lengths):
        path = folder / f"{number}.wav"
        path.write_bytes(wav(300, 0.1 * num))
        rows += [
            Utterance(
                id=f"r{number}-{i}",
                recording_id=f"r{number}",
                uri=str(path),
                start_ms=100 * i,
                end_ms=100 * (i + 1),
                text=f"{number} {i}",
            )
            for i in range(num)
        ]
    return rows


def work_of(folder: Path, rows: Sequence[Utterance]) -> Store:
    work = Store(str(folder / "work"))
    work.create(f"{UTTERANCES}/0.parquet", tables.to_parquet(rows, Utterance))
    return work


def run(work: Store, **options: Any) -> LabelFigures:
    cfg = Engine(name="inline", **options)
    with StepMeter("label", None, "utterances") as meter:
        return label.label(work, UTTERANCES, TASK, cfg, read_utterances.reading(Config()), meter)


def num_decodes(chunks: Sequence[Sequence[Utterance]]) -> Counter[bytes]:
    """How often each recording is decoded where the chunks are worked on one after the other."""
    decodes: Counter[bytes] = Counter()

    def counted(data: bytes, **options: Any) -> codec.Audio:
        decodes[data] += 1
        return codec.decode(data, **options)

    for rows in chunks:
        list(read_utterances.samples(rows, decode=counted))
    return decodes


def test_a_recording_that_fits_into_a_chunk_is_decoded_once(tmp_path: Path) -> None:
    rows = recordings(tmp_path, [3, 4, 5, 2, 9])
    work = work_of(tmp_path, rows)
    chunks = [chunk.items for chunk in label.plan(work, UTTERANCES, "labels/none", Engine(chunk=5))]
    assert [row for chunk in chunks for row in chunk] == rows
    assert sorted(num_decodes(chunks).values()) == [1, 1, 1, 1, 2]  # the last one has more utterances than a chunk
    by_number = [rows[start : start + 5] for start in range(0, len(rows), 5)]
    assert sum(num_decodes(by_number).values()) == 9  # as chunks were cut before


def test_a_chunk_of_short_stretches_does_not_hold_their_long_recordings(tmp_path: Path) -> None:
    rows = []
    for number in range(20):
        path = tmp_path / f"{number}.wav"
        path.write_bytes(wav(300, 20))
        rows.append(Utterance(id=str(number), recording_id=f"r{number}", uri=str(path), start_ms=500, end_ms=600))
    work = read_utterances.Decode(read_utterances.reading(Config()))
    work.open()
    tracemalloc.start()
    decoded = work(rows, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    work.close()
    assert len(decoded.samples_T) == 20 * 1600
    assert peak < 5 * 20 * 32_000  # two copies of a file and of its samples, not those of all files


def test_chunks_of_labels_are_bounded_by_audio(tmp_path: Path) -> None:
    work = work_of(tmp_path, recordings(tmp_path, [1] * 10))
    assert run(work, chunk_hours=0.3 / 3600).finished
    counts = [len(tables.from_parquet(work.read(key), Label)) for key in tables.parts(work, TASK.prefix)]
    assert sorted(counts) == [1, 3, 3, 3]


@pytest.mark.parametrize("options", [{"chunk": 4}, {"chunk": 4, "chunk_hours": 0.2 / 3600}])
def test_a_work_that_was_begun_with_another_cut_is_finished_and_read(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = recordings(tmp_path, [3, 3, 3, 3])
    work = work_of(tmp_path, rows)
    begun = list(engine.chunks_of(rows, 4, lambda row: row.id))[:2]  # by number alone, within recordings
    for chunk in begun:
        labels = [Label(utterance_id=row.id, recipe=TASK.recipe, teacher="echo", text="then") for row in chunk.items]
        work.create(f"{TASK.prefix}/{chunk.id}.parquet", tables.to_parquet(labels, Label))
    figures = run(work, **options)
    assert (figures.labels, figures.finished) == (len(rows), True)
    texts = {row.utterance_id: row.text for row in tables.read(work, TASK.prefix, Label)}
    assert [texts[row.id] for row in rows] == ["then"] * 8 + [row.text for row in rows[8:]]
    (part,) = join.parts(work, UTTERANCES, TASK.prefix, Engine(**options))
    assert sorted(part.labels) == tables.parts(work, TASK.prefix)
    assert run(work, **options) == figures


def test_parts_begun_by_an_earlier_version_go_on_and_one_with_other_hours_is_refused(tmp_path: Path) -> None:
    work = Store(str(tmp_path))
    work.write_json(f"labels/x/{AGREED}", {"parts": 2, "chunk": 256})
    with hold(work, "labels/x", "label", Part(1, 2), Engine()):
        pass
    with (
        pytest.raises(ConfigError, match=r"chunks of 256 utterances and 4 h") as caught,
        hold(work, "labels/x", "label", Part(2, 2), Engine(chunk_hours=1.0)),
    ):
        pass
    assert "engine.chunk_hours=4" in caught.value.fix


def test_chunks_of_files_are_bounded_by_their_estimated_audio(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    for number in range(7):
        (tmp_path / f"audio/{number}.wav").write_bytes(wav(300, 0.5))  # taken for 2 s, as if it were of a telephone
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"uri": str(tmp_path / "audio")},
        "engine": {"name": "inline", "chunk_hours": 4.2 / 3600},
    }
    figures = indexing.index(Config.model_validate(tree))
    assert figures.recordings == 7
    work = Store(str(tmp_path / "work"))
    counts = [len(tables.from_parquet(work.read(key), Recording)) for key in tables.parts(work, "recordings")]
    assert sorted(counts) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("entry", "seconds"),
    [
        (SourceEntry(uri="a.flac", num_bytes=20_000_000), 2500),  # 16 minutes at 16 kHz
        (SourceEntry(uri="s3://b/a.opus", num_bytes=4_000_000), 1000),
        (SourceEntry(uri="t.tar#512+8000", num_bytes=10**9), 2),
        (SourceEntry(uri="a.wav", num_bytes=10**9, duration_ms=5000), 5),
        (SourceEntry(uri="s3://b/a.mp3", start_ms=1000, end_ms=9000), 9),
        (SourceEntry(uri="s3://b/a.mp3"), 0),
    ],
)
def test_the_audio_of_a_file_is_estimated_by_its_manifest_or_its_size(entry: SourceEntry, seconds: float) -> None:
    assert estimated_ms(SourceFile("r", (entry,))) == seconds * 1000
