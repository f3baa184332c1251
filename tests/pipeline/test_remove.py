"""remove: no later table or shard holds a removed utterance, and nothing is trained on shards that do."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import voxstill
from kept_folder import KeptFolder
from manifests import wav
from voxstill import cli
from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError, StorageError
from voxstill.core.records import Label, Utterance, Verdict
from voxstill.filtering.measures import Score
from voxstill.labelling import alignment, label
from voxstill.pipeline import compare_teachers
from voxstill.pipeline.clean import CleanResult, clean
from voxstill.pipeline.filter import filter_labels
from voxstill.pipeline.index import index
from voxstill.pipeline.judged_split import of_split
from voxstill.pipeline.label import label_utterances
from voxstill.pipeline.mixture import labelled_shards
from voxstill.pipeline.plan import plan_
from voxstill.pipeline.pretrain import pretrain
from voxstill.pipeline.remove import read_ids, remove
from voxstill.pipeline.shard import shard, shard_unlabelled
from voxstill.pipeline.train import train
from voxstill.pipeline.verify import verify
from voxstill.storage import lease, removals, tables, workdir
from voxstill.storage.figures import ShardFigures
from voxstill.storage.shard_format import Sample
from voxstill.storage.store import Store

NUM = 16


def text_of(number: int) -> str:
    return f"text of number {number} here"


def source(folder: Path, num: int = NUM) -> None:
    """A manifest with a human text for each utterance, which `reference` gives back."""
    rows = []
    for number in range(num):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number, 3.0))
        split = {0: "dev", 1: "test"}.get(number % 8, "train")
        rows.append(
            {"id": f"u{number:02}", "audio": f"{number}.wav", "text": text_of(number), "speaker": "s", "split": split}
        )
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def configured(folder: Path) -> Config:
    overrides = [
        f"work={folder / 'work'}",
        f"source.uri={folder / 'manifest.jsonl'}",
        "shard.utterances=4",
        "train.steps=2",
    ]
    return config.load(None, ["teacher=reference", "engine={name: inline, chunk: 5}", *overrides], {})


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    source(tmp_path)
    return configured(tmp_path)


@pytest.fixture(scope="module")
def indexed_folder(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    folder = tmp_path_factory.mktemp("indexed")
    source(folder)
    index(configured(folder))
    return KeptFolder(folder)


@pytest.fixture
def indexed(indexed_folder: KeptFolder) -> Config:
    """Of which the index is made."""
    return configured(indexed_folder.put_back())


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    folder = tmp_path_factory.mktemp("finished")
    source(folder)
    sharded(configured(folder))
    return KeptFolder(folder)


@pytest.fixture
def finished(finished_folder: KeptFolder) -> Config:
    """Of which all is made up to the shards."""
    return configured(finished_folder.put_back())


def sharded(cfg: Config) -> ShardFigures:
    for step in (index, label_utterances, filter_labels):
        step(cfg)
    return shard(cfg)


def ids_of(cfg: Config, figures: ShardFigures) -> list[str]:
    return sorted(row.id for row in tables.read(Store(cfg.work), f"shards/{figures.recipe}", Sample))


def holding(work: str | Path, *folders: str, texts: tuple[str, ...]) -> list[str]:
    """Files below the folders that hold one of the texts, also where Parquet has compressed them."""
    keys = []
    for path in sorted(path for folder in folders for path in (Path(work) / folder).rglob("*") if path.is_file()):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            data = json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        else:
            data = path.read_bytes()
        if any(text.encode() in data for text in texts):
            keys.append(str(path.relative_to(work)))
    return keys


def is_sound(cfg: Config) -> bool:
    return not verify(cfg.work, cfg).broken


def test_no_recipe_changes_where_nothing_is_removed(finished: Config) -> None:
    first = sharded(finished)
    assert remove(finished, []).removed == 0
    assert sharded(finished) == first
    assert not removals.of(Store(finished.work))
    assert not (Path(finished.work) / "removed").exists()


def test_later_tables_and_shards_leave_removed_utterances_out(finished: Config) -> None:
    first = sharded(finished)
    unlabelled = shard_unlabelled(finished)
    before = filter_labels(finished)
    assert remove(finished, ["u02", "u09"], "asked for it").removed == 2
    assert remove(finished, ["u02"]).removed == 0
    [row, other] = sorted(removals.record(Store(finished.work)), key=lambda removal: removal.id)
    assert (row.id, row.reason, other.id) == ("u02", "asked for it", "u09")
    second, verdicts = sharded(finished), filter_labels(finished)
    assert (verdicts.removed, verdicts.judged, before.removed) == (2, before.judged - 1, None)  # u09 is of test
    assert verdicts.scores != before.scores
    assert set(ids_of(finished, first)) - set(ids_of(finished, second)) == {"u02"}
    anew = shard_unlabelled(finished)
    assert set(ids_of(finished, unlabelled)) - set(ids_of(finished, anew)) == {"u02"}
    assert anew.utterances == unlabelled.utterances - 1
    work = Store(finished.work)
    assert "u02" not in {score.utterance_id for score in tables.read(work, f"scores/{verdicts.scores}", Score)}
    assert "u02" not in {row.utterance_id for row in tables.read(work, f"verdicts/{verdicts.recipe}", Verdict)}
    assert [row.id for row in of_split(finished).utterances] == ["u01"]
    assert is_sound(finished)


def test_shards_that_hold_a_removed_utterance_are_refused(finished: Config, tmp_path: Path) -> None:
    corpora = f"train.corpora=[{{work: {finished.work}, shards: reference}}]"
    mixed = config.changed(finished, f"work={tmp_path / 'own'}", corpora)
    labelled_shards(mixed)
    remove(finished, ["u02"])
    for step in (train, lambda at: plan_(at.work, None, 0, at)):
        with pytest.raises(DataError, match="older than the last `voxstill remove`"):
            step(finished)
    filter_labels(finished)
    refusals: list[Callable[[], object]] = [
        lambda: train(finished),  # of a training that goes on as of a new one
        lambda: plan_(finished.work, None, 0, finished),
        lambda: labelled_shards(mixed),
        lambda: train(mixed),
    ]
    for refused in refusals:
        with pytest.raises(DataError, match="hold 1 utterances that were removed"):
            refused()
    shard(finished)
    assert plan_(finished.work, None, 0, finished).steps


def test_unlabelled_shards_that_hold_a_removed_utterance_are_refused(indexed: Config) -> None:
    shard_unlabelled(indexed)
    remove(indexed, ["u02"])
    with pytest.raises(DataError, match="hold 1 utterances that were removed") as refused:
        pretrain(indexed)
    assert "--unlabelled" in (refused.value.fix or "")


def test_a_recording_goes_with_all_its_utterances_and_an_index_does_not_bring_it_back(indexed: Config) -> None:
    work = Store(indexed.work)
    utterance = next(row for row in tables.read(work, "utterances", Utterance) if row.id == "u03")
    assert remove(indexed, [utterance.recording_id]).removed == 1
    again = config.changed(indexed, "segment.min_ms=210")
    recipe = index(again).recipe
    left = [row.recording_id for row in tables.read(work, f"utterances/{recipe}", Utterance)]
    assert utterance.recording_id not in left
    assert len(left) == NUM - 1
    assert is_sound(indexed)


def test_a_removed_stretch_stays_out_of_another_segmentation(indexed: Config) -> None:
    assert remove(indexed, ["u03"]).removed == 1
    recipe = index(config.changed(indexed, "segment.min_ms=210")).recipe
    left = {row.id for row in tables.read(Store(indexed.work), f"utterances/{recipe}", Utterance)}
    assert "u03" not in left
    assert len(left) == NUM - 1


def stretch(id_: str, start_ms: int, end_ms: int, channel: int | None = None) -> Utterance:
    return Utterance(id=id_, recording_id="r", uri="call.wav", channel=channel, start_ms=start_ms, end_ms=end_ms)


def removal(id_: str, start_ms: int = 0, end_ms: int | None = None, channel: int | None = None) -> removals.Removal:
    return removals.Removal(id=id_, uri="call.wav", channel=channel, start_ms=start_ms, end_ms=end_ms, time="2026")


def test_in_another_segmentation_every_utterance_that_overlaps_is_removed() -> None:
    utterances = [stretch("a", 0, 500), stretch("b", 500, 900), stretch("c", 900, 1200), stretch("d", 0, 1200, 1)]

    def covered(*of: removals.Removal) -> str:
        return "".join(row.id for row in removals.covered(of, utterances))

    assert covered(removal("gone", 400, 900, 0)) == "ab"
    assert covered(removal("gone", 400, 900)) == "abd"
    assert covered(removal("b", 400, 900)) == "b"  # it is there itself, so its neighbours are none of it
    assert covered(removal("r")) == "abcd"
    assert covered(removal("gone", 1200, 1300)) == ""


def test_a_removal_from_a_copy_removes_no_neighbour_in_the_file_that_has_the_utterance_itself() -> None:
    utterances = [stretch("a", 0, 500), stretch("b", 400, 900)]
    of = [dataclasses.replace(removal("b", 400, 900), uri=uri, content="c") for uri in ("call.wav", "copy.wav")]
    assert [row.id for row in removals.covered(of, utterances, {"r": "c"})] == ["b"]
    copies = [dataclasses.replace(row, id=f"{row.id}2", uri="other.wav") for row in utterances]
    assert [row.id for row in removals.covered(of, copies, {"r": "c"})] == ["a2", "b2"]


def test_removed_utterances_are_not_aligned(indexed: Config) -> None:
    labels = label_utterances(indexed).recipe
    prefix = workdir.prefix("utterances", workdir.finished_recipes(Store(indexed.work), "utterances")[0])

    def planned() -> set[str]:
        chunks = alignment.plan(Store(indexed.work), prefix, f"labels/{labels}", "alignments/a", indexed.engine)
        return {utterance.id for chunk in chunks for utterance in chunk.items}

    before = planned()
    remove(indexed, ["u02"])
    assert before - planned() == {"u02"}


def test_a_removed_utterance_is_not_sent_to_a_teacher(indexed: Config) -> None:
    remove(indexed, ["u02", "u04"])
    (Path(indexed.work).parent / "2.wav").unlink()
    figures = label_utterances(indexed)
    assert (figures.finished, figures.labels, figures.failed, figures.removed) == (True, NUM, 0, 2)
    assert figures.exit_code == 0
    rows = {row.utterance_id: row for row in tables.read(Store(indexed.work), f"labels/{figures.recipe}", Label)}
    assert {id_ for id_, row in rows.items() if row.error == removals.REMOVED} == {"u02", "u04"}
    assert rows["u02"].text == ""
    assert label_utterances(indexed).recipe == figures.recipe
    assert label_utterances(indexed, retry_failed=True).removed == 2
    assert is_sound(indexed)


def test_a_file_that_is_gone_for_good_is_removed_and_labelling_ends(indexed: Config) -> None:
    (Path(indexed.work).parent / "5.wav").unlink()
    with pytest.raises(StorageError) as left:
        label_utterances(indexed)
    assert "voxstill remove" in (left.value.fix or "")
    remove(indexed, ["u05"], "the file is lost")
    figures = label_utterances(indexed)
    assert (figures.finished, figures.removed) == (True, 1)
    filter_labels(indexed)
    assert "u05" not in ids_of(indexed, shard(indexed))
    assert is_sound(indexed)


def test_a_consensus_leaves_removed_utterances_out(indexed: Config) -> None:
    of = [label_utterances(config.changed(indexed, f"teacher={name}")).recipe for name in ("reference", "echo")]
    remove(indexed, ["u02"])
    assert compare_teachers.compared(indexed).utterances == NUM - 1
    voted = config.changed(indexed, f"teacher={{name: consensus, of: {json.dumps(of)}}}")
    figures = label_utterances(voted)
    rows = {row.utterance_id: row for row in tables.read(Store(indexed.work), f"labels/{figures.recipe}", Label)}
    assert (rows["u02"].error, rows["u02"].text, figures.removed) == (removals.REMOVED, "", 1)
    filter_labels(voted)
    shard(voted)
    clean(voted, delete=True)
    assert set(workdir.finished_recipes(Store(indexed.work), "labels")) == {*of, figures.recipe}


def test_a_text_without_usable_audio_is_removed_too(cfg: Config, tmp_path: Path) -> None:
    for number in (1, 9):  # of the test split
        (tmp_path / f"{number}.wav").write_bytes(b"no audio")
    sharded(cfg)
    judged = {"u01", "u09"}
    assert {row.id for row in of_split(cfg).utterances} == judged
    assert remove(cfg, ["u01", "u02"]).to_dict() == {"removed": 2, "all_removed": 2}
    assert {row.id for row in of_split(cfg).utterances} == judged - {"u01"}
    assert remove(cfg, ["u01", "u09"]).to_dict() == {"removed": 1, "all_removed": 3}
    assert not of_split(cfg).utterances


def test_an_unknown_id_is_an_error_and_nothing_is_removed(
    indexed: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("# asked by letter\n\nu02\nnobody\n", encoding="utf-8")
    assert read_ids(str(file)) == ["u02", "nobody"]
    assert cli.main(["remove", indexed.work, "--ids", str(file)]) == 3
    assert "nobody" in capsys.readouterr().err
    assert not removals.record(Store(indexed.work))
    assert cli.main(["remove", indexed.work, "--ids", str(tmp_path / "absent.txt")]) == 3
    capsys.readouterr()
    file.write_text("u02\n")
    assert cli.main(["remove", indexed.work, "--ids", str(file), "--reason", "letter", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 1


def voices(folder: Path, num: int) -> None:
    """Utterances of ann and bob in turn; the last one of ann has no audio."""
    rows = []
    for number in range(num):
        (folder / f"{number}.wav").write_bytes(wav(300 + 10 * number, 3.0) if number != 4 else b"no audio")
        speaker = "bob" if number % 2 else "ann"
        rows.append({"id": f"u{number:02}", "audio": f"{number}.wav", "text": text_of(number), "speaker": speaker})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_all_utterances_of_a_speaker_are_removed_by_their_ids(cfg: Config, tmp_path: Path) -> None:
    cfg = config.changed(cfg, "source.dev_share=0", "source.test_share=0")
    voices(tmp_path, 6)
    index(cfg)
    assert voxstill.remove(cfg, reason="letter", speakers="ann").removed == 3
    work = Store(cfg.work)
    assert {row.id for row in removals.record(work)} == {"u00", "u02", "u04"}
    assert remove(cfg, [], speakers=["ann"]).to_dict() == {"removed": 0, "all_removed": 3}
    assert ids_of(cfg, sharded(cfg)) == ["u01", "u03", "u05"]
    voices(tmp_path, 8)
    index(cfg)
    assert "u06" not in removals.of(work)  # the record has no names
    assert remove(cfg, ["u01"], speakers=["ann", "ann"]).removed == 2
    assert ids_of(cfg, sharded(cfg)) == ["u03", "u05", "u07"]
    assert is_sound(cfg)


def test_an_unknown_speaker_is_an_error_and_an_unknown_id_names_the_option(
    cfg: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    voices(tmp_path, 6)
    index(cfg)
    with pytest.raises(DataError, match="no utterance of `2`") as caught:
        remove(cfg, ["u01"], speakers=["2", "ann"])
    assert "RECORDING/1" in (caught.value.fix or "")
    with pytest.raises(DataError, match="no utterance or recording `ann`") as caught:
        remove(cfg, ["ann"])
    assert f"voxstill remove {cfg.work} --speaker NAME" in (caught.value.fix or "")
    assert not removals.record(Store(cfg.work))
    assert cli.main(["remove", cfg.work]) == 2
    assert "--speaker" in capsys.readouterr().err
    assert cli.main(["remove", cfg.work, "--speaker", "ann", "--speaker", "bob", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == 6


def test_texts_that_cannot_be_stored_are_refused_before_anything_is_removed(
    indexed: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.txt").write_text("u03\n")
    ids = ["--ids", str(tmp_path / "ids.txt")]
    for arguments in (["--speaker", "\udcff"], [*ids, "--reason", "asked \udcff"]):
        assert cli.main(["remove", indexed.work, *arguments]) == 2
        assert "no UTF-8" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="`ids`"):
        voxstill.remove(indexed, ["\udcff"])
    with pytest.raises(ConfigError, match="`reason` cannot be 5"):
        voxstill.remove(indexed, ["u03"], reason=5)  # type: ignore[arg-type]
    assert removals.record(Store(indexed.work)) == []


def test_comments_behind_ids_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("u1  # asked 2026-01-02\nu2 #\n\tu3\t# by letter\n  # all\n#\n#u4\ncall#0-95\nu5 #6\n")
    assert read_ids(str(file)) == ["u1", "u2", "u3", "#u4", "call#0-95", "u5 #6"]


def test_an_id_that_two_tables_give_to_different_audio_is_refused(indexed: Config) -> None:
    folder = Path(indexed.work).parent
    (folder / "other").mkdir()
    source(folder / "other", 6)
    for number, name in enumerate(("other.wav", "4.wav")):  # u03 is other audio there, u04 a copy
        (folder / f"other/{number + 3}.wav").write_bytes(wav(999, 3.0) if number == 0 else (folder / name).read_bytes())
    other = config.changed(indexed, f"source.uri={folder / 'other/manifest.jsonl'}", "segment.min_ms=210")
    index(other)
    for ids in (["u03"], ["u02", "u03"]):
        with pytest.raises(DataError, match="`u03` is that of different audio in two tables") as caught:
            remove(indexed, ids)
        assert str(folder / "3.wav") in caught.value.why
        assert str(folder / "other/3.wav") in caught.value.why
    assert not removals.record(Store(indexed.work))
    [recording_id] = {
        row.recording_id
        for row in tables.read(Store(indexed.work), "utterances", Utterance)
        if row.uri.endswith("r/3.wav")
    }
    assert recording_id in caught.value.fix
    assert remove(indexed, [recording_id]).removed == 1
    assert remove(indexed, ["u04"]).removed == 1  # whose id is one in both tables


def test_one_process_at_a_time_removes(indexed: Config) -> None:
    with (
        lease.hold(Store(indexed.work), removals.PREFIX, "remove"),
        pytest.raises(StorageError, match="another process"),
    ):
        remove(indexed, ["u02"])


def test_a_bucket_as_a_folder(cfg: Config, s3: Store) -> None:
    cfg = config.changed(cfg, f"work={s3.root}")
    sharded(cfg)
    assert remove(cfg, ["u02"]).removed == 1
    figures = sharded(cfg)
    assert "u02" not in ids_of(cfg, figures)
    result = clean(cfg, delete=True)
    assert {name.split("/")[0] for name in result.recipes} == {"scores", "shards", "verdicts"}
    assert workdir.finished_recipes(Store(cfg.work), "shards") == [figures.recipe]
    assert is_sound(cfg)


# ---------------------------------------------------------------------------------------------------------- generations


def grown(cfg: Config, folder: Path) -> Iterator[ShardFigures]:
    for num in (NUM, NUM + 8):
        source(folder, num)
        yield sharded(cfg)


def test_a_tar_with_a_removed_utterance_is_not_named_by_a_later_generation(cfg: Config, tmp_path: Path) -> None:
    first, second = grown(cfg, tmp_path)
    assert second.generation == 2
    work = Store(cfg.work)
    rows = {row.id: row for row in tables.read(work, f"shards/{second.recipe}", Sample)}
    tar = rows["u02"].tar
    assert tar is not None
    remove(cfg, ["u02"])
    third = sharded(cfg)
    assert third.generation == 3
    assert ids_of(cfg, third) == sorted(rows.keys() - {"u02"})
    tars = {row.tar for row in tables.read(work, f"shards/{third.recipe}", Sample)}
    assert tar not in tars
    assert any(name and name.startswith(f"shards/{first.recipe}/") for name in tars)
    assert is_sound(cfg)
    clean(cfg, delete=True)
    assert not holding(cfg.work, "shards", "scores", "verdicts", texts=("u02", text_of(2)))
    assert not (Path(cfg.work) / tar).exists()
    assert is_sound(cfg)
    assert clean(cfg).recipes == []
    assert ids_of(cfg, sharded(cfg)) == ids_of(cfg, third)


def test_a_tar_is_not_named_where_an_earlier_generation_dropped_the_removed_utterance(
    cfg: Config, tmp_path: Path
) -> None:
    first, second = grown(cfg, tmp_path)
    work = Store(cfg.work)
    rows = [row for row in tables.read(work, f"shards/{second.recipe}", Sample) if row.tar]
    tar = next(row.tar for row in rows if row.id == "u02")
    for key in tables.parts(work, f"shards/{second.recipe}"):  # as a generation whose verdicts dropped it
        part = tables.from_parquet(work.read(key), Sample)
        work.replace(key, tables.to_parquet([row for row in part if row.id != "u02"], Sample))
    assert first.recipe in str(tar)
    remove(cfg, ["u02"])
    third = sharded(cfg)
    assert tar not in {row.tar for row in tables.read(work, f"shards/{third.recipe}", Sample)}
    assert "u02" not in ids_of(cfg, third)


# ---------------------------------------------------------------------------------------------------------------- clean


def test_clean_leaves_nothing_of_a_removed_utterance_in_shards_scores_and_verdicts(finished: Config) -> None:
    first = sharded(finished)
    remove(finished, ["u02"])
    second = sharded(finished)
    listed = clean(finished)
    assert not listed.deleted
    assert f"shards/{first.recipe}" in listed.recipes
    assert listed.bytes > 0
    assert holding(finished.work, "shards", texts=("u02",))
    done = clean(finished, delete=True)
    assert (done.recipes, done.bytes) == (listed.recipes, listed.bytes)
    assert not holding(finished.work, "shards", "scores", "verdicts", texts=("u02", text_of(2)))
    assert workdir.finished_recipes(Store(finished.work), "shards") == [second.recipe]
    assert sharded(finished) == second
    assert clean(finished) == CleanResult(recipes=[], bytes=0, deleted=False)
    assert is_sound(finished)


def test_clean_keeps_what_is_there_where_the_configuration_has_made_nothing_else(finished: Config) -> None:
    assert clean(finished).recipes == []
    remove(finished, ["u02"])
    assert clean(finished).recipes == []  # until `filter` and `shard` have run again


def test_clean_lists_other_thresholds_unfinished_tables_and_other_labels(finished: Config) -> None:
    other = config.changed(finished, "filter.max_repeats=2")
    filter_labels(other)
    shards = shard(other).recipe
    labels = label_utterances(config.changed(finished, "teacher=echo"), max_chunks=1).recipe
    with lease.hold(Store(finished.work), f"labels/{labels}", "label"):
        held = clean(finished).recipes
    listed = clean(finished).recipes
    assert set(listed) - set(held) == {f"labels/{labels}"}
    assert f"shards/{shards}" in listed
    assert {name.split("/")[0] for name in listed} == {"labels", "shards", "verdicts"}
    kept = clean(config.changed(finished, "teacher=echo")).recipes
    assert f"labels/{labels}" not in kept  # it was begun for that configuration


def test_clean_keeps_what_a_mixture_names(finished: Config) -> None:
    figures = sharded(finished)
    other = config.changed(finished, "shard.utterances=3")
    beside = shard(other)
    mixed = config.changed(finished, f"train.corpora=[{{work: {finished.work}, shards: {beside.recipe}}}]")
    mixture = labelled_shards(mixed)
    assert clean(mixed).recipes == []
    assert set(clean(finished).recipes) == {f"mixtures/{mixture.recipe}", f"shards/{beside.recipe}"}
    assert figures.recipe != beside.recipe


def test_clean_keeps_what_a_mixture_names_by_another_path(finished: Config, tmp_path: Path) -> None:
    beside = shard(config.changed(finished, "shard.utterances=3"))
    (tmp_path / "link").symlink_to(finished.work)
    for path in (tmp_path / "link", f"{finished.work}/../{Path(finished.work).name}"):
        mixed = config.changed(finished, f"train.corpora=[{{work: {path}, shards: {beside.recipe}}}]")
        assert clean(mixed).recipes == []
        mixture = labelled_shards(mixed)
        assert clean(mixed).recipes == []
        shutil.rmtree(Path(finished.work) / f"mixtures/{mixture.recipe}")


def test_clean_in_the_shell(finished: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(config.changed(finished, "shard.utterances=3"))
    file = tmp_path / "my.yaml"
    file.write_text(config.dump(finished), encoding="utf-8")
    for options, deleted in ([], False), (["--yes"], True), ([], False):
        assert cli.main(["clean", finished.work, "--config", str(file), "--json", *options]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["deleted"] is deleted
    assert result == {"recipes": [], "bytes": 0, "deleted": False, "holding_removed": []}


def test_a_second_teacher_and_its_alignment_are_used(indexed: Config) -> None:
    second = label_utterances(config.changed(indexed, "teacher=echo")).recipe
    label_utterances(indexed)
    both = config.changed(indexed, "filter.second_teacher=echo", "filter.max_disagreement=1.0")
    filter_labels(both)
    shard(both)
    assert clean(both).recipes == []
    assert label.finished(Store(indexed.work), both.teacher).recipe != second


def test_clean_names_shards_that_stay_and_hold_a_removed_utterance(finished: Config) -> None:
    unlabelled = shard_unlabelled(finished)
    remove(finished, ["u02"])
    sharded(finished)
    result = clean(finished, delete=True)
    assert result.holding_removed == [f"shards/{unlabelled.recipe}"]
    assert "shard --unlabelled" in result.to_text()
    shard_unlabelled(finished)
    clean(finished, delete=True)
    assert clean(finished).holding_removed == []
    assert not holding(finished.work, "shards", texts=("u02",))


def test_clean_deletes_all_shards_where_everything_was_removed(finished: Config) -> None:
    shard_unlabelled(finished)
    remove(finished, [f"u{number:02}" for number in range(NUM)])
    with pytest.raises(DataError, match="keep no utterance") as refused:
        sharded(finished)
    assert "were removed" in refused.value.why
    assert clean(finished, delete=True).holding_removed == []
    assert not list((Path(finished.work) / "shards").rglob("*.tar"))


def test_clean_leaves_nothing_of_a_removed_utterance_while_labelling_goes_on(indexed: Config) -> None:
    label_utterances(indexed, limit_hours=8 * 3 / 3600)
    filter_labels(indexed, partial=True)
    first = shard(indexed)
    [gone, *_] = ids_of(indexed, first)
    remove(indexed, [gone])
    filter_labels(indexed, partial=True)
    second = shard(indexed)
    assert f"shards/{first.recipe}" in clean(indexed, delete=True).recipes
    assert not holding(indexed.work, "shards", "scores", "verdicts", texts=(gone,))
    assert shard(indexed) == second
    assert second.recipe in workdir.finished_recipes(Store(indexed.work), "shards")
    label_utterances(indexed)
    filter_labels(indexed)
    assert gone not in ids_of(indexed, shard(indexed))
    assert is_sound(indexed)


def test_clean_of_a_folder_without_tables_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean", str(tmp_path / "misspelt"), "--yes"]) == 3
    assert "has no table" in capsys.readouterr().err
