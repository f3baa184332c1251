"""Cuts and Shar of lhotse, tarred manifests of NeMo."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from manifests import entries_in, refused, wav, write_tar
from voxstill.core.config import Source
from voxstill.indexing.scan import by_file, scan
from voxstill.storage.fetch import fetch
from voxstill.storage.store import Store


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
    supervisions = [{"id": "s", "recording_id": "r", "start": 0.0, "duration": 0.2, "channel": 0, "text": "one two"}]
    fields = {
        "id": id_,
        "start": 0.0,
        "duration": 0.2,
        "channel": 0,
        "supervisions": supervisions,
        "recording": recording,
    }
    return fields | {"type": "MonoCut"} | more


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
    whole, part, elsewhere, memory_, out = entries_in(path)
    assert (whole.id, whole.text, whole.start_ms, whole.uri) == ("whole", "one two", None, str(tmp_path / "m/a.wav"))
    assert (part.text, part.info.speaker, part.start_ms, part.end_ms) == ("three four", "x", 50, 150)
    assert (elsewhere.text, elsewhere.uri) == (None, str(tmp_path / "b.wav"))
    assert "write it to files with lhotse" in str(memory_.failure)
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
    entries = {entry.id: entry for file in files for entry in file.entries}
    assert set(entries) == {"c/0.0", "c/0.1", "c/1.0", "c/1.1", "gone"}
    for shard, k in ((0, 0), (0, 1), (1, 0), (1, 1)):
        entry = entries[f"c/{shard}.{k}"]
        assert (entry.text, entry.start_ms, entry.failure) == ("one two", None, None)
        assert fetch(entry.uri).data == wav(300 + 9 * shard + k)
    assert "the tar `recording.000007.tar` of its audio is missing" in str(entries["gone"].failure)


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
    one, two, three, four, five = entries_in(folder.uri(key))
    assert [fetch(row.uri).data for row in (one, two, three)] == [wav(301), wav(302), wav(300)]
    assert (three.text, three.start_ms, three.end_ms) == ("three", 50, 150)
    assert (one.start_ms, one.end_ms) == (None, None)
    assert "no member of `audio_1.tar`" in str(four.failure)
    assert "`audio_7.tar`" in str(five.failure)
