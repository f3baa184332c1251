"""compare-teachers: labels of several teachers on the same audio, and where they differ."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill.audio import codec
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import ErrorCounts, Utterance
from voxstill.core.result import Result
from voxstill.evaluation.recognition import hidden_texts, read_audio
from voxstill.evaluation.report import html
from voxstill.pipeline.recipes import utterances_recipe
from voxstill.scoring import words
from voxstill.storage import join, tables, workdir
from voxstill.storage.figures import IndexFigures, LabelFigures
from voxstill.storage.redaction import shown
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer, units

MOST_DIFFERENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherComparison(Result):
    """The finished labels of several teachers: figures, distances between each two, and where all differ most."""

    utterances: int
    hours: float
    teachers: Sequence[Mapping[str, Any]]
    price_per_hour: float | None
    words_with_human_text: int
    apart: Sequence[Sequence[float | None]]
    """Word error rate of the second teacher (column) against the first (row)."""
    equal: Sequence[Mapping[str, Any]]
    different: Sequence[Mapping[str, Any]]
    report: str | None = None

    def to_text(self) -> str:
        """A line for each teacher, then how far they are from one another."""
        return table(self.to_dict())


def compared(cfg: Config, recipes: Sequence[str] = (), price: float | None = None) -> TeacherComparison:
    """For each of the finished labels its figures, how far each two are apart, and where all differ most.

    Errors of one against another are counted as if the first had been right. Failed labels count as if nothing was
    said. `work_s` is what the audio takes at the speed of the last run, and with the `price` of an hour of it there is
    a `cost`. DataError where fewer than two are there.
    """
    work = Store(cfg.work)
    source = workdir.finished(work, IndexFigures, utterances_recipe(cfg))
    names = list(recipes) or workdir.finished_recipes(work, "labels")
    if len(set(names)) < 2:
        raise DataError(
            f"`{work.root}` has labels of {len(set(names))} teachers to compare",
            why="two are needed",
            fix="run `voxstill label` with another teacher",
        )
    labels = [workdir.named(work, LabelFigures, name) for name in names]
    apart = {pair: ErrorCounts() for pair in itertools.permutations(range(len(names)), 2)}
    equal = dict.fromkeys(itertools.combinations(range(len(names)), 2), 0)
    errors = [ErrorCounts()] * len(names)
    different: list[tuple[tuple[float, int, str], str | None, list[str]]] = []
    num = 0
    alike = normalizer(cfg.evaluate.normalizer)
    for id_, text, heard in _rows(cfg, work, source.recipe, names):
        num += 1
        texts = [alike(each) for each in heard]
        for pair in apart:
            apart[pair] += words.wer([(texts[pair[0]], texts[pair[1]])])
        for one, two in equal:
            equal[one, two] += texts[one] == texts[two]
        if text is not None:
            errors = [sum_ + words.wer([(alike(text), each)]) for sum_, each in zip(errors, texts, strict=True)]
        rates = [words.apart(units(texts[one]), units(texts[two])) for one, two in equal]
        rank = sum(rates) / len(rates), max(len(units(each)) for each in texts), id_  # of equal ones the longest
        different = heapq.nlargest(MOST_DIFFERENT, [*different, (rank, text, heard)])
    work_hours = [source.hours / one.rtfx if one.rtfx else None for one in labels]
    return TeacherComparison(
        utterances=num,
        hours=source.hours,
        teachers=[
            {
                **{name: getattr(one, name) for name in ("recipe", "teacher", "options", "labels", "failed", "rtfx")},
                "work_s": 3600 * hours if hours is not None else None,
                "cost": price * hours if price is not None and hours is not None else None,
                "wer": errors[i].rate,
            }
            for i, (one, hours) in enumerate(zip(labels, work_hours, strict=True))
        ],
        price_per_hour=price,
        words_with_human_text=errors[0].reference,
        apart=[[apart[i, j].rate if i != j else 0.0 for j in range(len(names))] for i in range(len(names))],
        equal=[
            {"of": [names[one], names[two]], "share": count / num if num else None}
            for (one, two), count in equal.items()
        ],
        different=[
            {"id": id_, "apart": rate, "text": text, "heard": dict(zip(names, heard, strict=True))}
            for (rate, _, id_), text, heard in different
            if rate
        ],
    )


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


def page(cfg: Config, found: dict[str, Any]) -> str:
    """The figures as one HTML page, with the audio of where they differ."""
    work = Store(cfg.work)
    wanted = {each["id"]: each for each in found["different"]}
    recipe = workdir.finished(work, IndexFigures, utterances_recipe(cfg)).recipe
    utterances = {
        each.id: each
        for each in tables.read(work, workdir.prefix("utterances", recipe), Utterance)
        if each.id in wanted
    }
    samples, _ = read_audio(cfg, list(utterances.values()))
    audio = {utterance.id: codec.encode(samples_T, "flac") for utterance, samples_T in samples}
    number = {each["recipe"]: i for i, each in enumerate(found["teachers"])}
    equal: list[list[float | None]] = [[None] * len(number) for _ in number]
    for each in found["equal"]:
        one, two = (number[recipe] for recipe in each["of"])
        equal[one][two] = equal[two][one] = each["share"]
    return html.render_comparison(
        {
            "title": "voxstill: teachers compared",
            "about": f"Labels of {len(number)} teachers in {shown(cfg.work)}",
            "utterances": found["utterances"],
            "hours": found["hours"],
            "words": found["words_with_human_text"],
            "price": found["price_per_hour"],
            "labellers": [
                {
                    "name": each["teacher"],
                    "recipe": each["recipe"],
                    "options": _options(each["options"]),
                    "labels": each["labels"],
                    "failed": each["failed"],
                    "wer": each["wer"],
                    "rtfx": each["rtfx"],
                    "work_s": each["work_s"],
                    "cost": each["cost"],
                }
                for each in found["teachers"]
            ],
            "equal": equal,
            "apart": [[None if i == j else rate for j, rate in enumerate(row)] for i, row in enumerate(found["apart"])],
            "disputed": [_disputed(cfg, each, utterances[id_], audio.get(id_)) for id_, each in wanted.items()],
        }
    )


def _disputed(cfg: Config, found: dict[str, Any], utterance: Utterance, audio: bytes | None) -> html.Disputed:
    alike, heard = normalizer(cfg.evaluate.normalizer), list(found["heard"].values())
    right = units(alike(heard[0] if found["text"] is None else found["text"]))
    aligned = [words.align(right, units(alike(each))) for each in heard]
    info = utterance.info
    return {
        "id": utterance.id,
        "about": ", ".join(fact for fact in (info.speaker, info.dataset, info.dialect) if fact),
        "said": found["text"] is not None,
        "versions": [
            {"number": number, "wer": counts.rate, "pairs": pairs}
            for number, (counts, pairs) in enumerate(aligned, start=1)
        ],
        "audio": audio,
    }


def _options(options: dict[str, Any]) -> str:
    """What somebody set, as it may be shown to anybody."""
    told = {name: value if isinstance(value, list) else [value] for name, value in options.items() if name != "name"}
    return "; ".join(
        f"{name}: {', '.join(shown(each) if isinstance(each, str) else str(each) for each in some)}"
        for name, some in told.items()
        if some != [None]
    )


def table(found: dict[str, Any]) -> str:
    """The figures as people read them."""
    rows = found["teachers"]
    numbered = list(enumerate(rows, start=1))
    width = max(len(each["teacher"]) for each in rows) + 2
    lines = [f"{'':3}{'recipe':<18}{'teacher':<{width}}{'labels':>9}{'failed':>8}{'times real time':>17}{'WER':>9}"]
    for number, each in numbered:
        lines.append(
            f"{number:<3}{each['recipe']:<18}{each['teacher']:<{width}}{each['labels']:>9,}{each['failed']:>8,}"
            f"{each['rtfx']:>17,.0f}{_percent(each['wer']):>9}"
        )
    if found["price_per_hour"] is not None:
        costs = ", ".join(f"{n}: {_money(each['cost'])}" for n, each in numbered)
        lines += ["", f"cost of labelling {found['hours']:,.1f} h at {found['price_per_hour']:g} an hour: {costs}"]
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
    if "report" in found:
        lines += ["", f"report: {found['report']}"]
    return "\n".join(lines)


def _money(cost: float | None) -> str:
    return "–" if cost is None else f"{cost:,.2f}"


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"
