"""A machine: what is healthy gives no alarm, and what is broken on purpose is named first."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path

import pytest

from doctor_faults.fault import CannotBeInduced
from doctor_faults.machines import FewFiles, FullDisk, HungBucket, LittleMemory, TakenPort, WrongPackage
from voxstill import cli
from voxstill.core import config
from voxstill.pipeline.doctor import look, machine, places, software
from voxstill.pipeline.doctor.software import Gpu, judge_gpus

GIB = 1 << 30
IDLE = Gpu(number=0, name="H100", used_bytes=GIB // 4, total_bytes=80 * GIB)


@pytest.mark.parametrize("kind", [FullDisk, LittleMemory, FewFiles, WrongPackage])
def test_a_fault_of_the_machine_is_named_first_and_the_fix_helps(kind, tmp_path: Path) -> None:
    fault = kind(tmp_path)
    try:
        with fault.induced():
            first = fault.ask().checks[0]
            assert (first["name"], first["state"]) == (fault.check, "fail")
            with fault.mended(first["fix"]):
                (check,) = (check for check in fault.ask().checks if check["name"] == fault.check)
                assert check["state"] == "ok"
    except CannotBeInduced as reason:
        pytest.skip(str(reason))


def test_a_port_in_use_is_told_with_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TakenPort(tmp_path).induced():
        pass  # it gives its ports back
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (check,) = places.ports({port: "monitor.port"}, "127.0.0.1")
        assert check.state == "warn"
        assert "choose another `monitor.port`" in check.fix
    assert places.ports({port: "monitor.port"}, "127.0.0.1")[0].state == "ok"


@pytest.mark.slow
def test_a_bucket_that_hangs_is_a_failed_check_and_one_that_answers_is_timed(tmp_path: Path) -> None:
    fault = HungBucket(tmp_path)
    with fault.induced():
        expected = fault.ask()
        assert (expected.checks[0]["name"], expected.checks[0]["state"], expected.code) == ("bucket", "fail", 4)
        with fault.mended(expected.checks[0]["fix"]):
            (check,) = (check for check in fault.ask().checks if check["name"] == "bucket")
            assert "is written in" in check["found"]


def test_a_folder_that_cannot_be_written_to_fails(tmp_path: Path) -> None:
    (check,) = places.disk(tmp_path / "not/there/yet")
    assert str(tmp_path) in check.found
    assert list(tmp_path.iterdir()) == []
    (check,) = places.disk(Path("/proc/self"))
    assert check.state == "fail"


def test_little_shared_memory_fails(tmp_path: Path) -> None:
    assert machine.shared_memory(str(tmp_path))[0].name == "shared memory"
    assert machine.shared_memory("/proc")[0].state == "fail"  # which has no room at all


def test_gpus_are_judged_by_what_their_driver_says() -> None:
    def states(*gpus: Gpu, driver: tuple[int, int] = (13, 0), cuda: tuple[int, int] | None = (13, 0)) -> dict[str, str]:
        return {check.name: check.state for check in judge_gpus(gpus, driver, "2.11.0", cuda, None)}

    assert states(IDLE) == {"GPU": "ok", "driver": "ok"}
    assert states(IDLE, driver=(12, 8))["driver"] == "fail"
    assert states(IDLE, driver=(12, 4), cuda=(12, 8))["driver"] == "ok"  # minor versions go together
    assert states(IDLE, cuda=None)["driver"] == "warn"
    held = Gpu(number=1, name="H100", used_bytes=9 * GIB, total_bytes=80 * GIB, unowned_bytes=8 * GIB)
    (orphan,) = (check for check in judge_gpus([held], (13, 0), "2.11.0", (13, 0), None) if check.name == "GPU memory")
    assert orphan.found == "8.0 GiB of GPU 1 are in use, but no process holds them"
    used = Gpu(number=1, name="H100", used_bytes=9 * GIB, total_bytes=80 * GIB)
    assert "GPU memory" not in states(used)
    assert judge_gpus([], (13, 0), None, None, None)[0].state == "ok"


def test_a_file_in_the_place_of_a_folder_is_named_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    good = {"work": tmp_path / "new/work", "train.root": tmp_path}
    assert places.writable(good)[0].state == "ok"
    [check] = places.writable({**good, "cache.folder": tmp_path / "file/cache"})
    assert (check.state, check.found) == ("fail", f"`cache.folder`: `{tmp_path}/file` is not a folder")
    cfg = config.load(None, [f"work={tmp_path}/work", f"cache.folder={tmp_path}/file"])
    assert [check.name for check in look.check_machine(cfg).checks if check.name == "folders" and check.state == "fail"]


def test_this_environment_fits_together() -> None:
    assert [check for check in software.packages() if check.state == "fail"] == []
    assert software.gpus()[0].name == "GPU"


def test_the_machine_is_looked_at_in_three_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = config.load(None, [f"work={tmp_path}/work", f"train.root={tmp_path}/exp"])
    start_s = time.monotonic()
    checks = look.check_machine(cfg).checks
    assert time.monotonic() - start_s < 3
    assert {"cores", "memory", "disk", "packages", "clock"} <= {check.name for check in checks}
    with contextlib.chdir(tmp_path):
        code = cli.main(["doctor", "--json"])
    printed = json.loads(capsys.readouterr().out)["checks"]
    assert all({"name", "state", "found"} <= check.keys() for check in printed)
    assert (code == 0) == all(check["state"] != "fail" for check in printed)


def test_a_folder_that_is_neither_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", str(tmp_path)]) == 3
    assert "neither a work folder nor an experiment" in capsys.readouterr().err
