"""Labels for other tools: what is written is read back, by the tool where it is installed, else by our readers."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests import entries_in, wav, write_tar
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Utterance, Word
from voxstill.pipeline import export_labels as exporting
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import index as indexing
from voxstill.pipeline import label as labelling
from voxstill.pipeline import remove as removing
from voxstill.pipeline.export_formats import file_name, kaldi_ids, one_line
from voxstill.pipeline.export_labels import FORMS, Form
from voxstill.storage import tables
from voxstill.storage.store import Store
from voxstill.text import transcripts

TEXTS = (
    "hello world",
    'tab\there "quoted", comma',
    "two\nlines\r\nand \x1b[31mred\u2028",
    "=cmd|' /C calc'!A0",
    "नमस्ते दुनिया",
    "a --> b",
)
IDS = ("plain", "../../etc/passwd", "with space", "ünï", "ann-5", "x/y")
SPEAKERS = ("ann", "ann-1", None, "bob b", "ann", "=z")


def config(folder: Path, manifest: Path | None = None, **more: Any) -> Config:
    tree = {
        "work": str(folder / "work"),
        "source": {"uri": str(manifest or folder / "source/manifest.jsonl"), "dev_share": 0, "test_share": 0},
        "engine": {"name": "inline", "chunk": 2},
        "teacher": {"name": "reference"},
        "filter": {"min_chars_per_s": 0, "max_chars_per_s": 1e9},
    }
    return Config.model_validate(tree | more)


def labelled(folder: Path, rows: list[dict[str, Any]], audio: bytes | None = None) -> Config:
    """A work folder with finished labels, which are the texts of the manifest."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for number, name in enumerate(dict.fromkeys(row["audio"] for row in rows)):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(audio or wav(300 + number, 1))
    (source / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = config(folder)
    indexing.index(cfg)
    labelling.label_utterances(cfg)
    return cfg


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Labels with awkward texts, ids and speakers, of two splits, one of them without a label; with verdicts."""
    rows = [
        {"audio": f"{number}.wav", "id": id_, "text": text, "speaker": speaker, "language": "en"}
        | {"split": "train" if number % 3 else "test", "dialect": "north", "dataset": "d"}
        for number, (id_, text, speaker) in enumerate(zip(IDS, TEXTS, SPEAKERS, strict=True))
    ]
    rows.append({"audio": "none.wav", "id": "none", "split": "train"})
    cfg = labelled(tmp_path_factory.mktemp("awkward"), rows)
    filtering.filter_labels(cfg)
    return cfg


def test_weights_are_written_and_read_back(tmp_path: Path) -> None:
    rows = [
        {"audio": f"{i}.wav", "id": f"u{i}", "text": "one", "split": "train", "weight": weight}
        for i, weight in enumerate((0.25, 0, 1))
    ]
    cfg = labelled(tmp_path, rows)
    for form, name in (
        ("jsonl", "a.jsonl"),
        ("csv", "a.csv"),
        ("nemo", "b.jsonl"),
        ("lhotse", "c.jsonl"),
        ("hf", "hf/train.parquet"),
    ):
        output = tmp_path / name
        exporting.export_labels(cfg, str(output.parent if form == "hf" else output), cast(Form, form))
        weights = {entry.id: entry.weight for entry in entries_in(str(output))}
        assert weights == {"u0": 0.25, "u1": 0.0, "u2": None}, form


@pytest.mark.parametrize(("form", "name"), [("jsonl", "labels.jsonl"), ("lhotse", "cuts.jsonl")])
def test_word_times_are_written_and_read_back(tmp_path: Path, form: Form, name: str) -> None:
    words = [{"word": "one", "start_ms": 350, "end_ms": 421}, {"word": "two", "start_ms": 421, "end_ms": 933}]
    rows = [
        {"audio": "long.wav", "id": "late", "start_ms": 303, "end_ms": 950, "text": "one two", "words": words},
        {"audio": "other.wav", "id": "untimed", "text": "one two three", "split": "train"},
    ]
    cfg = labelled(tmp_path, rows)
    export(cfg, tmp_path / name, form)
    again = config(tmp_path / "again", tmp_path / name)
    indexing.index(again)
    assert {id_: row.words for id_, row in utterances(again).items()} == {
        "late": (Word(text="one", start_ms=47, end_ms=118), Word(text="two", start_ms=118, end_ms=630)),
        "untimed": None,
    }


def utterances(cfg: Config) -> dict[str, Utterance]:
    return {row.id: row for row in tables.read(Store(cfg.work), "utterances", Utterance)}


def known(cfg: Config) -> dict[str, Utterance]:
    """The utterances whose label did not fail."""
    return {id_: row for id_, row in utterances(cfg).items() if row.text is not None}


def export(cfg: Config, path: Path, form: Form, **more: bool) -> exporting.ExportResult:
    return exporting.export_labels(cfg, str(path), form, **more)


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.jsonl.gz", "labels.csv", "cuts.jsonl.gz", "nemo.json"])
def test_the_index_of_an_export_gives_the_same_utterances(awkward: Config, tmp_path: Path, name: str) -> None:
    forms: dict[str, Form] = {"labels.csv": "csv", "cuts.jsonl.gz": "lhotse", "nemo.json": "nemo"}
    result = export(awkward, tmp_path / name, forms.get(name, "jsonl"))
    assert (result.utterances, result.left_out) == (6, 1)
    cfg = config(tmp_path, tmp_path / name)
    indexing.index(cfg)
    again = utterances(cfg)
    if name.startswith("labels"):
        assert {id_: replace(row, words=None) for id_, row in again.items()} == known(awkward)
        return
    assert {(row.id, row.text, row.start_ms, row.end_ms, row.info.speaker, row.split) for row in again.values()} == {
        (row.id, row.text, row.start_ms, row.end_ms, row.info.speaker, row.split) for row in known(awkward).values()
    }


def test_pandas_reads_tables(awkward: Config, tmp_path: Path) -> None:
    texts = {id_: row.text for id_, row in known(awkward).items()}
    export(awkward, tmp_path / "labels.csv", "csv")
    export(awkward, tmp_path / "nemo.json", "nemo")
    export(awkward, tmp_path / "hf", "hf")
    of_csv = pd.read_csv(tmp_path / "labels.csv", keep_default_na=False)
    of_nemo = pd.read_json(tmp_path / "nemo.json", lines=True)
    of_hf = pd.concat(map(pd.read_parquet, (tmp_path / "hf").iterdir()))
    assert all(dict(zip(table["id"], table["text"], strict=True)) == texts for table in (of_csv, of_nemo, of_hf))


def test_the_channels_of_a_recording_come_back(tmp_path: Path) -> None:
    rows = [
        {"audio": "call.wav", "id": f"c{channel}", "channel": channel, "text": f"side {channel}", "split": "train"}
        for channel in (0, 1)
    ]
    noise_TC = np.random.default_rng(0).integers(-9000, 9000, (16_000, 2)).astype(np.int16)
    cfg = labelled(tmp_path, rows, audio=codec.encode(noise_TC, "wav"))
    export(cfg, tmp_path / "labels.jsonl", "jsonl")
    again = config(tmp_path / "again", tmp_path / "labels.jsonl")
    indexing.index(again)
    assert utterances(again) == known(cfg)
    for form, name in (("kaldi", "kaldi"), ("nemo", "nemo.json")):
        with pytest.raises(DataError, match="several channels"):
            export(cfg, tmp_path / name, form)  # type: ignore[arg-type]
    export(cfg, tmp_path / "cuts.jsonl", "lhotse")
    cuts = [json.loads(line) for line in (tmp_path / "cuts.jsonl").read_text().splitlines()]
    assert {(cut["channel"], cut["supervisions"][0]["text"]) for cut in cuts} == {(0, "side 0"), (1, "side 1")}
    assert all(cut["recording"]["channel_ids"] == [0, 1] for cut in cuts)


def test_stretches_come_back(tmp_path: Path) -> None:
    rows = [
        {"audio": "a.wav", "id": f"a{start}", "text": "one", "start_ms": start, "end_ms": start + 400, "split": "train"}
        for start in (0, 500)
    ]
    cfg = labelled(tmp_path, rows)
    export(cfg, tmp_path / "labels.jsonl", "jsonl")
    again = config(tmp_path / "again", tmp_path / "labels.jsonl")
    indexing.index(again)
    assert utterances(again) == known(cfg)
    export(cfg, tmp_path / "nemo.json", "nemo")
    lines = [json.loads(line) for line in (tmp_path / "nemo.json").read_text().splitlines()]
    assert [(line["offset"], line["duration"]) for line in lines] == [(0.0, 0.4), (0.5, 0.4)]
    with pytest.raises(DataError, match="segment of a longer recording"):
        export(cfg, tmp_path / "hf", "hf")
    export(cfg, tmp_path / "srt", "srt")
    assert (tmp_path / "srt/a.srt").read_text() == ("1\n00:00:00,000 --> 00:00:01,000\none one\n\n"), (
        "utterances that follow one another within a second are one subtitle"
    )


def test_scores_and_verdicts_are_columns(awkward: Config, tmp_path: Path) -> None:
    export(awkward, tmp_path / "all.jsonl", "jsonl", scores=True, verdicts=True)
    rows = {row["id"]: row for row in map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())}
    assert rows["with space"]["num_words"] == 4
    assert [word["word"] for word in rows["with space"]["words"]] == TEXTS[2].split()
    assert rows["with space"]["kept"] is True
    assert "kept" not in rows["plain"], "it is of the test split"
    assert rows["plain"]["characters"] == 11
    export(awkward, tmp_path / "all.csv", "csv", scores=True, verdicts=True)
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        assert {row["id"]: row["compression_ratio"] for row in csv.DictReader(file)} == {
            id_: str(row["compression_ratio"]) for id_, row in rows.items()
        }
    kept = export(awkward, tmp_path / "kept.jsonl", "jsonl", kept=True)
    assert kept.utterances == 4
    assert {entry.id for entry in entries_in(tmp_path / "kept.jsonl")} == {
        id_ for id_, row in rows.items() if row.get("kept")
    }
    with pytest.raises(ConfigError, match="cannot hold scores"):
        export(awkward, tmp_path / "kaldi", "kaldi", scores=True)


def test_a_manifest_has_a_line_for_each_label_whatever_ends_a_line(awkward: Config, tmp_path: Path) -> None:
    export(awkward, tmp_path / "labels.jsonl", "jsonl")
    text = (tmp_path / "labels.jsonl").read_bytes().decode()
    assert len(text.splitlines()) == 6
    assert "\x1b" not in text


def lines(path: Path) -> list[list[str]]:
    return [line.split(" ", 1) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_kaldi_directory_is_sorted_and_whole(
    awkward: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="voxstill"):
        export(awkward, tmp_path / "kaldi", "kaldi")
    assert "2 of test, 4 of train" in caplog.text
    files = {path.name: lines(path) for path in (tmp_path / "kaldi").iterdir()}
    assert files.keys() == {"wav.scp", "segments", "text", "utt2spk", "spk2utt", "utt2lang"}
    for rows in files.values():
        assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=str.encode)
    assert [row[1] for row in files["utt2spk"]] == sorted((row[1] for row in files["utt2spk"]), key=str.encode)
    speaker_of = dict(map(tuple, files["utt2spk"]))  # type: ignore[arg-type]
    assert all(utterance.startswith(speaker) for utterance, speaker in speaker_of.items())
    assert {utterance: speaker for speaker, all_ in files["spk2utt"] for utterance in all_.split()} == speaker_of
    assert dict(map(tuple, files["text"]))["ann-5"] == "नमस्ते दुनिया"  # type: ignore[arg-type]
    assert {text for _, text in files["text"]} == {one_line(text) for text in TEXTS}
    entries = entries_in(tmp_path / "kaldi")
    assert {(entry.uri, entry.text, entry.end_ms) for entry in entries} == {
        (row.uri, one_line(row.text or ""), row.end_ms) for row in known(awkward).values()
    }


@given(st.lists(st.tuples(st.text(max_size=4), st.text("a-1b =+é", max_size=3) | st.none()), max_size=8))
def test_kaldi_ids_sort_as_their_speakers_do(pairs: list[tuple[str, str | None]]) -> None:
    ids = sorted((kaldi_ids(id_ or "x", speaker) for id_, speaker in pairs), key=lambda pair: pair[0].encode())
    assert [speaker for _, speaker in ids] == sorted((speaker for _, speaker in ids), key=str.encode)
    assert all(len(name.split()) == 1 and name.isprintable() for pair in ids for name in pair) or any(
        not char.isprintable() for id_, speaker in pairs for char in f"{id_}{speaker}"
    )


@pytest.mark.parametrize("name", ["calc.wav |", "a.wav:12"])
def test_a_path_that_kaldi_would_run_or_misread_is_refused(tmp_path: Path, name: str) -> None:
    cfg = labelled(tmp_path, [{"audio": name, "text": "one", "split": "train"}])
    with pytest.raises(DataError, match="cannot refer to the audio"):
        export(cfg, tmp_path / "kaldi", "kaldi")
    assert not (tmp_path / "kaldi").exists()


def test_two_utterances_never_share_a_kaldi_id(tmp_path: Path) -> None:
    rows = [
        {"audio": f"{number}.wav", "id": id_, "speaker": "s", "text": "one", "split": "train"}
        for number, id_ in enumerate(("1", "s-1"))
    ]
    with pytest.raises(DataError, match="two utterances would be `s-1`"):
        export(labelled(tmp_path, rows), tmp_path / "kaldi", "kaldi")


def test_subtitles_stay_in_their_folder_and_on_their_lines(awkward: Config, tmp_path: Path) -> None:
    export(awkward, tmp_path / "srt", "srt")
    paths = sorted((tmp_path / "srt").iterdir())
    assert [path.name for path in paths] == [f"{number}.srt" for number in range(6)]
    assert "two lines and [31mred" in paths[2].read_text(encoding="utf-8")
    assert all(path.read_text(encoding="utf-8").count("\n") == 4 for path in paths)


def test_no_subtitle_ends_after_its_recording(tmp_path: Path) -> None:
    rows = [
        {"audio": "a.wav", "id": f"a{channel}", "channel": channel, "text": text, "start_ms": 500, "split": "train"}
        for channel, text in enumerate(("one", "two"))
    ]
    cfg = labelled(tmp_path, rows, audio=codec.encode(np.ones((16 * 850, 2), np.int16), "wav"))
    export(cfg, tmp_path / "srt", "srt")
    (path,) = (tmp_path / "srt").iterdir()
    clocks = [line for line in path.read_text().splitlines() if "-->" in line]
    assert clocks == ["00:00:00,500 --> 00:00:00,850"] * 2


def test_subtitles_of_files_with_one_name_do_not_replace_each_other(tmp_path: Path) -> None:
    rows = [{"audio": f"{folder}/a.wav", "text": folder, "split": "train"} for folder in ("x", "y")]
    cfg = labelled(tmp_path, rows)
    export(cfg, tmp_path / "srt", "srt")
    assert {path.read_text().split("\n")[2] for path in (tmp_path / "srt").iterdir()} == {"x", "y"}


@given(st.text(max_size=300))
def test_the_name_of_a_file_is_one(stem: str) -> None:
    name = file_name(stem)
    assert not {"/", "\\", "\0", "\n", "\x1b"} & set(name)
    assert name not in (".", "..")
    assert len(name.encode()) <= 200


def test_a_folder_for_datasets(awkward: Config, tmp_path: Path) -> None:
    export(awkward, tmp_path / "hf", "hf", verdicts=True)
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"train.parquet", "test.parquet"}
    table = pq.read_table(tmp_path / "hf/train.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["audio"] == {"_type": "Audio"}
    assert features["kept"] == {"dtype": "bool", "_type": "Value"}
    assert features.keys() == set(table.column_names)
    texts = {row["id"]: (row["audio"]["path"], row["text"]) for row in table.to_pylist()}
    assert texts == {id_: (row.uri, row.text) for id_, row in known(awkward).items() if row.split == "train"}
    assert {entry.text for entry in entries_in(tmp_path / "hf/train.parquet")} == {text for _, text in texts.values()}


def test_datasets_reads_its_folder(awkward: Config, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export(awkward, tmp_path / "hf", "hf")
    read = datasets.load_dataset(str(tmp_path / "hf"), split="train", cache_dir=str(tmp_path / "cache"))
    assert set(read["text"]) == {row.text for row in known(awkward).values() if row.split == "train"}


def test_lhotse_reads_cuts_and_the_kaldi_directory(awkward: Config, tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse")
    export(awkward, tmp_path / "cuts.jsonl.gz", "lhotse")
    cuts = list(lhotse.CutSet.from_file(tmp_path / "cuts.jsonl.gz"))
    assert {cut.supervisions[0].text for cut in cuts} == set(TEXTS)
    assert all(cut.load_audio().shape == (1, 16_000) for cut in cuts)
    for cut in cuts:
        lhotse.validate(cut)
    export(awkward, tmp_path / "kaldi", "kaldi")
    recordings, supervisions, _ = lhotse.kaldi.load_kaldi_data_dir(tmp_path / "kaldi", 16_000)
    assert len(recordings) == len(supervisions) == 6


def test_what_cannot_be_named_is_refused_and_says_what_writes_it(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"x.wav": wav(seconds=1), "x.txt": b"one"})
    cfg = config(tmp_path, tmp_path / "a.tar")
    indexing.index(cfg)
    labelling.label_utterances(cfg)
    for form, name in (("nemo", "n.json"), ("kaldi", "k"), ("lhotse", "c.jsonl.gz"), ("hf", "h")):
        with pytest.raises(DataError, match="member of a tar") as caught:
            export(cfg, tmp_path / name, form)  # type: ignore[arg-type]
        assert "voxstill shard" in caught.value.fix
        assert not (tmp_path / name).exists()
    export(cfg, tmp_path / "labels.jsonl", "jsonl")
    [entry] = entries_in(tmp_path / "labels.jsonl")
    assert entry.uri == next(iter(utterances(cfg).values())).uri


def test_nothing_is_overwritten_unasked_and_no_foreign_file_ever(awkward: Config, tmp_path: Path) -> None:
    names: dict[Form, str] = {"jsonl": "a.jsonl", "csv": "a.csv", "nemo": "a.json", "lhotse": "c.jsonl", "stm": "a.stm"}
    for form in FORMS:
        path = tmp_path / names.get(form, form)
        export(awkward, path, form)
        with pytest.raises(ConfigError, match="exists"):
            export(awkward, path, form)
        assert export(awkward, path, form, overwrite=True).utterances == 6
    (tmp_path / "kaldi/mine.txt").write_text("")
    with pytest.raises(ConfigError, match="mine"):
        export(awkward, tmp_path / "kaldi", "kaldi", overwrite=True)
    with pytest.raises(ConfigError, match="not a file name for"):
        export(awkward, tmp_path / "labels.txt", "jsonl")
    assert not list(tmp_path.glob(".*"))


def test_stm_has_a_line_for_each_label_that_our_reader_reads(awkward: Config, tmp_path: Path) -> None:
    export(awkward, tmp_path / "a.stm", "stm")
    rows = transcripts.read(str(tmp_path / "a.stm"))
    assert len(rows) == 6
    assert {row.speaker for row in rows} >= {"ann", "ann-1", "unknown", "bob_b"}
    assert all(row.session and row.end_ms for row in rows)


def test_speakers_that_stm_would_write_alike_are_kept_apart(tmp_path: Path) -> None:
    speakers = ("x y", "x\ty", "x_y", "x y", "unknown", None, "x_y-2", "x\ty")
    rows = [
        {"audio": f"{i}.wav", "id": f"u{i}", "text": "one", "split": "train", "speaker": speaker}
        for i, speaker in enumerate(speakers)
    ]
    cfg = labelled(tmp_path, rows)
    export(cfg, tmp_path / "a.stm", "stm")
    name_of = {row.session: row.speaker for row in transcripts.read(str(tmp_path / "a.stm"))}
    names = [name_of[str(i)] for i in range(len(speakers))]
    known = {row.id: row.info.speaker for row in utterances(cfg).values()}
    wanted = [known[f"u{i}"] or "unknown" for i in range(len(speakers))]
    assert len(set(zip(names, wanted, strict=True))) == len(set(names)) == len(set(wanted)) >= 5


@pytest.mark.parametrize("output", ["s3://bucket/labels.jsonl", str(Path("s3://bucket/labels.jsonl"))])
def test_a_bucket_is_no_path(awkward: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not a path"):
        exporting.export_labels(awkward, output)
    assert not list(tmp_path.iterdir())


def test_equal_labels_give_equal_bytes(awkward: Config, tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        export(awkward, tmp_path / name, "jsonl")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).count(b"\n") == 6


def test_verdicts_of_other_labels_are_not_taken(awkward: Config, tmp_path: Path) -> None:
    other = config(Path(awkward.work).parent, teacher={"name": "echo"})
    labelling.label_utterances(other)
    with pytest.raises(DataError, match="have no verdicts"):
        export(other, tmp_path / "labels.jsonl", "jsonl", verdicts=True)


def test_what_was_removed_is_left_out(tmp_path: Path) -> None:
    rows = [{"audio": f"{id_}.wav", "id": id_, "text": id_, "split": "train"} for id_ in ("stays", "goes")]
    cfg = labelled(tmp_path, rows)
    removing.remove(cfg, ["goes"])
    assert export(cfg, tmp_path / "labels.jsonl", "jsonl").left_out == 1
    assert [entry.id for entry in entries_in(tmp_path / "labels.jsonl")] == ["stays"]


def test_the_command_prints_what_it_wrote(awkward: Config, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "voxstill", "export-labels", awkward.work, "--output", str(tmp_path / "k")]
    done = subprocess.run(
        [*command, "--format", "kaldi", "--set", "teacher.name=reference", "--json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {"utterances": 6, "path": str(tmp_path / "k"), "left_out": 1}
    assert b"left out: 1 failed or removed labels" in done.stderr
