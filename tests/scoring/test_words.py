from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxstill.core.records import ErrorCounts
from voxstill.scoring import words
from voxstill.scoring.words import Scored, align, cer, confusions, count, group_by, score, total, wer

sentences = st.lists(st.sampled_from(["a", "b", "c", "d e", "é"]), max_size=8)


def levenshtein(reference: list[str], hypothesis: list[str]) -> int:
    row = list(range(len(hypothesis) + 1))
    for i, ref in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, hyp in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (ref != hyp))
    return row[-1]


@settings(deadline=None)
@given(sentences, sentences, st.sampled_from([0, 9, words.LARGEST]))
def test_an_alignment_has_the_fewest_edits_and_contains_both_texts(
    reference: list[str], hypothesis: list[str], largest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "LARGEST", largest)
        _, pairs = align(reference, hypothesis)
    assert sum(ref != hyp for ref, hyp in pairs) == levenshtein(reference, hypothesis)
    assert [ref for ref, _ in pairs if ref is not None] == reference
    assert [hyp for _, hyp in pairs if hyp is not None] == hypothesis


@settings(deadline=None)
@given(sentences, sentences)
def test_counts_are_of_the_fewest_edits_and_then_of_the_most_hits(reference: list[str], hypothesis: list[str]) -> None:
    counts, aligned = align(reference, hypothesis)
    assert counts == count(reference, hypothesis)
    assert counts.errors == levenshtein(reference, hypothesis)
    assert counts.reference == len(reference)
    assert counts.hits + counts.substitutions + counts.insertions == len(hypothesis)
    assert counts.hits >= sum(ref == hyp for ref, hyp in aligned)  # nearly always as many
    assert min(counts.hits, counts.substitutions, counts.insertions, counts.deletions) >= 0


@given(sentences, sentences)
def test_the_edit_distance_is_of_the_errors(first: list[str], second: list[str]) -> None:
    distance = words.edit_distance(first, second)
    assert distance == count(first, second).errors / max(len(first), len(second), 1)
    assert distance == words.edit_distance(second, first)


def test_an_edit_distance_takes_less_time_than_the_kinds_of_edits() -> None:
    first, second = ([f"w{number * factor % 977}" for number in range(6_000)] for factor in (7, 11))

    def seconds(compare: Callable[[list[str], list[str]], object]) -> float:
        begin = time.process_time()
        compare(first, second)
        return time.process_time() - begin

    assert seconds(words.edit_distance) < seconds(count) / 4


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(alphabet="ab ", max_size=9), st.text(alphabet="ab ", max_size=9)), max_size=5))
def test_rates_over_many_pairs_are_sums_of_counts(pairs: list[tuple[str, str]]) -> None:
    rows = [score(str(i), *pair) for i, pair in enumerate(pairs)]
    assert total(rows).words == wer(pairs)
    assert total(rows).characters == cer(pairs)


def test_an_empty_reference_counts_insertions_and_has_no_rate() -> None:
    counts = wer([("", "two words")])
    assert counts == ErrorCounts(insertions=2)
    assert counts.rate is None
    assert wer([("", "two words"), ("yes", "yes")]).rate == 2.0
    assert wer([("  ", "")]) == ErrorCounts()


def test_unicode_spaces_part_words() -> None:
    assert wer([("a\u3000b\tc", "a b c")]).errors == 0


def test_characters_are_code_points_and_a_space_between_words_is_one() -> None:
    assert cer([(" zażółć  𝔤𝔞 ", "zazółć\u3000𝔤")]) == ErrorCounts(hits=7, substitutions=1, deletions=1)
    assert cer([("一 二", "一二")]) == ErrorCounts(hits=2, deletions=1)


def test_groups_add_up_and_rows_without_a_group_are_left_out() -> None:
    rows = [score("1", "a b", "a"), score("2", "a", "a"), score("3", "b", "a")]
    speakers = {"1": "zoe", "2": "ann", "3": None}
    groups = group_by(rows, lambda row: speakers[row.id])
    assert list(groups) == ["ann", "zoe"]
    assert groups["zoe"].words == ErrorCounts(hits=1, deletions=1)


def peak_kb() -> int:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def test_an_alignment_of_long_texts_has_no_table_of_all_cells() -> None:
    reference, hypothesis = ["one", "two"] * 5_000, ["two", "one", "two"] * 3_000
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: that of other tests would hide this one's
    before_kb = peak_kb()
    counts, pairs = align(reference, hypothesis)
    assert sum(ref != hyp for ref, hyp in pairs) == counts.errors
    assert peak_kb() - before_kb < 100 << 10


def test_confusions_are_counted_over_all_alignments() -> None:
    alignments = [align(["five"], ["nine"])[1], align(["five", "two"], ["nine"])[1], align(["five"], ["five"])[1]]
    assert confusions(alignments, 9) == [(("five", "nine"), 2), (("two", None), 1)]
    assert confusions(alignments, 1) == [(("five", "nine"), 2)]


def test_ten_thousand_pairs_take_seconds() -> None:
    reference = " ".join(f"word{i % 7}" for i in range(20))
    began = time.process_time()  # others may have the processor too
    counts = wer([(reference, reference.replace("word3", "word4"))] * 10_000)
    assert time.process_time() - began < 10
    assert counts.substitutions == 30_000


def test_a_row_is_its_words_and_its_characters() -> None:
    assert score("x", "ab c", "ab d") == Scored(
        id="x",
        words=ErrorCounts(hits=1, substitutions=1),
        characters=ErrorCounts(hits=3, substitutions=1),
    )
