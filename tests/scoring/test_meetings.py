from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.config import Config
from voxstill.core.records import ErrorCounts
from voxstill.evaluation import score_meetings
from voxstill.scoring import words
from voxstill.scoring.meetings import cpwer, tcpwer
from voxstill.text.transcripts import TranscriptSegment

DAY_MS = 86_400_000


def rows(segments: list[tuple[str, str, int, int]]) -> list[TranscriptSegment]:
    return [
        TranscriptSegment(id=str(i), text=text, speaker=speaker, session="m", start_ms=start, end_ms=start + length)
        for i, (speaker, text, start, length) in enumerate(segments)
    ]


def meetings(names: str) -> Any:
    text = st.lists(st.sampled_from(["a", "b", "see"]), max_size=4).map(" ".join)
    row = st.tuples(st.sampled_from(names), text, st.integers(0, 20_000), st.integers(0, 5000))
    return st.lists(row, max_size=6).map(rows)


@settings(deadline=None)
@given(meetings("xyz"), meetings("pqr"))
def test_speakers_are_paired_as_well_as_any_pairing_does(
    reference: list[TranscriptSegment], hypothesis: list[TranscriptSegment]
) -> None:
    def spoken(rows: list[TranscriptSegment], name: str) -> list[str]:
        speaker_rows = sorted((row for row in rows if row.speaker == name), key=lambda row: row.start_ms or 0)
        return " ".join(row.text for row in speaker_rows).split()

    permutations = (
        sum(
            words.count(spoken(reference, ref), spoken(hypothesis, hyp)).errors
            for ref, hyp in zip("xyz", permutation, strict=True)
        )
        for permutation in itertools.permutations("pqr")
    )
    result = cpwer(reference, hypothesis)
    assert result.counts.errors == min(permutations)
    assert result.counts.reference == sum(len(row.text.split()) for row in reference)


@settings(deadline=None)
@given(meetings("xyz"), meetings("pqr"), st.integers(0, 5000))
def test_time_only_makes_it_harder_and_a_long_collar_makes_it_no_matter(
    reference: list[TranscriptSegment], hypothesis: list[TranscriptSegment], collar_ms: int
) -> None:
    everywhere = tcpwer(reference, hypothesis, DAY_MS)
    assert everywhere.counts.errors == cpwer(reference, hypothesis).counts.errors
    within = tcpwer(reference, hypothesis, collar_ms).counts
    assert within.errors >= tcpwer(reference, hypothesis, 2 * collar_ms + 1).counts.errors >= everywhere.counts.errors
    assert within.reference == everywhere.counts.reference


def test_a_speaker_without_a_partner_counts_with_all_words() -> None:
    reference = rows([("ann", "one two", 0, 1000), ("bob", "three", 1000, 500)])
    assert cpwer(reference, rows([("1", "one two", 0, 1000)])).counts == ErrorCounts(hits=2, deletions=1)
    assert cpwer(reference, []).counts == ErrorCounts(deletions=3)
    assert cpwer([], rows([("1", "one two", 0, 1000)])).counts == ErrorCounts(insertions=2)
    result = cpwer(reference, rows([("1", "three", 0, 1000), ("2", "one two", 0, 1000), ("3", "oh", 0, 10)]))
    assert result.counts == ErrorCounts(hits=3, insertions=1)
    assert result.mapping == {"1": "bob", "2": "ann"}


def test_known_answers_of_meeteval(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("diarization/meeteval-examples")
    cases = json.loads((shared_data("peer-vectors") / "wer_known.json").read_text())["meeteval"]["cases"]
    for case in cases:
        if case["metric"] not in ("cpwer", "tcpwer") or "uem" in case:
            continue
        files = str(folder / case["ref"]), str(folder / case["hyp"])
        result = score_meetings.of_meetings(
            Config(), *files, normalizer="none", collar_s=case.get("collar", 5)
        ).to_dict()
        assert result["errors" if case["metric"] == "cpwer" else "errors_in_time"] == case["errors"]
        assert result["words"] == case["length"]


def test_generated_meetings_have_the_cpwer_of_meeteval(tmp_path: Path) -> None:
    meeteval = pytest.importorskip("meeteval")
    chance = random.Random(0)
    vocabulary = ["a", "of", "one", "seven", "somewhere", "thus", "no"]

    def text(session: int, names: str, jitter: float) -> str:
        lines, start_s = [], 0.0
        for _ in range(12):
            start_s += chance.uniform(0.1, 4)
            words = " ".join(chance.choices(vocabulary, k=chance.randint(1, 9)))
            start = start_s + chance.uniform(0, jitter)
            lines.append(
                f"s{session} 1 {chance.choice(names)} {start:.3f} {start + chance.uniform(0.3, 3):.3f} {words}"
            )
        return "\n".join(lines) + "\n"

    (tmp_path / "ref.stm").write_text("".join(text(i, "abc"[: 1 + i % 3], 0) for i in range(20)))
    hypothesis_lines = []
    for line in (tmp_path / "ref.stm").read_text().splitlines():
        session, channel, name, start, end, *words = line.split()
        shift = chance.gauss(0, 1.5)
        name = chance.choice("pqrs") if chance.random() < 0.3 else name.upper()
        start, end = (f"{max(0, float(time) + shift):.3f}" for time in (start, end))
        words = [
            chance.choice(vocabulary) if chance.random() < 0.2 else word for word in words if chance.random() > 0.1
        ]
        hypothesis_lines.append(" ".join([session, channel, name, start, end, *words]))
    (tmp_path / "hyp.stm").write_text("\n".join(hypothesis_lines) + "\n")
    files = str(tmp_path / "ref.stm"), str(tmp_path / "hyp.stm")
    expected = meeteval.wer.cpwer(*files)
    for collar in (0.5, 5.0):
        theirs_in_time = meeteval.wer.tcpwer(*files, collar=Decimal(str(collar)))
        result = score_meetings.of_meetings(Config(), *files, normalizer="none", collar_s=collar).to_dict()
        for session in result["sessions"]:
            assert session["errors"] == expected[session["session"]].errors
            assert session["errors_in_time"] == theirs_in_time[session["session"]].errors
            assert session["words"] == expected[session["session"]].length
