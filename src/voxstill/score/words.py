"""Word and character error rates: what was aligned with what, per utterance, per group and in all.

Errors are the fewest edits, each costing one, as jiwer counts them. Of the ways to make so few edits the one with most
hits counts, so substitutions, insertions and deletions are the same on every machine. They are sclite's where sclite,
whose edits cost 3, 3 and 4, finds the fewest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import kaldialign
from rapidfuzz.distance import Levenshtein

from voxstill.records import ErrorCounts

Pair = tuple[str | None, str | None]
"""A unit of the reference and one of the hypothesis; None stands across an insertion or a deletion."""
_NOTHING = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The errors of one utterance, or of the group that `id` names."""

    id: str
    words: ErrorCounts
    characters: ErrorCounts


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[ErrorCounts, list[Pair]]:
    """The counts of `count`, and an alignment with so few edits to look at; no unit may be the empty string.

    The alignment is sclite's where that has the fewest edits, and so the kinds that were counted. Where it has more,
    one with the fewest is shown, whose kinds may be others.
    """
    counts = count(reference, hypothesis)
    for sclite in (True, False):
        found = kaldialign.align(list(reference), list(hypothesis), eps_symbol=_NOTHING, sclite_mode=sclite)
        if sum(ref != hyp for ref, hyp in found) == counts.errors:
            break
    return counts, [(ref or None, hyp or None) for ref, hyp in found]


def count(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """The fewest edits, and of those the most hits; an empty reference makes everything an insertion."""
    edit = len(reference) + len(hypothesis) + 1  # so dear that no number of substitutions outweighs one edit
    cost = Levenshtein.distance(reference, hypothesis, weights=(edit, edit, edit + 1))
    return split(cost, edit, len(reference), len(hypothesis))


def split(cost: int, edit: int, num_reference: int, num_hypothesis: int) -> ErrorCounts:
    """The counts of an alignment in which an edit costs `edit`, a substitution one more, and all of them `cost`."""
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
    """Words and characters of one utterance, compared as they stand: normalise before.

    Unicode spaces part words, and one space between words counts as a character, as in jiwer and torchmetrics.
    """
    return Scored(
        id=id,
        words=count(reference.split(), hypothesis.split()),
        characters=count(_characters(reference), _characters(hypothesis)),
    )


def wer(pairs: Iterable[tuple[str, str]]) -> ErrorCounts:
    """Word errors over all (reference, hypothesis) texts."""
    return ErrorCounts.sum(count(reference.split(), hypothesis.split()) for reference, hypothesis in pairs)


def apart(one: Sequence[str], other: Sequence[str]) -> float:
    """Edits between two sequences to a unit of the longer, 0 to 1: the same either way, and defined for empty ones."""
    return count(one, other).errors / max(len(one), len(other), 1)


def cer(pairs: Iterable[tuple[str, str]]) -> ErrorCounts:
    """Character errors over all (reference, hypothesis) texts."""
    return ErrorCounts.sum(count(_characters(reference), _characters(hypothesis)) for reference, hypothesis in pairs)


def total(rows: Iterable[Scored], id: str = "all") -> Scored:  # noqa: A002
    """All rows as one."""
    rows = list(rows)
    return Scored(
        id=id,
        words=ErrorCounts.sum(row.words for row in rows),
        characters=ErrorCounts.sum(row.characters for row in rows),
    )


def by(rows: Iterable[Scored], key: Callable[[Scored], str | None]) -> dict[str, Scored]:
    """One total for each key, in the order of the keys; rows without a key are left out."""
    groups: dict[str, list[Scored]] = {}
    for row in rows:
        name = key(row)
        if name is not None:
            groups.setdefault(name, []).append(row)
    return {name: total(groups[name], name) for name in sorted(groups)}


def confusions(alignments: Iterable[Iterable[Pair]], limit: int) -> list[tuple[Pair, int]]:
    """The commonest errors and how often each was made."""
    found = Counter(pair for pairs in alignments for pair in pairs if pair[0] != pair[1])
    return sorted(found.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or ""))[:limit]


def versions() -> dict[str, str]:
    """What counted, with its version: figures are stamped with it."""
    return {"rapidfuzz": version("rapidfuzz")}


def _characters(text: str) -> str:
    return " ".join(text.split())
