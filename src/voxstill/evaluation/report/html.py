"""Render the report of a run, or a comparison of systems or of teachers, as one self-contained HTML file.

`Facts` are plain values, so they can be stored as JSON next to the run and rendered again. A section is on the page
only where its facts are given. Rates are shares (0.25 is 25 %) and None if the reference is empty.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args

from voxstill.evaluation.against_teacher import AgainstTeacher
from voxstill.evaluation.report import charts, round_table
from voxstill.evaluation.report.formatting import environment, percent

Role = Literal["teacher", "student", "student with LM", "first", "second"]
Pair = tuple[str | None, str | None]
ROLES: tuple[Role, ...] = get_args(Role)
"""Role of a recogniser: teacher and student of a run, or the two systems of a comparison."""


MOST_GROUPS = 20
"""Of a breakdown: a page with thousands of speakers would be unreadable."""


class System(TypedDict):
    """One recogniser and its figures on the evaluated split."""

    role: Role
    name: str
    wer: float | None
    interval: NotRequired[tuple[float, float] | None]
    cer: NotRequired[float | None]
    parameters: NotRequired[int | None]
    rtfx: NotRequired[float | None]


class ResultLine(TypedDict):
    """One result of an experiment: what was judged, how, and its rate by name; None is unknown."""

    recogniser: str
    corpus: str | None
    split: str
    decoding: str
    normalizer: str | None
    utterances: int | None
    rate: tuple[str, float] | None
    interval: tuple[float, float] | None


class EvaluationSet(TypedDict):
    """What the systems were evaluated on, and what was resampled for the intervals; files have no split."""

    split: str | None
    utterances: int
    words: int
    drawn: Literal["speakers", "utterances"]
    resamples: int


class PairedComparison(TypedDict):
    """Paired test of two systems: shares as in `scoring.stats.PairedTest`; `surely` where p is small."""

    difference: float
    interval: tuple[float, float]
    p: float
    surely: bool


class Step(TypedDict):
    """One step of the pipeline: its time and the figures it printed, by name."""

    name: str
    seconds: float
    figures: Mapping[str, float | int | str | None]


class Rejected(TypedDict):
    """A label that the filter dropped; `audio` is a whole WAV, FLAC, Ogg or MP3 file."""

    id: str
    about: str
    text: str
    audio: bytes | None


class Rule(TypedDict):
    """How many labels a rule of the filter dropped; rules are in the order in which they are applied."""

    name: str
    why: str
    dropped: int
    examples: NotRequired[Sequence[Rejected]]


class Funnel(TypedDict):
    """From all labels to those kept."""

    labels: int
    rules: Sequence[Rule]
    curve: NotRequired[Sequence[tuple[float, float]]]
    """Share of labels kept by a confidence threshold, ascending, and the error rate of those labels."""


class Group(TypedDict):
    """One speaker or data set: words in its reference and the word error rate of each system."""

    name: str
    words: int
    wer: Mapping[Role, float | None]


class Breakdown(TypedDict):
    """Error rates by one property of the utterances: `by` is `speaker`, `dataset`, `dialect`."""

    by: str
    groups: Sequence[Group]


class Confusion(TypedDict):
    """Reference word, hypothesis word and count; None on one side is an insertion or a deletion."""

    reference: str | None
    hypothesis: str | None
    count: int


class AlignedHypothesis(TypedDict):
    """The hypothesis of a system for an utterance, aligned with the reference."""

    role: Role
    wer: float | None
    pairs: Sequence[Pair]


class Utterance(TypedDict):
    """One utterance with errors, or with differing hypotheses; `audio` is a whole WAV, FLAC, Ogg or MP3 file."""

    id: str
    about: NotRequired[str]
    heard: Sequence[AlignedHypothesis]
    audio: NotRequired[bytes | None]


class EvaluatedUtterance(TypedDict):
    """One evaluated utterance: hypothesis by system, aligned with the reference; None is unknown."""

    id: str
    speaker: str | None
    dataset: str | None
    duration_ms: int | None
    heard: Mapping[Role, Sequence[Pair]]


class Facts(TypedDict, total=False):
    """All data of a report; sections without data are left out."""

    title: str
    about: str
    systems: Sequence[System]
    results: Sequence[ResultLine]
    """All results of an experiment."""
    judged: EvaluationSet
    paired: PairedComparison
    """Of two systems that were compared; `worst` are then the utterances where they differ most."""
    against_teacher: Mapping[str, Any]
    """The fields of an `AgainstTeacher`."""
    grammar: Mapping[str, Any]
    """The fields of a `GrammarTable`."""
    meetings: Mapping[str, Any]
    """The fields of a `MeetingScores` of the teacher's labels."""
    steps: Sequence[Step]
    rounds: Sequence[Mapping[str, Any]]
    """The fields of each `RoundResult`."""
    funnel: Funnel
    metrics: Sequence[Mapping[str, Any]]
    """The rows of `metrics.jsonl`: `step` and `loss`; `split` and `wer` in those of a validation."""
    breakdowns: Sequence[Breakdown]
    confusions: Mapping[Role, Sequence[Confusion]]
    worst: Sequence[Utterance]
    utterances: Sequence[EvaluatedUtterance]
    """All evaluated utterances, each with hypotheses of the same systems."""
    config: str
    environment: Mapping[str, Any]


class TeacherFigures(TypedDict):
    """One teacher of a comparison; `rtfx` is audio seconds per second, `work_s` the time that the audio takes."""

    name: str
    recipe: str
    options: str
    labels: int
    failed: int
    wer: float | None
    rtfx: float | None
    work_s: float | None
    cost: float | None


class TeacherLabel(TypedDict):
    """Label of a teacher, numbered from 1, for an utterance, aligned with the text that it is compared with."""

    number: int
    wer: float | None
    pairs: Sequence[Pair]


class DisputedUtterance(TypedDict):
    """One utterance with differing labels; `has_reference` is whether they are compared with a human transcript."""

    id: str
    about: str
    has_reference: bool
    versions: Sequence[TeacherLabel]
    audio: bytes | None


class Comparison(TypedDict):
    """All data of a comparison of teachers. Matrices have a row and a column for each, None on the diagonal."""

    title: str
    about: str
    utterances: int
    hours: float
    words: int
    price: float | None
    labellers: Sequence[TeacherFigures]
    equal: Sequence[Sequence[float | None]]
    distances: Sequence[Sequence[float | None]]
    disputed: Sequence[DisputedUtterance]


def render(facts: Facts | Mapping[str, Any]) -> str:
    """Render a report as one self-contained page; everything that comes from data is escaped."""
    training_charts = charts.training_charts(facts.get("metrics", ()))
    systems = cast("Sequence[System]", facts.get("systems", ()))
    page = environment().get_template("report.html.j2")
    kept = [(100 * share, rate) for share, rate in facts.get("funnel", {}).get("curve", ())]
    curve = charts.line_chart("Word error rate of the labels kept", kept, percent)
    compared = cast("Sequence[EvaluatedUtterance]", facts.get("utterances", ()))
    return page.render(
        facts=facts,
        charts=training_charts,
        curve=curve,
        verdict=_verdict(facts, systems),
        roles=[role for role in ROLES if role in _roles_with_details(facts)],
        utterance_roles=[role for role in ROLES if compared and role in compared[0]["heard"]],
        rounds_head=round_table.HEAD,
        rounds=round_table.cells(facts.get("rounds", ())),
        datasets=sorted({utterance["dataset"] for utterance in compared if utterance["dataset"]}),
        breakdowns=list(map(shown_groups, facts.get("breakdowns", ()))),
        rows=_pack_utterances(compared) if compared else None,
        script=_script() if compared else None,
        script_hash=base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode() if compared else None,
        kinds=(("Substitutions", True, True), ("Deletions", True, False), ("Insertions", False, True)),
    )


class ShownBreakdown(TypedDict):
    """The groups of a breakdown that a page shows; `spread` has median and 90th percentile of the rates by role."""

    by: str
    groups: Sequence[Group]
    total: int
    spread: Sequence[tuple[Role, float, float]]


def shown_groups(breakdown: Breakdown) -> ShownBreakdown:
    """Choose the groups with the most errors of the last system, where there are too many for a page."""
    groups = list(breakdown["groups"])
    roles = [role for role in ROLES if any(group["wer"].get(role) is not None for group in groups)]
    if len(groups) <= MOST_GROUPS or not roles:
        return {"by": breakdown["by"], "groups": groups, "total": len(groups), "spread": ()}
    worst = sorted(groups, key=lambda group: (-(group["wer"].get(roles[-1]) or 0), -group["words"], group["name"]))
    spread = []
    for role in roles:
        rates = sorted(rate for group in groups if (rate := group["wer"].get(role)) is not None)
        spread.append((role, rates[len(rates) // 2], rates[len(rates) * 9 // 10]))
    return {"by": breakdown["by"], "groups": worst[:MOST_GROUPS], "total": len(groups), "spread": spread}


def _pack_utterances(compared: Sequence[EvaluatedUtterance]) -> str:
    """Pack utterances for the script of the page: gzipped JSON in base64, about 90 bytes for each.

    Words are stored once; the alignment has one character per edit: `=` hit, `s` substitution, `d` deletion, `i`
    insertion.
    """
    roles = [role for role in ROLES if role in compared[0]["heard"]]
    rows = [
        [
            *(utterance["id"], utterance["speaker"], utterance["dataset"], utterance["duration_ms"]),
            " ".join(ref for ref, _ in utterance["heard"][roles[0]] if ref is not None),
            [_edits(utterance["heard"][role]) for role in roles],
        ]
        for utterance in compared
    ]
    text = json.dumps({"roles": roles, "rows": rows}, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _edits(pairs: Sequence[Pair]) -> tuple[str, str]:
    """The hypothesis, and its alignment as one character per edit."""
    hypothesis = " ".join(hyp for _, hyp in pairs if hyp is not None)
    return hypothesis, "".join(
        "i" if ref is None else "d" if hyp is None else "=" if ref == hyp else "s" for ref, hyp in pairs
    )


@functools.cache
def _script() -> str:
    return resources.files("voxstill.evaluation.report").joinpath("templates/utterances.js").read_text(encoding="utf-8")


def render_comparison(facts: Comparison) -> str:
    """Render a comparison as one self-contained page; everything that comes from data is escaped."""
    return environment().get_template("comparison.html.j2").render(facts=facts, script_hash=None)


def _verdict(facts: Facts | Mapping[str, Any], systems: Sequence[System]) -> str:
    """Headline of the page: by a paired test where there is one."""
    if "paired" in facts:
        return _paired_verdict(facts["paired"], "The second makes {} errors")
    if "against_teacher" in facts:
        return against_teacher(facts["against_teacher"])
    return _run_verdict(systems)


def against_teacher(paired: Mapping[str, Any]) -> str:
    """Say whether the student is better than its teacher, and how sure that is."""
    line = f"{AgainstTeacher.from_dict(paired).to_text()}."
    if paired["p"] is None:
        return line
    return f"{_paired_verdict(paired, 'The student makes {} errors than its teacher')} {line}"


def _run_verdict(systems: Iterable[System]) -> str:
    """Headline of a run, as far as the intervals allow one."""
    by_role = {system["role"]: system for system in systems if system["wer"] is not None}
    if not {"teacher", "student"} <= by_role.keys():
        return ""
    teacher, student = by_role["teacher"], by_role["student"]
    (low, high), (teacher_low, teacher_high) = (
        system.get("interval") or (0.0, math.inf) for system in (student, teacher)
    )
    if high < teacher_low:
        return "The student makes fewer errors than its teacher."
    if low > teacher_high:
        return "The student makes more errors than its teacher."
    return "The intervals of student and teacher overlap: the intervals alone do not show a difference."


def _paired_verdict(paired: PairedComparison | Mapping[str, Any], sentence: str) -> str:
    """Headline of a comparison of two systems, by the paired test; the sentence has a place for the word."""
    if not paired["surely"]:
        return "The difference is not statistically significant."
    return f"{sentence.format('fewer' if paired['difference'] < 0 else 'more')}, which is statistically significant."


def _roles_with_details(facts: Facts | Mapping[str, Any]) -> set[Role]:
    """Roles with figures by group or with confusions."""
    groups = (group for breakdown in facts.get("breakdowns", ()) for group in breakdown["groups"])
    return {*facts.get("confusions", {}), *(role for group in groups for role in group["wer"])}
