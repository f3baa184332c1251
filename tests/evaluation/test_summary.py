"""`evaluate` for people: percent, the worst first, any field of the manifest, alignments on request."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from judged import corpus, experiment
from tones import TEXTS, speak
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.config import Source
from voxstill.core.records import Utterance
from voxstill.evaluation import tables
from voxstill.indexing import manifest_column
from voxstill.pipeline.judged_split import of_split


@pytest.fixture(scope="module")
def judged(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve speakers, of which the last ones are understood worst, with a column that no table has."""
    folder = tmp_path_factory.mktemp("people")
    rows = [
        {
            "id": f"u{i:02}",
            "text": TEXTS[i % 4] + " ko" * (i // 4),
            "speaker": f"s{i:02}",
            "gender": "fm"[i % 2],
            "samples": speak(TEXTS[i % 4], i)[0],
        }
        for i in range(12)
    ]
    work = corpus(folder, rows)
    return experiment(folder / "exp", tone_student, work, source={"uri": str(folder / "manifest.jsonl")})


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--log-level", "error"]) == code
    out = capsys.readouterr()
    return out.out if code == 0 else out.err


@pytest.mark.parametrize("option", ["work", "evaluate.texts"])
def test_an_experiment_whose_files_are_elsewhere_says_so(
    option: str, tone_student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Path("work") if option == "work" else tmp_path
    moved = experiment(tmp_path / "exp", tone_student, work, evaluate={"texts": "texts.jsonl"})
    monkeypatch.chdir(tmp_path)
    error = printed(capsys, "evaluate", moved, code=2)
    assert f"`{option}: {'work' if option == 'work' else 'texts.jsonl'}` of `{moved}` does not exist here" in error
    assert f"in that folder, or set another by `--set {option}=PATH`" in error


def test_the_work_folder_of_an_experiment_may_be_an_address(
    judged: Path, tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = experiment(tmp_path / "exp", tone_student, Path("work"))
    assert "WER" in printed(capsys, "evaluate", other, "--work", f"file://{judged.parent / 'work'}")


def test_references_without_words_are_refused_before_anything_is_decoded(
    tone_student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = corpus(tmp_path, [{"id": "u", "text": "?!", "data": codec.encode(speak(TEXTS[0], 0)[0], "flac")}])
    judged = experiment(tmp_path / "exp", tone_student, work, source={"uri": str(tmp_path / "manifest.jsonl")})
    for audio in tmp_path.glob("*.flac"):
        audio.unlink()
    assert "the references contain no words" in printed(capsys, "evaluate", judged, code=3)


def test_people_read_rates_in_percent_and_the_worst_speakers(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "evaluate", judged).splitlines()
    assert lines[0] == f"{judged} on test of {judged.parent / 'work'}, greedy"
    assert lines[1].startswith("WER ")
    assert " %  (95 % of draws of speakers: " in lines[1]
    assert lines[2].startswith("CER ")
    first = lines.index("by speaker, the worst 10 of 12:")
    rates = [float(line.split()[1]) for line in lines[first + 2 : first + 12]]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0
    assert "{" not in "".join(lines)


def test_errors_are_broken_down_by_a_column_of_the_manifest(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "evaluate", judged, "--by", "gender", "--by", "speaker")
    assert "by gender:" in text
    assert "by speaker:" in text
    assert "by duration" not in text
    figures = json.loads(printed(capsys, "evaluate", judged, "--by", "gender", "--json"))
    assert set(figures["by_gender"]) == {"f", "m"}
    assert sum(row["errors"] for row in figures["by_gender"].values()) == figures["errors"]

    elsewhere = ("--by", "shoe_size", "--set", "source.uri=/nowhere/else.csv")
    assert "cannot read the manifest `/nowhere/else.csv`" in printed(capsys, "evaluate", judged, *elsewhere, code=3)
    error = printed(capsys, "evaluate", judged, "--by", "shoe_size", "--show", "1", code=2)
    assert "no utterance of the split has a field `shoe_size`" in error
    error = printed(capsys, "evaluate", judged, "--by", "language", code=2)
    assert "none of the 12 utterances of the split has it" in error


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "parquet", "jsonl.gz"])
def test_a_column_is_found_in_every_table_also_without_ids(judged: Path, tmp_path: Path, ending: str) -> None:
    rows = [{"audio": str(judged.parent / f"u{i:02}.flac"), "age": ("young", "old")[i % 2]} for i in range(12)]
    manifest = tmp_path / f"manifest.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), manifest)
    else:
        mark = {"csv": ",", "tsv": "\t"}.get(ending)
        lines = [json.dumps(row) for row in rows] if mark is None else [mark.join(row.values()) for row in rows]
        text = "\n".join(lines if mark is None else [f"audio{mark}age", *lines]).encode()
        manifest.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    utterances = of_split(config.load(str(judged / "config.yaml"))).utterances
    for uri in (manifest, tmp_path):  # or the folder that it lies in
        ages = manifest_column.column(Source(uri=str(uri)), "age", utterances)
        assert ages == {f"u{i:02}": ("young", "old")[i % 2] for i in range(12)}


def test_a_column_of_common_voice_and_of_stretches(tmp_path: Path) -> None:
    clip = tmp_path / "clips" / "a.flac"
    (tmp_path / "test.tsv").write_text("client_id\tpath\tsentence\tage\nann\ta.flac\tba\ttwenties\n")
    stretches = [
        {"audio": str(clip), "start": 0.5, "end": 1.0, "age": "b"},
        {"audio": str(clip), "start": 1, "end": 2, "age": "c"},
    ]
    (tmp_path / "cut.jsonl").write_text("\n".join(map(json.dumps, stretches)))
    of_clip = Utterance(id="x", recording_id="r", uri=str(clip), channel=None, start_ms=500, end_ms=1000, split="test")
    assert manifest_column.column(Source(uri=str(tmp_path)), "age", [of_clip]) == {"x": "twenties"}
    assert manifest_column.column(Source(uri=str(tmp_path / "cut.jsonl")), "age", [of_clip]) == {"x": "b"}


def test_a_column_of_kaldi_is_of_utterances_or_of_their_speakers(tmp_path: Path) -> None:
    for name, lines in {
        "wav.scp": "a a.wav\nb b.wav\nc c.wav\n",
        "utt2spk": "a ann\nb bob\nc cas\n",
        "spk2gender": "ann f\nbob f\n",
        "utt2gender": "b m\n",
    }.items():
        (tmp_path / name).write_text(lines)
    common = {"recording_id": "r", "uri": "x", "channel": None, "start_ms": 0, "end_ms": 1000, "split": "test"}
    utterances = [Utterance(id=id_, **common) for id_ in "abc"]
    assert manifest_column.column(Source(uri=str(tmp_path)), "gender", utterances) == {"a": "f", "b": "m"}
    assert manifest_column.column(Source(uri=str(tmp_path)), "../gender", utterances) == {}


def test_alignments_of_the_worst_are_shown_on_request(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ref  " not in printed(capsys, "evaluate", judged)
    lines = printed(capsys, "evaluate", judged, "--show", "2").splitlines()
    assert sum(line.startswith("  ref  ") for line in lines) == 2
    assert lines[0].startswith("u")
    assert "errors in" in lines[0]
    assert "KO" in lines[1]
    assert "***" in lines[2]


def test_words_stand_below_words_also_where_characters_are_wide() -> None:
    pairs = [("今天", "今天"), ("好", None), (None, "oh"), ("a", "bcd")]
    assert tables.alignment(pairs) == ["  ref  今天 好  *** A", "  hyp  今天 *** OH  BCD"]
    long = tables.alignment([("word", "word")] * 30, 50)
    assert len(long) == 6
    assert all(len(line) <= 60 for line in long)
