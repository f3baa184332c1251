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

from voxstill.config import Config
from voxstill.evaluation import score
from voxstill.records import ErrorCounts
from voxstill.score import words
from voxstill.score.meetings import cp, tcp
from voxstill.text.transcripts import Said

DAY_MS = 86_400_000


def rows(each: list[tuple[str, str, int, int]]) -> list[Said]:
    return [
        Said(id=str(i), text=text, speaker=speaker, session="m", start_ms=start, end_ms=start + length)
        for i, (speaker, text, start, length) in enumerate(each)
    ]


def some(names: str) -> Any:
    text = st.lists(st.sampled_from(["a", "b", "see"]), max_size=4).map(" ".join)
    row = st.tuples(st.sampled_from(names), text, st.integers(0, 20_000), st.integers(0, 5000))
    return st.lists(row, max_size=6).map(rows)


@settings(deadline=None)
@given(some("xyz"), some("pqr"))
def test_speakers_are_paired_as_well_as_any_pairing_does(said: list[Said], heard: list[Said]) -> None:
    def spoken(rows: list[Said], name: str) -> list[str]:
        own = sorted((each for each in rows if each.speaker == name), key=lambda each: each.start_ms or 0)
        return " ".join(each.text for each in own).split()

    ways = (
        sum(words.count(spoken(said, ref), spoken(heard, hyp)).errors for ref, hyp in zip("xyz", way, strict=True))
        for way in itertools.permutations("pqr")
    )
    found = cp(said, heard)
    assert found.counts.errors == min(ways)
    assert found.counts.reference == sum(len(each.text.split()) for each in said)


@settings(deadline=None)
@given(some("xyz"), some("pqr"), st.integers(0, 5000))
def test_time_only_makes_it_harder_and_a_long_collar_makes_it_no_matter(
    said: list[Said], heard: list[Said], collar_ms: int
) -> None:
    everywhere = tcp(said, heard, DAY_MS)
    assert everywhere.counts.errors == cp(said, heard).counts.errors
    within = tcp(said, heard, collar_ms).counts
    assert within.errors >= tcp(said, heard, 2 * collar_ms + 1).counts.errors >= everywhere.counts.errors
    assert within.reference == everywhere.counts.reference


def test_a_speaker_without_a_partner_counts_with_all_words() -> None:
    said = rows([("ann", "one two", 0, 1000), ("bob", "three", 1000, 500)])
    assert cp(said, rows([("1", "one two", 0, 1000)])).counts == ErrorCounts(hits=2, deletions=1)
    assert cp(said, []).counts == ErrorCounts(deletions=3)
    assert cp([], rows([("1", "one two", 0, 1000)])).counts == ErrorCounts(insertions=2)
    found = cp(said, rows([("1", "three", 0, 1000), ("2", "one two", 0, 1000), ("3", "oh", 0, 10)]))
    assert found.counts == ErrorCounts(hits=3, insertions=1)
    assert found.mapping == {"1": "bob", "2": "ann"}


def test_known_answers_of_meeteval(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("diarization/meeteval-examples")
    known = json.loads((shared_data("peer-vectors") / "wer_known.json").read_text())["meeteval"]["cases"]
    for case in known:
        if case["metric"] not in ("cpwer", "tcpwer") or "uem" in case:
            continue
        files = str(folder / case["ref"]), str(folder / case["hyp"])
        found = score.of_meetings(Config(), *files, normalizer="none", collar_s=case.get("collar", 5))
        assert found["errors" if case["metric"] == "cpwer" else "errors_in_time"] == case["errors"]
        assert found["words"] == case["length"]


def test_made_up_meetings_are_judged_as_meeteval_does(tmp_path: Path) -> None:
    meeteval = pytest.importorskip("meeteval")
    chance = random.Random(0)
    vocabulary = ["a", "of", "one", "seven", "somewhere", "thus", "no"]

    def text(session: int, names: str, jitter: float) -> str:
        found, at = [], 0.0
        for _ in range(12):
            at += chance.uniform(0.1, 4)
            said = " ".join(chance.choices(vocabulary, k=chance.randint(1, 9)))
            start = at + chance.uniform(0, jitter)
            found.append(f"s{session} 1 {chance.choice(names)} {start:.3f} {start + chance.uniform(0.3, 3):.3f} {said}")
        return "\n".join(found) + "\n"

    (tmp_path / "ref.stm").write_text("".join(text(i, "abc"[: 1 + i % 3], 0) for i in range(20)))
    heard = []
    for line in (tmp_path / "ref.stm").read_text().splitlines():
        session, channel, name, start, end, *said = line.split()
        shift = chance.gauss(0, 1.5)
        name = chance.choice("pqrs") if chance.random() < 0.3 else name.upper()
        start, end = (f"{max(0, float(each) + shift):.3f}" for each in (start, end))
        said = [chance.choice(vocabulary) if chance.random() < 0.2 else word for word in said if chance.random() > 0.1]
        heard.append(" ".join([session, channel, name, start, end, *said]))
    (tmp_path / "hyp.stm").write_text("\n".join(heard) + "\n")
    files = str(tmp_path / "ref.stm"), str(tmp_path / "hyp.stm")
    theirs = meeteval.wer.cpwer(*files)
    for collar in (0.5, 5.0):
        theirs_in_time = meeteval.wer.tcpwer(*files, collar=Decimal(str(collar)))
        found = score.of_meetings(Config(), *files, normalizer="none", collar_s=collar)
        for each in found["sessions"]:
            assert each["errors"] == theirs[each["session"]].errors
            assert each["errors_in_time"] == theirs_in_time[each["session"]].errors
            assert each["words"] == theirs[each["session"]].length
