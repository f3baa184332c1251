"""Tasks by name: ours are there, and a name that is misspelt is told with the one that is near."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from installed import install
from voxstill import Recognizer, cli
from voxstill.core.errors import ConfigError
from voxstill.tasks import definitions, registry

GROUP = "voxstill.tasks"
BROKEN = {"raises": "raise RuntimeError('no licence')", "misses": "import nowhere_at_all", "odd": "VALUE = 3"}


@pytest.mark.parametrize("name", registry.names())
def test_every_task_that_can_be_named_can_be_imported(name: str) -> None:
    assert callable(registry.find(name).build)


def test_a_new_file_is_a_task_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_one.py").write_text("from tasks.tagging import TAGGING\n")
    monkeypatch.setattr(definitions, "__path__", [*definitions.__path__, str(tmp_path)])
    assert "new-one" in registry.names()
    assert "voxstill.tasks.definitions.new_one" not in sys.modules
    assert type(registry.find("new-one")).__name__ == "Tagging"


def test_a_misspelt_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown task `speaker`") as caught:
        registry.find("speaker")
    assert "`speakers`" in (caught.value.fix or "")
    with pytest.raises(ConfigError) as caught:
        registry.find("xyzzy")
    assert "classes, recognition, speakers" in (caught.value.why or "")


def test_train_refuses_it_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.yaml").write_text(f"work: {tmp_path}/work\nstudent: {{task: clases}}\ntrain: {{steps: 1}}\n")
    assert cli.main(["train", str(tmp_path / "my.yaml")]) == 2
    assert "did you mean `classes`?" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_a_folder_that_no_other_task_claims_is_a_recogniser(tone_student: Path) -> None:
    assert registry.name_of(str(tone_student)) == "recognition"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_task_of_another_package_is_no_trouble_to_a_student_of_ours(
    name: str, tone_student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, GROUP, name, BROKEN[name])
    assert registry.name_of(str(tone_student)) == "recognition"
    assert Recognizer.from_pretrained(str(tone_student))
    assert f"other_{name}" not in sys.modules


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("raises", "the task `raises` of the package `other-raises` cannot be imported", "RuntimeError: no licence"),
        ("misses", "the task `misses` of the package `other-misses` cannot be imported", "No module named"),
        ("odd", "the task `odd` of the package `other-odd` does not fit this version", "`int` has no method"),
    ],
)
def test_a_broken_task_that_is_asked_for_is_named_with_its_package(
    name: str, what: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, GROUP, name, BROKEN[name])
    with pytest.raises(ConfigError, match=what) as caught:
        registry.find(name)
    assert why in caught.value.why


def test_a_model_that_no_task_claims_is_read_as_a_recogniser_and_broken_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, code in BROKEN.items():
        install(tmp_path / name, monkeypatch, GROUP, name, code)
    methods = "\n".join(f"    {method} = print" for method in registry.METHODS if method != "recognizes")
    fails = f"class Fails:\n{methods}\n    def recognizes(self, target): return 1 / 0\nVALUE = Fails()"
    install(tmp_path / "fails", monkeypatch, GROUP, "fails", fails)
    with caplog.at_level("WARNING"):
        assert registry.name_of("somebody/model") == "recognition"
    assert "`fails`, `misses`, `odd`, `raises` could not be checked" in caplog.text
    assert "other-raises" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_experiment_says_itself_of_which_task_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, GROUP, "raises", BROKEN["raises"])
    (tmp_path / "config.yaml").write_text("student: {task: raises}\n")
    with pytest.raises(ConfigError, match="the task `raises` of the package `other-raises` cannot be imported"):
        registry.name_of(str(tmp_path))
    (tmp_path / "config.yaml").write_text("student: {task: speakers}\n")
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).touch()
    assert registry.name_of(str(tmp_path)) == "speakers"


def test_a_folder_without_a_model_is_refused_before_any_utterance_is_read(tmp_path: Path) -> None:
    for text in ("student: {task: recognition}", "no: {such: option}"):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ConfigError, match="there is no student in"):
            registry.name_of(str(tmp_path))


def test_another_package_cannot_take_the_name_of_a_task_of_ours(
    tone_student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, monkeypatch, GROUP, "recognition", "VALUE = 3")
    with pytest.raises(ConfigError, match="the package `other-recognition` has a task `recognition`"):
        registry.find("recognition")
    with caplog.at_level("WARNING"):
        assert registry.name_of(str(tone_student)) == "recognition"
    assert "left out: the package `other-recognition`" in caplog.text
