"""Several sources with options of their own, in one index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import voxstill
from manifests import wav
from voxstill import cli
from voxstill.core import config
from voxstill.core.config import Config, Source
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.records import Utterance
from voxstill.indexing.recipe import utterances_recipe
from voxstill.indexing.scan import by_file, scan
from voxstill.pipeline.dry_run import manifest_rows
from voxstill.storage import tables
from voxstill.storage.store import Store


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """A folder of three German clips, and an English manifest with speakers."""
    (tmp_path / "de").mkdir()
    (tmp_path / "en").mkdir()
    for name in "abc":
        (tmp_path / f"de/{name}.wav").write_bytes(wav(300 + 50 * ord(name)))
        (tmp_path / f"en/{name}.wav").write_bytes(wav(500 + 50 * ord(name)))
    rows = [{"audio": f"{name}.wav", "speaker": name, "text": name} for name in "abc"]
    (tmp_path / "en/manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def two(corpora: Path, **second: object) -> list[dict[str, object]]:
    first = {"uri": str(corpora / "de"), "language": "de", "dataset": "x", "dev_share": 0.0, "test_share": 0.0}
    return [first, {"uri": str(corpora / "en"), "language": "en", "test_speakers": ["b"], **second}]


def test_each_source_has_its_own_language_data_set_and_splits(corpora: Path) -> None:
    cfg = Config(work=str(corpora / "work"), source=two(corpora), engine="inline")
    assert voxstill.index(cfg).utterances == 6
    utterances = list(tables.read(Store(cfg.work), f"utterances/{utterances_recipe(cfg)}", Utterance))
    facts = sorted(
        (Path(row.uri).parent.name, row.info.dataset or "", row.info.language, row.split) for row in utterances
    )
    german, english = ("de", "x", "de", "train"), ("en", "", "en", "train")
    assert facts == [german] * 3 + [("en", "", "en", "test")] + [english] * 2
    assert voxstill.index(cfg).utterances == 6


def test_a_list_of_one_is_that_source(corpora: Path) -> None:
    [first, second] = two(corpora)
    assert Config(source=[first]) == Config(source=first)
    assert utterances_recipe(Config(source=[first])) == utterances_recipe(Config(source=first))
    several = {utterances_recipe(Config(source=source)) for source in (first, second, [first, second], [second, first])}
    assert len(several) == 4
    elsewhere = [{**first, "uri": "elsewhere"}, second]
    assert utterances_recipe(Config(source=elsewhere)) == utterances_recipe(Config(source=[first, second]))


def test_a_file_that_goes_to_another_source_is_another_entry(corpora: Path) -> None:
    [first, second] = two(corpora)
    swapped = [{**first, "uri": second["uri"]}, {**second, "uri": first["uri"]}]
    work = str(corpora / "work")
    voxstill.index(Config(work=work, source=[first, second], engine="inline"))
    with pytest.raises(DataError, match="the source has other metadata"):
        voxstill.index(Config(work=work, source=swapped, engine="inline"))


@pytest.mark.parametrize("overlap", ["en/manifest.jsonl", "en/a.wav", "en"])
def test_a_file_in_two_sources_is_refused(corpora: Path, overlap: str) -> None:
    sources = [*two(corpora), {"uri": str(corpora / overlap)}]
    with pytest.raises(DataError, match=r"a\.wav` is in source 2 and in source 3"):
        list(by_file(scan(sources_in(sources))))


def test_an_id_of_two_manifests_of_one_file_is_refused_as_a_file_in_two_sources(corpora: Path) -> None:
    (corpora / "one.jsonl").write_text(json.dumps({"audio": "en/a.wav", "id": "u"}) + "\n")
    sources = [{"uri": str(corpora / "one.jsonl")}, {"uri": str(corpora / "one.jsonl"), "language": "en"}]
    with pytest.raises(DataError, match="is in source 1 and in source 2"):
        list(by_file(scan(sources_in(sources))))


def sources_in(trees: list[dict[str, object]]) -> list[Source]:
    return [Source.model_validate(tree) for tree in trees]


def test_a_rehearsal_keeps_the_splits_of_each_source(corpora: Path) -> None:
    cfg = Config(source=two(corpora))
    rows = [row for file in by_file(scan(cfg.source)) for row in manifest_rows(file, cfg)]
    assert [row["split"] for row in rows] == ["train"] * 4 + ["test", "train"]


def test_yaml_and_overrides_take_a_list(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("source: [{uri: a, language: de, dataset: x}, {uri: b, language: en, test_share: 0.0}]\n")
    cfg = config.load(str(file))
    assert [source.language for source in config.sources_of(cfg.source)] == ["de", "en"]
    file.write_text(config.dump(cfg))
    assert config.load(str(file)) == cfg
    assert (
        config.load(None, ["source=[{uri: a, language: de, dataset: x}, {uri: b, language: en, test_share: 0.0}]"])
        == cfg
    )
    with pytest.raises(ConfigError, match=r"`source` is \["):
        config.load(str(file), ["source.uri=c"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([{"uri": "a"}, {"urii": "b"}], "unknown option `source.urii` in entry 2"),
        ([{"uri": "a"}, {"uri": "b", "dev_share": 2.0}], "`source.dev_share` cannot be 2.0 in entry 2"),
        (["a", "b"], "`source` is not a section of options"),
        ([], "`source`"),
        ({"urii": "b"}, r"unknown option `source.urii`\n"),
    ],
)
def test_a_wrong_list_is_refused_by_the_place_in_it(source: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config(source=source)


def test_words_of_ours_do_not_begin_with_those_of_the_library() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(work="")
    assert "Value error" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [("{uri: b}", "give only one of them"), ("[{uri: a}, {uri: b}]", "is a list: leave SOURCE out")],
)
def test_a_source_on_the_command_line_beside_another_one_is_refused(
    source: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["index", "a", "--work", str(tmp_path), "--set", f"source={source}"]) == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())
    if source.startswith("{"):
        assert cli.main(["index", "a", "--work", str(tmp_path), "--set", "source.uri=b"]) == 2
