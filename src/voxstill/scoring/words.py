"""Word and character error rates per utterance, per group and in total, and alignments.

Errors are the fewest edits, each costing one, as jiwer counts them. Of the alignments with the fewest edits the one
with most hits counts, so substitutions, insertions and deletions are deterministic. They are sclite's where sclite,
whose edits cost 3, 3 and 4, finds the fewest.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import kaldialign
from rapidfuzz.distance import Levenshtein

from voxstill.core.records import ErrorCounts

Pair = tuple[str | None, str | None]
"""A unit of the reference and one of the hypothesis; None on one side is an insertion or a deletion."""
LARGEST = 25_000_000
"""Cells of the table of an alignment: 5,000 words against 5,000, a hundred megabytes and a fifth of a second."""
_NOTHING = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The errors of one utterance, or of the group that `id` names."""

    id: str
    words: ErrorCounts
    characters: ErrorCounts


def table_fits(reference: Sequence[str], hypothesis: Sequence[str]) -> bool:
    """Whether the table of an alignment has at most `LARGEST` cells; of other texts no alignment is shown."""
    return len(reference) * len(hypothesis) <= LARGEST


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[ErrorCounts, list[Pair]]:
    """Count errors as `count`, and align the units to look at; no unit may be the empty string.

    The alignment is sclite's where that has the fewest edits, and its kinds of edits are those that were counted. Where
    it has more, or its table would be larger than `LARGEST`, it is another with the fewest, whose kinds may differ from
    the counts.
    """
    counts = count(reference, hypothesis)
    if not table_fits(reference, hypothesis):
        return counts, list(_in_little_memory(reference, hypothesis))
    for sclite in (True, False):
        pairs = kaldialign.align(list(reference), list(hypothesis), eps_symbol=_NOTHING, sclite_mode=sclite)
        if sum(ref != hyp for ref, hyp in pairs) == counts.errors:
            break
    return counts, [(ref or None, hyp or None) for ref, hyp in pairs]


def _in_little_memory(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[Pair]:
    """An alignment with the fewest edits without a table of all cells, in more time."""
    for edit in Levenshtein.opcodes(reference, hypothesis):
        yield from itertools.zip_longest(
            reference[edit.src_start : edit.src_end], hypothesis[edit.dest_start : edit.dest_end]
        )


def count(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """Count errors by edit distance, preferring hits; an empty reference gives insertions only."""
    edit = len(reference) + len(hypothesis) + 1  # so large that no number of substitutions outweighs one edit
    cost = Levenshtein.distance(reference, hypothesis, weights=(edit, edit, edit + 1))
    return split(cost, edit, len(reference), len(hypothesis))


def split(cost: int, edit: int, num_reference: int, num_hypothesis: int) -> ErrorCounts:
    """Counts of an alignment with total `cost`, in which an edit costs `edit` and a substitution one more."""
    errors, substitutions = divmod(cost, edit)
    longer = num_hypothesis - num_reference
    insertions = (errors - substitutions + longer) // 2
    deletions = insertions - longer
    return ErrorCounts(
        hits=num_reference - substitutions - deletions,
        substitutions=substitutions,
        insertions=insertions,
        deletions=deletions,
    )


def score(id: str, reference: str, hypothesis: str) -> Scored:  # noqa: A002
    """Score words and characters of one utterance, without normalising.

    Unicode spaces separate words, and one space between words counts as a character, as in jiwer and torchmetrics.
    """
    return Scored(
        id=id,
        words=count(reference.split(), hypothesis.split()),
        characters=count(_characters(reference), _characters(hypothesis)),
    )


def wer(pairs: Iterable[tuple[str, str]]) -> ErrorCounts:
    """Word errors over all (reference, hypothesis) texts."""
    return ErrorCounts.sum(count(reference.split(), hypothesis.split()) for reference, hypothesis in pairs)


def edit_distance(first: Sequence[str], second: Sequence[str]) -> float:
    """Normalised edit distance: edits divided by the longer length, 0 to 1, symmetric; 0 for two empty sequences."""
    return Levenshtein.distance(first, second) / max(len(first), len(second), 1)


def cer(pairs: Iterable[tuple[str, str]]) -> ErrorCounts:
    """Character errors over all (reference, hypothesis) texts."""
    return ErrorCounts.sum(count(_characters(reference), _characters(hypothesis)) for reference, hypothesis in pairs)


def total(rows: Iterable[Scored], id: str = "all") -> Scored:  # noqa: A002
    """Sum all rows."""
    rows = list(rows)
    return Scored(
        id=id,
        words=ErrorCounts.sum(row.words for row in rows),
        characters=ErrorCounts.sum(row.characters for row in rows),
    )


def group_by(rows: Iterable[Scored], key: Callable[[Scored], str | None]) -> dict[str, Scored]:
    """Sum rows by key, in the order of the keys; rows without a key are left out."""
    groups: dict[str, list[Scored]] = {}
    for row in rows:
        name = key(row)
        if name is not None:
            groups.setdefault(name, []).append(row)
    return {name: total(groups[name], name) for name in sorted(groups)}


def confusions(alignments: Iterable[Iterable[Pair]], limit: int) -> list[tuple[Pair, int]]:
    """The most frequent errors with their counts."""
    counts = Counter(pair for pairs in alignments for pair in pairs if pair[0] != pair[1])
    return sorted(counts.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or ""))[:limit]


def versions() -> dict[str, str]:
    """Versions of the scoring libraries, which are stored with every figure."""
    return {"rapidfuzz": version("rapidfuzz")}


def _characters(text: str) -> str:
    return " ".join(text.split())
