"""What does not answer costs no utterance: the next run labels it, and the exit code says that one is needed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from faulty_proxy import faulty_proxy
from manifests import wav
from servers import Handler, SetEnvironment, reset_moto, s3_environment, serve
from voxstill.audio import read_utterances
from voxstill.core.config import Config, load
from voxstill.core.errors import StorageError, TeacherError
from voxstill.core.records import Label
from voxstill.engine import postponed, shutdown
from voxstill.pipeline.index import index
from voxstill.pipeline.label import label_utterances
from voxstill.storage import tables
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_utterances, "RETRY_PAUSES_S", (0.0,))


def corpus(source: Store, num: int) -> str:
    """Tones with texts; returns the address of their manifest."""
    rows = []
    for number in range(num):
        source.replace(f"{number}.wav", wav(300 + 10 * number))
        rows.append({"audio": source.uri(f"{number}.wav"), "text": f"word {number}", "speaker": str(number)})
    source.replace("manifest.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return source.uri("manifest.jsonl")


def configured(work: Path, manifest: str, *overrides: str) -> Config:
    overrides = (f"work={work}", f"source.uri={manifest}", "engine={name: inline, chunk: 4}", *overrides)
    cfg = load(None, ["teacher=echo", *overrides], {})
    index(cfg)
    return cfg


def labels(work: Path) -> list[Label]:
    store = Store(str(work))
    keys = [entry.key for entry in store.list("labels") if entry.key.endswith(".parquet")]
    return [row for key in keys for row in tables.from_parquet(store.read(key), Label)]


def assert_all_labelled(figures: LabelFigures, work: Path, num: int) -> None:
    assert (figures.labels, figures.failed, figures.finished) == (num, 0, True)
    assert len({label.utterance_id for label in labels(work)}) == len(labels(work)) == num


def test_files_that_are_away_for_a_while_are_labelled_when_they_are_back(tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    cfg = configured(work, corpus(Store(str(source)), 10))
    for number in (2, 3, 9):
        (source / f"{number}.wav").rename(source / f"{number}.away")
    with pytest.raises(StorageError, match="3 utterances are not done") as caught:
        label_utterances(cfg)
    assert "the same command does the rest" in caught.value.fix
    assert len(labels(work)) == 7
    with pytest.raises(StorageError, match="3 utterances"):
        label_utterances(cfg)
    for number in (2, 3, 9):
        (source / f"{number}.away").rename(source / f"{number}.wav")
    assert_all_labelled(label_utterances(cfg), work, 10)


def test_an_outage_ends_the_run_before_all_utterances_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postponed, "MAX_POSTPONED", 8)
    source, work = tmp_path / "source", tmp_path / "work"
    cfg = configured(work, corpus(Store(str(source)), 40))
    source.rename(tmp_path / "away")
    with pytest.raises(StorageError, match=" 8 utterances"):
        label_utterances(cfg)
    assert labels(work) == []
    (tmp_path / "away").rename(source)
    assert_all_labelled(label_utterances(cfg), work, 40)


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_credentials_that_expire_lose_no_utterance(
    tmp_path: Path, engine: str, set_environment: SetEnvironment, s3_server: int
) -> None:
    work = tmp_path / "work"
    reset_moto(s3_server, "corpus")
    shutdown()  # workers have the environment in which Ray was started
    with faulty_proxy(s3_server) as proxy:
        set_environment(s3_environment(proxy.port))
        cfg = configured(work, corpus(Store("s3://corpus/audio"), 12), f"engine.name={engine}")
        proxy.shares = {"denied": 0.5}
        with pytest.raises(StorageError) as caught:
            label_utterances(cfg)
        assert "credentials" in caught.value.fix
        assert len(labels(work)) < 12
        proxy.shares = {}
        assert_all_labelled(label_utterances(cfg), work, 12)


class Transcriptions(Handler):
    """Answers `statuses` one after the other, then 200."""

    statuses: list[int]

    def do_POST(self) -> None:  # noqa: N802
        self.body()
        self.answer(self.statuses.pop(0) if self.statuses else 200, b'{"text": "busy"}')


def teacher_at(port: int) -> str:
    return f"teacher={{name: openai, base_url: 'http://127.0.0.1:{port}/v1', model: m, retries: 0, concurrency: 1}}"


def test_a_server_that_answers_503_now_and_then_loses_no_utterance(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with serve(Transcriptions, statuses=[200, 200, 503] * 4) as port:
        cfg = configured(work, corpus(Store(str(tmp_path / "source")), 12), teacher_at(port))
        with pytest.raises(TeacherError, match="4 utterances are not done"):
            label_utterances(cfg)
        assert len(labels(work)) == 8
        assert_all_labelled(label_utterances(cfg), work, 12)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed_at", range(9))
def test_failed_labels_are_made_again_on_request_whenever_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    work = tmp_path / "work"
    with serve(Transcriptions, statuses=[400, 200, 200, 400, 400, 400, 400, 400]) as port:
        cfg = configured(work, corpus(Store(str(tmp_path / "source")), 12), teacher_at(port))
        figures = label_utterances(cfg)
        assert (figures.labels, figures.failed, figures.finished) == (12, 6, True)
        assert figures.exit_code == TeacherError.exit_code  # half of them are more than `engine.max_failed_share`
        steps = iter(range(killed_at + 1))

        def count_down() -> None:
            if next(steps, None) == killed_at:
                raise Killed

        with monkeypatch.context() as patch:
            for name in ("create", "delete", "replace"):
                method = getattr(Store, name)

                def killed(store: Store, key: str, *data: bytes, method: Callable[..., object] = method) -> object:
                    if key.startswith("leases/"):  # a killed process holds none, and this one goes on
                        return method(store, key, *data)
                    count_down()
                    result = method(store, key, *data)
                    count_down()
                    return result

                patch.setattr(Store, name, killed)
            with contextlib.suppress(Killed):
                label_utterances(cfg, retry_failed=True)
        figures = label_utterances(cfg, retry_failed=True)
        assert_all_labelled(figures, work, 12)
        assert figures.exit_code == 0


def test_files_that_do_not_answer_give_the_index_an_exit_code_and_an_outage_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    manifest = corpus(Store(str(source)), 12)
    (source / "5.wav").rename(source / "5.away")
    cfg = load(None, [f"work={work}", f"source.uri={manifest}", "engine={name: inline, chunk: 4}"], {})
    figures = index(cfg)
    assert (figures.damaged, figures.exit_code) == (1, StorageError.exit_code)
    (source / "5.away").rename(source / "5.wav")
    assert (index(cfg).damaged, index(cfg).exit_code) == (0, 0)
    monkeypatch.setattr(postponed, "MAX_POSTPONED", 4)
    for path in source.glob("*.wav"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(StorageError, match="4 files are not done"):
        index(cfg.model_copy(update={"work": str(tmp_path / "other")}))
