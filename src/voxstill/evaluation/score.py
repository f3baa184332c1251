"""score: error rates of files of references and hypotheses, stamped with the versions that computed them.

Here are those of texts; `score_speakers` and `score_meetings` have the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import ErrorCounts
from voxstill.core.result import Figures
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.evaluation import tables
from voxstill.evaluation.tables import percent
from voxstill.scoring import checks, figures, words
from voxstill.scoring.checks import SilenceErrors
from voxstill.scoring.figures import ErrorFigures, GroupFigures, Stamp, Unit
from voxstill.scoring.words import Pair, Scored
from voxstill.storage.redaction import redact_uri
from voxstill.text import normalize, transcripts
from voxstill.text.transcripts import TranscriptSegment

CONFUSIONS = 10
MOST_GROUPS = 100
FIELDS = ("speaker", "session", "channel")
"""Of the references of every form that has them; a JSONL has others, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """A unit of the references, what was recognised in its place, and how often; None is nothing."""

    reference: str | None
    hypothesis: str | None
    count: int

    def to_dict(self) -> dict[str, str | int | None]:
        """The fields."""
        return {"reference": self.reference, "hypothesis": self.hypothesis, "count": self.count}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedText:
    """An utterance aligned with its reference."""

    id: str
    errors: int
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordScores(Figures):
    """WER and CER of two files of texts, with what was counted, and what is odd about the files."""

    rates: ErrorFigures
    by: str | None
    """The field that errors are broken down by; None if none is requested."""
    groups: Mapping[str, GroupFigures]
    empty_references: int
    empty_hypotheses: int
    without_hypothesis: int
    """References that no hypothesis has the id of: it counts as an empty one."""
    without_reference: int
    """Hypotheses that were left out."""
    silence: SilenceErrors
    confusions: Sequence[Confusion]
    """The most frequent errors."""
    worst: Sequence[AlignedText]
    """The utterances with most errors, as many as were asked for; they are not in the JSON."""
    warnings: Sequence[str]
    stamp: Stamp

    def to_dict(self) -> dict[str, object]:
        """All figures side by side; `by_speaker` and the like where it was asked for."""
        return {
            **self.rates.to_dict(),
            "unit": self.rates.unit,
            **({} if self.by is None else {f"by_{self.by}": figures.to_dicts(self.groups)}),
            "empty_references": self.empty_references,
            "empty_hypotheses": self.empty_hypotheses,
            "without_hypothesis": self.without_hypothesis,
            "without_reference": self.without_reference,
            "words_in_silence": self.silence.words,
            "words_per_hour_of_silence": self.silence.words_per_hour,
            "confusions": [confusion.to_dict() for confusion in self.confusions],
            "warnings": list(self.warnings),
            **self.stamp.to_dict(),
        }

    def to_text(self) -> str:
        """Both rates, the counts, a line for each speaker, and the most frequent errors."""
        rates = self.rates
        unit, counts, span = rates.unit, rates.counts, rates.interval
        sure = f"  (95 % of draws of {rates.interval_over}: {percent(span[0])} to {percent(span[1])})" if span else ""
        both_rates = (("WER", rates.wer, "words"), ("CER", rates.cer, "characters"))
        lines = [f"{name}  {percent(rate):>8}{sure if of == unit else ''}" for name, rate, of in both_rates]
        lines += [
            f"{counts.errors:,} errors in {counts.reference:,} {unit}: {counts.substitutions:,} substitutions,"
            f" {counts.insertions:,} insertions, {counts.deletions:,} deletions",
            f"{rates.utterances:,} utterances: {self.empty_references:,} empty references,"
            f" {self.empty_hypotheses:,} empty hypotheses, {self.without_hypothesis:,} without a hypothesis;"
            f" {self.without_reference:,} hypotheses without a reference were left out",
        ]
        if self.empty_references:
            hourly = self.silence.words_per_hour
            an_hour = f", {hourly:,.0f} per hour" if hourly is not None else ""
            lines.append(f"{self.silence.words:,} words in silence{an_hour}")
        if self.by is not None:
            lines += tables.groups(self.by, figures.to_dicts(self.groups), MOST_GROUPS)
        if self.confusions:
            lines.append("most frequent errors:")
            lines += [
                f"  {pair.count:>6,}  {_shown(pair.reference)} → {_shown(pair.hypothesis)}" for pair in self.confusions
            ]
        for text in self.worst:
            lines += [f"{one_line(text.id, MOST_NAME)}: {text.errors:,} errors", *tables.alignment(text.pairs)]
        return "\n".join([*lines, *tables.ending(self.warnings, self.stamp)])


def of_words(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    unit: Unit | None = None,
    by: str | None = None,
    show: int = 0,
) -> WordScores:
    """Compute WER and CER of two files, matched by id; a missing hypothesis counts as an empty one.

    Without a unit it is words, but characters for texts without spaces between words, with a warning. DataError if
    no id is in both, or where no reference has the field that is asked for.
    """
    references, hypotheses = both(reference, hypothesis, form)
    name, normalize = rules(cfg, language, normalizer)
    pairs = [(normalize(segment.text), normalize(hypotheses.get(id_, ""))) for id_, segment in references.items()]
    rows = [words.score(id_, ref, hyp) for id_, (ref, hyp) in zip(references, pairs, strict=True)]
    names = {id_: segment.speaker for id_, segment in references.items()}
    values = None if by is None else _field(by, references, reference, form)
    spaceless = checks.is_spaceless(ref for ref, _ in pairs)
    own_unit: Unit = unit or ("characters" if spaceless else "words")
    silence = checks.errors_in_silence(
        (row.words, duration_ms(segment)) for row, segment in zip(rows, references.values(), strict=True)
    )
    split = (str.split, list)[own_unit == "characters"]
    unlike = [(split(ref), split(hyp)) for ref, hyp in pairs if ref != hyp]
    shown = [(ref, hyp) for ref, hyp in unlike if words.table_fits(ref, hyp)]
    aligned = (words.align(ref, hyp)[1] for ref, hyp in shown)
    warnings = checks.check_words(pairs, ErrorCounts.sum(row.words for row in rows))
    if len(shown) < len(unlike):
        warnings.append(f"{len(unlike) - len(shown):,} texts are too long to list their errors; the errors are counted")
    if spaceless and own_unit == "words":
        warnings.append(checks.SPACELESS)
    elif spaceless and unit is None:
        warnings.append(f"{checks.SPACELESS}; characters are counted")
    return WordScores(
        rates=figures.figures(rows, names, cfg, own_unit),
        by=by,
        groups={} if values is None else figures.rates(words.group_by(rows, lambda row: values.get(row.id)), own_unit),
        worst=_worst(rows, references, pairs, own_unit, show),
        empty_references=sum(not ref for ref, _ in pairs),
        empty_hypotheses=sum(not hyp for _, hyp in pairs),
        without_hypothesis=len(references.keys() - hypotheses.keys()),
        without_reference=len(hypotheses.keys() - references.keys()),
        silence=silence,
        confusions=[
            Confusion(reference=ref, hypothesis=hyp, count=count)
            for (ref, hyp), count in words.confusions(aligned, CONFUSIONS)
        ],
        warnings=warnings,
        stamp=figures.stamp(name, words.versions()),
    )


def _shown(word: str | None) -> str:
    return one_line(word, MOST_NAME) if word else "(nothing)"


def _worst(
    rows: Sequence[Scored], ids: Iterable[str], pairs: Sequence[tuple[str, str]], unit: Unit, num: int
) -> list[AlignedText]:
    """The utterances with most errors, aligned in words or characters; those without an error are left out."""
    texts = dict(zip(ids, pairs, strict=True))
    split = (str.split, list)[unit == "characters"]
    errors = {row.id: getattr(row, unit).errors for row in rows}
    worst = sorted((id_ for id_ in errors if errors[id_]), key=lambda id_: (-errors[id_], id_))[:num]
    aligned = {id_: tuple(split(text) for text in texts[id_]) for id_ in worst}
    return [
        AlignedText(id=id_, errors=errors[id_], pairs=words.align(*sides)[1])
        for id_, sides in aligned.items()
        if words.table_fits(*sides)
    ]


def _field(by: str, references: Mapping[str, TranscriptSegment], uri: str, form: str | None) -> dict[str, str]:
    """The values of a field of the references by id: one of `FIELDS`, or any of JSONL."""
    if by in FIELDS:
        values = {id_: getattr(segment, by) for id_, segment in references.items()}
    elif (form or transcripts.form_of(uri)) == "jsonl":
        values = transcripts.column(uri, by)
    else:
        values = {}
    known = {id_: str(value) for id_, value in values.items() if value is not None}
    if not known:
        raise DataError(
            f"`{redact_uri(uri)}` has no {by}s" if by == "speaker" else f"`{redact_uri(uri)}` has no field `{by}`",
            code="field-missing",
            why="Kaldi's text and plain lines have none; other formats have " + ", ".join(FIELDS),
            fix=f"give references as JSONL with `{by}`, or leave out `--by {by}`",
        )
    return known


def rules(cfg: Config, language: str | None, normalizer: str | None) -> tuple[str, Callable[[str], str]]:
    """Return name and function of the normalizer: the one named, else that of the language, else the configured one."""
    name = normalizer or (normalize.name_for(language) if language else cfg.evaluate.normalizer)
    return name, normalize.normalizer(name, language)


def both(reference: str, hypothesis: str, form: str | None) -> tuple[dict[str, TranscriptSegment], dict[str, str]]:
    """Read references (as rows) and hypotheses (as texts), by id.

    Words of a CTM go into the segments of an STM. DataError if an id comes twice in a file or none is in both.
    """
    first, second = (transcripts.read(uri, form) for uri in (reference, hypothesis))
    forms = [form or transcripts.form_of(uri) for uri in (reference, hypothesis)]
    if forms[0] == "stm":
        ignored = {row.id for row in first if row.text == transcripts.IGNORED}
        second = transcripts.join_by_segment(first, second) if forms[1] == "ctm" else second
        first, second = ([row for row in rows if row.id not in ignored] for rows in (first, second))
    elif "ctm" in forms:
        raise DataError(
            "a CTM has words but no utterances",
            code="field-missing",
            why="the utterances come from the segments of an STM",
            fix="give references as STM",
        )
    references, texts = by_id(first, reference), {id_: row.text for id_, row in by_id(second, hypothesis).items()}
    if not references.keys() & texts.keys():
        raise DataError(
            f"`{redact_uri(reference)}` and `{redact_uri(hypothesis)}` have no id in common",
            code="no-common-ids",
            why=f"{len(references):,} and {len(texts):,} were read, such as {first_ids(references, texts)}",
            fix="check that they belong together; for lines without ids use `--form text`",
        )
    return references, texts


def by_id(rows: Sequence[TranscriptSegment], uri: str) -> dict[str, TranscriptSegment]:
    """Index rows by id, in their order; DataError for an id that comes twice."""
    rows_by_id: dict[str, TranscriptSegment] = {}
    for row in rows:
        if rows_by_id.setdefault(row.id, row) is not row:
            raise DataError(
                f"`{redact_uri(uri)}` has the id `{row.id}` twice",
                code="id-twice",
                why="each id must have one line",
                fix="remove one of them; for lines without ids use `--form text`",
            )
    return rows_by_id


def first_ids(first: Mapping[str, object], second: Mapping[str, object]) -> str:
    """Name the first id of each side, for an error."""
    return " and ".join(f"`{next(iter(side))}`" if side else "none" for side in (first, second))


def duration_ms(segment: TranscriptSegment) -> int | None:
    """Duration of an utterance in ms; None if its file has no times."""
    return None if segment.start_ms is None or segment.end_ms is None else segment.end_ms - segment.start_ms
