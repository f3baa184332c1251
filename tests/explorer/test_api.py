"""The API of a real explorer on loopback: what it answers is what the tables hold."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from explorer_process import NUM, ExplorerProcess, copy_corpus, exploring, make_experiments, write_config
from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.records import Label, Utterance
from voxstill.explorer.errors import RequestError
from voxstill.filtering.rules import NAMES
from voxstill.pipeline import explore
from voxstill.pipeline import remove as removing
from voxstill.pipeline.recipes import finished_verdicts
from voxstill.storage import corrections, tables, workdir
from voxstill.storage.corrections import Correction, Judgement
from voxstill.storage.store import Store


def labels_of(cfg: Config) -> dict[str, Label]:
    work = Store(cfg.work)
    rows = tables.read(work, workdir.prefix("labels", finished_verdicts(cfg).labels), Label)
    return {row.utterance_id: row for row in rows}


def utterances_of(cfg: Config) -> dict[str, Utterance]:
    work = Store(cfg.work)
    rows = tables.read(work, workdir.prefix("utterances", finished_verdicts(cfg).utterances), Utterance)
    return {row.id: row for row in rows}


def test_rows_are_those_of_the_tables(explorer: ExplorerProcess, corpus: Config) -> None:
    labels, utterances = labels_of(corpus), utterances_of(corpus)
    main = explorer.get("about").json()["main"]
    rows = {row["id"]: row for row in explorer.rows(limit=500)}
    assert rows.keys() == utterances.keys()
    for id_, row in rows.items():
        assert row[main] == labels[id_].text
        assert row["human"] == utterances[id_].text
        assert row["speaker"] == utterances[id_].info.speaker
        assert row["duration_ms"] == utterances[id_].duration_ms


def test_pages_by_key_show_every_row_once_in_any_order(explorer: ExplorerProcess) -> None:
    for column in explorer.get("about").json()["columns"]:
        for order in (column["name"], f"-{column['name']}"):
            seen, after = [], None
            while True:
                more = {} if after is None else {"after": after}
                answer = explorer.get("rows", order=order, limit=20, **more)
                assert answer.status_code == 200, (order, answer.text)
                page = answer.json()
                seen += page["rows"]
                if (after := page["next"]) is None:
                    break
            assert len({row["id"] for row in seen}) == len(seen) == NUM, order
            values = [row["key"] for row in seen if row["key"] is not None]
            assert values == sorted(values, reverse=order.startswith("-")), order
            assert all(row["key"] is None for row in seen[len(values) :]), order


def test_a_filter_shows_what_fits_and_nothing_else(explorer: ExplorerProcess) -> None:
    everything = explorer.rows(limit=500)
    main = explorer.get("about").json()["main"]
    where = [{"column": "split", "in": ["dev", "test"]}, {"column": "duration_ms", "min": 700, "max": 1300}]
    rows = explorer.rows(limit=500, filter={"text": "LIGHT", "where": where})
    expected = [
        row["id"]
        for row in everything
        if row["split"] in ("dev", "test")
        and 700 <= row["duration_ms"] <= 1300
        and any("light" in (row[name] or "") for name in row if name.startswith("label_") or name in (main, "human"))
    ]
    assert [row["id"] for row in rows] == expected
    assert expected
    unjudged = explorer.rows(limit=500, filter={"where": [{"column": "kept", "in": [None]}]})
    assert {row["split"] for row in unjudged} == {"test"}
    assert [row["id"] for row in explorer.rows(filter={"text": "u007"})] == ["u007"]
    totals = explorer.get("totals", filter={"where": where}).json()
    assert totals["utterances"] == len(explorer.rows(limit=500, filter={"where": where}))


def test_histograms_values_and_the_funnel_count_every_row(explorer: ExplorerProcess, corpus: Config) -> None:
    columns = explorer.get("about").json()["columns"]
    for column in columns:
        if column["kind"] == "number" and column["low"] is not None:
            bins = explorer.get("histogram", column=column["name"], bins=11).json()
            assert sum(bins["counts"]) + bins["unknown"] == NUM, column["name"]
    own = {"where": [{"column": "duration_ms", "max": 600}]}
    assert sum(explorer.get("histogram", column="duration_ms", filter=own).json()["counts"]) == NUM
    assert sum(value["num"] for value in explorer.get("facet", column="speaker").json()) == NUM
    verdicts = finished_verdicts(corpus)
    funnel = explorer.get("funnel").json()
    assert {rule["name"]: rule["dropped"] for rule in funnel["rules"]} == dict(verdicts.reasons)
    assert [rule["name"] for rule in funnel["rules"]] == list(NAMES)
    assert (funnel["judged"], funnel["kept"]) == (verdicts.judged, verdicts.kept_utterances)


def test_audio_is_that_of_the_shard_or_of_the_source(explorer: ExplorerProcess, corpus: Config) -> None:
    sources = set()
    for row in explorer.rows(limit=500):
        answer = explorer.get(f"utterances/{row['row']}/audio")
        assert answer.headers["content-type"] == "audio/wav"
        sources.add(answer.headers["x-audio-from"])
        samples_T, rate_hz = soundfile.read(io.BytesIO(answer.content), dtype="int16")
        file_T, _ = soundfile.read(row["uri"], dtype="int16")
        assert rate_hz == 16_000
        assert np.array_equal(samples_T, file_T)
    assert sources == {"shard", "source"}


def test_one_utterance_has_the_texts_of_all_aligned_with_the_human_one(explorer: ExplorerProcess) -> None:
    [row] = explorer.rows(filter={"text": "u007"})
    texts = explorer.get(f"utterances/{row['row']}").json()["texts"]
    assert texts[0]["role"] == "human"
    assert [text["role"] for text in texts[3:]] == ["first", "second"]
    assert len({text["role"] for text in texts}) == 5
    for text in texts[1:]:
        assert sum(reference != hypothesis for reference, hypothesis in text["pairs"]) == text["errors"]
        assert [pair[0] for pair in text["pairs"] if pair[0] is not None] == texts[0]["text"].split()


def test_an_export_has_the_rows_of_the_filter(explorer: ExplorerProcess) -> None:
    wanted = {"where": [{"column": "split", "in": ["dev"]}]}
    expected = [(row["id"], row["duration_ms"]) for row in explorer.rows(limit=500, filter=wanted)]
    lines = explorer.get("export", columns="id,duration_ms", filter=wanted).text.splitlines()
    assert [tuple(json.loads(line).values()) for line in lines] == expected
    text = explorer.get("export", columns="id,duration_ms", filter=wanted, format="csv").text
    assert [(row["id"], int(row["duration_ms"])) for row in csv.DictReader(io.StringIO(text))] == expected


def test_experiments_are_side_by_side(explorer: ExplorerProcess) -> None:
    facts = explorer.get("experiments").json()
    assert [one["name"] for one in facts["experiments"]] == ["first", "second"]
    curve = facts["experiments"][0]["curves"][0]
    assert (curve["split"], curve["figure"]) == ("train", "loss")
    assert len(curve["steps"]) == 400
    assert curve["steps"][-1] == 899
    assert {one["value"] for one in facts["groups"]["speaker"]} <= {f"speaker-{k}" for k in range(5)}
    where = [{"column": "student_0_errors", "max": 0}, {"column": "student_1_errors", "min": 1}]
    [row] = explorer.rows(filter={"where": where})
    assert row["student_1"] == "nothing of that"
    assert row["student_0"] == row["human"]


def test_judgements_are_kept_and_the_last_one_counts(fresh_corpus: Config, tmp_path: Path) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    config = write_config(tmp_path, cfg)
    with exploring(tmp_path / "first", cfg.work, "--config", config, "--edit", "--judge", "ada") as explorer:
        assert explorer.get("about").json()["editable"]
        numbers = {row["id"]: row["row"] for row in explorer.rows(limit=500)}
        for id_, judgement in (("u001", "right"), ("u002", "wrong"), ("u003", "right"), ("u003", "withdrawn")):
            assert explorer.judge({"row": numbers[id_], "judgement": judgement}).status_code == 200
        answer = explorer.judge({"row": numbers["u001"], "judgement": "corrected", "text": " what  was said "})
        assert answer.json()["row"]["judgement"] == "corrected"
        assert answer.json()["texts"][0] | {"pairs": []} == {
            "role": "corrected", "text": "what was said", "pairs": [], "errors": None, "words": 3
        }  # fmt: skip
        judged = explorer.rows(filter={"where": [{"column": "judgement", "in": ["corrected", "wrong"]}]})
        assert [row["id"] for row in judged] == ["u001", "u002"]
        assert explorer.stop() == 0
    known = corrections.latest(Store(cfg.work))
    assert {id_: (row.judgement, row.text, row.judge) for id_, row in known.items()} == {
        "u001": ("corrected", "what was said", "ada"),
        "u002": ("wrong", None, "ada"),
    }
    assert known["u002"].label == labels_of(cfg)["u002"].text
    assert known["u002"].audio == utterances_of(cfg)["u002"].audio
    with exploring(tmp_path / "second", cfg.work, "--config", config) as explorer:
        judged = explorer.rows(filter={"where": [{"column": "judgement", "in": ["corrected", "wrong"]}]})
        assert [(row["id"], row["correction"]) for row in judged] == [("u001", "what was said"), ("u002", None)]


def test_a_stretch_of_a_long_source_is_sought_and_not_decoded_from_the_start(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples_T = rng.normal(0, 900, 16_000 * 150).astype(np.int16)
    soundfile.write(tmp_path / "long.flac", samples_T, 16_000)
    (tmp_path / "manifest.jsonl").write_text(
        json.dumps({"audio": "long.flac", "id": "late", "start": 100.0, "end": 101.5, "text": "far in"}) + "\n"
    )
    cfg = Config.model_validate(
        {
            "work": str(tmp_path / "work"),
            "source": {"uri": str(tmp_path / "manifest.jsonl")},
            "engine": {"name": "inline"},
        }
    )
    from voxstill.pipeline import index as indexing

    indexing.index(cfg)
    with exploring(tmp_path / "explorer", cfg.work, "--config", write_config(tmp_path, cfg)) as explorer:
        [row] = explorer.rows()
        data = explorer.get(f"utterances/{row['row']}/audio").content
        touched_ns = os.stat(tmp_path / "long.flac").st_mtime_ns + 10**9
        os.utime(tmp_path / "long.flac", ns=(touched_ns, touched_ns))
        assert explorer.get(f"utterances/{row['row']}/audio").content == data
        soundfile.write(tmp_path / "long.flac", samples_T[::-1], 16_000)
        answer = explorer.get(f"utterances/{row['row']}/audio")
        assert "changed since it was indexed" in answer.json()["error"]
        assert answer.json()["code"] == "source-changed"
    start = row["start_ms"] * 16
    assert np.array_equal(codec.decode(data).samples_T, samples_T[start : start + 16 * row["duration_ms"]])


def test_a_judgement_of_what_was_removed_a_moment_ago_is_refused_and_leaves_nothing(
    fresh_corpus: Config, tmp_path: Path
) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    with explore.opened(cfg, edit=True) as session:
        number = session.corpus.numbers_of(["u001"])["u001"]
        session.judge(number, "right", None)
        removing.remove(cfg, ["u001"])
        with pytest.raises(RequestError, match="was removed"):
            session.judge(number, "right", None)
    assert corrections.latest(Store(cfg.work)) == {}
    assert tables.parts(Store(cfg.work), corrections.PREFIX) == []


def test_what_is_removed_is_nowhere_a_second_later(fresh_corpus: Config, tmp_path: Path) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    config = write_config(tmp_path, cfg)
    with exploring(tmp_path / "explorer", cfg.work, *make_experiments(tmp_path, cfg), "--config", config) as explorer:
        number = next(row["row"] for row in explorer.rows(limit=500) if row["id"] == "u001")
        words = sum(group["words"] for group in explorer.get("experiments").json()["groups"]["speaker"])
        removing.remove(cfg, [f"u{number:03}" for number in range(1, NUM)])
        time.sleep(1.1)
        assert explorer.get(f"utterances/{number}").status_code == 404
        assert explorer.get(f"utterances/{number}/audio").status_code == 404
        groups = explorer.get("experiments").json()["groups"]
        assert sum(group["words"] for group in groups.get("speaker", [])) < words


def test_numbers_and_texts_beyond_all_measure_are_refused_in_words(explorer: ExplorerProcess) -> None:
    huge = "9" * 400
    for path, parameters in (
        ("rows", {"filter": json.loads(f'{{"where": [{{"column": "duration_ms", "min": {huge}}}]}}')}),
        ("rows", {"after": [int(huge), 1], "order": "duration_ms"}),
        ("rows", {"after": [1, int(huge)]}),
        ("rows", {"after": ["\ud800", 1], "order": "speaker"}),
        (f"utterances/{'1' * 5_000}", {}),
        ("utterances/-1", {}),
        ("utterances/²", {}),
    ):
        assert 400 <= explorer.get(path, **parameters).status_code < 500


def test_explorers_of_one_corpus_see_each_others_judgements(fresh_corpus: Config, tmp_path: Path) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    with explore.opened(cfg, edit=True) as one, explore.opened(cfg, edit=True) as other:
        first, second, *_ = sorted(one.corpus.numbers_of(["u001", "u002"]).values())
        one.judge(first, "right", None)
        one.judge(second, "corrected", "what was said")
        for session in (one, other):
            session._refreshed_s = 0.0
            session.refresh()
            assert session.row(first)["judgement"] == "right"
            assert session.row(second)["correction"] == "what was said"
        other.judge(first, "withdrawn", None)
        one._refreshed_s = 0.0
        one.refresh()
        assert one.row(first)["judgement"] is None


def test_a_judgement_counts_after_one_of_a_clock_that_was_ahead(fresh_corpus: Config, tmp_path: Path) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    row = utterances_of(cfg)["u001"]
    ahead = Correction(
        utterance_id="u001", audio=row.audio, judgement="wrong", label="", time="2990-01-01T00:00:00.000000+00:00",
        judge="ada",
    )  # fmt: skip
    corrections.append(Store(cfg.work), [ahead])
    with explore.opened(cfg, edit=True) as session:
        number = session.corpus.numbers_of(["u001"])["u001"]
        session.judge(number, "corrected", "what was said")
        session.judge(number, "right", None)
    assert corrections.latest(Store(cfg.work))["u001"].judgement == "right"


def test_a_judgement_of_another_label_is_shown_as_what_it_says_of_this_one(
    fresh_corpus: Config, tmp_path: Path
) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    utterances = utterances_of(cfg)
    judged: list[tuple[str, Judgement]] = [("u001", "right"), ("u002", "wrong")]
    rows = [
        Correction(
            utterance_id=id_,
            audio=utterances[id_].audio,
            judgement=judgement,
            label="of another teacher",
            time=f"2026-01-0{number}",
            judge="ada",
        )
        for number, (id_, judgement) in enumerate(judged, 1)
    ]
    corrections.append(Store(cfg.work), rows)
    with explore.opened(cfg) as session:
        right, wrong = (session.row(session.corpus.numbers_of([id_])[id_]) for id_ in ("u001", "u002"))
    assert (right["judgement"], right["correction"]) == ("corrected", "of another teacher")
    assert wrong["judgement"] is None


def test_an_export_has_what_was_corrected(fresh_corpus: Config, tmp_path: Path) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    config = write_config(tmp_path, cfg)
    with exploring(tmp_path / "explorer", cfg.work, "--config", config, "--edit") as explorer:
        number = next(row["row"] for row in explorer.rows(limit=500) if row["id"] == "u001")
        explorer.judge({"row": number, "judgement": "corrected", "text": "what was said"})
        answer = explorer.get("export", columns="id,judgement,correction", filter={"text": "u001"})
        assert json.loads(answer.text) == {"id": "u001", "judgement": "corrected", "correction": "what was said"}


def test_a_damaged_part_of_judgements_is_named_and_the_others_are_shown(
    fresh_corpus: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = copy_corpus(fresh_corpus, tmp_path)
    work = Store(cfg.work)
    with explore.opened(cfg, edit=True) as session:
        number = session.corpus.numbers_of(["u001"])["u001"]
        session.judge(number, "right", None)
        work.create(f"{corrections.PREFIX}/damaged.parquet", b"no parquet")
        session._refreshed_s = 0.0
        session.refresh()
        assert session.row(number)["judgement"] == "right"
    with explore.opened(cfg) as session:
        assert session.row(number)["judgement"] == "right"
    assert "damaged.parquet` is damaged" in caplog.text
