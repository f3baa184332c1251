"""Tasks by name: ours are there, and a name that is misspelt is told with the one that is near."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxstill import cli
from voxstill.core.errors import ConfigError
from voxstill.tasks import registry


@pytest.mark.parametrize("name", registry.names())
def test_every_task_that_can_be_named_can_be_imported(name: str) -> None:
    assert callable(registry.find(name).build)


def test_a_misspelt_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="there is no task `speaker`") as caught:
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
