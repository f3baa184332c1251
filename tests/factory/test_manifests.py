"""Every form of source, from real files that the tests write."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import lzma
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from voxstill.audio import codec
from voxstill.config import Segment, Source
from voxstill.errors import DataError, StorageError
from voxstill.factory.manifests import Found
from voxstill.factory.scan import by_file, scan
from voxstill.factory.segment import Indexed, index
from voxstill.factory.unpack import _unpack
from voxstill.store import Store, fetch, read_uri


def wav(pitch_hz: int = 300, seconds: float = 0.2) -> bytes:
    time_T = np.arange(int(16_000 * seconds)) / 16_000
    return codec.encode((9000 * np.sin(2 * np.pi * pitch_hz * time_T)).astype(np.int16), "wav")


def found_in(uri: Path | str) -> list[Found]:
    return list(scan(Source(uri=str(uri))))


def indexed(uri: Path | str) -> list[Indexed]:
    return [index(file, Segment(), Source(), 0) for file in by_file(scan(Source(uri=str(uri))))]


def refused(uri: Path | str) -> DataError:
    with pytest.raises(DataError) as caught:
        found_in(uri)
    assert caught.value.fix
    return caught.value


def write_tar(path: Path, members: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


# ------------------------------------------------------------------------------------------------- rows of any form


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_the_same_manifest_in_every_form_is_the_same_source(tmp_path: Path, ending: str) -> None:
    (tmp_path / "ä, b.wav").write_bytes(b"x")
    rows = [
        {"audio": "ä, b.wav", "id": "1", "text": 'say "yes"', "start_ms": 0, "end_ms": 900, "channel": 1},
        {"audio": "ä, b.wav", "id": "2", "text": "two\nlines", "speaker": "s", "split": "dev", "language": "de"},
    ]
    path = tmp_path / f"m.{ending}"
    columns = ["audio", "id", "text", "start_ms", "end_ms", "channel", "speaker", "split", "language", "extra"]
    if ending == "parquet":
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), path)
    elif ending == "csv":
        cells = [
            ["" if row.get(c) is None else '"' + str(row[c]).replace('"', '""') + '"' for c in columns] for row in rows
        ]
        path.write_text("\n".join(",".join(each) for each in [columns, *cells]), encoding="utf-8-sig")
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    one, two = found_in(path)
    assert (one.uri, one.num_bytes, one.id, one.text) == (str(tmp_path / "ä, b.wav"), 1, "1", 'say "yes"')
    assert (one.start_ms, one.end_ms, one.channel, one.speaker) == (0, 900, 1, None)
    assert (two.text, two.speaker, two.split, two.language, two.end_ms) == ("two\nlines", "s", "dev", "de", None)
    assert one.where is not None
    assert one.where.startswith(f"{path}:")


def test_columns_may_have_the_names_of_other_tools(tmp_path: Path) -> None:
    rows = [
        {"audio_filepath": "a.wav", "text": "nemo", "offset": 1.5, "duration": 0.25, "lang": "en"},
        {"file_name": "b.wav", "transcription": "hf", "speaker_id": 4},
        {"path": "c.mp3", "sentence": "common voice", "client_id": "x", "locale": "fr", "duration": 3.0},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    nemo, hf, common = found_in(tmp_path / "m.jsonl")
    assert (nemo.text, nemo.start_ms, nemo.end_ms, nemo.language) == ("nemo", 1500, 1750, "en")
    assert (hf.text, hf.speaker) == ("hf", "4")
    assert (common.text, common.speaker, common.language, common.end_ms) == ("common voice", "x", "fr", None)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("file_name,text\na.wav,x\nb.wav,y,z\n", 3, "more cells"),
        ("file_name,start_ms\na.wav,soon\n", 2, "`start_ms` is 'soon'"),
        ("file_name,channel\na.wav,-1\n", 2, "`channel` is -1"),
        ("name,text\na.wav,x\n", 2, "no `audio`"),
    ],
)
def test_a_bad_line_of_a_table_is_named(tmp_path: Path, text: str, line: int, why: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    error = refused(tmp_path / "m.csv")
    assert f"{tmp_path / 'm.csv'}:{line} " in error.what
    assert why in error.why


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    for name, data in [("m.jsonl", b'{"audio": "a.wav"}\n{"audio": "\xff"}'), ("m.lst", b"a.wav\n\xff.wav\n")]:
        (tmp_path / name).write_bytes(data)
        assert f"{name}:2 " in refused(tmp_path / name).what
    (tmp_path / "m.csv").write_bytes(b"file_name\n\xff\n")
    assert "m.csv:" in refused(tmp_path / "m.csv").what


def test_a_list_has_one_address_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"x")
    (tmp_path / "l.txt").write_text("\ufeffa.wav\n\n  s3://bucket/b c.wav \r\n/far/d.wav\n", encoding="utf-8")
    assert [each.uri for each in found_in(tmp_path / "l.txt")] == [
        str(tmp_path / "a.wav"),
        "s3://bucket/b c.wav",
        "/far/d.wav",
    ]


def test_parquet_as_hugging_face_writes_it_is_read_where_it_names_files(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for name, data in [("paths.parquet", None), ("bytes.parquet", wav())]:
        audio = pa.array([{"bytes": data, "path": f"{k}.wav"} for k in range(3000)], kind)
        texts = pa.array([str(k) for k in range(3000)])
        pq.write_table(pa.table({"audio": audio, "sentence": texts}), tmp_path / name, row_group_size=700)
    found = found_in(tmp_path / "paths.parquet")
    assert [each.text for each in found] == [str(k) for k in range(3000)]
    assert found[-1].uri == str(tmp_path / "2999.wav")
    assert "holds the audio itself" in refused(tmp_path / "bytes.parquet").what
    (tmp_path / "no.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    assert "not a Parquet manifest" in refused(tmp_path / "no.parquet").what


def test_the_documents_way_to_repack_parquet_keeps_everything(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/sources.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    clips = [wav(300 + k) for k in range(5)]
    rows = [{"audio": {"bytes": data, "path": f"{k}.wav"}, "sentence": str(k)} for k, data in enumerate(clips)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "m.parquet")
    names: dict[str, Any] = {}
    exec(code, names)
    names["repack"](str(tmp_path / "m.parquet"), str(tmp_path / "m.tar"))
    found = found_in(tmp_path / "m.tar")
    assert [each.text for each in found] == [str(k) for k in range(5)]
    assert [read_uri(each.uri) for each in found] == clips


def test_a_folder_with_metadata_knows_what_it_says_and_loses_no_file(tmp_path: Path) -> None:
    for name in ["train/a.wav", "train/deep/b.wav", "train/c.wav", "train/x.wav", "other.wav"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(wav())
    (tmp_path / "train/metadata.csv").write_text("file_name,transcription\na.wav,eins\ndeep/b.wav,zwei\n")
    (tmp_path / "train/deep/metadata.jsonl").write_text('{"file_name": "../c.wav", "text": "drei"}\n')
    files = list(by_file(scan(Source(uri=str(tmp_path)))))
    said = {Path(file.found[0].uri).name: [each.text for each in file.found] for file in files}
    assert said == {"a.wav": ["eins"], "b.wav": ["zwei"], "c.wav": ["drei"], "x.wav": [None], "other.wav": [None]}


def test_metadata_of_another_kind_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "metadata.csv").write_text("LJ001|Printing, in the only sense|Printing\n")
    assert [Path(each.uri).name for each in found_in(tmp_path)] == ["a.wav"]


# ------------------------------------------------------------------------------------------------- WebDataset tars


def test_members_of_a_tar_are_read_alone_and_whole(tmp_path: Path) -> None:
    clips = {f"{k:04}": wav(200 + 10 * k, 0.1 + 0.01 * k) for k in range(12)}
    long = "d" * 120  # needs a header of more than one block
    members: dict[str, bytes] = {"readme.md": b"hello", "._0000.wav": b"junk"}
    for key, data in clips.items():
        members |= {f"{long}/{key}.wav": data, f"{long}/{key}.json": json.dumps({"text": key, "speaker": 3}).encode()}
    members |= {"x/0000.flac": codec.encode(np.full(4000, 99, np.int16), "flac"), "x/0000.txt": " größe \n".encode()}
    path = write_tar(tmp_path / "t.tar", members)
    found = found_in(path)
    assert [each.text for each in found] == [*clips, "größe"]
    assert [read_uri(each.uri) for each in found[:-1]] == list(clips.values())
    assert {each.speaker for each in found[:-1]} == {"3"}
    assert len({each.recording_id for each in found}) == 13
    rows = indexed(path)
    assert [row.recording.error for row in rows] == [None] * 13
    assert rows[0].recording.num_bytes == len(clips["0000"])
    assert [row.utterances[0].uri for row in rows] == [each.uri for each in found]


def test_two_sounds_of_one_sample_share_its_words_but_not_its_id(tmp_path: Path) -> None:
    members = {"a.left.wav": wav(), "a.right.wav": wav(500), "a.json": b'{"id": "a", "text": "both"}'}
    left, right = found_in(write_tar(tmp_path / "t.tar", members))
    assert (left.text, right.text, left.id, right.id) == ("both", "both", None, None)


def test_a_shard_of_ours_gives_the_words_of_a_human_and_not_those_of_its_teacher(tmp_path: Path) -> None:
    facts = {"id": "u", "text": "machine", "teacher": "echo@1", "reference": None, "offset": 512}
    [one] = found_in(write_tar(tmp_path / "a.tar", {"u.flac": wav(), "u.json": json.dumps(facts).encode()}))
    assert (one.id, one.text, one.start_ms) == ("u", None, None)
    facts["reference"] = "human"
    [two] = found_in(write_tar(tmp_path / "b.tar", {"u.flac": wav(), "u.json": json.dumps(facts).encode()}))
    assert two.text == "human"


def cut(id_: str, path: str, **more: Any) -> dict[str, Any]:
    """As lhotse writes one: `MonoCut.to_dict`."""
    recording = {
        "id": "r",
        "sources": [{"type": "file", "channels": [0], "source": path}],
        "sampling_rate": 16_000,
        "num_samples": 3200,
        "duration": 0.2,
        "channel_ids": [0],
    }
    said = [{"id": "s", "recording_id": "r", "start": 0.0, "duration": 0.2, "channel": 0, "text": "one two"}]
    made = {"id": id_, "start": 0.0, "duration": 0.2, "channel": 0, "supervisions": said, "recording": recording}
    return made | {"type": "MonoCut"} | more


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_cuts_of_lhotse_are_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    for name in ("m/a.wav", "b.wav"):
        (tmp_path / name).write_bytes(wav())
    two = [
        {"id": "t", "start": 0.1, "duration": 0.05, "text": "four", "speaker": "x", "language": "en"},
        {"id": "s", "start": 0.0, "duration": 0.05, "text": "three", "speaker": "x", "language": "en"},
    ]
    memory = {"sources": [{"type": "memory", "channels": [0], "source": "..."}], "duration": 0.2}
    lines = [
        cut("whole", "a.wav"),
        cut("part", str(tmp_path / "b.wav"), start=0.05, duration=0.1, supervisions=two),
        cut("where lhotse runs", "b.wav", supervisions=[]),
        cut("memory", "", recording=memory),
        cut("sticks out", "a.wav", start=0.1, duration=0.1),
    ]
    path = tmp_path / f"m/cuts{ending}"
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    monkeypatch.chdir(tmp_path)
    whole, part, elsewhere, memory_, out = found_in(path)
    assert (whole.id, whole.text, whole.start_ms, whole.uri) == ("whole", "one two", None, str(tmp_path / "m/a.wav"))
    assert (part.text, part.speaker, part.start_ms, part.end_ms) == ("three four", "x", 50, 150)
    assert (elsewhere.text, elsewhere.uri) == (None, str(tmp_path / "b.wav"))
    assert "let lhotse write it into files" in (memory_.error or "")
    assert (out.text, out.start_ms) == (None, 100)
    path = tmp_path / "mixed.jsonl"
    path.write_text(json.dumps(cut("m", "a.wav", type="MixedCut")) + "\n")
    assert "MonoCut" in refused(path).why


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_shar_of_lhotse_is_read_from_its_cuts_or_its_folder(tmp_path: Path, far: bool, whole: bool) -> None:
    shar = Store(f"memory://shar-{whole}") if far else Store(str(tmp_path / "shar"))
    recording = {"id": "r", "sources": [{"type": "shar", "channels": [0], "source": ""}], "duration": 0.2}
    about = json.dumps(recording | {"sampling_rate": 16000, "num_samples": 3200}).encode()
    for shard in range(2):
        members = {
            f"c/{shard}.{k}{ending}": data
            for k in range(2)
            for ending, data in ((".wav", wav(300 + 9 * shard + k)), (".json", about))
        }
        shar.replace(f"recording.00000{shard}.tar", write_tar(tmp_path / "made.tar", members).read_bytes())
        cuts = [cut(f"c/{shard}.{k}", "", recording=recording) for k in range(2)]
        lines = "".join(json.dumps(line) + "\n" for line in cuts)
        shar.replace(f"cuts.00000{shard}.jsonl.gz", gzip.compress(lines.encode()))
    lost = [cut("gone", "", recording=recording)]
    shar.replace("cuts.000007.jsonl.gz", gzip.compress(json.dumps(lost[0]).encode()))
    names = [shar.root] if whole else [shar.uri(f"cuts.00000{shard}.jsonl.gz") for shard in (0, 1, 7)]
    files = list(by_file(scan(Source(uri=names))))
    found = {each.id: each for file in files for each in file.found}
    assert set(found) == {"c/0.0", "c/0.1", "c/1.0", "c/1.1", "gone"}
    for shard, k in ((0, 0), (0, 1), (1, 0), (1, 1)):
        each = found[f"c/{shard}.{k}"]
        assert (each.text, each.start_ms, each.error) == ("one two", None, None)
        assert fetch(each.uri).data == wav(300 + 9 * shard + k)
    assert "no tar `recording.000007.tar`" in (found["gone"].error or "")


def test_a_gzipped_manifest_that_was_cut_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"audio": "a.wav"}\n' * 1000)[:-20])
    assert "is damaged" in refused(path).what


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_tarred_manifest_of_nemo_names_members_of_the_tars_beside_it(tmp_path: Path, far: bool, nested: bool) -> None:
    folder = Store("memory://nemo") if far else Store(str(tmp_path))
    for shard in range(2):
        members = {f"{shard}-{k}.wav": wav(300 + k) for k in range(3)}
        folder.replace(f"audio_{shard}.tar", write_tar(tmp_path / "made.tar", members).read_bytes())
    lines = [
        {"audio_filepath": "0-1.wav", "duration": 0.2, "text": "one", "shard_id": 0},
        {"audio_filepath": "1-2.wav", "duration": 0.2, "text": "two", "shard_id": 1},
        {"audio_filepath": "1-0-sub2.wav", "offset": 0.05, "duration": 0.1, "text": "three", "shard_id": 1},
        {"audio_filepath": "none.wav", "duration": 0.2, "text": "four", "shard_id": 1},
        {"audio_filepath": "0-0.wav", "duration": 0.2, "text": "five", "shard_id": 7},
    ]
    key = "sharded_manifests/manifest_0.json" if nested else "tarred_audio_manifest.json"
    folder.replace(key, "".join(json.dumps(line) + "\n" for line in lines).encode())
    one, two, three, four, five = found_in(folder.uri(key))
    assert [fetch(each.uri).data for each in (one, two, three)] == [wav(301), wav(302), wav(300)]
    assert (three.text, three.start_ms, three.end_ms) == ("three", 50, 150)
    assert (one.start_ms, one.end_ms) == (None, None)
    assert "no member of `audio_1.tar`" in (four.error or "")
    assert "`audio_7.tar`" in (five.error or "")


def squeezed(path: Path, ending: str) -> Path:
    """The same tar compressed, beside it."""
    data = path.read_bytes()
    if ending in ("zst", "lz4"):
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd" if ending == "zst" else "lz4") as stream:
            stream.write(data)
        small = out.getvalue().to_pybytes()
    else:
        small = {"gz": gzip, "bz2": bz2, "xz": lzma}[ending].compress(data)
    made = path.with_name(f"{path.name}.{ending}")
    made.write_bytes(small)
    return made


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst", "lz4"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_compressed_tar_is_unpacked_once_into_the_work_folder_and_its_cost_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str, alone: bool
) -> None:
    (tmp_path / "f").mkdir()
    members = {"0.wav": wav(300), "1.wav": wav(301), "1.txt": b"one two", "2.wav": wav(302)}
    path = squeezed(write_tar(tmp_path / "t.tar", members), ending)
    path = path.rename(tmp_path / "f" / path.name)
    work = Store(str(tmp_path / "work"))
    with caplog.at_level(logging.WARNING):
        first = list(scan(Source(uri=str(path if alone else path.parent)), work))
        again = list(scan(Source(uri=str(path if alone else path.parent)), work))
    assert first == again
    assert [fetch(each.uri).data for each in first] == [members[f"{k}.wav"] for k in range(3)]
    assert [each.text for each in first] == [None, "one two", None]
    assert sum("is compressed: unpacking it took" in line for line in caplog.messages) == 1
    assert len(list(Path(work.root, "unpacked").iterdir())) == 1


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst", "lz4"])
def test_a_compressed_tar_that_breaks_off_gives_what_comes_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    noise_NT = np.random.default_rng(0).integers(-9000, 9000, (3, 1_000_000)).astype(np.int16)
    members = {f"{k}.wav": codec.encode(noise_T, "wav") for k, noise_T in enumerate(noise_NT)}
    path = squeezed(write_tar(tmp_path / "t.tar", members), ending)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with caplog.at_level(logging.WARNING):
        found = list(scan(Source(uri=str(path)), Store(str(tmp_path / "work"))))
    assert [each.error is None for each in found][:1] == [True]
    assert (found[-1].error or "").startswith("damaged tar: after ")
    assert sum("It breaks off: " in line for line in caplog.messages) == 1


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_without_a_work_folder_a_compressed_tar_is_refused_and_in_a_folder_it_is_a_row(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "f").mkdir()
    path = write_tar(tmp_path / f"f/t.tar.{mode}", {"a.wav": wav()}, f"w:{mode}")
    assert "compressed tar" in refused(path).what
    assert "unpack" in refused(path).fix
    [row] = indexed(tmp_path / "f")
    assert (row.recording.error or "").startswith("compressed tar: ")
    path.rename(tmp_path / "disguised.tar")
    assert "compressed tar" in refused(tmp_path / "disguised.tar").what


@pytest.mark.parametrize(("keep", "num_sound"), [(3000, 0), (7168, 1), (7400, 1), (9000, 1), (None, 3)])
def test_a_tar_that_was_cut_gives_what_it_holds_and_says_so(tmp_path: Path, keep: int | None, num_sound: int) -> None:
    path = write_tar(tmp_path / "t.tar", {f"{k}.wav": wav(300 + k) for k in range(3)})
    path.write_bytes(path.read_bytes()[:keep])
    rows = indexed(path)
    assert sum(row.recording.error is None for row in rows) == num_sound
    reasons = [row.recording.error for row in rows if row.recording.error]
    if keep is not None and keep != 7168:  # there it ends at the end of a member, as some writers leave it
        assert any(reason.startswith("damaged tar: ") for reason in reasons)


def test_a_tar_with_a_broken_header_does_not_end_there_in_silence(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {f"{k}.wav": wav() for k in range(3)})
    data = bytearray(path.read_bytes())
    second = found_in(path)[1]
    start = int(second.uri.rpartition("#")[2].partition("+")[0]) - 512
    data[start + 148 : start + 156] = b"99999999"  # its checksum
    path.write_bytes(data)
    rows = indexed(path)
    assert [(row.recording.error or "fine").partition(":")[0] for row in rows] == ["fine", "damaged tar"]
    write_tar(tmp_path / "none.tar", {"a.pdf": b"x"})
    [none] = indexed(tmp_path / "none.tar")
    assert (none.recording.error or "").startswith("no audio: ")


# ------------------------------------------------------------------------------------------------- Kaldi


def data_directory(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("wav_scp", "wav.scp")).write_text(text, encoding="utf-8")
    return folder


def test_a_kaldi_directory_without_segments_gives_its_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wavs").mkdir()
    for name in "abc":
        (tmp_path / f"wavs/{name}.wav").write_bytes(wav())
    scp = f"r1 {tmp_path}/wavs/a.wav\nr2 ../../wavs/b.wav\nr3 wavs/c.wav\nr4 s3://bucket/d.wav\n"
    folder = data_directory(
        tmp_path / "data/train",
        wav_scp=scp,
        text="r2 zwei  wörter\nr1 eins\nr3\n",
        utt2spk="r1 s1\nr2 s2\n",
        utt2lang="r2 de\n",
        spk2utt="s1 r1\n",
    )
    monkeypatch.chdir(tmp_path)
    one, two, three, four = found_in(folder)
    assert [each.uri for each in (one, two, three)] == [f"{tmp_path}/wavs/{name}.wav" for name in "abc"]
    assert four.uri == "s3://bucket/d.wav"
    assert (two.id, two.text, two.speaker, two.language) == ("r2", "zwei  wörter", "s2", "de")
    assert (one.text, one.language, three.text, four.text, four.speaker) == ("eins", None, "", None, None)
    assert [each.id for each in found_in(tmp_path / "data")] == ["r1", "r2", "r3", "r4"]


def test_segments_of_a_kaldi_directory_are_utterances_of_their_channel(tmp_path: Path) -> None:
    loud_T = (8000 * np.sin(np.arange(32_000) / 9)).astype(np.int16)
    two_TC = np.stack([loud_T, loud_T[::-1] // 2], axis=1)
    import soundfile

    soundfile.write(tmp_path / "a.wav", two_TC, 16_000)
    folder = data_directory(
        tmp_path / "d",
        wav_scp=f"rec {tmp_path}/a.wav\n",
        segments="u1 rec 0.0 0.5 A\nu2 rec 0.5 1.25 1\nu3 rec 1.5 -1\n",
        text="u1 one\nu2 two\nu3 three\n",
    )
    [row] = indexed(folder)
    assert row.recording.num_channels == 2
    assert [(each.id, each.text, each.channel, each.start_ms, each.end_ms) for each in row.utterances] == [
        ("u1", "one", 0, 0, 500),
        ("u2", "two", 1, 500, 1250),
        ("u3", "three", None, 1500, 2000),
    ]


def test_a_channel_in_which_nobody_speaks_costs_only_itself(tmp_path: Path) -> None:
    import soundfile

    loud_T = (8000 * np.sin(np.arange(16_000) / 9)).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", np.stack([loud_T, 0 * loud_T], axis=1), 16_000)
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav", "channel": 0}\n{"audio": "a.wav", "channel": 1}\n')
    [row] = indexed(tmp_path / "m.jsonl")
    assert row.recording.error is None
    assert [each.channel for each in row.utterances] == [0]


def test_a_command_is_never_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = data_directory(tmp_path / "d", wav_scp=f"a touch {canary} |\nb cat x.wav |\nc -\n")
    rows = indexed(folder)
    assert not canary.exists()
    assert {(row.recording.error or "").partition(":")[0] for row in rows} == {"is a command"}
    assert f"touch {canary} |" in (rows[0].recording.error or "")
    assert len({row.recording.id for row in rows}) == 3


def test_entries_of_an_ark_are_read_alone(tmp_path: Path) -> None:
    ark, scp = b"", []
    clips = [wav(300 + 50 * k, 0.1 * (k + 1)) for k in range(4)]
    for number, data in enumerate(clips):
        ark += f"utt{number} ".encode()
        scp.append(f"utt{number} wav.ark:{len(ark)}")
        ark += data
    (tmp_path / "wav.ark").write_bytes(ark)
    data_directory(tmp_path, wav_scp="\n".join([*scp, "bad wav.ark:3", "gone none.ark:8"]) + "\n")
    found = found_in(tmp_path)
    assert [read_uri(each.uri) for each in found[:4]] == clips
    reasons = [(row.recording.error or "fine").partition(":")[0] for row in indexed(tmp_path)]
    assert reasons == ["fine"] * 4 + ["not audio", "cannot be read"]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"segments": "u1 nobody 0 1\n"}, "segments:1"),
        ({"segments": "u1 r 0 1 A B\n"}, "segments:1"),
        ({"segments": "u0 r 0 1\nu1 r 1 0.5\n"}, "segments:2"),
        ({"segments": "u1 r zero 1\n"}, "segments:1"),
        ({"segments": "u1 r 0 1 left\n"}, "segments:1"),
        ({"text": "r a\nr b\n"}, "says `r` twice"),
        ({"wav_scp": "r a.wav\n\nq b.wav\n"}, "wav.scp:2"),
    ],
)
def test_a_bad_line_of_a_kaldi_file_is_named(tmp_path: Path, files: dict[str, str], what: str) -> None:
    folder = data_directory(tmp_path / "d", **({"wav_scp": "r a.wav\n"} | files))
    assert what in refused(folder).what


# ------------------------------------------------------------------------------------------------- buckets, odd files


def test_a_bucket_holds_the_same_forms(tmp_path: Path) -> None:
    store = Store("memory://forms")
    tar = write_tar(tmp_path / "t.tar", {f"{k}.wav": wav(300 + k) for k in range(30)}).read_bytes()
    pq.write_table(pa.table({"audio": ["clips/a.wav"], "text": ["p"]}), tmp_path / "m.parquet")
    store.replace("set/clips/a.wav", wav())
    store.replace("set/clips/b.wav", wav(400))
    store.replace("set/metadata.csv", b"file_name,text\nclips/a.wav,said\n")
    store.replace("set/t.tar", tar)
    store.replace("set/m.parquet", (tmp_path / "m.parquet").read_bytes())
    store.replace("set/l.txt", b"clips/b.wav\n")
    files = list(by_file(scan(Source(uri="memory://forms/set"))))
    assert len(files) == 32
    texts = {file.found[0].uri: file.found[0].text for file in files}
    assert texts["memory://forms/set/clips/a.wav"] == "said"
    assert texts["memory://forms/set/clips/b.wav"] is None
    assert all(file.found[0].etag for file in files)
    rows = [index(file, Segment(), Source(), 0) for file in files]
    assert {row.recording.error for row in rows} == {None}
    assert [each.text for each in found_in("memory://forms/set/m.parquet")] == ["p"]
    assert [each.uri for each in found_in("memory://forms/set/l.txt")] == ["memory://forms/set/clips/b.wav"]
    [read] = indexed("memory://forms/set/l.txt")
    assert read.recording.etag  # the list knows none: it is what the read answered
    assert "cannot read the manifest" in refused("memory://forms/none.jsonl").what


def test_one_file_far_away_knows_its_version_and_a_signature_is_never_shown() -> None:
    Store("memory://one").replace("a/b.wav", wav())
    [found] = found_in("memory://one/a/b.wav")
    assert (found.uri, found.num_bytes) == ("memory://one/a/b.wav", len(wav()))
    assert found.etag
    for name in ("m.jsonl", "t.tar.gz"):
        error = refused(f"http://127.0.0.1:9/{name}?X-Amz-Signature=canary")
        assert "canary" not in f"{error}{error!r}"


def test_a_name_that_is_not_utf8_is_a_row_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    bad = bytes(tmp_path) + b"/\xff\xfe.wav"
    Path(bad.decode("utf-8", "surrogateescape")).write_bytes(wav())
    reasons = [(row.recording.error or "fine").partition(":")[0] for row in indexed(tmp_path)]
    assert sorted(reasons) == ["fine", "unreadable name"]


def test_the_shared_manifest_says_the_same_as_a_table(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shared_data("fsdd")
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    for row in rows:
        row["audio"] = str(folder / row["audio"])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "m.parquet")
    assert found_in(tmp_path / "m.parquet") == found_in(folder / "manifest.jsonl")


def test_a_full_disk_while_unpacking_is_told_as_that(tmp_path: Path) -> None:
    path = squeezed(write_tar(tmp_path / "t.tar", {"a.wav": wav()}), "gz")
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(StorageError) as caught:
        _unpack(str(path), full)
    assert (caught.value.why, caught.value.fix) == ("No space left on device", "make room in the work folder")
