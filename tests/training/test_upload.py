"""What a training leaves lies on the Hub as one commit, once, and what is wrong is told before the training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hub import Hub, hub_server
from voxstill.core.errors import StorageError
from voxstill.core.world import environment
from voxstill.storage.rundir import RunDir
from voxstill.training.upload import check

UPLOAD = """
import sys
from pathlib import Path
from voxstill.training.upload import check, upload
from voxstill.core.errors import StorageError
from voxstill.storage.rundir import RunDir
try:
    check(sys.argv[2])
    upload(RunDir(Path(sys.argv[1])), sys.argv[2])
except StorageError as error:
    sys.exit(f"{error.what} | {error.why} | {error.fix}")
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A finished experiment, as far as an upload looks at it."""
    run = RunDir(tmp_path / "2026-01-01_student")
    run.model.mkdir(parents=True)
    (run.model / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (run.model / "config.json").write_text('{"model_type": "parakeet_ctc"}')
    for path in (run.config, run.environment, run.metrics, run.log, run.summary):
        path.write_text(f"what {path.name} says")
    return run


def uploaded(run: RunDir, target: str, **variables: str) -> str:
    """What a process says that uploads; the address of the Hub is read when its library is loaded."""
    command = [sys.executable, "-c", UPLOAD, str(run.path), target]
    # the files of a login are looked for where there are none
    env = {**environment(), "HF_HOME": str(run.path.parent / "hf"), **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stderr


def test_the_hub_has_the_model_at_its_top_and_how_it_came_about_in_one_commit(run: RunDir) -> None:
    with hub_server() as hub:
        output = uploaded(run, "hf://team/student", **hub.environment())
        assert hub.files == {
            **{f"team/student/{path.name}": path.read_bytes() for path in run.model.iterdir()},
            **{
                f"team/student/training/{path.name}": path.read_bytes() for path in run.path.iterdir() if path.is_file()
            },
        }, output
        assert hub.private == {"team/student": True}
        assert hub.commits == [run.path.name]
        uploaded(run, "hf://team/student", **hub.environment())  # as the same command again does
        assert hub.commits == [run.path.name]
        run.summary.write_text("other figures")
        uploaded(run, "hf://team/student", **hub.environment())
        assert hub.files["team/student/training/summary.json"] == b"other figures"
        assert len(hub.commits) == 2


def test_a_token_that_the_hub_does_not_take_is_an_error_that_says_so(run: RunDir) -> None:
    with hub_server() as hub:
        output = uploaded(run, "hf://team/student", **{**hub.environment(), "HF_TOKEN": "hf_another"})
        assert "was not uploaded to `hf://team/student`" in output
        assert "401" in output
        assert "hf auth login" in output
        assert "Traceback" not in output
        assert not hub.private


def test_a_hub_that_does_not_answer_is_an_error_that_says_so(run: RunDir) -> None:
    output = uploaded(run, "hf://team/student", **Hub(port=9).environment())
    assert "was not uploaded to `hf://team/student`" in output
    assert "Traceback" not in output


def test_a_missing_login_is_an_error_before_the_training(run: RunDir) -> None:
    output = uploaded(run, "hf://team/student", HF_TOKEN="")
    assert "not logged in" in output


@pytest.mark.parametrize("target", ["hf://student", "hf://team/student/more", "hf://team/stu dent", "nowhere://bucket"])
def test_a_wrong_address_is_an_error_before_the_training(target: str) -> None:
    with pytest.raises(StorageError):
        check(target)
