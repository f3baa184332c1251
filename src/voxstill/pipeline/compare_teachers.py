"""compare-teachers: labels of several teachers on the same audio, and where they differ."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from voxstill.audio import codec
from voxstill.core.arguments import not_negative
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import ErrorCounts, Utterance
from voxstill.core.result import Result
from voxstill.evaluation.recognition import hidden_texts, read_audio
from voxstill.evaluation.report import html
from voxstill.pipeline.recipes import finished_utterances
from voxstill.scoring import words
from voxstill.storage import join, removals, tables, workdir
from voxstill.storage.figures import LabelFigures
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.text.normalize import normalizer, units

MOST_DIFFERENT = 10
Disagreement = tuple[tuple[float, int, str], str | None, list[str]]
"""How far the labels of an utterance differ (rate, words of the longest, id), its human text, and the labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLabels(Result):
    """The finished labels of one teacher."""

    recipe: str
    teacher: str
    options: Mapping[str, object]
    labels: int
    failed: int
    rtfx: float
    work_s: float | None
    """What the audio takes at the speed of the last run."""
    cost: float | None
    wer: float | None

    @classmethod
    def of(cls, figures: LabelFigures, hours: float, price: float | None, wer: float | None) -> TeacherLabels:
        """The labels of so many hours of audio, with the `price` of an hour of work and the error rate."""
        work_hours = hours / figures.rtfx if figures.rtfx else None
        return cls(
            recipe=figures.recipe,
            teacher=figures.teacher,
            options=figures.options,
            labels=figures.labels,
            failed=figures.failed,
            rtfx=figures.rtfx,
            work_s=3600 * work_hours if work_hours is not None else None,
            cost=price * work_hours if price is not None and work_hours is not None else None,
            wer=wer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualShare(Result):
    """The share of utterances to which two teachers gave the same text."""

    of: tuple[str, str]
    """Their recipes."""
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Result):
    """An utterance on which the teachers differ."""

    id: str
    apart: float
    """The mean of the rates at which each two differ."""
    text: str | None
    """What a human wrote down."""
    heard: Mapping[str, str]
    """The label of each teacher, by its recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherComparison(Result):
    """The finished labels of several teachers: figures, distances between each two, and where all differ most."""

    utterances: int
    hours: float
    teachers: Sequence[TeacherLabels]
    price_per_hour: float | None
    words_with_human_text: int
    apart: Sequence[Sequence[float | None]]
    """Word error rate of the second teacher (column) against the first (row)."""
    equal: Sequence[EqualShare]
    different: Sequence[Difference]
    report: str | None = None

    def to_text(self) -> str:
        """A line for each teacher, then how far they are from one another."""
        return table(self)


def compared(cfg: Config, recipes: Sequence[str] = (), price: float | None = None) -> TeacherComparison:
    """For each of the finished labels its figures, how far each two are apart, and where all differ most.

    Errors of one against another are counted as if the first had been right. Failed labels count as empty
    texts. `work_s` is what the audio takes at the speed of the last run, and with the `price` of an hour of it there is
    a `cost`. DataError if fewer than two are there, ConfigError if the price is none.
    """
    price = None if price is None else not_negative("price_per_hour", price)
    work = Store(cfg.work)
    source = finished_utterances(cfg)
    names = list(recipes) or workdir.finished_recipes(work, "labels")
    if len(set(names)) < 2:
        raise DataError(
            f"`{work.root}` has labels of {len(set(names))} teachers to compare",
            code="second-teacher",
            why="two are needed",
            fix="run `voxstill label` with another teacher",
        )
    labels = [workdir.named(work, LabelFigures, name) for name in names]
    distances = {pair: ErrorCounts() for pair in itertools.permutations(range(len(names)), 2)}
    equal = dict.fromkeys(itertools.combinations(range(len(names)), 2), 0)
    errors = [ErrorCounts()] * len(names)
    different: list[Disagreement] = []
    num = 0
    normalize = normalizer(cfg.evaluate.normalizer)
    for id_, text, hypotheses in _rows(cfg, work, source.recipe, names):
        num += 1
        texts = [normalize(hypothesis) for hypothesis in hypotheses]
        for pair in distances:
            distances[pair] += words.wer([(texts[pair[0]], texts[pair[1]])])
        for one, two in equal:
            equal[one, two] += texts[one] == texts[two]
        if text is not None:
            errors = [sum_ + words.wer([(normalize(text), label)]) for sum_, label in zip(errors, texts, strict=True)]
        rates = [words.edit_distance(units(texts[one]), units(texts[two])) for one, two in equal]
        rank = sum(rates) / len(rates), max(len(units(label)) for label in texts), id_  # of equal ones the longest
        different = heapq.nlargest(MOST_DIFFERENT, [*different, (rank, text, hypotheses)])
    return TeacherComparison(
        utterances=num,
        hours=source.teacher_hours,
        teachers=[
            TeacherLabels.of(figures, source.teacher_hours, price, counts.rate)
            for figures, counts in zip(labels, errors, strict=True)
        ],
        price_per_hour=price,
        words_with_human_text=errors[0].reference,
        apart=[[distances[i, j].rate if i != j else 0.0 for j in range(len(names))] for i in range(len(names))],
        equal=[
            EqualShare(of=(names[one], names[two]), share=count / num if num else None)
            for (one, two), count in equal.items()
        ],
        different=_differing(names, different),
    )


def _differing(names: Sequence[str], ranked: Sequence[Disagreement]) -> list[Difference]:
    """The utterances on which the teachers differ at all, with the label of each teacher."""
    return [
        Difference(id=id_, apart=rate, text=text, heard=dict(zip(names, labels, strict=True)))
        for (rate, _, id_), text, labels in ranked
        if rate
    ]


def _rows(
    cfg: Config, work: Store, utterances: str, names: Sequence[str]
) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield id, human text and the label of every teacher, for what any of them has labelled and was not removed.

    Supervised utterances are left out: no teacher has labelled them.
    """
    prefix, hidden = workdir.prefix("utterances", utterances), hidden_texts(cfg)
    removed = removals.of(work, prefix)
    parts_by_teacher = [join.parts(work, prefix, workdir.prefix("labels", name), cfg.engine) for name in names]
    tables_of = [
        join.columns(work, parts, ("id", "text", "supervised"), ("utterance_id", "text")) for parts in parts_by_teacher
    ]
    for columns in zip(*tables_of, strict=True):
        utterance_columns = columns[0][0]
        ids, texts, is_supervised = (utterance_columns[name].to_pylist() for name in ("id", "text", "supervised"))
        texts_by_teacher = []
        for _, labels in columns:
            label_texts = labels["text"].to_pylist()
            rows = join.rows_of(ids, labels["utterance_id"].to_pylist())
            texts_by_teacher.append([None if row is None else label_texts[row] for row in rows])
        for i, id_ in enumerate(ids):
            if id_ not in removed and not is_supervised[i] and any(one[i] is not None for one in texts_by_teacher):
                yield (
                    id_,
                    texts[i] if texts[i] is not None else hidden.get(id_),
                    [one[i] or "" for one in texts_by_teacher],
                )


def page(cfg: Config, comparison: TeacherComparison) -> str:
    """Render the comparison as one HTML page, with the audio of the utterances that differ most."""
    work = Store(cfg.work)
    wanted = {difference.id: difference for difference in comparison.different}
    recipe = finished_utterances(cfg).recipe
    utterances = {
        utterance.id: utterance
        for utterance in tables.read(work, workdir.prefix("utterances", recipe), Utterance)
        if utterance.id in wanted
    }
    samples, _ = read_audio(cfg, list(utterances.values()))
    audio = {utterance.id: codec.encode(samples_T, "flac") for utterance, samples_T in samples}
    number = {labels.recipe: i for i, labels in enumerate(comparison.teachers)}
    equal: list[list[float | None]] = [[None] * len(number) for _ in number]
    for pair in comparison.equal:
        one, two = (number[recipe] for recipe in pair.of)
        equal[one][two] = equal[two][one] = pair.share
    return html.render_comparison(
        {
            "title": "voxstill: comparison of teachers",
            "about": f"Labels of {len(number)} teachers in {redact_uri(cfg.work)}",
            "utterances": comparison.utterances,
            "hours": comparison.hours,
            "words": comparison.words_with_human_text,
            "price": comparison.price_per_hour,
            "labellers": [
                {
                    "name": labels.teacher,
                    "recipe": labels.recipe,
                    "options": _options(labels.options),
                    "labels": labels.labels,
                    "failed": labels.failed,
                    "wer": labels.wer,
                    "rtfx": labels.rtfx,
                    "work_s": labels.work_s,
                    "cost": labels.cost,
                }
                for labels in comparison.teachers
            ],
            "equal": equal,
            "distances": [
                [None if i == j else rate for j, rate in enumerate(row)] for i, row in enumerate(comparison.apart)
            ],
            "disputed": [
                _disputed(cfg, difference, utterances[id_], audio.get(id_)) for id_, difference in wanted.items()
            ],
        }
    )


def _disputed(cfg: Config, difference: Difference, utterance: Utterance, audio: bytes | None) -> html.DisputedUtterance:
    normalize, labels = normalizer(cfg.evaluate.normalizer), list(difference.heard.values())
    right = units(normalize(labels[0] if difference.text is None else difference.text))
    aligned = [words.align(right, units(normalize(label))) for label in labels]
    info = utterance.info
    return {
        "id": utterance.id,
        "about": ", ".join(fact for fact in (info.speaker, info.dataset, info.dialect) if fact),
        "has_reference": difference.text is not None,
        "versions": [
            {"number": number, "wer": counts.rate, "pairs": pairs}
            for number, (counts, pairs) in enumerate(aligned, start=1)
        ],
        "audio": audio,
    }


def _options(options: Mapping[str, object]) -> str:
    """The options that were set, as text without secrets."""
    option_values = {
        name: value if isinstance(value, list) else [value] for name, value in options.items() if name != "name"
    }
    return "; ".join(
        f"{name}: {', '.join(redact_uri(value) if isinstance(value, str) else str(value) for value in values)}"
        for name, values in option_values.items()
        if values != [None]
    )


def table(comparison: TeacherComparison) -> str:
    """Format the comparison as text for a terminal."""
    rows = comparison.teachers
    numbered = list(enumerate(rows, start=1))
    width = max(len(row.teacher) for row in rows) + 2
    lines = [f"{'':3}{'recipe':<18}{'teacher':<{width}}{'labels':>9}{'failed':>8}{'times real time':>17}{'WER':>9}"]
    for number, row in numbered:
        lines.append(
            f"{number:<3}{row.recipe:<18}{row.teacher:<{width}}{row.labels:>9,}{row.failed:>8,}"
            f"{row.rtfx:>17,.0f}{_percent(row.wer):>9}"
        )
    if comparison.price_per_hour is not None:
        costs = ", ".join(f"{n}: {_money(row.cost)}" for n, row in numbered)
        lines += ["", f"cost of labelling {comparison.hours:,.1f} h at {comparison.price_per_hour:g} per hour: {costs}"]
    known = comparison.words_with_human_text
    lines += ["", f"WER by {known:,} words of human texts" if known else "there are no human texts: no WER", ""]
    numbers = "".join(f"{number:>9}" for number in range(1, len(rows) + 1))
    lines.append(f"{'errors of the column, with the row as reference':<40}{numbers}")
    for number, rates_of_row in enumerate(comparison.apart, start=1):
        rates = "".join(f"{'' if i == number else _percent(rate):>9}" for i, rate in enumerate(rates_of_row, start=1))
        lines.append(f"{number:<40}{rates}")
    if comparison.different:
        lines += ["", "largest disagreements:"]
        for difference in comparison.different:
            lines.append(f"  {difference.id}")
            lines += [f"    {number}  {text}" for number, text in enumerate(difference.heard.values(), start=1)]
    if comparison.report is not None:
        lines += ["", f"report: {comparison.report}"]
    return "\n".join(lines)


def _money(cost: float | None) -> str:
    return "–" if cost is None else f"{cost:,.2f}"


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"
