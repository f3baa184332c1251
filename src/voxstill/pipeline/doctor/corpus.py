"""What is wrong with a corpus, from the tables of its work folder; audio is decoded of a sample alone."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow.compute as pc

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import Utterance
from voxstill.filtering.measures import Score
from voxstill.indexing.failure import FailureKind
from voxstill.indexing.split_leaks import SplitLeaks
from voxstill.pipeline.doctor import sample
from voxstill.pipeline.doctor.checks import Check, State, above, judged
from voxstill.storage import manifest, tables, workdir
from voxstill.storage.arrays import numpy_array
from voxstill.storage.figures import IndexFigures, LabelFigures, ScoreFigures, TableFigures, VerdictFigures
from voxstill.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

Figures = TypeVar("Figures", bound=TableFigures)
_check = functools.partial(judged, "corpus")
_DAMAGED = (0.02, 0.2)
"""Shares above which there is a warning, and a failure."""
_DUPLICATES, _CLIPPED, _OTHER_LANGUAGE, _ODD_RATE = 0.1, 0.05, 0.05, 0.05
_FAILED_LABELS = (0.02, 0.2)
_KEPT = (0.3, 0.05)
"""Shares of kept labels below which there is a warning, and a failure."""
_FEW_UTTERANCES = 20
"""A split of fewer says nothing by its error rate."""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Tables:
    """The newest finished tables of a work folder that belong together; None if a step has not ended."""

    utterances: IndexFigures
    labels: LabelFigures | None
    scores: ScoreFigures | None
    verdicts: VerdictFigures | None


def checks(work: Store, cfg: Config) -> list[Check]:
    """Everything that the tables and a sample of the audio say; DataError if nothing is indexed."""
    chosen = _tables(work)
    parts = tables.parts(work, workdir.prefix("utterances", chosen.utterances.recipe))
    return [
        *_parts(work, chosen),
        *_recordings(chosen.utterances),
        *_splits(chosen.utterances),
        *sample.checks(work, parts, cfg),
        *_leaks(work, parts),
        *_duplicates(chosen.utterances),
        *_languages(work, parts),
        *_labels(chosen.labels),
        *_rates(work, chosen.scores, cfg),
        *_verdicts(chosen.verdicts),
    ]


def _tables(work: Store) -> Tables:
    """Of several recipes those that most was made of: verdicts, then the scores, labels and utterances beneath them."""
    verdicts = _largest(work, VerdictFigures, "judged")
    scores = None if verdicts is None else workdir.success(work, ScoreFigures, verdicts.scores)
    labels = (
        workdir.success(work, LabelFigures, verdicts.labels) if verdicts else _largest(work, LabelFigures, "labels")
    )
    utterances = workdir.success(work, IndexFigures, verdicts.utterances) if verdicts else None
    utterances = utterances or _largest(work, IndexFigures, "utterances")
    if utterances is None:
        raise DataError(
            f"`{work.root}` is neither a work folder nor an experiment",
            code="no-work-folder",
            why="it has neither finished utterances nor a config.yaml",
            fix="give a folder below exp/, or a work folder after `voxstill index`; without one the machine is checked",
        )
    labels = labels or _largest(work, LabelFigures, "labels")
    return Tables(utterances, labels, scores or _largest(work, ScoreFigures, "num_labels"), verdicts)


def _largest(work: Store, kind: type[Figures], count: str) -> Figures | None:
    recipes = workdir.finished_recipes(work, kind.kind)
    return max(
        (workdir.named(work, kind, recipe) for recipe in recipes),
        key=lambda figures: int(getattr(figures, count)),
        default=None,
    )


def _parts(work: Store, chosen: Tables) -> Iterator[Check]:
    """Parts of finished tables that are missing, added or others."""
    finished = [table for table in (chosen.utterances, chosen.labels, chosen.scores, chosen.verdicts) if table]
    num = 0
    for figures in finished:
        try:
            num += len(manifest.parts(work, workdir.prefix(figures.kind, figures.recipe)))
        except DataError as error:
            yield _check("tables", "fail", f"{error.what}: {error.why}", error.fix)
            return
    yield _check("tables", "ok", f"{len(finished)} tables have all of their {num:,} parts")


def _recordings(figures: IndexFigures) -> Iterator[Check]:
    """Files that cannot be used, and why."""
    duplicates = str(FailureKind.DUPLICATE)
    reasons = {reason: num for reason, num in figures.reasons.items() if not reason.startswith(duplicates)}
    damaged, num = max(0, figures.damaged), max(1, figures.recordings)
    share = damaged / num
    top = ", ".join(f"{count:,} {reason}" for reason, count in Counter(reasons).most_common(_NAMED))
    text = f"{damaged:,} of {figures.recordings:,} recordings cannot be used" + (f": {top}" if top else "")
    fix = "" if not damaged else f"`voxstill index` logs each; the most frequent is: {next(iter(Counter(reasons)), '')}"
    yield _check("recordings", above(share, _DAMAGED), text, fix)


def _splits(figures: IndexFigures) -> Iterator[Check]:
    """Splits that are too small to judge by, or missing."""
    sizes = {split: figures.splits.get(split, 0) for split in ("train", "dev", "test")}
    text = ", ".join(f"{split} {num:,}" for split, num in sizes.items()) + f" utterances, {figures.hours:.2f} hours"
    if not sizes["train"]:
        yield _check("splits", "fail", f"there is nothing to train on: {text}", "set `split` in the manifest")
        return
    small = [split for split in ("dev", "test") if sizes[split] < _FEW_UTTERANCES]
    fix = f"`source.{small[0]}_share`, `source.{small[0]}_speakers` or `split` in the manifest" if small else ""
    warning = f"{' and '.join(small)} is too small to be reliable, with fewer than {_FEW_UTTERANCES}: " if small else ""
    yield _check("splits", "warn" if small else "ok", warning + text, fix)


def _leaks(work: Store, parts: Sequence[str]) -> Iterator[Check]:
    """Speakers and recordings that training shares with a held-out split."""
    splits: dict[str, set[str]] = {}
    num_unknown = num = 0
    shared = set[str]()
    for table in tables.columns(work, parts, Utterance, ("recording_id", "speaker", "split")):
        num += len(table)
        num_unknown += table["speaker"].null_count
        for row in table.group_by(["speaker", "split"]).aggregate([]).to_pylist():
            if row["speaker"] is not None:
                splits.setdefault(row["speaker"], set()).add(row["split"])
        of_recording = table.group_by("recording_id").aggregate([("split", "count_distinct")])
        shared.update(
            of_recording.filter(pc.greater(of_recording["split_count_distinct"], 1))["recording_id"].to_pylist()
        )
    both = sorted(speaker for speaker, names in splits.items() if "train" in names and len(names) > 1)
    leaks = SplitLeaks()
    for part in parts if shared else ():
        rows = tables.from_parquet(work.read(part), Utterance, work.uri(part))
        by_recording: dict[str, list[Utterance]] = {}
        for row in rows:
            if row.recording_id in shared:
                by_recording.setdefault(row.recording_id, []).append(row)
        for utterances in by_recording.values():
            leaks.see(utterances)
    overlaps = [sentence for sentence in leaks.warnings() if sentence.startswith("stretches")]
    if overlaps:
        yield _check("splits share audio", "fail", overlaps[0], "give each recording one `split` in the manifest")
    text = f"{len(splits):,} speakers are known, {num_unknown:,} of {num:,} utterances have none"
    if both:
        shown = ", ".join(f"`{name}`" for name in both[:_NAMED])
        leak = f"{len(both):,} of {len(splits):,} speakers are in training and in a held-out split, such as {shown}"
        fix = (
            "leave `split` out of the manifest, so that speakers are divided among the splits, or give each "
            "speaker one split"
        )
        yield _check("speakers", "warn", f"{leak}: error rates look better than for new speakers", fix)
    else:
        yield _check("speakers", "ok", text)


def _duplicates(figures: IndexFigures) -> Iterator[Check]:
    share = figures.duplicates / max(1, figures.recordings)
    text = (
        f"{figures.duplicates:,} of {figures.recordings:,} recordings have the same audio as others, and were left out"
    )
    fix = "remove the copies from the source: it has fewer hours than it seems"
    yield _check("duplicates", "warn" if share > _DUPLICATES else "ok", text, fix)


def _languages(work: Store, parts: Sequence[str]) -> Iterator[Check]:
    languages: Counter[str | None] = Counter()
    for table in tables.columns(work, parts, Utterance, ("language",)):
        for row in table["language"].value_counts().to_pylist():
            languages[row["values"]] += row["counts"]
    known = {name: num for name, num in languages.items() if name is not None}
    shown = ", ".join(f"{name} {num:,}" for name, num in Counter(known).most_common(8)) or "none is given"
    if known and languages[None]:
        text = f"{languages[None]:,} utterances have no language, others do: {shown}"
        yield _check("languages", "warn", text, "set `language` in the manifest, or `source.language`")
    else:
        yield _check("languages", "ok", shown)


def _labels(figures: LabelFigures | None) -> Iterator[Check]:
    if figures is None:
        return
    share = figures.failed / max(1, figures.labels)
    text = f"{figures.failed:,} of {figures.labels:,} labels of {figures.teacher} have failed"
    fix = "run `voxstill label WORK --retry-failed`; the labels have the reasons" if share > _FAILED_LABELS[0] else ""
    yield _check("labels", above(share, _FAILED_LABELS), text, fix)


def _rates(work: Store, figures: ScoreFigures | None, cfg: Config) -> Iterator[Check]:
    """Characters per second, and labels in another language than the utterance."""
    if figures is None:
        return
    columns = ("characters", "duration_ms", "other_language")
    keys = tables.parts(work, workdir.prefix("scores", figures.recipe))
    read = [_rate_columns(table) for table in tables.columns(work, keys, Score, columns)]
    if not read:
        return
    rate_N, is_other_N = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
    said_N = rate_N[rate_N > 0]
    if not len(said_N):
        return
    low, high = cfg.filter.min_chars_per_s, cfg.filter.max_chars_per_s
    middle = float(np.median(said_N))
    odd = float(((said_N < low) | (said_N > high)).mean())
    text = (
        f"{middle:.1f} characters per second in the median; {odd:.1%} of the labels are not within {low:g} to {high:g}"
    )
    fix = (
        "listen to some of them: the sampling rate, the segments or the teacher may be wrong (`voxstill filter "
        "--report`)"
    )
    is_odd = odd > _ODD_RATE or not low < middle < high
    yield _check("label rate", "warn" if is_odd else "ok", text, fix)
    other = float(is_other_N.mean())
    if other > _OTHER_LANGUAGE:
        text = f"{other:.1%} of the labels are in another language than that of their utterance"
        yield _check("label language", "warn", text, "correct `language` in the manifest, or the teacher's")


def _rate_columns(table: pa.Table) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    seconds_N = np.maximum(numpy_array(table["duration_ms"]), 1) / 1000
    return numpy_array(table["characters"]) / seconds_N, numpy_array(table["other_language"]).astype(np.float64)


def _verdicts(figures: VerdictFigures | None) -> Iterator[Check]:
    """Share of the labels that the filter keeps, and the rules that drop most."""
    if figures is None or not figures.judged:
        return
    top = ", ".join(f"{name} {num:,}" for name, num in _most(figures.reasons))
    text = f"{figures.kept:.1%} of {figures.judged:,} labels are kept" + (f"; dropped: {top}" if top else "")
    state: State = "fail" if figures.kept < _KEPT[1] else "warn" if figures.kept < _KEPT[0] else "ok"
    fix = "check the most frequent rule with `voxstill filter WORK --report PAGE`, and its option or the teacher"
    yield _check("kept labels", state, text, fix)


def _most(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(name, num) for name, num in Counter(reasons).most_common(_NAMED) if num]
