"""verify: what is broken on disk is named, made again to the same bytes, and doubled ids are refused and mended."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from manifests import wav
from older_tables import without_account
from voxstill import cli
from voxstill.core.config import Config, changed, load
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Label, Utterance
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.recipes import finished_shards
from voxstill.pipeline.remove import remove
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.pipeline.verify import VerifyResult, verify
from voxstill.sharding import generation
from voxstill.storage import lease, manifest, parquet, tables
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM = 20


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A finished work folder: four parts of utterances, four of labels, two shards and more."""
    folder = tmp_path_factory.mktemp("made")
    source = folder / "source"
    source.mkdir()
    rows = []
    for number in range(NUM):
        (source / f"{number}.wav").write_bytes(wav(300 + 10 * number))
        split = "dev" if number % 4 == 0 else "train"
        rows.append({"id": f"u{number}", "audio": f"{number}.wav", "text": "one", "speaker": "s", "split": split})
    (source / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [f"work={folder / 'work'}", f"source.uri={source / 'manifest.jsonl'}", "shard.utterances=10"]
    cfg = load(None, ["teacher=echo", "engine={name: inline, chunk: 5}", *overrides], {})
    for step in (index, label_utterances, filter_labels, shard):
        step(cfg)
    return cfg


@pytest.fixture
def cfg(finished: Config, tmp_path: Path) -> Config:
    shutil.copytree(finished.work, tmp_path / "work")
    return changed(finished, f"work={tmp_path / 'work'}")


def files(cfg: Config) -> dict[str, bytes]:
    """What is on disk but for leases, and for figures of time."""
    folder = Path(cfg.work)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".parquet", ".tar")
    }


def checked(cfg: Config, *, repair: bool = False) -> VerifyResult:
    return verify(cfg.work, cfg, repair=repair)


def paths(result: VerifyResult) -> set[str]:
    return {row.path for row in result.broken}


def one(cfg: Config, pattern: str) -> Path:
    return sorted(Path(cfg.work).glob(pattern))[0]


def key(cfg: Config, path: Path) -> str:
    return str(path.relative_to(cfg.work))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_a_finished_work_folder_is_whole_and_stays_as_it_is(cfg: Config) -> None:
    before = files(cfg)
    result = checked(cfg)
    assert (result.broken, result.repaired, result.exit_code) == ([], [], 0)
    assert result.checked >= len(before)
    assert checked(cfg, repair=True) == result
    assert files(cfg) == before


HARM: dict[str, Callable[[Path], None]] = {
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
    "its footer flipped": lambda path: flip(path, path.stat().st_size - 200),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "removed": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
}


CASES = [
    ("recordings", "flipped"),
    ("utterances", "removed"),
    ("labels", "its footer flipped"),
    ("scores", "cut"),
    ("verdicts", "empty"),
    ("shards", "flipped"),
    ("tar", "flipped"),
    ("tar", "removed"),
]


@pytest.mark.parametrize(("kind", "harm"), CASES)
def test_what_is_broken_is_named_and_made_again_to_the_same_bytes(cfg: Config, kind: str, harm: str) -> None:
    before = files(cfg)
    path = one(cfg, "shards/*/*.tar" if kind == "tar" else f"{kind}/*/*.parquet")
    HARM[harm](path)
    result = checked(cfg)
    assert key(cfg, path) in paths(result)
    assert result.exit_code == 3
    result = checked(cfg, repair=True)
    assert key(cfg, path) in result.repaired
    assert result.exit_code == 0
    assert files(cfg) == before
    assert not checked(cfg).broken


@pytest.mark.parametrize(
    ("kind", "name"),
    [("utterances", tables.SUCCESS), ("labels", manifest.NAME), ("scores", tables.SUCCESS), ("shards", manifest.NAME)],
)
def test_a_broken_account_of_a_table_is_written_again(cfg: Config, kind: str, name: str) -> None:
    before = files(cfg)
    path = one(cfg, f"{kind}/*/{name}")
    flip(path, path.stat().st_size // 2)
    assert key(cfg, path) in paths(checked(cfg))
    result = checked(cfg, repair=True)
    assert key(cfg, path) in result.repaired
    assert result.exit_code == 0
    assert files(cfg) == before


@pytest.mark.parametrize("damage", ["cut", "digit"])
def test_a_broken_note_of_a_generation_is_named_and_its_shards_are_made_again(cfg: Config, damage: str) -> None:
    before = files(cfg)
    path = one(cfg, f"shards/*/{generation.BASE}")
    [source] = re.findall(r'"source": "(.+)"', path.read_text())
    other = ("1" if source[0] == "0" else "0") + source[1:]
    path.write_text("{" if damage == "cut" else path.read_text().replace(source, other))
    assert key(cfg, path) in paths(checked(cfg))
    assert checked(cfg, repair=True).exit_code == 0
    assert files(cfg) == before


def test_figures_that_were_lost_are_named(cfg: Config) -> None:
    path = one(cfg, f"labels/*/{tables.SUCCESS}")
    path.unlink()
    assert paths(checked(cfg)) == {key(cfg, path)}
    assert checked(cfg, repair=True).exit_code == 0


def test_what_this_configuration_does_not_make_is_named_and_left_alone(cfg: Config) -> None:
    path = one(cfg, "labels/*/*.parquet")
    flip(path, 40)
    before = files(cfg)
    other = changed(cfg, "teacher={name: echo, substitute: 0.5}")
    result = verify(cfg.work, other, repair=True)
    assert (paths(result), result.repaired, result.exit_code) == ({key(cfg, path)}, [], 3)
    assert files(cfg) == before


def test_nothing_is_repaired_while_another_process_writes_the_table(cfg: Config) -> None:
    path = one(cfg, "labels/*/*.parquet")
    flip(path, 40)
    before = files(cfg)
    table = key(cfg, path.parent)
    with lease.hold(Store(cfg.work), table, "label"), pytest.raises(Exception, match="runs `voxstill label`"):
        checked(cfg, repair=True)
    assert files(cfg) == before


def test_shards_of_version_0_1_are_checked_by_size_and_headers(cfg: Config) -> None:
    import pyarrow.parquet as pq

    sidecar = one(cfg, "shards/*/*.parquet")
    pq.write_table(pq.read_table(sidecar).drop_columns(["crc32"]), sidecar, compression="zstd")
    without_account(sidecar.parent)
    assert not checked(cfg).broken
    tar = sidecar.with_suffix(".tar")
    whole = tar.read_bytes()
    tar.write_bytes(whole[:-512])
    assert paths(checked(cfg)) == {key(cfg, tar)}
    tar.write_bytes(b"x" + whole[1:])
    assert paths(checked(cfg)) == {key(cfg, tar)}


def test_a_lost_tar_is_named_beside_its_lost_sidecar(cfg: Config) -> None:
    before = files(cfg)
    sidecars = sorted(Path(cfg.work).glob("shards/*/*.parquet"))
    lost = {key(cfg, path) for sidecar in sidecars for path in (sidecar, sidecar.with_suffix(".tar"))}
    for name in lost:
        (Path(cfg.work) / name).unlink()
    assert lost <= paths(checked(cfg))
    result = checked(cfg, repair=True)
    assert (result.exit_code, files(cfg)) == (0, before)
    assert lost <= set(result.repaired)


def test_unlabelled_shards_are_made_again(cfg: Config) -> None:
    shard_unlabelled(cfg)
    before = files(cfg)
    for tar in Path(cfg.work).glob("shards/*/00000.tar"):
        flip(tar, 2000)
    assert len(paths(checked(cfg))) == 2
    assert checked(cfg, repair=True).exit_code == 0
    assert files(cfg) == before


def test_what_rests_on_labels_that_are_others_now_is_made_of_these(
    cfg: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """A part of labels that version 0.1 wrote is made again with its checksum: the labels have another one, too."""
    import pyarrow.parquet as pq

    part = one(cfg, "labels/*/*.parquet")
    pq.write_table(pq.read_table(part), part, compression="zstd")
    for step in (label_utterances, filter_labels, shard):
        step(cfg)
    assert not checked(cfg).broken
    newest = max(Path(cfg.work).glob("scores/*/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    for path in (part, newest):
        flip(path, 40)
    with caplog.at_level("WARNING", logger="voxstill"):
        logging.getLogger("voxstill").propagate = True
        assert checked(cfg, repair=True).exit_code == 0
    assert "has other labels than before" in caplog.text
    assert not newest.exists()
    assert not checked(cfg).broken
    assert filter_labels(cfg).judged == NUM


# ---------------------------------------------------------------------------------------------------- doubled ids


def copy_as_another_part(cfg: Config, kind: str) -> None:
    """What two commands at once did to a table, and no manifest tells which part was first."""
    part = one(cfg, f"{kind}/*/*.parquet")
    shutil.copy(part, part.with_name("zz.parquet"))
    if kind == "utterances":
        recordings = one(cfg, "recordings/*/*.parquet")
        shutil.copy(recordings.with_name(part.name), recordings.with_name("zz.parquet"))
    for account in Path(cfg.work).glob(f"*/*/{manifest.NAME}"):
        without_account(account.parent)


def test_a_doubled_index_is_refused_in_words_and_mended(cfg: Config) -> None:
    before = files(cfg)
    copy_as_another_part(cfg, "utterances")
    with pytest.raises(DataError, match="utterances twice") as caught:
        index(cfg)
    assert "voxstill verify WORK --repair" in caught.value.fix
    with pytest.raises(DataError, match="utterances twice"):
        shard_unlabelled(cfg)
    assert any(path.endswith("zz.parquet") for path in paths(checked(cfg)))
    assert checked(cfg, repair=True).exit_code == 0
    assert files(cfg) == before
    assert index(cfg).utterances == NUM


def test_doubled_labels_are_refused_in_words_and_mended(cfg: Config) -> None:
    before = files(cfg)
    copy_as_another_part(cfg, "labels")
    with pytest.raises(DataError, match="twice") as caught:
        label_utterances(cfg)
    assert "voxstill verify WORK --repair" in caught.value.fix
    assert checked(cfg, repair=True).exit_code == 0
    assert files(cfg) == before


def test_a_work_folder_that_was_doubled_from_the_index_on_holds_each_utterance_once_afterwards(cfg: Config) -> None:
    """Labels, scores, verdicts and shards of an older version hold the doubled utterances as well."""
    work = Store(cfg.work)
    part = one(cfg, "utterances/*/*.parquet")
    utterances = tables.from_parquet(part.read_bytes(), Utterance)
    copy_as_another_part(cfg, "utterances")
    copy_as_another_part(cfg, "scores")
    copy_as_another_part(cfg, "verdicts")
    labels = one(cfg, "labels/*/*.parquet")
    rows = [row for path in labels.parent.glob("*.parquet") for row in tables.from_parquet(path.read_bytes(), Label)]
    two = [row for row in rows if row.utterance_id in {utterances[0].id, utterances[1].id}]
    labels.with_name("aa.parquet").write_bytes(tables.to_parquet(two, Label))
    sidecars = sorted(Path(cfg.work).glob("shards/*/*.parquet"))
    shutil.copy(sidecars[0], sidecars[-1])
    shutil.copy(sidecars[0].with_suffix(".tar"), sidecars[-1].with_suffix(".tar"))
    assert checked(cfg).exit_code == 3
    result = checked(cfg, repair=True)
    assert result.exit_code == 0, result
    again = checked(cfg)
    assert not again.broken
    for kind, name in (("utterances", "id"), ("labels", "utterance_id"), ("shards", "id")):
        ids = [
            id_
            for path in Path(cfg.work).glob(f"{kind}/*/*.parquet")
            for id_ in parquet.decode(path.read_bytes(), str(path)).read()[name].to_pylist()
        ]
        assert len(ids) == len(set(ids)) == NUM, kind
    assert work.exists(key(cfg, part))


# ---------------------------------------------------------------------------------------------------- the command


def test_the_command_prints_what_is_broken_and_exits_with_3(cfg: Config, capsys: pytest.CaptureFixture[str]) -> None:
    path = one(cfg, "shards/*/*.tar")
    flip(path, 700)
    assert cli.main(["verify", cfg.work, "--json"]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in printed["broken"]] == [key(cfg, path)]
    assert "checksum" in printed["broken"][0]["reason"]
    assert printed["repaired"] == []
    options = ["--set", "teacher=echo", "--set", "engine.name=inline", "--set", "shard.utterances=10"]
    assert cli.main(["verify", cfg.work, "--repair", "--set", f"source.uri={cfg.source.uri}", *options]) == 0
    assert "made again" in capsys.readouterr().out


def test_a_folder_without_tables_is_an_error(cfg: Config, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished table"):
        verify(str(tmp_path / "nothing"), cfg)


def test_an_experiment_is_checked_as_far_as_it_speaks_of_itself(cfg: Config, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    exp = tmp_path / "exp"
    checkpoint = exp / "checkpoints/epoch=0-step=4"
    checkpoint.mkdir(parents=True)
    (exp / "config.yaml").write_text("seed: 1\n")
    (exp / "summary.json").write_text("{}")
    (checkpoint / "state.json").write_text('{"step": 4, "average": 0}')
    for name in ("model", "optimizer"):
        save_file({"w": np.zeros(100, np.float32)}, checkpoint / f"{name}.safetensors")
    (exp / "checkpoints/last").symlink_to(checkpoint.name)
    result = verify(str(exp), cfg)
    assert (result.broken, result.exit_code, result.checked) == ([], 0, 5)
    (checkpoint / "state.json").write_text('{"step"')
    (checkpoint / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:-4])
    (checkpoint / "optimizer.safetensors").unlink()
    (exp / "checkpoints/best").symlink_to("epoch=9-step=9")
    prefix = "checkpoints/epoch=0-step=4"
    names = {f"{prefix}/{name}" for name in ("state.json", "model.safetensors", "optimizer.safetensors")}
    result = verify(str(exp), cfg)
    assert (paths(result), result.exit_code) == (names | {"checkpoints/best"}, 3)
    with pytest.raises(ConfigError, match="cannot be made again"):
        verify(str(exp), cfg, repair=True)


# ------------------------------------------------------------------------------------------- accounts and other labels


ACCOUNTS = ("utterances", "labels", "scores", "verdicts", "shards")
TORN: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("harm", list(TORN))
@pytest.mark.parametrize("name", [tables.SUCCESS, manifest.NAME])
def test_broken_accounts_of_all_tables_at_once_are_written_again(cfg: Config, name: str, harm: str) -> None:
    before = files(cfg)
    struck = [one(cfg, f"{kind}/*/{name}") for kind in ACCOUNTS]
    for path in (*struck, one(cfg, "scores/*/*.parquet"), one(cfg, "shards/*/*.tar")):
        TORN[harm](path)
    assert {key(cfg, path) for path in struck} <= paths(checked(cfg))
    result = checked(cfg, repair=True)
    assert result.exit_code == 0, result.to_text()
    assert files(cfg) == before
    assert not checked(cfg).broken


@pytest.mark.parametrize("kind", ["utterances", "verdicts"])
def test_a_part_of_another_table_is_named_and_goes(cfg: Config, kind: str) -> None:
    before = files(cfg)
    part = one(cfg, f"{kind}/*/*.parquet")
    added = part.with_name("ffff.parquet")
    shutil.copy(part, added)
    assert key(cfg, added) in paths(checked(cfg))
    assert checked(cfg, repair=True).exit_code == 0
    assert files(cfg) == before


def test_utterances_that_are_labelled_otherwise_now_are_written_anew(cfg: Config) -> None:
    """A teacher that draws by chance: what the filter kept has another text, and old tars hold the old one."""
    part = one(cfg, "labels/*/*.parquet")
    rows = tables.from_parquet(part.read_bytes(), Label)
    others = {row.utterance_id for row in rows}
    part.write_bytes(tables.to_parquet([replace(row, text="two") for row in rows], Label))
    one(cfg, f"labels/*/{tables.SUCCESS}").unlink()
    for step in (label_utterances, filter_labels):
        step(cfg)
    figures = shard(cfg)
    samples = list(tables.read(Store(cfg.work), f"shards/{figures.recipe}", Sample))
    texts = {row.id: row.text for row in samples}
    assert texts == {f"u{number}": "two" if f"u{number}" in others else "one" for number in range(NUM)}
    assert not others & {row.id for row in samples if row.tar is not None}


def test_shards_that_are_older_than_a_removal_are_not_made_again(cfg: Config, caplog: pytest.LogCaptureFixture) -> None:
    remove(cfg, ["u3"])
    flip(one(cfg, "shards/*/*.tar"), 2000)
    with caplog.at_level("WARNING", logger="voxstill"):
        logging.getLogger("voxstill").propagate = True
        assert checked(cfg, repair=True).exit_code == 0
    assert "voxstill remove" in caplog.text
    assert not checked(cfg).broken
    for step in (filter_labels, shard):
        step(cfg)
    assert not checked(cfg).broken
    ids = {row.id for row in tables.read(Store(cfg.work), f"shards/{finished_shards(cfg).recipe}", Sample)}
    assert ids == {f"u{number}" for number in range(NUM)} - {"u3"}
