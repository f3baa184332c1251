"""Checks run beside each other, none hangs the others, and the worst comes first."""

from __future__ import annotations

import json
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from voxstill.core.errors import StorageError
from voxstill.pipeline.doctor.checks import Check, DoctorResult, Probe, result, run

checks = st.lists(
    st.builds(
        Check,
        name=st.sampled_from("abc"),
        state=st.sampled_from(["ok", "warn", "fail"]),
        found=st.text(max_size=5),
        part=st.sampled_from(["machine", "storage", "corpus", "run"]),
    ),
    max_size=8,
)


@given(checks)
def test_the_worst_comes_first_and_equal_ones_keep_their_order(given_checks: list[Check]) -> None:
    ordered = result(given_checks)
    states = [check.state for check in ordered.checks]
    assert states == sorted(states, key=["fail", "warn", "ok"].index)
    for state in ("fail", "warn", "ok"):
        assert [check for check in ordered.checks if check.state == state] == [
            check for check in given_checks if check.state == state
        ]
    assert (ordered.exit_code == 0) == ("fail" not in states)
    assert DoctorResult.from_dict(json.loads(json.dumps(ordered.to_dict()))) == ordered


def test_what_hangs_is_a_failed_check_and_the_others_answer() -> None:
    forever = threading.Event()

    def hangs() -> list[Check]:
        forever.wait(60)
        return []

    start_s = time.monotonic()
    probes = [
        Probe("slow", hangs, 0.2, "the tape", "storage"),
        Probe("quick", lambda: [Check(name="quick", state="ok", found="1")], 0.2),
    ]
    slow, quick = run(probes)
    forever.set()
    assert time.monotonic() - start_s < 5
    assert (slow.name, slow.state, slow.part) == ("slow", "fail", "storage")
    assert slow.found == "the tape has not answered within 0.2 s"
    assert quick.state == "ok"


def test_what_raises_is_a_line_with_the_reason() -> None:
    def refuses() -> list[Check]:
        raise StorageError("cannot read it", why="denied", fix="ask for the right")

    def breaks() -> list[Check]:
        raise KeyError("MemTotal")

    refused, broken = run([Probe("one", refuses, 5, part="storage"), Probe("two", breaks, 5)])
    assert (refused.state, refused.found, refused.fix) == ("fail", "cannot read it: denied", "ask for the right")
    assert (broken.state, broken.found) == ("warn", "it cannot be checked: KeyError: 'MemTotal'")
    assert result([refused]).exit_code == 4
    assert "fix: ask for the right" in result([refused]).to_text()
