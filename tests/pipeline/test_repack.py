"""`voxstill shard --from`: anybody's tars become shards, and what cannot is counted."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxstill import cli
from voxstill.audio import codec
from voxstill.core.config import Config, Plan, Source
from voxstill.data.loader import Batches, Loader
from voxstill.data.plan import plan
from voxstill.data.shard_index import open_index
from voxstill.indexing.scan import scan
from voxstill.pipeline.verify import verify
from voxstill.storage import shard_format
from voxstill.storage.fetch import read_uri
from voxstill.storage.store import Store


def noise(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(-3000, 3000, 8000 + 500 * i).astype(np.int16)


def write_tar(path: Path, mode: str, members: dict[str, bytes]) -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_tars_plain_and_compressed_become_shards_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    wenet = [(f"a{i}.wav", codec.encode(noise(i), "wav")) for i in range(5)]
    texts = [(f"a{i}.txt", f"yes yes yes yes yes yes {i}".encode()) for i in range(5)]
    write_tar(folder / "wenet.tar.bz2", "w:bz2", dict(row for pair in zip(wenet, texts, strict=True) for row in pair))
    facts = json.dumps({"text": "no", "id": "said/b", "split": "dev", "speaker": "s"}).encode()
    write_tar(folder / "webdataset.tar", "w", {"b.flac": codec.encode(noise(9), "flac"), "b.json": facts})
    again, none = codec.encode(noise(1), "wav"), codec.encode(noise(8), "wav")
    write_tar(folder / "odd.tar", "w", {"again.wav": again, "none.wav": none, "bad.wav": b"no sound"})
    work = str(tmp_path / "work")
    code = cli.main(["shard", work, "--from", str(folder), "--json", "--set", "engine=inline"])
    assert code == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["utterances"], figures["left_out"]) == (6, {"damaged file": 1, "duplicate": 1, "no text": 1})
    store, prefix = Store(work), f"shards/{figures['recipe']}"
    utterances = {}
    for sidecar in shard_format.sidecars(store, prefix):
        for row in sidecar.to_pylist():
            tar = f"{prefix}/{shard_format.tar_name(row['shard'])}"
            audio = codec.decode(read_uri(f"{store.uri(tar)}#{row['offset']}+{row['num_bytes']}")).samples_T
            utterances[row["text"]] = (row["split"], audio)
    wanted = {f"yes yes yes yes yes yes {i}": ("train", noise(i)) for i in range(5)} | {"no": ("dev", noise(9))}
    assert utterances.keys() == wanted.keys()
    for text, (split, audio) in wanted.items():
        assert utterances[text][0] == split
        assert np.array_equal(utterances[text][1], audio)


def test_audio_can_stay_in_foreign_tars_and_is_trained_on_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"a.wav": 16_000, "b.flac": 16_000, "c.wav": 44_100, "d.ogg": 16_000}
    for number in range(3):
        members: dict[str, bytes] = {}
        for name, rate_hz in rates.items():
            file = io.BytesIO()
            form = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG"}[name.partition(".")[2]]
            soundfile.write(file, noise(number), rate_hz, format=form)
            members |= {name: file.getvalue(), f"{name[0]}.txt": f"{name[0]} {number}".encode()}
        write_tar(tmp_path / f"t{number}.tar{'.gz' if number == 2 else ''}", "w:gz" if number == 2 else "w", members)
    work = str(tmp_path / "work")
    tars = [str(path) for path in tmp_path.glob("t*.tar*")]
    command = ["shard", work, "--from", *tars, "--json", "--set", "engine=inline", "--set", "shard.format=in_place"]
    assert cli.main(command) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["shards"], figures["utterances"], figures["left_out"]) == (3, 12, {})
    prefix = f"shards/{figures['recipe']}"
    assert not list(Path(work, prefix).glob("*.tar"))
    corpus = open_index(Store(work), prefix, tmp_path / "index", splits=("train",), encode=None, encoder="")
    for layout in ("local", "remote"):
        cfg = Plan(budget_ms=2000, layout=layout)
        epoch_plan = plan(corpus.durations_ms, None, cfg, seed=0, epoch=0, shard_of=corpus.shard.astype(np.int64))
        loader = Loader(Batches(corpus, epoch_plan), workers=0)
        batches = [batch for step in loader for batch in step]
        assert not loader.replaced
        assert sum(len(batch.ids) for batch in batches) == 12
    plain = [str(tmp_path / "t0.tar"), str(tmp_path / "t1.tar"), *map(str, Path(work, "unpacked").glob("*.tar"))]
    assert {corpus.tar(int(shard)) for shard in corpus.shard} == set(plain)
    assert not verify(work, Config(work=work)).broken
    with (tmp_path / "t0.tar").open("r+b") as file:  # a sample of a WAV, which no decoder can tell from another
        file.seek(2000)
        file.write(b"!")
    result = verify(work, Config(work=work))
    [broken] = result.broken
    assert broken.path.endswith(".parquet")
    assert "t0.tar" in broken.reason
    damaged = Loader(Batches(corpus, epoch_plan), workers=0, max_unread=0.5)
    assert list(damaged)
    assert damaged.replaced == 1


def test_only_whole_members_of_a_tar_can_stay_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.wav").write_bytes(codec.encode(noise(0), "wav"))
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio": "a.wav", "text": "a"}) + "\n")
    work = str(tmp_path / "work")
    command = ["shard", work, "--from", str(tmp_path / "m.jsonl"), "--set", "engine=inline"]
    assert cli.main([*command, "--set", "shard.format=in_place"]) == 3
    assert "cannot be used in place" in capsys.readouterr().err
    members = {"b.wav": codec.encode(noise(1), "wav")}
    write_tar(tmp_path / "t.tar", "w", members)
    [whole] = scan(Source(uri=str(tmp_path / "t.tar")))
    rows = [{"audio": whole.uri, "text": "b", "start_ms": 0, "end_ms": 200}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = str(tmp_path / "other")
    command = ["shard", other, "--from", str(tmp_path / "m.jsonl"), "--json", "--set", "engine=inline"]
    assert cli.main([*command, "--set", "shard.format=in_place"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"only a part of its member of the tar": 1}
