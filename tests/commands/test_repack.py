"""`voxstill shard --from`: anybody's tars become shards, and what cannot is counted."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from voxstill import cli, shards
from voxstill.audio import codec
from voxstill.store import Store


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
    write_tar(folder / "wenet.tar.bz2", "w:bz2", dict(each for pair in zip(wenet, texts, strict=True) for each in pair))
    facts = json.dumps({"text": "no", "id": "said/b", "split": "dev", "speaker": "s"}).encode()
    write_tar(folder / "webdataset.tar", "w", {"b.flac": codec.encode(noise(9), "flac"), "b.json": facts})
    write_tar(folder / "odd.tar", "w", {"none.wav": codec.encode(noise(1), "wav"), "bad.wav": b"no sound"})
    work = str(tmp_path / "work")
    code = cli.main(["shard", work, "--from", str(folder), "--json", "--set", "engine=inline"])
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["utterances"], told["left_out"]) == (6, {"damaged file": 1, "no text": 1})
    store, prefix = Store(work), f"shards/{told['recipe']}"
    found = {}
    for sidecar in shards.sidecars(store, prefix):
        for row in sidecar.to_pylist():
            tar = f"{prefix}/{shards.tar_name(row['shard'])}"
            audio = codec.decode(store.read_range(tar, row["offset"], row["num_bytes"])).samples_T
            found[row["text"]] = (row["split"], audio)
    wanted = {f"yes yes yes yes yes yes {i}": ("train", noise(i)) for i in range(5)} | {"no": ("dev", noise(9))}
    assert found.keys() == wanted.keys()
    for text, (split, audio) in wanted.items():
        assert found[text][0] == split
        assert np.array_equal(found[text][1], audio)
