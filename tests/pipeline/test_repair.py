"""verify --repair: nothing on disk is lost unless its replacement is there, and no more is made again than broke."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kept_folder import KeptFolder
from manifests import wav, write_tar
from seeds import seeded_random
from voxstill.core.config import Config, changed, load
from voxstill.core.errors import DataError, StorageError
from voxstill.pipeline.clean import clean
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.remove import remove
from voxstill.pipeline.repair import settle
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.pipeline.verify import VerifyResult, verify
from voxstill.storage import manifest, set_aside, tables
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM = 20
PADDING = 300
"""A byte of the header of the first member that is always 0."""


def write_source(folder: Path, last: int) -> None:
    rows = []
    for number in range(last):
        path = folder / f"{number}.wav"
        if not path.exists():
            path.write_bytes(wav(300 + 10 * number))
        rows.append({"id": f"u{number}", "audio": path.name, "text": "one", "speaker": f"s{number}", "split": "train"})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def made(cfg: Config) -> ShardFigures:
    for step in (index, label_utterances, filter_labels):
        step(cfg)
    return shard(cfg)


def configured(folder: Path, *more: str) -> Config:
    overrides = [f"work={folder / 'work'}", f"source.uri={folder / 'source/manifest.jsonl'}", "source.dev_share=0"]
    options = ["teacher=echo", "engine={name: inline, chunk: 5}", "shard.utterances=10", "source.test_share=0"]
    return load(None, [*options, *overrides, *more], {})


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """A work folder of two shards of ten utterances."""
    folder = tmp_path_factory.mktemp("two_shards")
    (folder / "source").mkdir()
    write_source(folder / "source", NUM)
    made(configured(folder))
    return KeptFolder(folder)


@pytest.fixture
def cfg(two_shards: KeptFolder) -> Config:
    return configured(two_shards.put_back())


def files(cfg: Config) -> dict[str, bytes]:
    """What is on disk but for leases and unfinished writes."""
    folder = Path(cfg.work)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in ("leases", "logs", "control")
    }


def content(cfg: Config) -> dict[str, bytes]:
    """`files` without manifests, which have times, and `_SUCCESS.json`, which have speeds."""
    return {name: data for name, data in files(cfg).items() if not name.endswith((manifest.NAME, tables.SUCCESS))}


def without_manifests(cfg: Config) -> dict[str, bytes]:
    """`files`; of manifests only the names: they have the versions of parts, which change when these are put back."""
    return {name: b"" if name.endswith(manifest.NAME) else data for name, data in files(cfg).items()}


def one(cfg: Config, pattern: str) -> Path:
    return sorted(Path(cfg.work).glob(pattern))[0]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def samples_of(tar: Path) -> list[Sample]:
    """What the sidecar of a shard says of its samples."""
    return tables.from_parquet(tar.with_suffix(".parquet").read_bytes(), Sample)


def in_audio(tar: Path) -> int:
    """A place inside the audio of the first sample of a shard."""
    row = samples_of(tar)[0]
    return row.offset + row.num_bytes // 2


def repaired(cfg: Config) -> VerifyResult:
    return verify(cfg.work, cfg, repair=True)


def away(cfg: Config) -> Path:
    """Move the source folder away, as a disk that is not mounted."""
    source = Path(str(cfg.source.uri)).parent
    return source.rename(source.with_name("away"))


# ---------------------------------------------------------------------------------------------- from its own audio


@pytest.mark.parametrize("place", [0, 110, PADDING])
def test_a_tar_whose_audio_is_whole_is_written_again_without_its_source(cfg: Config, place: int) -> None:
    before = files(cfg)
    tar = one(cfg, "shards/*/*.tar")
    away(cfg)
    flip(tar, place)
    result = repaired(cfg)
    assert (result.exit_code, list(result.repaired)) == (0, [str(tar.relative_to(cfg.work))])
    assert files(cfg) == before


def test_the_end_of_a_tar_and_all_of_its_json_are_written_again_without_its_source(cfg: Config) -> None:
    before = files(cfg)
    away(cfg)
    first, second = sorted(Path(cfg.work).glob("shards/*/*.tar"))
    first.write_bytes(first.read_bytes()[:-700])
    second.write_bytes(second.read_bytes().replace(b'"text": "', b'"test": "'))
    assert repaired(cfg).exit_code == 0
    assert files(cfg) == before


@pytest.mark.parametrize("harm", [lambda tar: flip(tar, in_audio(tar)), Path.unlink], ids=["flipped", "removed"])
def test_of_the_source_no_more_is_read_than_is_broken(cfg: Config, harm: Callable[[Path], None]) -> None:
    """With the other shard's recordings away: they are not asked for."""
    before = files(cfg)
    tar = one(cfg, "shards/*/*.tar")
    own = {row.id for row in samples_of(tar)}
    for number in range(NUM):
        if f"u{number}" not in own:
            (Path(str(cfg.source.uri)).parent / f"{number}.wav").unlink()
    harm(tar)
    result = repaired(cfg)
    assert (result.exit_code, list(result.repaired)) == (0, [str(tar.relative_to(cfg.work))])
    assert files(cfg) == before


# --------------------------------------------------------------------------------------------- nothing is lost


def test_a_tar_that_cannot_be_read_is_written_again(cfg: Config) -> None:
    whole = content(cfg)
    tar = one(cfg, "shards/*/00001.tar")
    tar.unlink()
    os.mkfifo(tar)  # as a bad sector: it is there, and reading it is an error
    assert repaired(cfg).exit_code == 0
    assert content(cfg) == whole


def test_nothing_is_set_aside_of_a_table_that_is_in_part_behind_a_link(cfg: Config) -> None:
    """Nothing is deleted through it, so what was set aside could not come back either."""
    one(cfg, "utterances/*/*.parquet").write_bytes(b"PAR1")
    recordings = Path(cfg.work) / "recordings"
    recordings.symlink_to(recordings.rename(Path(cfg.work).parent / "elsewhere"))
    before = files(cfg)
    with pytest.raises(StorageError, match="nothing is deleted"):
        repaired(cfg)
    assert files(cfg) == before


@pytest.mark.parametrize("is_all", [True, False], ids=["no source", "one recording missing"])
def test_a_shard_whose_source_is_not_there_stays_as_it_is(cfg: Config, *, is_all: bool) -> None:
    tar = one(cfg, "shards/*/*.tar")
    sample = samples_of(tar)[0]
    source = Path(str(cfg.source.uri)).parent
    flip(tar, in_audio(tar))
    before = files(cfg)
    if is_all:
        away(cfg)
    else:
        (source / f"{sample.id[1:]}.wav").rename(source / "elsewhere")
    with pytest.raises(StorageError):
        repaired(cfg)
    assert files(cfg) == before
    if is_all:
        (source.with_name("away")).rename(source)
    else:
        (source / "elsewhere").rename(source / f"{sample.id[1:]}.wav")
    assert repaired(cfg).exit_code == 0
    assert not verify(cfg.work, cfg).broken


def test_a_sidecar_and_a_tar_that_are_broken_stay_where_the_source_is_not_there(cfg: Config) -> None:
    for path in Path(cfg.work).glob("shards/*/00000.*"):
        flip(path, path.stat().st_size // 2)
    before = files(cfg)
    away(cfg)
    with pytest.raises(StorageError):
        repaired(cfg)
    assert files(cfg) == before


def test_all_of_a_table_stays_where_its_source_is_not_there(cfg: Config, caplog: pytest.LogCaptureFixture) -> None:
    """Its note is broken, so all is made again; the first shard is by the time the second cannot be."""
    one(cfg, "shards/*/_base.json").write_text("{")
    second = samples_of(one(cfg, "shards/*/00001.tar"))
    before = files(cfg)
    (Path(str(cfg.source.uri)).parent / f"{second[0].id[1:]}.wav").unlink()
    logging.getLogger("voxstill").propagate = True
    with caplog.at_level("ERROR", logger="voxstill"), pytest.raises(StorageError):
        repaired(cfg)
    assert "Run `voxstill verify --repair` once the cause is gone" in caplog.text  # the error names the step alone
    assert files(cfg) == before


def test_utterances_whose_files_are_not_there_are_named_and_taken_in_later(
    cfg: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a folder a file that is missing is not asked for: its utterances are in the table again after an index."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number))
    cfg = changed(cfg, f"work={tmp_path / 'other'}", f"source.uri={folder}")
    index(cfg)
    part = one(cfg, "utterances/*/*.parquet")
    flip(part, part.stat().st_size // 2)
    (folder / "3.wav").rename(tmp_path / "3.wav")
    with caplog.at_level("ERROR", logger="voxstill"):
        logging.getLogger("voxstill").propagate = True
        repaired(cfg)
    assert "holds 3 utterances, and held 4" in caplog.text
    (tmp_path / "3.wav").rename(folder / "3.wav")
    assert index(cfg).utterances == 4


def test_labels_stay_where_the_teacher_cannot_be_asked(cfg: Config) -> None:
    part = one(cfg, "labels/*/*.parquet")
    flip(part, part.stat().st_size // 2)
    before = files(cfg)
    broken = changed(cfg, "engine.chunk=4")  # parts are named after what is in them
    away(cfg)
    with pytest.raises(StorageError):
        verify(cfg.work, broken, repair=True)
    assert files(cfg).items() >= before.items()


class Killed(BaseException):
    """The end of a process: nothing of it runs any more."""


def end_at(moment: int, patched: pytest.MonkeyPatch) -> None:
    """From the write or removal of this number on, none is done and all raise; leases are given back by themselves."""
    countdown = iter(range(moment))

    def ending(write: Callable[..., object]) -> Callable[..., object]:
        def counted(store: Store, key: str, *rest: object) -> object:
            if "leases/" not in key and next(countdown, None) is None:
                raise Killed
            return write(store, key, *rest)

        return counted

    for name in ("_put", "delete", "copy"):
        patched.setattr(Store, name, ending(getattr(Store, name)))


STRUCK = {"shards/*/*.parquet": 4, "scores/*/*.parquet": 8, "utterances/*/*.parquet": 9, "shards/*/_base.json": 13}
"""What is broken, and every which moment is tried, from a random one on: several runs of the tests try them all.

The last is mended by making all of the table again.
"""


@pytest.mark.parametrize("pattern", STRUCK)
def test_a_repair_that_is_killed_at_any_moment_loses_nothing(
    cfg: Config, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the n-th write or removal of a key; then the next repair goes on."""
    part = one(cfg, pattern)
    whole = content(cfg)
    flip(part, 0 if part.suffix == ".json" else part.stat().st_size // 2)
    struck = Path(cfg.work).with_name("struck")
    shutil.copytree(cfg.work, struck)
    broken = files(cfg)
    for moment in range(seeded_random().randrange(STRUCK[pattern]), 200, STRUCK[pattern]):
        shutil.rmtree(cfg.work)
        shutil.copytree(struck, cfg.work)
        with monkeypatch.context() as patched:
            end_at(moment, patched)
            try:
                repaired(cfg)
                break
            except Killed:
                pass
        kept = files(cfg)
        copies = {key.removeprefix(f"{set_aside.PREFIX}/") for key in kept if key.startswith(f"{set_aside.PREFIX}/")}
        assert broken.keys() <= kept.keys() | copies, moment
        assert bool(copies) == any(row.path.startswith(set_aside.PREFIX) for row in verify(cfg.work, cfg).broken)
        settle(Store(cfg.work))
        there = content(cfg)
        assert there.keys() == whole.keys()
        assert all(data in (whole[key], broken[key]) for key, data in there.items()), moment
        assert repaired(cfg).exit_code == 0, moment
        assert content(cfg) == whole, moment
    assert moment > 5
    assert content(cfg) == whole


def test_a_step_that_ran_to_its_end_after_a_kill_has_the_last_word(cfg: Config) -> None:
    work, sidecar = Store(cfg.work), one(cfg, "shards/*/*.parquet")
    table = str(sidecar.parent.relative_to(cfg.work))
    whole = content(cfg)
    keys = [f"{table}/{name}" for name in (tables.SUCCESS, sidecar.name, sidecar.with_suffix(".tar").name)]
    flip(sidecar, 700)
    set_aside.keep(work, keys)
    for key in keys:
        work.delete(key)
    shard(cfg)
    assert verify(cfg.work, cfg).exit_code == 3
    assert repaired(cfg).exit_code == 0
    assert content(cfg) == whole


def test_clean_puts_back_what_an_ended_repair_left_set_aside(cfg: Config) -> None:
    """It may hold utterances that were removed since, which the deletion of their shards has to reach."""
    work, tar = Store(cfg.work), one(cfg, "shards/*/*.tar")
    table = str(tar.parent.relative_to(cfg.work))
    before = files(cfg)
    keys = [f"{table}/{name}" for name in (tables.SUCCESS, tar.name, tar.with_suffix(".parquet").name)]
    set_aside.keep(work, keys)
    for key in keys:
        work.delete(key)
    clean(cfg)
    assert set_aside.tables_kept(work) == [table]
    clean(cfg, delete=True)
    assert files(cfg) == before


# ------------------------------------------------------------------------------------------------- generations


def of_three(folder: Path) -> Config:
    return configured(folder, "shard.utterances=2", "shard.format=wav")  # of a tar that is mostly padding none is named


@pytest.fixture(scope="module")
def three_generations(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """Two more utterances and two more again."""
    folder = tmp_path_factory.mktemp("three_generations")
    (folder / "source").mkdir()
    write_source(folder / "source", NUM)
    made(configured(folder))
    for last in (NUM, NUM + 4, NUM + 8):
        write_source(folder / "source", last)
        figures = made(of_three(folder))
    assert figures.generation == 3
    assert len(list(newest(of_three(folder)).glob("*.tar"))) == 2
    return KeptFolder(folder)


@pytest.fixture
def grown(three_generations: KeptFolder) -> Config:
    return of_three(three_generations.put_back())


def newest(cfg: Config) -> Path:
    """The folder of the third generation."""
    [folder] = (
        path.parent
        for path in Path(cfg.work).glob(f"shards/*/{tables.SUCCESS}")
        if json.loads(path.read_text()).get("generation") == 3
    )
    return folder


@pytest.mark.parametrize("name", ["00001.tar", "00001.parquet", "00007.parquet"])
def test_of_a_grown_generation_one_part_is_made_again(grown: Config, name: str) -> None:
    """A tar of its own, its sidecar, and a sidecar that names a tar of an earlier generation."""
    before = {path: path.stat().st_mtime_ns for path in newest(grown).iterdir()}
    whole = content(grown)
    path = newest(grown) / name
    flip(path, in_audio(path) if name.endswith("tar") else 400)
    result = repaired(grown)
    assert result.exit_code == 0
    assert content(grown) == whole
    own = {path, *([path.with_suffix(".tar")] if name.startswith("00001.p") else [])}
    assert {Path(grown.work) / key for key in result.repaired} == own
    written = {path for path in newest(grown).iterdir() if path.stat().st_mtime_ns != before.get(path)}
    assert own <= written <= {*own, newest(grown) / manifest.NAME, newest(grown) / tables.SUCCESS}


def test_all_that_was_made_again_is_listed(grown: Config) -> None:
    """The base of a generation is broken in a way that only its own step mends: then all of the newest is made anew."""
    (newest(grown) / "_base.json").write_text("{")
    result = repaired(grown)
    assert result.exit_code == 0
    keys = {
        str(path.relative_to(grown.work)) for path in newest(grown).iterdir() if path.suffix in (".tar", ".parquet")
    }
    assert keys <= set(result.repaired)


def test_a_tar_of_an_earlier_generation_is_made_again_where_it_lies(grown: Config) -> None:
    whole = without_manifests(grown)
    table = json.loads((newest(grown) / "_base.json").read_text())["recipe"]
    tar = one(grown, f"shards/{table}/00000.tar")
    flip(tar, in_audio(tar))
    broken, source = without_manifests(grown), away(grown)
    with pytest.raises(StorageError, match="not repaired"):
        repaired(grown)
    assert without_manifests(grown) == broken
    source.rename(source.with_name("source"))
    assert repaired(grown).exit_code == 0
    assert without_manifests(grown) == whole


def test_an_earlier_generation_without_a_sidecar_is_reported_as_unfinished_and_not_as_made_again(grown: Config) -> None:
    table = json.loads((newest(grown) / "_base.json").read_text())["recipe"]
    sidecar = one(grown, f"shards/{table}/00000.parquet")
    sidecar.unlink()
    result = repaired(grown)
    key = str(sidecar.relative_to(grown.work))
    assert key in result.unfinished
    assert key not in result.repaired
    assert result.exit_code == 0
    assert f"{key}: it is missing (not made again: its table is unfinished now, and not used)" in result.to_text()
    assert not repaired(grown).broken


def test_a_broken_base_of_unlabelled_shards_keeps_no_shards_from_being_made_again(cfg: Config) -> None:
    unlabelled = Path(cfg.work) / "shards" / shard_unlabelled(cfg).recipe
    [labelled] = (path.parent for path in Path(cfg.work).glob("shards/*/_base.json") if path.parent != unlabelled)
    whole = content(cfg)
    (unlabelled / "_base.json").write_bytes(b"")
    (labelled / "00001.parquet").unlink()
    result = repaired(cfg)
    assert result.exit_code == 0
    assert content(cfg) == whole
    assert (unlabelled / tables.SUCCESS).exists()
    assert (labelled / tables.SUCCESS).exists()


def test_shards_stay_finished_where_the_record_of_removals_is_broken(cfg: Config) -> None:
    """Whether they are older than the last removal is not known then."""
    remove(cfg, ["u3"])
    filter_labels(cfg)
    shard(cfg)
    one(cfg, "removed/*.parquet").write_bytes(b"PAR1")
    newest = max(Path(cfg.work).glob(f"shards/*/{tables.SUCCESS}"), key=lambda path: path.stat().st_mtime_ns).parent
    (newest / "00000.parquet").unlink()
    broken = files(cfg)
    with pytest.raises(DataError, match="record of removed utterances is broken"):
        repaired(cfg)
    assert files(cfg) == broken


@pytest.mark.parametrize("is_swapped", [False, True])
def test_recordings_in_the_place_of_others_are_made_again(cfg: Config, *, is_swapped: bool) -> None:
    whole = content(cfg)
    first, second, *_ = sorted(Path(cfg.work).glob("recordings/*/*.parquet"))
    data, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    if is_swapped:
        second.write_bytes(data)
    result = repaired(cfg)
    assert [Path(row.path).name for row in result.broken] == [first.name, *([second.name] if is_swapped else [])]
    assert result.exit_code == 0
    assert content(cfg) == whole


def test_labels_and_the_note_of_what_they_were_compared_with_are_made_again_together(cfg: Config) -> None:
    whole = content(cfg)
    note = one(cfg, "labels/*/_utterances.json")
    note.write_text("junk")
    one(cfg, "labels/*/*.parquet").unlink()
    result = repaired(cfg)
    assert result.exit_code == 0
    key = str(note.relative_to(cfg.work))
    assert key in {row.path for row in result.broken}
    assert {name: data for name, data in content(cfg).items() if name != key} == {
        name: data for name, data in whole.items() if name != key
    }


# --------------------------------------------------------------------------- sources that changed for a moment


def without_shards(cfg: Config) -> Path:
    """Delete the shards; the folder of the source."""
    shutil.rmtree(Path(cfg.work) / "shards")
    return Path(str(cfg.source.uri)).parent


def test_an_utterance_whose_source_changed_is_not_left_out_of_the_shards(cfg: Config) -> None:
    path = without_shards(cfg) / "7.wav"
    before = path.read_bytes()
    path.write_bytes(wav(700))
    with pytest.raises(StorageError, match="1 utterance") as caught:
        shard(cfg)
    assert "u7" in caught.value.why
    assert "voxstill remove" in caught.value.fix
    assert len(list((Path(cfg.work) / "shards").rglob("*.tar"))) == 1  # the other shard is written
    path.write_bytes(before)
    figures = shard(cfg)
    assert (figures.utterances, figures.dropped) == (NUM, {})


def test_an_utterance_whose_file_decayed_is_not_left_out_of_the_shards(cfg: Config) -> None:
    """Its time and its size are what they were, and it cannot be decoded any more."""
    path = without_shards(cfg) / "7.wav"
    before, version = path.read_bytes(), path.stat()
    path.write_bytes(b"RIFX" + before[4:])
    os.utime(path, ns=(version.st_atime_ns, version.st_mtime_ns))
    with pytest.raises(StorageError, match="changed"):
        shard(cfg)
    path.write_bytes(before)
    assert shard(cfg).utterances == NUM


def test_a_source_that_changed_for_good_does_not_stop_the_shards_of_the_rest(cfg: Config) -> None:
    (without_shards(cfg) / "7.wav").write_bytes(wav(700))
    with pytest.raises(StorageError):
        shard(cfg)
    remove(cfg, ["u7"])
    filter_labels(cfg)
    assert shard(cfg).utterances == NUM - 1


def test_a_shard_is_not_made_again_of_a_source_that_changed(cfg: Config) -> None:
    tar = one(cfg, "shards/*/*.tar")
    sample = samples_of(tar)[0]
    flip(tar, in_audio(tar))
    before = files(cfg)
    path = Path(str(cfg.source.uri)).parent / f"{sample.id[1:]}.wav"
    whole = path.read_bytes()
    path.write_bytes(wav(900))
    with pytest.raises(StorageError, match="changed"):
        repaired(cfg)
    assert files(cfg) == before
    path.write_bytes(whole)
    assert repaired(cfg).exit_code == 0


# -------------------------------------------------------------------------------------------------- unpacked copies


@pytest.fixture
def unpacked(tmp_path: Path) -> Config:
    """A compressed tar of nine recordings, indexed, labelled and in shards."""
    members: dict[str, bytes] = {}
    for number in range(9):
        members[f"{number}.wav"] = wav(300 + 50 * number)
        members[f"{number}.json"] = json.dumps({"id": f"u{number}", "text": "one", "speaker": "s"}).encode()
    (tmp_path / "packed").mkdir()
    source = write_tar(tmp_path / "packed/a.tar.gz", members, "w:gz")
    options = [f"work={tmp_path / 'unpacked'}", f"source={{uri: {source}, dev_share: 0, test_share: 0}}"]
    cfg = load(None, ["teacher=reference", "engine.name=inline", *options], {})
    made(cfg)
    return cfg


def break_both(cfg: Config) -> tuple[Path, Path]:
    """Flip a byte of the first sample of the shard, in the tar and in the unpacked copy."""
    tar, copy = one(cfg, "shards/*/*.tar"), one(cfg, "unpacked/*.tar")
    sample = samples_of(tar)[0]
    flip(tar, in_audio(tar))
    flip(copy, copy.read_bytes().index(f"{sample.id[1:]}.wav".encode()) + 512 + 2000)
    return tar, copy


def test_an_unpacked_copy_is_made_again_before_a_shard_is_made_of_it(unpacked: Config) -> None:
    whole = content(unpacked)
    broken = break_both(unpacked)
    result = repaired(unpacked)
    assert (result.exit_code, set(result.repaired)) == (0, {str(path.relative_to(unpacked.work)) for path in broken})
    assert content(unpacked) == whole
    assert not verify(unpacked.work, unpacked).broken


def test_a_shard_is_not_made_again_of_an_unpacked_copy_that_is_broken(unpacked: Config) -> None:
    whole = content(unpacked)
    break_both(unpacked)
    before = files(unpacked)
    source = Path(str(unpacked.source.uri))
    source.rename(source.with_suffix(".away"))
    with pytest.raises((StorageError, DataError)):
        repaired(unpacked)
    assert files(unpacked) == before
    source.with_suffix(".away").rename(source)
    assert repaired(unpacked).exit_code == 0
    assert content(unpacked) == whole
