from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.config import Config
from voxstill.evaluation import score_speakers
from voxstill.scoring.checks import check_speaker_time, check_turns, offset_us
from voxstill.scoring.speakers import SpeakerTime, assignment, score_diarization, self_overlap_us
from voxstill.text.rttm import RttmEvent, ScoredRegion

Turns = list[tuple[str, float, float]]


def turns(rows: Turns) -> list[RttmEvent]:
    return [
        RttmEvent(
            kind="SPEAKER",
            session="m",
            channel="1",
            speaker=name,
            subtype="<na>",
            start_us=round(start * 1e6),
            end_us=round(end * 1e6),
        )
        for name, start, end in rows
    ]


def write(path: Path, sessions: dict[str, Turns]) -> str:
    path.write_text(
        "".join(
            f"SPEAKER {session} 1 {start:.5f} {end - start:.5f} <NA> <NA> {name} <NA> <NA>\n"
            for session, rows in sessions.items()
            for name, start, end in rows
        )
    )
    return str(path)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=5))
def test_an_assignment_has_the_largest_sum(rows: list[list[int]]) -> None:
    gain_RC = np.array(rows, dtype=np.int64)
    pairs = assignment(gain_RC)
    assert len(pairs) == min(gain_RC.shape) == len({row for row, _ in pairs}) == len({column for _, column in pairs})
    tall_RC = gain_RC if gain_RC.shape[0] >= 4 else gain_RC.T
    permutations = itertools.permutations(range(tall_RC.shape[0]), tall_RC.shape[1])
    best = max(sum(int(tall_RC[row, column]) for column, row in enumerate(permutation)) for permutation in permutations)
    assert sum(int(gain_RC[row, column]) for row, column in pairs) == best


some_turns = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(1, 9)).map(
        lambda row: (row[0], row[1], row[1] + row[2])
    ),
    max_size=8,
)


@settings(deadline=None)
@given(some_turns, some_turns, st.integers(0, 2))
def test_errors_are_never_negative_and_names_do_not_matter(reference: Any, hypothesis: Any, collar: int) -> None:
    result = score_diarization(turns(reference), turns(hypothesis), collar_us=collar * 1_000_000)
    time = result.time
    assert min(time.scored_us, time.missed_us, time.false_alarm_us, time.confused_us) >= 0
    assert time.missed_us + time.confused_us <= time.scored_us
    renamed = score_diarization(
        turns(reference),
        turns([("x" + name, start, end) for name, start, end in hypothesis]),
        collar_us=collar * 1_000_000,
    )
    assert renamed.time == time
    assert score_diarization(turns(reference), turns(reference), collar_us=collar * 1_000_000).time.errors_us == 0


def test_time_is_counted_by_the_speaker() -> None:
    reference = turns([("ann", 0, 4), ("bob", 2, 6)])
    assert score_diarization(reference, turns([("x", 0, 6)])).time == SpeakerTime(
        scored_us=8_000_000, missed_us=2_000_000, confused_us=2_000_000
    )
    assert score_diarization(reference, turns([("x", 0, 6)]), ignore_overlap=True).time == SpeakerTime(
        scored_us=4_000_000, confused_us=2_000_000
    )
    whole = [ScoredRegion(session="m", channel="1", start_us=0, end_us=10_000_000)]
    assert (
        score_diarization(reference, turns([("x", 0, 4), ("y", 2, 6), ("y", 7, 8)]), whole).time.false_alarm_us
        == 1_000_000
    )
    assert score_diarization(reference, [], whole).time.rate == 1.0
    assert score_diarization([], turns([("x", 0, 1)]), whole).time.rate is None
    assert score_diarization(reference, turns([("x", 0, 4), ("y", 2, 6)])).mapping == {"x": "ann", "y": "bob"}


def test_known_answers_of_simpleder(shared_data: Callable[[str], Path]) -> None:
    cases = json.loads((shared_data("diarization") / "der_known.json").read_text())["simpleder"]["cases"]
    checked = 0
    for case in cases:
        expected = {call: float(value) for value, call in case["checks"] if re.fullmatch(r"[\d.]+", value)}
        if (rate := expected.get("der.DER(ref, hyp)")) is None or not case["ref"]:
            continue
        everything = [*case["ref"], *case["hyp"]]
        first, last = min(turn[1] for turn in everything), max(turn[2] for turn in everything)
        whole = [ScoredRegion(session="m", channel="1", start_us=round(first * 1e6), end_us=round(last * 1e6))]
        assert score_diarization(turns(case["ref"]), turns(case["hyp"]), whole).time.rate == pytest.approx(
            rate, abs=1e-6
        ), case
        checked += 1
    assert checked > 10


def test_known_answers_of_md_eval(shared_data: Callable[[str], Path]) -> None:
    known = json.loads((shared_data("diarization") / "der_known.json").read_text())
    folder = shared_data("diarization")
    for case in known["md_eval_runs_made_here"]["cases"].values():
        if not (folder / case["ref"]).exists():
            continue
        for expected in case["results"]:
            result = score_speakers.of_speakers(
                Config(),
                str(folder / case["ref"]),
                str(folder / case["sys"]),
                collar_s=float(expected["options"].split()[-1]),
                ignore_overlap="-1" in expected["options"],
            ).to_dict()
            assert 100 * result["der"] == pytest.approx(expected["der"], abs=0.0051)
            for actual, wanted in (
                ("scored", "scored_speaker_time"),
                ("missed", "missed"),
                ("false_alarm", "false_alarm"),
                ("confused", "speaker_error"),
            ):
                assert result[f"{actual}_ms"] / 1000 == pytest.approx(expected[wanted], abs=0.0051)


def test_known_answers_of_its_suite(shared_data: Callable[[str], Path]) -> None:
    cases = json.loads((shared_data("diarization") / "der_known.json").read_text())["md_eval_suite"]
    folder = shared_data("peer-vectors/md-eval")
    for case in cases:
        files = [str(folder / case[name]) for name in ("ref", "sys", "uem")]
        result = score_speakers.of_speakers(
            Config(), *files[:2], uem=files[2], ignore_overlap=case["case"].startswith("sd")
        ).to_dict()
        if case["case"] != "md_test7":  # its figure is of words, whose times the option -w moves
            assert 100 * result["der"] == pytest.approx(case["der"]["ALL"], abs=0.0051), case["case"]


@pytest.fixture
def md_eval() -> Callable[..., tuple[float, list[float]]]:
    """NIST's program, where it is installed (Debian's `sctk`)."""
    program = shutil.which("md-eval.pl") or shutil.which("md-eval.pl", path="/usr/lib/sctk/bin")
    if program is None or shutil.which("perl") is None:
        pytest.skip("md-eval.pl is not installed")

    def run(reference: str, hypothesis: str, *options: str) -> tuple[float, list[float]]:
        command = ["perl", program, "-r", reference, "-s", hypothesis, *options]
        out = subprocess.run(command, capture_output=True, check=True, text=True).stdout.rpartition("ALL")[0]
        names = ("SCORED SPEAKER TIME", "MISSED SPEAKER TIME", "FALARM SPEAKER TIME", "SPEAKER ERROR TIME")
        times = [float(re.findall(rf"{name}\s*=\s*([\d.]+) secs", out)[-1]) for name in names]
        return float(re.findall(r"SPEAKER DIARIZATION ERROR = ([\d.]+) percent", out)[-1]), times

    return run


@pytest.mark.parametrize("collar", [0.0, 0.25])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("uem", [True, False])
def test_generated_meetings_have_the_der_of_md_eval(
    collar: float, overlap: bool, uem: bool, md_eval: Callable[..., tuple[float, list[float]]], tmp_path: Path
) -> None:
    chance = random.Random(0)

    def talk(names: str) -> Turns:
        rows = []
        for name in names:
            time_s = 0.0
            while (time_s := time_s + chance.expovariate(0.1)) < 120:
                end = time_s + 0.05 + chance.expovariate(0.3)
                rows.append((name, time_s, end))
                time_s = end
        return rows

    def worse(rows: Turns) -> Turns:
        moved = [
            (
                chance.choice("xyz") if chance.random() < 0.2 else name.upper(),
                max(0.0, start + chance.gauss(0, 0.2)),
                end,
            )
            for name, start, end in rows
            if chance.random() > 0.1
        ]
        last: dict[str, float] = {}
        kept = []
        for name, start, end in sorted(moved, key=lambda row: row[1]):  # md-eval wants nobody to overlap with himself
            if (begin := max(start, last.get(name, 0.0))) < end - 0.01:
                kept.append((name, begin, end))
                last[name] = end
        return kept

    references = {f"m{i}": talk("abcdef"[: 1 + i % 6]) for i in range(12)}
    hypotheses = {name: worse(rows) for name, rows in references.items() if rows}
    files = write(tmp_path / "ref.rttm", references), write(tmp_path / "hyp.rttm", hypotheses)
    stretches = tmp_path / "all.uem"
    stretches.write_text("".join(f"{name} 1 {5.5} {60.25}\n{name} 1 61 100\n" for name in references))
    options = ["-c", str(collar), *([] if overlap else ["-1"]), *(["-u", str(stretches)] if uem else [])]
    rate, times = md_eval(*files, *options)
    result = score_speakers.of_speakers(
        Config(), *files, uem=str(stretches) if uem else None, collar_s=collar, ignore_overlap=not overlap
    ).to_dict()
    assert 100 * result["der"] == pytest.approx(rate, abs=0.0051)
    actual = [result[f"{name}_ms"] / 1000 for name in ("scored", "missed", "false_alarm", "confused")]
    assert actual == pytest.approx(times, abs=0.0051)


TALK: Turns = [("a", 1, 3), ("b", 3.5, 4.5), ("a", 6, 9), ("c", 9.2, 12), ("b", 15, 15.8)]


@pytest.mark.parametrize("late", [-4.0, -0.37, 0.5, 30.0])
def test_a_constant_offset_is_detected(late: float) -> None:
    hypothesis = turns([(name, start + late, end + late) for name, start, end in TALK])
    assert offset_us(turns(TALK), hypothesis) == round(late * 1e6)
    direction = "late" if late > 0 else "early"
    assert any(f"{abs(late):.2f} s too {direction}" in warning for warning in check_turns(turns(TALK), hypothesis, []))


def test_no_offset_is_reported_where_there_is_none() -> None:
    chance = random.Random(0)
    assert offset_us(turns(TALK), turns(TALK)) == offset_us([], turns(TALK)) == 0
    jittered = [(name, start + chance.gauss(0, 0.1), end + chance.gauss(0, 0.1)) for name, start, end in TALK]
    assert offset_us(turns(TALK), turns(jittered)) == 0
    assert offset_us(turns(TALK), turns([(name, 1000 * start, 1e6 * end) for name, start, end in TALK])) == 0


@given(st.integers(0, 8), st.integers(1, 8), st.integers(0, 20))
def test_speech_after_the_end_of_the_audio_is_warned_of_with_its_length(start: int, lasts: int, length: int) -> None:
    reference, hypothesis = turns([("a", 0, 1), ("b", start, start + lasts)]), turns([("x", start, start + lasts)])
    warnings = [
        warning for warning in check_turns(reference, hypothesis, [], 1000 * length) if "after the end" in warning
    ]
    late = {"reference": max(0, 1 - length), "hypothesis": 0}
    late = {side: more + max(0, start + lasts - max(start, length)) for side, more in late.items()}
    assert [warning.partition(" are after ")[0] for warning in warnings] == [
        f"{seconds:.2f} s of the {side}" for side, seconds in late.items() if seconds
    ]
    assert not any("after the end" in warning for warning in check_turns(reference, hypothesis, []))


def test_odd_turns_are_warned_of() -> None:
    stretches = [ScoredRegion(session="m", channel="1", start_us=0, end_us=10_000_000)]
    warnings = "\n".join(
        check_turns(turns([("a", 1, 3), ("a", 2.5, 4)]), turns([("x", -1, 4), ("y", 9, 12)]), stretches)
    )
    assert "`a` of the reference overlaps with itself for 0.50 s" in warnings
    assert self_overlap_us(turns([("a", 0, 10), ("a", 1, 2), ("a", 3, 4), ("a", 10, 11)])) == 2_000_000
    assert "the hypothesis has turns before the recording starts" in warnings
    assert "3.00 s of the hypothesis are outside" in warnings
    assert "same file" in check_speaker_time(SpeakerTime(scored_us=1))[0]
    assert "false alarm" in check_speaker_time(SpeakerTime(scored_us=1, missed_us=1, false_alarm_us=9))[0]
    assert "there is no speech" in check_speaker_time(SpeakerTime(false_alarm_us=9))[0]
    assert check_speaker_time(SpeakerTime(scored_us=10, missed_us=1)) == []
