"""compare-teachers: labels of several teachers on the same audio, and where they differ."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from voxstill import workdir
from voxstill.commands.measure import hidden_texts
from voxstill.commands.prepare import utterances_recipe
from voxstill.config import Config
from voxstill.errors import DataError
from voxstill.factory import join
from voxstill.records import ErrorCounts
from voxstill.score import words
from voxstill.store import Store
from voxstill.text.normalize import normalizer, units

MOST_DIFFERENT = 10


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
        rates = [words.apart(units(texts[one]), units(texts[two])) for one, two in equal]
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
