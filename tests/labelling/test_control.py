"""What is asked of a running job: what is taken, by whom, and what every row says of it afterwards."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
from voxstill import cli
from voxstill.audio import codec, read_utterances
from voxstill.core import config, monitor
from voxstill.core.errors import ConfigError
from voxstill.core.metrics.steps import StepMeter
from voxstill.core.records import Label, Utterance
from voxstill.labelling import control, label, label_figures, permission
from voxstill.labelling.task import Task
from voxstill.pipeline import compare_teachers
from voxstill.pipeline import filter as filtering
from voxstill.pipeline import shard as sharding
from voxstill.storage import control as control_file
from voxstill.storage import tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.store import Store
from waiting import until

PREFIX = "utterances/test"
READING = read_utterances.reading(config.Config())
WORDS = "one two three four five six"


@pytest.fixture(scope="module")
def wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "a.wav"
    path.write_bytes(codec.encode(np.zeros(16_000, np.int16) + 100, "wav"))
    return path


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job looks all the time."""
    monkeypatch.setattr(control_file, "POLL_S", 0.02)
    monkeypatch.setattr(control_file, "POLL_REMOTE_S", 0.02)


def fill(root: str, wav: Path, num: int) -> WatchedStore:
    """A corpus of so many utterances, in one finished table."""
    work = WatchedStore(root)
    common = {"recording_id": "r", "uri": str(wav), "start_ms": 0, "end_ms": 1000, "text": WORDS}
    rows = [Utterance(id=f"u{i:04}", **common) for i in range(num)]
    work.create(f"{PREFIX}/0.parquet", tables.to_parquet(rows, Utterance))
    work.write_json(f"{PREFIX}/{tables.SUCCESS}", {"recipe": "test", "utterances": num, "hours": num / 3600})
    return work


class WatchedStore(Store):
    """Counts how often a job looks for a request."""

    num_looks = 0

    def read_json(self, key: str, *limit: int) -> dict[str, Any] | None:
        self.num_looks += key == control_file.REQUEST
        return super().read_json(key, *limit)

    def wait_for_job(self) -> None:
        """Return once the job has taken what was asked for before: it looks, takes it, and looks again."""
        wanted = self.num_looks + 2
        until(lambda: self.num_looks >= wanted)


class Job(StepMeter):
    """Counts what is done, and asks for things when so many utterances are."""

    def __init__(self, work: WatchedStore, asks: dict[int, list[str]], waits: bool) -> None:
        super().__init__("label", None, "utterances")
        self._work, self._asks, self._waits = work, asks, waits

    def update(self, summary: Any) -> None:
        super().update(summary)
        for number in [count for count in self._asks if count <= summary.num_items]:
            ask(self._work, *self._asks.pop(number))
            if self._waits:
                self._work.wait_for_job()


def ask(work: Store, *overrides: str) -> None:
    standing = control_file.requested(work).set
    control_file.request(work, control.merge(standing, control.parse_overrides(overrides)) if overrides else {})


def run(
    work: WatchedStore,
    teacher: dict[str, Any],
    asks: dict[int, list[str]] | None = None,
    waits: bool = True,
    allowed: Sequence[str] = (),
    **options: Any,
) -> tuple[LabelFigures, list[Label]]:
    task = label.task(config.Teacher.model_validate(teacher))
    others = permission.allowed_teachers(task.teacher, allowed)
    cfg = config.Engine(**{"name": "inline", "chunk": 2, "workers": 1, "teachers": 1} | options)
    with Job(work, dict(asks or {}), waits) as meter:
        figures = label.label(work, PREFIX, task, cfg, READING, meter, allowed=others)
    return figures, list(tables.read(work, task.prefix, Label))


def task_of(**options: Any) -> Task:
    return label.task(config.Teacher.model_validate({"name": "echo", **options}))


def makers(labels: list[Label]) -> Counter[tuple[str, str]]:
    return Counter((row.recipe, row.teacher) for row in labels)


def key(task: Task) -> tuple[str, str]:
    return task.recipe, task.name


# ------------------------------------------------------------------------------------------------ what may be asked


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("engine.wrokers=3", "unknown option `engine.wrokers`", "did you mean `engine.workers`?"),
        ("engin.workers=3", "unknown option `engin`", ""),
        ("engine.workers=0", "option `engine.workers` cannot be 0", "give whole number"),
        ("engine.chunk=3", "a running job cannot change `engine.chunk`", "resumes where it stopped"),
        ("engine=inline", "a running job cannot change `engine.name`", "resumes where it stopped"),
        ("seed=3", "a running job cannot change `seed`", "resumes where it stopped"),
        ("filter.keep_share=0.5", "a running job cannot change `filter.keep_share`", "resumes where it stopped"),
        ("monitor.log_level=loud", "option `monitor.log_level` cannot be 'loud'", "give"),
    ],
)
def test_an_option_that_a_running_job_cannot_change_is_an_error(override: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        control.parse_overrides([override])
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_a_newly_named_teacher_keeps_no_option_of_the_one_before() -> None:
    teacher = config.Teacher.model_validate({"name": "echo", "seed": 3})
    allowed = permission.allowed_teachers(teacher, ["{substitute: 0.5}", "reference"])
    begun = control.Settings(teacher, config.Engine(), "info", allowed)
    more = control.parse_overrides(["teacher.substitute=0.5", "engine.workers=3"])
    assert control.apply(more, begun).teacher.model_dump() == {"name": "echo", "seed": 3, "substitute": 0.5}
    assert control.apply(more, begun).engine.workers == 3
    other = control.merge(more, control.parse_overrides(["teacher=reference", "engine.attempts=5"]))
    assert other == {"teacher": {"name": "reference"}, "engine": {"workers": 3, "attempts": 5}}
    assert control.apply(other, begun).teacher.model_dump() == {"name": "reference"}
    with pytest.raises(ConfigError, match=r"unknown option `teacher.sustitute`") as caught:
        control.apply(control.parse_overrides(["teacher.sustitute=0.5"]), begun)
    assert "teacher.substitute" in caught.value.fix
    with pytest.raises(ConfigError, match="unknown teacher preset"):
        control.parse_overrides(["teacher.preset=whisper"])


# ------------------------------------------------------------------------------------------------ teachers


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_a_teacher_takes_over_and_every_row_names_its_teacher(wav: Path, tmp_path: Path, fast: None, name: str) -> None:
    num = 20 if name == "inline" else 600  # a worker that starts takes its time
    work = fill(str(tmp_path), wav, num)
    slow = {"name": "echo", "delay_ms": 60}
    asks, allowed = {10: ["teacher.substitute=1.0", "teacher.delay_ms=0"]}, ["{substitute: 1.0, delay_ms: 0}"]
    figures, labels = run(work, slow, asks, allowed=allowed, name=name, chunk=5)
    old, new = task_of(delay_ms=60), task_of(delay_ms=0, substitute=1.0)
    counts = makers(labels)
    assert sorted(row.utterance_id for row in labels) == [f"u{i:04}" for i in range(num)]
    assert counts.keys() == {key(old), key(new)}
    assert counts[key(old)] >= 10
    assert all((row.text == WORDS) == (row.recipe == old.recipe) for row in labels)
    assert figures.recipe == old.recipe
    assert {row["recipe"]: row["labels"] for row in figures.teachers} == {
        old.recipe: counts[key(old)],
        new.recipe: counts[key(new)],
    }
    assert {row["recipe"]: row["options"] for row in figures.teachers} == {
        old.recipe: old.teacher.model_dump(),
        new.recipe: new.teacher.model_dump(),
    }
    assert set(figures.teacher.split(label_figures.AND)) == {old.name, new.name}
    assert workdir.finished_recipes(work, "labels") == [old.recipe]
    (job,) = control.job_statuses(work)
    assert (job.teacher["substitute"], job.refused, job.running) == (1.0, None, False)
    assert run(work, slow)[0] == figures  # all is there: nothing is done, whatever stands


def test_a_standing_request_holds_from_the_start_and_can_be_withdrawn(wav: Path, tmp_path: Path, fast: None) -> None:
    work, old, new = fill(str(tmp_path), wav, 40), task_of(), task_of(seed=1)
    ask(work, "teacher.seed=1")
    figures, labels = run(work, {"name": "echo"}, {8: []}, allowed=["{seed: 1}"])
    counts = makers(labels)
    assert counts[key(new)] >= 8
    assert counts[key(old)] > 0
    assert counts.total() == 40
    assert [row.recipe for row in labels if row.utterance_id < "u0008"] == [new.recipe] * 8
    assert {row["teacher"] for row in figures.teachers} == {old.name, new.name}


def test_figures_name_a_teacher_that_made_all_although_the_run_began_with_another(
    wav: Path, tmp_path: Path, fast: None
) -> None:
    work, new = fill(str(tmp_path), wav, 8), task_of(seed=1)
    ask(work, "teacher.seed=1")
    figures, labels = run(work, {"name": "echo"}, allowed=["{seed: 1}"])
    assert makers(labels) == {key(new): 8}
    assert (figures.recipe, figures.teacher) == (task_of().recipe, new.name)
    assert [row["labels"] for row in figures.teachers] == [8]


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("teacher.name=ecko", "unknown teacher `ecko`"),
        ("teacher.seeed=1", "unknown option `teacher.seeed`"),
        ("teacher={name: transformers, model: /nowhere/at/all}", "/nowhere/at/all"),
        ("teacher=pocketsphinx", "cannot take over"),
        ("teacher={name: consensus, of: [aa, bb]}", "cannot take over"),
    ],
)
def test_a_teacher_that_cannot_take_over_ends_no_job(
    wav: Path, tmp_path: Path, fast: None, override: str, why: str
) -> None:
    work = fill(str(tmp_path), wav, 20)
    allowed = ["{name: transformers, model: /nowhere/at/all}", "pocketsphinx", "{name: consensus, of: [aa, bb]}"]
    figures, labels = run(work, {"name": "echo"}, {4: [override, "engine.attempts=1"]}, allowed=allowed)
    assert makers(labels) == {key(task_of()): 20}
    assert figures.teachers is None
    (job,) = control.job_statuses(work)
    assert why in job.refused
    assert job.asked_at == control_file.requested(work).at
    assert job.engine["attempts"] == 3  # all or nothing


@pytest.mark.parametrize("name", ["inline", "ray"])
def test_a_teacher_whose_model_cannot_be_opened_ends_no_job(wav: Path, tmp_path: Path, fast: None, name: str) -> None:
    grammar = tmp_path / "g.jsgf"
    grammar.write_text("#JSGF V1.0; grammar g; public <g> = one;")
    unknown = tmp_path / "h.jsgf"
    unknown.write_text("#JSGF V1.0; grammar g; public <g> = qwertzuiop;")
    work = fill(str(tmp_path / "work"), wav, 12)
    teacher = {"name": "pocketsphinx", "grammar": str(grammar)}
    asks = {(4 if name == "inline" else 0): [f"teacher.grammar={unknown}"]}
    if 0 in asks:
        ask(work, *asks.pop(0))
    figures, labels = run(work, teacher, asks, allowed=[f"{{grammar: {unknown}}}"], name=name)
    assert makers(labels) == {key(label.task(config.Teacher.model_validate(teacher))): 12}
    assert figures.teachers is None
    (job,) = control.job_statuses(work)
    assert "qwertzuiop" in job.refused


@pytest.mark.parametrize("refused_by", ["job", "engine"])
def test_a_job_that_is_started_again_works_by_what_stood_before_a_request_that_it_refuses(
    wav: Path, tmp_path: Path, fast: None, refused_by: str
) -> None:
    work = fill(str(tmp_path / "work"), wav, 8)
    if refused_by == "job":
        teacher, allowed, override = {"name": "echo"}, ["{seed: 1}"], "teacher.seed=2"
    else:
        grammars = [tmp_path / "g.jsgf", tmp_path / "h.jsgf"]
        for grammar, word in zip(grammars, ["one", "qwertzuiop"], strict=True):
            grammar.write_text(f"#JSGF V1.0; grammar g; public <g> = {word};")
        teacher = {"name": "pocketsphinx", "grammar": str(grammars[0])}
        allowed, override = [f"{{grammar: {grammars[1]}}}"], f"teacher.grammar={grammars[1]}"
    earlier = ["engine.attempts=5", *(["teacher.seed=1"] if refused_by == "job" else [])]
    ask(work, *earlier)
    before = control_file.requested(work)
    options = control.merge(before.set, control.parse_overrides([override]))
    at = control_file.request(work, options, before).at
    _, labels = run(work, teacher, allowed=allowed)
    expected = task_of(seed=1) if refused_by == "job" else label.task(config.Teacher.model_validate(teacher))
    assert makers(labels) == {key(expected): 8}
    (job,) = control.job_statuses(work)
    assert job.refused is not None
    assert ("does not allow" if refused_by == "job" else "qwertzuiop") in job.refused
    assert (job.asked_at, job.engine["attempts"]) == (at, 5)
    assert control_file.standing(work, [job]) == before


@pytest.mark.parametrize("rejects", [False, True])
def test_a_request_applied_late_does_not_hide_that_a_later_one_was_refused(
    wav: Path, tmp_path: Path, fast: None, rejects: bool
) -> None:
    work = fill(str(tmp_path), wav, 1)
    teacher = config.Teacher.model_validate({"name": "echo"})
    started = control.Settings(teacher, config.Engine(), "info", permission.allowed_teachers(teacher, ["{seed: 1}"]))
    with control.Watch(work, "recipe", started, lambda _: []) as watch:
        ask(work, "teacher.seed=1")
        work.wait_for_job()
        ask(work, "teacher.seed=2")
        work.wait_for_job()
        assert watch.poll() is not None  # while the model of the first was opened, the second came
        if rejects:
            watch.rejected(ConfigError("no model", code="change-refused", why="", fix=""))
        else:
            watch.applied([])
    (job,) = control.job_statuses(work)
    assert "seed" in str(job.refused)
    assert (job.asked_at, job.teacher.get("seed")) == (control_file.requested(work).at, None if rejects else 1)


@settings(deadline=None, max_examples=10)
@given(
    st.dictionaries(
        st.integers(0, 29),
        st.sampled_from(["teacher.seed=1", "teacher.seed=2", "teacher.fail_on=[u0003, u0028]", "teacher.seed=x", ""]),
        max_size=6,
    ),
    st.integers(1, 5),
)
def test_every_utterance_is_labelled_once_whatever_is_asked_for(
    wav: Path, tmp_path_factory: pytest.TempPathFactory, asks: dict[int, str], chunk: int
) -> None:
    work = fill(str(tmp_path_factory.mktemp("work")), wav, 30)
    requests: dict[int, list[str]] = {number: [one] if one else [] for number, one in asks.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_file, "POLL_S", 0.005)
        allowed = ["{seed: 1}", "{seed: 2}", "{fail_on: [u0003, u0028]}"]
        figures, labels = run(
            work, {"name": "echo", "delay_ms": 2}, requests, waits=False, allowed=allowed, chunk=chunk
        )
    assert sorted(row.utterance_id for row in labels) == [f"u{i:04}" for i in range(30)]
    counts = makers(labels)
    teachers = figures.teachers or [{"recipe": figures.recipe, "teacher": figures.teacher, "labels": 30}]
    assert {(row["recipe"], row["teacher"]): row["labels"] for row in teachers} == counts
    of_chunk = [{row.recipe for row in tables.from_parquet(work.read(part), Label)} for part in _parts(work)]
    assert all(len(recipes) == 1 for recipes in of_chunk)


def _parts(work: Store) -> list[str]:
    return tables.parts(work, "labels")


# ------------------------------------------------------------------------------------------------ limits and log level


@pytest.mark.slow
def test_workers_and_limits_change_while_the_job_goes_on(wav: Path, tmp_path: Path, fast: None) -> None:
    work = fill(str(tmp_path), wav, 80)
    asks = {10: ["engine.teachers=3", "engine.in_flight=1"], 40: ["engine.teachers=1", "engine.workers=2"]}
    figures, labels = run(work, {"name": "echo", "delay_ms": 50}, asks, name="ray")
    assert makers(labels) == {key(task_of(delay_ms=50)): 80}
    assert figures.teachers is None
    (job,) = control.job_statuses(work)
    assert {name: job.engine[name] for name in ("teachers", "workers", "in_flight")} == {
        "teachers": 1,
        "workers": 2,
        "in_flight": 1,
    }


def test_the_log_level_is_that_asked_for_until_the_job_ends(
    wav: Path, tmp_path: Path, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monitor.start_logging("warning")
    work = fill(str(tmp_path), wav, 40)
    run(work, {"name": "echo"}, {8: ["monitor.log_level=info"]})
    assert "control: changed as requested" in capfd.readouterr().err
    assert monitor.level() == "warning"
    assert [handler.level for handler in monitor.log.handlers] == [logging.WARNING]


def test_storage_that_fails_while_a_job_looks_is_a_warning(
    wav: Path, tmp_path: Path, fast: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monitor.start_logging("warning")
    work = fill(str(tmp_path), wav, 12)
    (tmp_path / control_file.REQUEST).write_text("no JSON")
    (tmp_path / control_file.STATUS).write_text("a file where a folder should be")
    _, labels = run(work, {"name": "echo", "delay_ms": 10})
    assert makers(labels) == {key(task_of(delay_ms=10)): 12}
    stderr = capfd.readouterr().err
    assert stderr.count("the request cannot be read") == 1
    assert "cannot write" in stderr


def test_a_malformed_request_is_refused_and_not_fatal(wav: Path, tmp_path: Path, fast: None) -> None:
    work = fill(str(tmp_path), wav, 12)
    work.write_json(control_file.REQUEST, {"set": {"teacher": 3, "engine": ["workers"]}})
    _, labels = run(work, {"name": "echo"})
    assert makers(labels) == {key(task_of()): 12}
    assert "cannot be read" in control.job_statuses(work)[0].refused


# ------------------------------------------------------------------------------------------------ the command


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = cli.main(["control", *arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_the_command_writes_shows_extends_and_withdraws_requests(
    wav: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, name = fill(str(tmp_path), wav, 4), str(tmp_path)
    run(work, {"name": "echo"}, allowed=["{seed: 4}"])
    assert command(capsys, name)[1]["asked"] == {}
    assert command(capsys, name, "--set", "engine.workers=3")[0] == 0
    _, status, _ = command(capsys, name, "--set", "teacher.seed=4")
    assert status["asked"] == {"engine": {"workers": 3}, "teacher": {"seed": 4}}
    assert [job["recipe"] for job in status["jobs"]] == [task_of().recipe]
    code, _, err = command(capsys, name, "--set", "teacher.sed=4")
    assert (code, "did you mean `teacher.seed`?" in err) == (2, True)
    assert command(capsys, name, "--set", "engine.chunk=4")[0] == 2
    assert command(capsys, name)[1]["asked"] == status["asked"]  # what is refused is not written
    assert cli.main(["control", name]) == 0
    assert "engine.workers = 3" in capsys.readouterr().out
    assert command(capsys, name, "--clear", "--set", "engine.workers=2")[1]["asked"] == {"engine": {"workers": 2}}
    assert command(capsys, name, "--clear")[1]["asked"] == {}
    assert cli.main(["control", name]) == 0
    assert "nothing is requested" in capsys.readouterr().out
    with socket.create_server(("127.0.0.1", 0)) as job:  # where its metrics are served
        monkeypatch.setenv("VOXSTILL__MONITOR__PORT", str(job.getsockname()[1]))
        assert command(capsys, name)[0] == 0
    code, _, err = command(capsys, str(tmp_path / "typo"), "--set", "engine.workers=3")
    assert (code, "has no utterances" in err) == (3, True)
    assert not (tmp_path / "typo").exists()


def test_a_job_in_a_bucket_takes_what_is_asked_for_there(
    s3: Store, wav: Path, fast: None, capsys: pytest.CaptureFixture[str]
) -> None:
    work = fill(f"{s3.root}/work", wav, 60)

    class Commanded(Job):
        def update(self, summary: Any) -> None:
            if summary.num_items == 10:
                assert cli.main(["control", work.root, "--set", "teacher.seed=9"]) == 0
                work.wait_for_job()

    task, cfg, allowed = task_of(), config.Engine(name="inline", chunk=2), [task_of(seed=9).teacher]
    with Commanded(work, {}, waits=False) as meter:
        label.label(work, PREFIX, task, cfg, READING, meter, allowed=allowed)
    labels = list(tables.read(work, task.prefix, Label))
    assert len({row.utterance_id for row in labels}) == len(labels) == 60
    assert makers(labels).keys() == {key(task), key(task_of(seed=9))}
    capsys.readouterr()
    assert cli.main(["control", work.root]) == 0
    assert "follows the request" in capsys.readouterr().out


def test_every_part_has_a_status_of_its_own_and_one_that_allows_a_request_is_enough(
    wav: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, log = fill(str(tmp_path / "work"), wav, 1200), tmp_path / "log"
    teacher, inline = "teacher={name: echo, delay_ms: 100}", "engine={name: inline, workers: 1, teachers: 1, chunk: 2}"

    def start(part: str, *allow: str) -> ForkServerProcess:
        arguments = ["label", work.root, "--part", part, "--set", teacher, "--set", inline, *allow]
        return forked.start(forked.command, arguments, log=log)

    def by_part() -> dict[str | None, control.JobStatus]:
        return {job.part: job for job in control.job_statuses(work)}

    first, second = start("1/2", "--allow-teacher", "{seed: 7}"), start("2/2")
    try:
        until(lambda: by_part().keys() == {"1/2", "2/2"} or not (first.is_alive() and second.is_alive()))
        code, asked, err = command(capsys, work.root, "--set", "teacher.seed=7")
        assert (code, asked["asked"]) == (0, {"teacher": {"seed": 7}})
        assert [line for line in err.splitlines() if "will not follow" in line and "part 2/2" in line]
        until(lambda: by_part()["1/2"].teacher.get("seed") == 7 and by_part()["2/2"].refused)
        assert {part: (job.pid, job.running) for part, job in by_part().items()} == {
            "1/2": (first.pid, True),
            "2/2": (second.pid, True),
        }
        assert command(capsys, work.root, "--set", "engine.attempts=2")[1]["asked"]["teacher"] == {"seed": 7}
        first.kill()
        first.join()
        assert {part: job.running for part, job in by_part().items()} == {"1/2": False, "2/2": True}
        assert cli.main(["control", work.root]) == 0
        assert f"part 1/2: ended, process {first.pid}" in capsys.readouterr().out
        code, _, err = command(capsys, work.root, "--clear", "--set", "teacher.seed=7")
        assert (code, "does not allow another `teacher.seed`" in err) == (2, True)  # the part that runs does not
    finally:
        for job in (first, second):
            job.kill()
            job.join()


# ------------------------------------------------------------------------------------------------ killed, resumed, read


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inline", "ray"])
def test_a_job_that_is_switched_killed_and_begun_again_labels_all_once(wav: Path, tmp_path: Path, name: str) -> None:
    work = fill(str(tmp_path / "work"), wav, 240)
    old, new = task_of(delay_ms=80), task_of(delay_ms=20, substitute=1.0)
    cfg = {"work": work.root, "engine": {"name": name, "chunk": 2, "workers": 1, "teachers": 1}}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({**cfg, "teacher": {"name": "echo", "delay_ms": 80}}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    log = tmp_path / "log"

    def start() -> ForkServerProcess:
        arguments = ["label", work.root, "--config", path, "--allow-teacher", "{substitute: 1.0, delay_ms: 20}"]
        return forked.start(forked.command, arguments, log=log, environment=environment)

    def label_counts() -> Counter[tuple[str, str]]:
        return makers(list(tables.read(work, old.prefix, Label)))

    def wait_until(who: Task, num: int, job: ForkServerProcess) -> None:
        until(lambda: label_counts()[key(who)] >= num or not job.is_alive(), every_s=0.2)

    job = start()
    wait_until(old, 4, job)
    asked = ["control", work.root, "--set", "teacher.substitute=1.0", "--set", "teacher.delay_ms=20"]
    assert cli.main(asked) == 0
    wait_until(new, 2, job)
    assert job.pid is not None
    os.killpg(job.pid, signal.SIGKILL)
    job.join()
    before = {part: work.read(part) for part in tables.parts(work, "labels")}
    assert 0 < len(before) < 120
    forked.finish(start(), log=log)
    after = {part: work.read(part) for part in tables.parts(work, "labels")}
    assert after.items() >= before.items()  # nothing is made again
    labels = list(tables.read(work, old.prefix, Label))
    assert sorted(row.utterance_id for row in labels) == [f"u{i:04}" for i in range(240)]
    assert makers(labels).keys() == {key(old), key(new)}
    rest = [row for part in after.keys() - before.keys() for row in tables.from_parquet(after[part], Label)]
    assert makers(rest).keys() == {key(new)}


def test_later_steps_see_one_table_of_labels_with_both_teachers(wav: Path, tmp_path: Path, fast: None) -> None:
    work = fill(str(tmp_path), wav, 60)
    asks, allowed = {20: ["teacher.substitute=1.0"]}, ["{substitute: 1.0}"]
    figures, labels = run(work, {"name": "echo", "delay_ms": 20}, asks, allowed=allowed)
    run(work, {"name": "echo", "seed": 7})  # begins with what stands: another table, by another name
    cfg = config.Config.model_validate(
        {
            "work": work.root,
            "engine": {"name": "inline", "chunk": 2},
            "teacher": {"name": "echo", "delay_ms": 20},
            "filter": {"frame_ms": 1},
        }
    )
    filtered = filtering.filter_labels(cfg)
    wrong = sum(row.text != WORDS for row in labels)
    assert (filtered.labels, filtered.judged) == (figures.recipe, 60)
    assert filtered.wer_before == pytest.approx(wrong / 60)
    sharded = sharding.shard(cfg)
    assert sharded.utterances == 60
    assert set((sharded.teacher or "").split(label_figures.AND)) == {row.teacher for row in labels}
    comparison = compare_teachers.compared(cfg)
    assert [row.teacher for row in comparison.teachers if row.recipe == figures.recipe] == [figures.teacher]


def test_human_texts_among_the_labels_are_nothing_to_judge_by(wav: Path, tmp_path: Path, fast: None) -> None:
    work = fill(str(tmp_path), wav, 40)
    figures, _ = run(work, {"name": "echo", "delay_ms": 20}, {10: ["teacher=reference"]}, allowed=["reference"])
    assert label_figures.are_human_texts(figures)
    cfg = config.Config.model_validate(
        {"work": work.root, "engine": {"name": "inline", "chunk": 2}, "teacher": {"name": "echo", "delay_ms": 20}}
    )
    assert filtering.filter_labels(cfg).wer_before is None
