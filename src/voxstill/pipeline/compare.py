"""compare: two recognisers on the same words, and whether one is better."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.result import Result
from voxstill.evaluation import score
from voxstill.evaluation.recognition import HYPOTHESES, REFERENCES
from voxstill.scoring import figures, stats, words
from voxstill.storage.rundir import RunDir
from voxstill.text import transcripts
from voxstill.text.transcripts import Said

DOUBTFUL = 0.05
"""Above this p a difference may well be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What two recognisers heard of the same utterances: texts by id, made alike, and those of the references.

    `heard` has no text where a side has no hypothesis. `split` is None where only files were given.
    """

    runs: tuple[str, str]
    said: Mapping[str, Said]
    texts: Mapping[str, str]
    heard: tuple[Mapping[str, str], ...]
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
    """Two recognisers, each an evaluated experiment or a file of hypotheses.

    What was said is in `reference`, or what the experiments know; of two experiments the utterances that both were
    judged on count. DataError where nothing is known or shared.
    """
    said = _said(cfg, [first, second], reference, form)
    name, alike = score.rules(cfg, language, normalizer)
    heard = []
    for run in (first, second):
        rows = transcripts.read(str(_part(cfg, run, HYPOTHESES)), None if Path(run).is_dir() else form)
        heard.append({id_: alike(each.text) for id_, each in score.by_id(rows, run).items() if id_ in said})
        if not heard[-1]:
            raise DataError(f"`{run}` has none of the utterances", fix="check that the ids are those of the references")
    return Sides(
        runs=(first, second),
        said=said,
        texts={id_: alike(each.text) for id_, each in said.items()},
        heard=tuple(heard),
        normalizer=name,
        split=cfg.evaluate.split if any(Path(run).is_dir() for run in (first, second)) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison(Result):
    """A paired test of two recognisers on the same utterances, and the error rates of both."""

    utterances: int
    runs: Sequence[Mapping[str, Any]]
    difference: float
    """Word error rate of the second less that of the first."""
    interval: Sequence[float]
    p_value: float
    exact: bool
    blocks: int
    blocks_are: str
    warnings: Sequence[str]
    scorer: str
    normalizer: str | None
    versions: Mapping[str, str]
    report: str | None = None

    def to_text(self) -> str:
        """A line for each of the two, then the difference and how sure it is."""
        return verdict(self.to_dict())


def runs(cfg: Config, both: Sides) -> RunComparison:
    """The word errors of two recognisers on the same utterances, and a paired test over blocks of speakers.

    DataError where nothing was said.
    """
    speakers = {id_: each.speaker for id_, each in both.said.items()}
    scored = [[words.score(id_, text, some.get(id_, "")) for id_, text in both.texts.items()] for some in both.heard]
    blocks = [stats.blocks(rows, speakers) for rows in scored]
    found = stats.paired(blocks[0].counts, blocks[1].counts, cfg.evaluate.bootstrap_draws, cfg.seed)
    if found is None:
        raise DataError("the references hold no words", fix="look at the texts, or say `--normalizer none`")
    better = [
        sum(map(side, (one.words.errors for one in scored[0]), (two.words.errors for two in scored[1])))
        for side in (operator.lt, operator.gt)
    ]
    return RunComparison(
        utterances=len(both.said),
        runs=[
            {
                "run": run,
                **{key: rates[key] for key in ("wer", "cer", "interval", "errors", "words")},
                "better": better[i],
                "without_hypothesis": len(both.said) - len(both.heard[i]),
                "by_speaker": figures.rates(words.by(rows, lambda row: speakers[row.id])),
            }
            for i, (run, rows) in enumerate(zip(both.runs, scored, strict=True))
            for rates in [figures.figures(rows, speakers, cfg)]
        ],
        difference=found.difference,
        interval=found.interval,
        p_value=found.p,
        exact=found.exact,
        blocks=found.blocks,
        blocks_are=blocks[0].unit,
        warnings=_doubts(found, blocks[0].unit),
        **figures.stamp(both.normalizer, words.versions()),
    )


def _part(cfg: Config, run: str, name: str) -> Path | str:
    """A file of an experiment's evaluation, or the file that was given itself."""
    folder = Path(run)
    if not folder.is_dir():
        return run
    path = RunDir(folder).evaluation / name.format(split=cfg.evaluate.split)
    if not path.is_file():
        raise DataError(
            f"`{run}` was not evaluated on `{cfg.evaluate.split}`",
            why=f"there is no `{path}`",
            fix=f"run `voxstill evaluate {run} --on {cfg.evaluate.split}` first",
        )
    return path


def _said(cfg: Config, given: Sequence[str], reference: str | None, form: str | None) -> dict[str, Said]:
    if reference is not None:
        return score.by_id(transcripts.read(reference, form), reference)
    known = [
        score.by_id(transcripts.read(str(_part(cfg, run, REFERENCES))), run) for run in given if Path(run).is_dir()
    ]
    if not known:
        raise DataError("nothing tells what was said", why="two files of hypotheses were given", fix="add `--ref FILE`")
    shared = {id_: each for id_, each in known[0].items() if all(id_ in other for other in known)}
    unlike = next((id_ for id_, each in shared.items() if any(each.text != other[id_].text for other in known)), None)
    if not shared or unlike is not None:
        raise DataError(
            "the two were not judged on the same texts",
            why=f"they differ about `{unlike}`" if unlike else "they share no utterance",
            fix="evaluate both on one corpus, or add `--ref FILE`",
        )
    return shared


def _doubts(found: stats.Paired, unit: str) -> list[str]:
    told = []
    if unit == "utterances":
        told.append("fewer than two speakers are known: utterances of one speaker are alike, so p is too small")
    if found.exact and found.p > DOUBTFUL and 2 ** (1 - found.blocks) > DOUBTFUL:
        told.append(f"{found.blocks} {unit} are too few to tell: p could not be below {2 ** (1 - found.blocks):.2g}")
    return told


def verdict(found: Mapping[str, Any]) -> str:
    """The comparison as people read it."""
    width = max(len(each["run"]) for each in found["runs"]) + 2
    lines = [f"{'':<{width}}{'WER':>9}  {'95 % interval':<20}{'errors':>9}{'better on':>11}"]
    for each in found["runs"]:
        low, high = each["interval"]
        span = f"{score.percent(low)} to {score.percent(high)}"
        counted = f"{each['errors']:>9,}{each['better']:>11,}"
        lines.append(f"{each['run']:<{width}}{score.percent(each['wer']):>9}  {span:<20}{counted}")
    low, high = found["interval"]
    sure = "may be chance" if found["p_value"] > DOUBTFUL else "is hardly chance"
    return "\n".join(
        [
            *lines,
            f"the second less the first: {100 * found['difference']:+.2f} points"
            f" (95 %: {100 * low:+.2f} to {100 * high:+.2f}), p = {found['p_value']:.4g}: the difference {sure}",
            f"{found['utterances']:,} utterances in {found['blocks']:,} blocks, which are {found['blocks_are']};"
            f" {'every way' if found['exact'] else 'chance'} to swap what the two said of a block",
            *([f"report: {found['report']}"] if "report" in found else []),
            *score.ending(found),
        ]
    )
