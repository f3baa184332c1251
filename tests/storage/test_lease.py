"""A table has one writer: whoever comes second is refused in words, and takes over only where the first has stopped."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from voxstill.core.errors import StorageError
from voxstill.storage import lease
from voxstill.storage.store import Store
from waiting import until

TABLE = "labels/abc"


def other_process(work: Store, beats: int = 0) -> lease.Holder:
    """A holder on another machine, written into the work folder."""
    holder = lease.Holder.of_this_process("label")
    holder = dataclasses.replace(holder, machine="elsewhere", beats=beats)
    assert work.create(f"leases/{TABLE}/00000001.json", holder.to_json())
    return holder


def beat_until_done(work: Store, holder: lease.Holder, wanted: concurrent.futures.Future[lease.Lease]) -> None:
    """Let another machine beat, by its clock, until whoever wants its lease has an answer."""
    for beats in range(1, 600):
        work.replace(f"leases/{TABLE}/00000001.json", dataclasses.replace(holder, beats=beats).to_json())
        if concurrent.futures.wait([wanted], timeout=0.1).done:
            return


def is_lost(held: lease.Lease) -> bool:
    try:
        held.check()
    except StorageError:
        return True
    return False


def test_a_lease_is_taken_given_back_and_taken_again(store: Store) -> None:
    for _ in range(3):
        with lease.hold(store, TABLE, "label") as held:
            held.check()
            with pytest.raises(StorageError, match=f"process {os.getpid()} on .* runs `voxstill label` there since"):
                lease.acquire(store, TABLE, "label")
            with lease.hold(store, f"{TABLE}/part", "label"):
                pass
    assert len([entry for entry in store.list(f"leases/{TABLE}") if "/part/" not in entry.key]) == 1


def test_of_many_that_want_it_at_once_exactly_one_gets_it(store: Store) -> None:
    def take(_: int) -> lease.Lease | None:
        try:
            return lease.acquire(store, TABLE, "label")
        except StorageError:
            return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        taken = [held for held in pool.map(take, range(8)) if held is not None]
    assert len(taken) == 1
    taken[0].release()


def test_a_lease_of_another_machine_is_taken_over_once_its_beats_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.1)
    work = Store(str(tmp_path))
    holder = other_process(work)
    with pytest.raises(StorageError, match="on elsewhere"):
        lease.acquire(work, TABLE, "label")
    stopped = dataclasses.replace(holder, beat_s=time.time() - lease.STALE_S)
    work.replace(f"leases/{TABLE}/00000001.json", stopped.to_json())
    with lease.hold(work, TABLE, "label") as held:
        held.check()
    assert [entry.key for entry in work.list("leases")] == [f"leases/{TABLE}/00000002.json"]
    assert holder.beats == 0


def test_who_waits_takes_over_once_it_is_stale_and_is_refused_at_the_next_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.1)
    work = Store(str(tmp_path))
    holder = other_process(work)
    key = f"leases/{TABLE}/00000001.json"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(lease.acquire, work, TABLE, "label --part 1/4", waits=True)
        beat_until_done(work, holder, wanted)
        with pytest.raises(StorageError, match="on elsewhere"):
            wanted.result()
    nearly_stale = dataclasses.replace(holder, beat_s=time.time() - lease.STALE_S + 0.5)
    work.replace(key, nearly_stale.to_json())
    with lease.hold(work, TABLE, "label --part 1/4", waits=True) as held:
        held.check()
    other = dataclasses.replace(holder, beats=1, beat_s=time.time() + 7200)  # a clock that is two hours ahead
    assert work.create(f"leases/{TABLE}/00000003.json", other.to_json())
    with monkeypatch.context() as patch:
        patch.setattr(lease, "STALE_S", 0.6)
        held = lease.acquire(work, TABLE, "label --part 1/4", waits=True)
    held.check()
    held.release()


def test_who_waits_need_not_wait_for_what_is_given_back_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.1)
    work = Store(str(tmp_path))
    holder = other_process(work)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(lease.acquire, work, TABLE, "label --part 1/4", waits=True)
        time.sleep(0.2)
        work.replace(f"leases/{TABLE}/00000001.json", dataclasses.replace(holder, is_released=True).to_json())
        wanted.result(timeout=lease.STALE_S / 2).release()


def test_a_holder_whose_clock_is_wrong_is_not_taken_for_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 2.0)
    work = Store(str(tmp_path))
    holder = dataclasses.replace(other_process(work), beat_s=time.time() - 7200)
    key = f"leases/{TABLE}/00000001.json"
    work.replace(key, holder.to_json())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(lease.acquire, work, TABLE, "label")
        beat_until_done(work, holder, wanted)  # two hours behind
        with pytest.raises(StorageError, match="being written by another process"):
            wanted.result()


def test_a_table_whose_holder_has_a_wrong_clock_is_not_taken_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 2.0)
    work = Store(str(tmp_path))
    holder = dataclasses.replace(other_process(work), beat_s=time.time() - 7200)
    work.replace(f"leases/{TABLE}/00000001.json", holder.to_json())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(lease.check_free, work, "labels/other", TABLE)
        beat_until_done(work, holder, wanted)
        with pytest.raises(StorageError, match="being written by another process"):
            wanted.result()


def test_a_table_is_free_once_its_beats_have_stopped_and_nobody_has_taken_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.2)
    work = Store(str(tmp_path))
    holder = dataclasses.replace(other_process(work), beat_s=time.time() - 7200)
    work.replace(f"leases/{TABLE}/00000001.json", holder.to_json())
    lease.check_free(work)
    lease.check_free(work, TABLE)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(lease, "BEAT_S", 2.0)
        watching = pool.submit(lease.check_free, work, TABLE)
        successor = dataclasses.replace(lease.Holder.of_this_process("label"), machine="third")
        assert work.create(f"leases/{TABLE}/00000002.json", successor.to_json())
        with pytest.raises(StorageError, match="on third"):
            watching.result()


def test_whoever_was_taken_over_sees_it_and_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    work = Store(str(tmp_path))
    held = lease.acquire(work, TABLE, "label")
    successor = dataclasses.replace(lease.Holder.of_this_process("label"), machine="elsewhere")
    assert work.create(f"leases/{TABLE}/00000002.json", successor.to_json())
    until(lambda: is_lost(held))
    with pytest.raises(StorageError, match="has taken over"):
        held.check()
    held.release()
    assert not json.loads(work.read(f"leases/{TABLE}/00000002.json"))["is_released"]


def test_a_lease_that_cannot_be_renewed_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    monkeypatch.setattr(lease, "STALE_S", 0.3)
    held = lease.acquire(Store(str(tmp_path)), TABLE, "label")

    def fail(*_: object) -> None:
        raise StorageError("cannot write", why="the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "replace", fail)
        time.sleep(0.6)
        with pytest.raises(StorageError, match="could not be renewed"):
            held.check()
    held.release()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_killed_process_of_this_machine_need_not_be_waited_for(tmp_path: Path, is_reaped: bool) -> None:
    script = f"""
        import time
        from voxstill.storage import lease
        from voxstill.storage.store import Store
        held = lease.acquire(Store({str(tmp_path)!r}), {TABLE!r}, "label")
        print("held", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    work = Store(str(tmp_path))
    with pytest.raises(StorageError, match=f"process {process.pid} "):
        lease.acquire(work, TABLE, "label")
    process.send_signal(signal.SIGKILL)
    if is_reaped:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has asked for its exit code
    with lease.hold(work, TABLE, "label") as held:
        held.check()
    process.wait()
