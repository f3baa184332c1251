"""compare: error rates of two recognisers on the same utterances, with a paired significance test."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxstill.core import config
from voxstill.core.config import Config
from voxstill.core.errors import ConfigError, DataError
from voxstill.core.result import to_json
from voxstill.evaluation import results, score, tables
from voxstill.evaluation.results import StoredResult
from voxstill.scoring import figures, stats, words
from voxstill.scoring.figures import Stamp
from voxstill.storage.rundir import RunDir
from voxstill.text import normalize, transcripts
from voxstill.text.transcripts import TranscriptSegment

DOUBTFUL = 0.05
"""Above this p a difference may well be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Hypotheses of two recognisers for the same utterances, and the references: normalised texts by id.

    `hypotheses` have no text where a side has no hypothesis. `split` is None if only files were compared.
    """

    runs: tuple[str, str]
    references: Mapping[str, TranscriptSegment]
    texts: Mapping[str, str]
    hypotheses: tuple[Mapping[str, str], ...]
    normalizer: str
    split: str | None


def sides(
    cfg: Config,
    first: str,
    second: str,
    reference: str | None = None,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
) -> Sides:
    """Read the hypotheses of two recognisers, each an evaluated experiment, one of its results, or a file.

    References are read from `reference`, else from the results; of two results, the utterances on which both were
    evaluated count, and texts are normalised as they were there, unless a language or a normalizer says otherwise.
    DataError if there are no references or no shared utterances.
    """
    stored = [_stored(cfg, run) for run in (first, second)]
    known = [(run, result) for run, result in zip((first, second), stored, strict=True) if result is not None]
    references = _references(known, reference, form)
    rules = {result.figures.get("normalizer") for _, result in known}
    as_judged = rules.pop() if len(rules) == 1 and language is None else None
    name, normalized = score.rules(cfg, language, normalizer or as_judged)
    hypotheses = []
    for run, result in zip((first, second), stored, strict=True):
        rows = transcripts.read(run, form) if result is None else transcripts.read(str(result.hypotheses))
        hypotheses.append(
            {id_: normalized(segment.text) for id_, segment in score.by_id(rows, run).items() if id_ in references}
        )
        if not hypotheses[-1]:
            raise DataError(
                f"`{run}` has none of the utterances",
                code="no-common-ids",
                fix="check that the ids are those of the references",
            )
    return Sides(
        runs=(first, second),
        references=references,
        texts={id_: normalized(segment.text) for id_, segment in references.items()},
        hypotheses=tuple(hypotheses),
        normalizer=name,
        split=known[0][1].split if known else None,
    )


def of_results(first: StoredResult, second: StoredResult) -> Sides:
    """The hypotheses of two results on the same utterances, normalised as they were judged."""
    normalized = normalize.normalizer(first.figures["normalizer"])
    references = score.by_id(transcripts.read(str(first.references)), str(first.path))
    return Sides(
        runs=(first.recogniser, second.recogniser),
        references=references,
        texts={id_: normalized(segment.text) for id_, segment in references.items()},
        hypotheses=tuple(
            {row["id"]: normalized(row["text"]) for row in results.rows(result.hypotheses)}
            for result in (first, second)
        ),
        normalizer=first.figures["normalizer"],
        split=first.split,
    )


def experiment_of(path: Path) -> RunDir | None:
    """The experiment that a folder is, or that it is a result of; None of any other."""
    for folder in (path, *path.absolute().parents[1:2]):
        if RunDir(folder).config.is_file():
            return RunDir(folder)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison(stats.PairedTest):
    """A paired test of the word errors of two recognisers on the same utterances, and the error rates of both."""

    utterances: int
    runs: Sequence[Mapping[str, Any]]
    warnings: Sequence[str]
    scorer: str
    normalizer: str | None
    versions: Mapping[str, str]
    report: str | None = None

    def to_text(self) -> str:
        """A line for each of the two, then the difference and how sure it is."""
        return verdict(self)


def runs(cfg: Config, both: Sides) -> RunComparison:
    """The word errors of two recognisers on the same utterances, and a paired test over blocks of speakers.

    DataError if the references contain no words.
    """
    speakers = {id_: segment.speaker for id_, segment in both.references.items()}
    scored = [
        [words.score(id_, text, hypotheses.get(id_, "")) for id_, text in both.texts.items()]
        for hypotheses in both.hypotheses
    ]
    first, second = (stats.blocks(rows, speakers) for rows in scored)
    test = stats.paired_test(first, second, cfg.evaluate.bootstrap_draws, cfg.seed)
    if test is None:
        raise DataError(
            "the references contain no words", code="no-words", fix="check the texts, or use `--normalizer none`"
        )
    better = [
        sum(map(side, (one.words.errors for one in scored[0]), (two.words.errors for two in scored[1])))
        for side in (operator.lt, operator.gt)
    ]
    stamp = figures.stamp(both.normalizer, words.versions())
    return RunComparison(
        **dataclasses.asdict(test),
        utterances=len(both.references),
        runs=[
            {
                "run": run,
                "wer": rates.wer,
                "cer": rates.cer,
                "interval": to_json(rates.interval),
                "errors": rates.counts.errors,
                "words": rates.counts.reference,
                "better": better[i],
                "without_hypothesis": len(both.references) - len(both.hypotheses[i]),
                "by_speaker": figures.to_dicts(figures.rates(words.group_by(rows, lambda row: speakers[row.id]))),
            }
            for i, (run, rows) in enumerate(zip(both.runs, scored, strict=True))
            for rates in [figures.figures(rows, speakers, cfg)]
        ],
        warnings=[*_missing(both), *_doubts(test)],
        scorer=stamp.scorer,
        normalizer=stamp.normalizer,
        versions=stamp.versions,
    )


def _stored(cfg: Config, run: str) -> StoredResult | None:
    """The result that a folder is, or the own one of an experiment; None of a file, DataError if there is none."""
    folder = Path(run)
    if not folder.is_dir():
        return None
    if (result := results.read(folder)) is not None:
        if result.has_texts:
            return result
        raise DataError(
            f"`{run}` has no texts",
            code="wrong-model",
            why="it is from a student that outputs none",
            fix="give those of a recogniser",
        )
    split = cfg.evaluate.split
    stored = results.read_all(RunDir(folder).evaluation)
    of_split = [result for result in stored if result.split == split and result.has_texts]
    own = results.own(of_split, _config_of(folder))
    if not own:
        raise DataError(
            f"`{run}` was not evaluated on `{split}`",
            code="step-unfinished",
            why="it was trained further after it" if of_split else f"`{RunDir(folder).evaluation}` has no result of it",
            fix=f"run `voxstill evaluate {run} --on {split}` first",
        )
    if len(own) > 1:
        raise DataError(
            f"`{run}` has several results of `{split}`",
            code="several-recipes",
            why=", ".join(f"`{result.path}`" for result in own),
            fix="give one of these folders",
        )
    return own[0]


def _config_of(experiment: Path) -> Config | None:
    """The configuration of an experiment; None if it has none that can be read."""
    file = RunDir(experiment).config
    try:
        return config.load(str(file), [], {}) if file.is_file() else None
    except ConfigError:
        return None


def _references(
    stored: Sequence[tuple[str, StoredResult]], reference: str | None, form: str | None
) -> dict[str, TranscriptSegment]:
    if reference is not None:
        return score.by_id(transcripts.read(reference, form), reference)
    known = [score.by_id(transcripts.read(str(result.references)), run) for run, result in stored]
    if not known:
        raise DataError(
            "there are no references",
            code="option-missing",
            why="two files of hypotheses were given",
            fix="add `--ref FILE`",
        )
    shared = {id_: segment for id_, segment in known[0].items() if all(id_ in other for other in known)}
    unlike = next(
        (id_ for id_, segment in shared.items() if any(segment.text != other[id_].text for other in known)), None
    )
    if not shared or unlike is not None:
        named = " and ".join(f"`{result.path}`" for _, result in stored)
        raise DataError(
            "the two were not evaluated on the same texts",
            code="no-common-ids",
            why=f"{f'they differ about `{unlike}`' if unlike else 'they have no utterance in common'}: {named}",
            fix="evaluate both on one corpus, give results of one corpus, or add `--ref FILE`",
        )
    return shared


def _missing(both: Sides) -> list[str]:
    """A sentence for a side that has not all utterances."""
    num = len(both.references)
    return [
        f"`{run}` has no hypothesis for {num - len(hypotheses):,} of {num:,} utterances: "
        "all their words count as deletions"
        for run, hypotheses in zip(both.runs, both.hypotheses, strict=True)
        if len(hypotheses) < num
    ]


def _doubts(test: stats.PairedTest) -> list[str]:
    doubts = []
    if test.blocks_are == "utterances":
        doubts.append(
            "fewer than two speakers are known: utterances of one speaker are not independent, so p is too small"
        )
    if test.exact and test.p > DOUBTFUL and 2 ** (1 - test.blocks) > DOUBTFUL:
        least = 2 ** (1 - test.blocks)
        doubts.append(f"{test.blocks} {test.blocks_are} are too few: p cannot be below {least:.2g}")
    return doubts


def _names(runs: Sequence[str]) -> list[str]:
    """The two as they were named, without the folder that both lie in."""
    paths = [Path(run) for run in runs]
    is_beside = paths[0].parent == paths[1].parent and paths[0] != paths[1]
    return [path.name for path in paths] if is_beside else list(runs)


def verdict(comparison: RunComparison) -> str:
    """Format the comparison as text for a terminal."""
    names = _names([row["run"] for row in comparison.runs])
    width = max(map(len, names)) + 2
    lines = [f"{'':<{width}}{'WER':>9}  {'95 % interval':<20}{'errors':>9}{'better on':>11}"]
    for name, row in zip(names, comparison.runs, strict=True):
        low, high = row["interval"]
        span = f"{tables.percent(low)} to {tables.percent(high)}"
        counted = f"{row['errors']:>9,}{row['better']:>11,}"
        lines.append(f"{name:<{width}}{tables.percent(row['wer']):>9}  {span:<20}{counted}")
    low, high = comparison.interval
    stamp = Stamp(scorer=comparison.scorer, normalizer=comparison.normalizer, versions=comparison.versions)
    sure = "is not statistically significant" if comparison.p > DOUBTFUL else "is statistically significant"
    return "\n".join(
        [
            *lines,
            f"the second less the first: {100 * comparison.difference:+.2f} points"
            f" (95 %: {100 * low:+.2f} to {100 * high:+.2f}), p = {comparison.p:.4g}: the difference {sure}",
            f"{comparison.utterances:,} utterances in {comparison.blocks:,} blocks, which are {comparison.blocks_are};"
            f" p is of {'every way' if comparison.exact else 'random ways'} to swap their texts of a block",
            *([] if comparison.report is None else [f"report: {comparison.report}"]),
            *tables.ending(comparison.warnings, stamp),
        ]
    )
