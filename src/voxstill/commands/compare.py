"""compare, compare-teachers: two recognisers on the same words, labels of several teachers on the same audio."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from voxstill import workdir
from voxstill.commands import score
from voxstill.commands.measure import HYPOTHESES, REFERENCES, hidden_texts
from voxstill.commands.prepare import utterances_recipe
from voxstill.config import Config
from voxstill.errors import DataError
from voxstill.factory import join
from voxstill.records import ErrorCounts
from voxstill.rundir import RunDir
from voxstill.score import stats, words
from voxstill.store import Store
from voxstill.text import transcripts
from voxstill.text.normalize import normalizer
from voxstill.text.transcripts import Said

MOST_DIFFERENT = 10
DOUBTFUL = 0.05
"""Above this p a difference may well be chance."""


def teachers(cfg: Config, recipes: Sequence[str] = ()) -> dict[str, Any]:
    """For each of the finished labels its figures, how far each two are apart, and where all differ most.

    Errors of one against another are counted as if the first had been right. Failed labels count as if nothing was
    said. DataError where fewer than two are there.
    """
    work = Store(cfg.work)
    source = workdir.finished(work, "utterances", utterances_recipe(cfg))
    names = list(recipes) or workdir.finished_recipes(work, "labels")
    if len(set(names)) < 2:
        raise DataError(
            f"`{work.root}` has labels of {len(set(names))} teachers to compare",
            why="two are needed",
            fix="run `voxstill label` with another teacher",
        )
    told = [workdir.named(work, "labels", name) for name in names]
    apart = {pair: ErrorCounts() for pair in itertools.permutations(range(len(names)), 2)}
    equal = dict.fromkeys(itertools.combinations(range(len(names)), 2), 0)
    errors = [ErrorCounts()] * len(names)
    different: list[tuple[float, str, list[str]]] = []
    num = 0
    alike = normalizer(cfg.evaluate.normalizer)
    for id_, text, heard in _rows(cfg, work, source["recipe"], names):
        num += 1
        texts = [alike(each) for each in heard]
        for pair in apart:
            apart[pair] += words.wer([(texts[pair[0]], texts[pair[1]])])
        for one, two in equal:
            equal[one, two] += texts[one] == texts[two]
        if text is not None:
            errors = [sum_ + words.wer([(alike(text), each)]) for sum_, each in zip(errors, texts, strict=True)]
        rates = [_apart(texts[one], texts[two]) for one, two in equal]
        heapq.heappush(different, (sum(rates) / len(rates), id_, heard))
        different = heapq.nlargest(MOST_DIFFERENT, different)
    return {
        "utterances": num,
        "teachers": [
            {
                **{name: each[name] for name in ("recipe", "teacher", "labels", "failed", "rtfx")},
                "wer": errors[i].rate,
            }
            for i, each in enumerate(told)
        ],
        "words_with_human_text": errors[0].reference,
        "apart": [[apart[i, j].rate if i != j else 0.0 for j in range(len(names))] for i in range(len(names))],
        "equal": [
            {"of": [names[one], names[two]], "share": count / num if num else None}
            for (one, two), count in equal.items()
        ],
        "different": [
            {"id": id_, "apart": rate, "heard": dict(zip(names, heard, strict=True))}
            for rate, id_, heard in sorted(different, reverse=True)
            if rate
        ],
    }


def _rows(
    cfg: Config, work: Store, utterances: str, names: Sequence[str]
) -> Iterator[tuple[str, str | None, list[str]]]:
    """Of each utterance that any of them has labelled: its id, its human text, what each heard."""
    prefix, hidden = workdir.prefix("utterances", utterances), hidden_texts(cfg)
    each = [join.parts(work, prefix, workdir.prefix("labels", name), cfg.engine.chunk) for name in names]
    tables_of = [join.columns(work, parts, ("id", "text"), ("utterance_id", "text")) for parts in each]
    for some in zip(*tables_of, strict=True):
        said = some[0][0]
        ids, texts = said["id"].to_pylist(), said["text"].to_pylist()
        heard = []
        for _, labels in some:
            found = labels["text"].to_pylist()
            rows = join.rows_of(ids, labels["utterance_id"].to_pylist())
            heard.append([None if row is None else found[row] for row in rows])
        for i, id_ in enumerate(ids):
            if any(one[i] is not None for one in heard):
                yield id_, texts[i] if texts[i] is not None else hidden.get(id_), [one[i] or "" for one in heard]


def _apart(one: str, two: str) -> float:
    """Errors between two texts to a word of the longer; the same either way."""
    return words.wer([(one, two)]).errors / max(len(one.split()), len(two.split()), 1)


def table(found: dict[str, Any]) -> str:
    """The figures as people read them."""
    rows = found["teachers"]
    width = max(len(each["teacher"]) for each in rows) + 2
    lines = [f"{'':3}{'recipe':<18}{'teacher':<{width}}{'labels':>9}{'failed':>8}{'times real time':>17}{'WER':>9}"]
    for number, each in enumerate(rows, start=1):
        lines.append(
            f"{number:<3}{each['recipe']:<18}{each['teacher']:<{width}}{each['labels']:>9,}{each['failed']:>8,}"
            f"{each['rtfx']:>17,.0f}{_percent(each['wer']):>9}"
        )
    known = found["words_with_human_text"]
    lines += ["", f"WER by {known:,} words of human texts" if known else "nobody wrote down what was said: no WER", ""]
    numbers = "".join(f"{number:>9}" for number in range(1, len(rows) + 1))
    lines.append(f"{'errors of a column, were the row right':<40}{numbers}")
    for number, some in enumerate(found["apart"], start=1):
        rates = "".join(f"{'' if i == number else _percent(rate):>9}" for i, rate in enumerate(some, start=1))
        lines.append(f"{number:<40}{rates}")
    if found["different"]:
        lines += ["", "where they differ most:"]
        for each in found["different"]:
            lines.append(f"  {each['id']}")
            lines += [f"    {number}  {text}" for number, text in enumerate(each["heard"].values(), start=1)]
    return "\n".join(lines)


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"


def runs(
    cfg: Config,
    first: str,
    second: str,
    reference: str | None = None,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
) -> dict[str, Any]:
    """The word errors of two recognisers on the same utterances, and a paired test over blocks of speakers.

    Each is an evaluated experiment or a file of hypotheses. What was said is in `reference`, or what the experiments
    know; of two experiments the utterances that both were judged on count. DataError where nothing is known or shared.
    """
    said = _said(cfg, [first, second], reference, form)
    name, alike = score.rules(cfg, language, normalizer)
    speakers = {id_: each.speaker for id_, each in said.items()}
    scored = []
    missing = []
    for run in (first, second):
        rows = transcripts.read(str(_part(cfg, run, HYPOTHESES)), None if Path(run).is_dir() else form)
        heard = {id_: each.text for id_, each in score.by_id(rows, run).items()}
        missing.append(len(said.keys() - heard.keys()))
        if missing[-1] == len(said):
            raise DataError(f"`{run}` has none of the utterances", fix="check that the ids are those of the references")
        scored.append([words.score(id_, alike(each.text), alike(heard.get(id_, ""))) for id_, each in said.items()])
    blocks = [stats.blocks(rows, speakers) for rows in scored]
    found = stats.paired(blocks[0].counts, blocks[1].counts, cfg.evaluate.resamples, cfg.seed)
    if found is None:
        raise DataError("the references hold no words", fix="look at the texts, or say `--normalizer none`")
    better = [
        sum(map(side, (one.words.errors for one in scored[0]), (two.words.errors for two in scored[1])))
        for side in (operator.lt, operator.gt)
    ]
    return {
        "utterances": len(said),
        "runs": [
            {
                "run": run,
                **{key: figures[key] for key in ("wer", "cer", "interval", "errors", "words")},
                "better": better[i],
                "without_hypothesis": missing[i],
            }
            for i, (run, rows) in enumerate(zip((first, second), scored, strict=True))
            for figures in [score.figures(rows, speakers, cfg)]
        ],
        "difference": found.difference,
        "interval": found.interval,
        "p_value": found.p,
        "exact": found.exact,
        "blocks": found.blocks,
        "blocks_are": blocks[0].unit,
        "warnings": _doubts(found, blocks[0].unit),
        **score.stamp(name, words.versions()),
    }


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
            *score.ending(found),
        ]
    )
