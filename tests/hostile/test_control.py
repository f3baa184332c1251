"""Who can write into a work folder can slow a job down, and can neither run code, nor get a secret or audio."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import voxstill
from installed import install
from manifests import wav
from servers import Handler, serve
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.errors import ConfigError
from voxstill.core.records import Label, Utterance
from voxstill.engine import ray_cluster
from voxstill.labelling import control
from voxstill.storage import control as control_file
from voxstill.storage import tables
from voxstill.storage.store import Store

SECRET = "wJalrXUtnFEMI"
NUM = 3


class Recorder(Handler):
    """Notes what arrives, and answers as a server of OpenAI's protocol."""

    arrived: list[str]

    def post(self) -> None:
        self.arrived.append(f"{self.headers}{len(self.body())} bytes")
        self.answer(200, b'{"text": "stolen"}')

    do_POST = post


@pytest.fixture
def arrived() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the list of what was sent to it."""
    requests: list[str] = []
    with serve(Recorder, arrived=requests) as port:
        yield f"http://127.0.0.1:{port}/v1", requests


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A corpus of a few utterances, and a secret in the environment."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(control_file, "POLL_S", 0.02)
    (tmp_path / "a.wav").write_bytes(codec.encode(np.full(1600, 100, np.int16), "wav"))
    common = {"recording_id": "r", "uri": str(tmp_path / "a.wav"), "end_ms": 100, "text": "one two"}
    rows = [Utterance(id=f"u{i}", **common) for i in range(NUM)]
    store = Store(str(tmp_path / "work"))
    store.create("utterances/test/0.parquet", tables.to_parquet(rows, Utterance))
    store.write_json(f"utterances/test/{tables.SUCCESS}", {"recipe": "test", "utterances": NUM, "hours": 0.0})
    return store


def label(work: Store, *options: str, teacher: str = "echo") -> list[Label]:
    """The labels of a job with this teacher."""
    overrides = ("--set", f"teacher={teacher}", "--set", "engine={name: inline, workers: 1, teachers: 1, chunk: 1}")
    assert cli.main(["label", work.root, *overrides, *options]) == 0
    return list(tables.read(work, "labels", Label))


def ask(work: Store, **options: Any) -> None:
    """Write into the work folder as anybody can."""
    work.write_json(control_file.REQUEST, {"at": "2030-01-01", "set": options})


def refusal(work: Store) -> str:
    (job,) = control.job_statuses(work)
    assert job.refused is not None
    return job.refused


def foreign_checkpoint(folder: Path) -> Path:
    """A checkpoint whose code, where it runs, leaves a file."""
    folder.mkdir()
    code = f"open({str(folder / 'ran')!r}, 'w').close()\nclass Config: ...\n"
    (folder / "configuration.py").write_text(code)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "x", "auto_map": {"AutoConfig": "configuration.Config"}})
    )
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_teacher_that_was_not_allowed_gets_neither_the_secret_nor_the_audio(
    work: Store, arrived: tuple[str, list[str]]
) -> None:
    url, requests = arrived
    server = {"name": "openai", "base_url": url, "model": "m", "api_key_env": "AWS_SECRET_ACCESS_KEY"}
    ask(work, teacher=server, engine={"attempts": 1})
    rows = label(work)
    assert [(row.teacher[:5], row.text) for row in rows] == [("echo@", "one two")] * NUM
    assert requests == []
    assert "the job does not allow the teacher `openai`" in refusal(work)


@pytest.mark.parametrize("option", ["base_url", "api_key_env"])
def test_an_allowed_server_is_asked_where_and_with_the_key_that_were_said_at_the_start(
    work: Store, arrived: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    url, requests = arrived
    monkeypatch.setenv("OWN_KEY", "own-key")
    stolen: list[str] = []
    with serve(Recorder, arrived=stolen) as port:
        values = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key_env": "AWS_SECRET_ACCESS_KEY"}
        ask(work, teacher={option: values[option]})
        begun = f"{{name: openai, base_url: '{url}', model: m, api_key_env: OWN_KEY}}"
        assert len(label(work, "--allow-teacher", begun, teacher=begun)) == NUM
    assert stolen == []
    assert len(requests) == NUM
    assert all("own-key" in request and SECRET not in request for request in requests)
    assert refusal(work).startswith(f"the job does not allow another `teacher.{option}`")


def test_no_code_of_a_checkpoint_runs(work: Store, tmp_path: Path) -> None:
    folder = foreign_checkpoint(tmp_path / "checkpoint")
    ask(work, teacher={"name": "transformers", "model": str(folder), "trust_remote_code": True})
    label(work)
    assert "does not allow the teacher `transformers`" in refusal(work)
    label(work, "--allow-teacher", f"{{name: transformers, model: {folder}}}", teacher="{name: echo, seed: 1}")
    latest = control.job_statuses(work)[0]
    assert latest.refused is not None
    assert "`teacher.trust_remote_code`" in latest.refused
    assert not (folder / "ran").exists()


PLUGIN = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
from voxstill.core.config import Section, option
from voxstill.teachers.echo import EchoTeacher
class Options(Section):
    url: str = option("http://own", pace=True)
    check: bool = option(True, pace=True)
    batch: int = option(1, pace=True)
class Other(EchoTeacher):
    Options = Options
    def __init__(self, options): self.options = options
    def revision(self): return "1"
    def transcribe_batch(self, clips):
        from voxstill.teachers.teacher import Transcription
        return [Transcription(text=f"{self.options.url} {self.options.check} {self.options.batch}")] * len(clips)
"""


def test_of_a_plugin_only_numbers_that_change_the_pace_are_taken(
    work: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", monkeypatch, "voxstill.teachers", "other", PLUGIN, "Other")
    ask(work, teacher={"name": "other"})
    assert {row.text for row in label(work)} == {"one two"}
    assert not (tmp_path / "site/imported").exists()  # what was not allowed is not even imported
    for teacher in ({"url": "http://foreign"}, {"check": False}, {"batch": 2, "url": "http://foreign"}):
        ask(work, teacher=teacher)
        rows = label(work, "--retry-failed", teacher="other")
        assert {row.text for row in rows if row.teacher.startswith("other")} == {"http://own True 1"}
    control_file.request(work, {})
    for key in tables.parts(work, "labels"):
        work.delete(key)
    ask(work, teacher={"batch": 2})
    assert {row.text for row in label(work, teacher="other")} == {"http://own True 2"}


@pytest.mark.parametrize(
    "section",
    [
        {"engine": {"address": "10.0.0.1:6379", "name": "ray"}},
        {"engine": {"resources": {"x": 1}}},
        {"monitor": {"host": "0.0.0.0", "port": 0}},
        {"seed": 3},
        {"teacher": {"name": "other-than-any"}},
        {"engine": {"lease_s": 1e300}},
        {"engine": {"in_flight": 10**9}},
        {"teacher": {"seed": 1, "x" * 1_000_000: 1}},
    ],
    ids=lambda section: str(section)[:60],
)
def test_a_request_written_by_hand_changes_no_more_than_one_by_the_command(
    work: Store, section: dict[str, Any]
) -> None:
    ask(work, **section)
    assert len(label(work)) == NUM
    assert 0 < len(refusal(work)) <= 500


@pytest.mark.parametrize("pace", [{"concurrency": 10**9}, {"timeout_s": 1e300}, {"retries": 10**9}], ids=str)
def test_no_pace_takes_all_memory_or_all_time(pace: dict[str, float]) -> None:
    teacher = config.Teacher.model_validate({"name": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"})
    started = control.Settings(teacher, config.Engine(), "info")
    assert control.apply({"teacher": {"concurrency": 8, "timeout_s": 90, "retries": 9}}, started).teacher != teacher
    with pytest.raises(ConfigError, match=f"option `teacher.{next(iter(pace))}` cannot be"):
        control.apply({"teacher": pace}, started)


def test_a_running_job_is_not_given_more_workers_than_its_cluster_can_hold() -> None:
    cluster: Any = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0})
    for wanted, current in ((64, 2), (100, 100), (3, 100)):
        ray_cluster.check_growth(cluster, wanted, current)
    with pytest.raises(ConfigError, match="cannot get 100,000 workers") as caught:
        ray_cluster.check_growth(cluster, 100_000, 2)
    assert "allows 64" in caught.value.why


@pytest.mark.parametrize(
    "content",
    [
        '[1, "set"]',
        "3",
        "[" * 100_000,
        '{"set": 3}',
        '{"set": {"teacher": "openai"}}',
        '{"set": {"teacher": {"name": 3}}}',
        '{"set": {"teacher": {"preset": {}}}}',
        '{"set": {"engine": {"workers": 1e400}}}',
        '{"set": {"monitor": {"log_level": "loud"}}}',
        '{"at": {"x": []}, "set": {"engine": {"attempts": 2}}}',
    ],
    ids=lambda content: content[:40],
)
def test_odd_files_end_neither_the_job_nor_the_command(
    work: Store, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    work.replace(control_file.REQUEST, content.encode())
    work.replace("control/0123456789abcdef.json", content.encode())
    work.replace("control/fedcba9876543210.json", b'{"recipe": "x", "begun": 3, "allowed": {}, "at": 5}')
    assert len(label(work)) == NUM
    assert cli.main(["control", work.root, "--clear", "--set", "engine.attempts=2"]) == 0
    work.replace(control_file.REQUEST, content.encode())
    code = cli.main(["control", work.root, "--set", "engine.attempts=2"])
    assert code in (0, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_refuses_what_no_job_would_take_and_asks_nobody_named_by_a_status(
    work: Store, arrived: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, requests = arrived
    label(work, "--allow-teacher", "{seed: 7}")
    capsys.readouterr()
    assert cli.main(["control", work.root, "--set", "teacher.seed=8"]) == 2
    message = capsys.readouterr().err
    assert "the job does not allow another `teacher.seed`" in message
    assert "--allow-teacher" in message
    assert cli.main(["control", work.root, "--set", "teacher=reference"]) == 2
    assert cli.main(["control", work.root, "--set", "teacher.seed=7"]) == 0
    server = {"name": "openai", "base_url": url, "model": "m", "api_key_env": "AWS_SECRET_ACCESS_KEY"}
    (status,) = control.job_statuses(work)
    work.write_json(f"control/{status.recipe}.json", status.to_dict() | {"begun": server})
    assert cli.main(["control", work.root, "--clear", "--set", "teacher.concurrency=2"]) == 0
    assert requests == []


def test_options_kept_beside_the_labels_are_data(work: Store, arrived: tuple[str, list[str]]) -> None:
    url, requests = arrived
    ask(work, teacher={"seed": 7})
    rows = label(work, "--max-chunks", "1", "--allow-teacher", "{seed: 7}")
    server = {"name": "openai", "base_url": url, "model": "m", "api_key_env": "AWS_SECRET_ACCESS_KEY"}
    (begun,) = [entry.key for entry in work.list("labels") if re.search(r"/_[0-9a-f]{16}\.json$", entry.key)]
    work.write_json(begun, server)
    ask(work, teacher={})
    rows = label(work)
    assert {row.recipe for row in rows} >= {begun.rpartition("/_")[2].removesuffix(".json")}
    assert len(rows) == NUM
    assert requests == []


def test_what_is_allowed_is_said_the_same_way_in_python(work: Store) -> None:
    cfg = voxstill.load_config(
        None, f"work={work.root}", "teacher=echo", "engine={name: inline, workers: 1, teachers: 1, chunk: 1}"
    )
    ask(work, teacher={"substitute": 1.0})
    voxstill.label(cfg, max_chunks=1)
    voxstill.label(cfg, allow_teacher=["{substitute: 1.0}"])
    texts = [row.text for row in tables.read(work, "labels", Label)]
    assert sorted(texts) == ["eno owt", "eno owt", "one two"]
    for wrong in ("[echo]", "{sustitute: 1.0}", "ecko", "{preset: nothing}"):
        for door in (voxstill.label, voxstill.run):
            with pytest.raises(voxstill.ConfigError):
                door(cfg, allow_teacher=[wrong])


def test_run_hands_on_what_is_allowed(tmp_path: Path) -> None:
    """Its labels fail, as there are no texts to repeat: so it ends behind the step that is asked for here."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_bytes(wav(seconds=1.0))
    (tmp_path / "a.yaml").write_text(
        f"work: {tmp_path}/work\nsource: {{uri: {tmp_path}/in}}\nsegment: {{vad: never}}\ntrain: {{steps: 1}}\n"
        "teacher: echo\nengine: {name: inline, workers: 1, teachers: 1}\n"
    )
    assert cli.main(["run", str(tmp_path / "a.yaml"), "--allow-teacher", "{seed: 7}"]) != 0
    (job,) = control.job_statuses(Store(str(tmp_path / "work")))
    assert [options["seed"] for options in job.allowed] == [7]
