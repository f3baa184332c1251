"""One HTML file that tells a whole run, or compares two or teachers: no network, no script but its own.

`Facts` are plain values, so they can be kept as JSON next to the run and rendered anew. Every section is there only
where its facts are. Rates are shares (0.25 is 25 %) and None where the reference is empty.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast, get_args

if TYPE_CHECKING:
    from jinja2 import Environment

Role = Literal["teacher", "student", "student with LM", "first", "second"]
Pair = tuple[str | None, str | None]
ROLES: tuple[Role, ...] = get_args(Role)
"""What a recogniser is: teacher and student of a run, or the two of a comparison."""


class System(TypedDict):
    """One recogniser and how it did on the judged split."""

    role: Role
    name: str
    wer: float | None
    interval: NotRequired[tuple[float, float] | None]
    cer: NotRequired[float | None]
    parameters: NotRequired[int | None]
    rtfx: NotRequired[float | None]


class Judged(TypedDict):
    """What the systems were judged on, and what was drawn for the intervals; files have no split."""

    split: str | None
    utterances: int
    words: int
    drawn: Literal["speakers", "utterances"]
    resamples: int


class Paired(TypedDict):
    """Whether the second differs from the first: shares as in `score.stats.Paired`, `surely` where p is small."""

    difference: float
    interval: tuple[float, float]
    p: float
    surely: bool


class Step(TypedDict):
    """One step of the line: its time and the figures it printed, by name."""

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
    """How many labels a rule of the filter dropped, in the order asked."""

    name: str
    why: str
    dropped: int
    examples: NotRequired[Sequence[Rejected]]


class Funnel(TypedDict):
    """From all labels to those kept."""

    labels: int
    rules: Sequence[Rule]
    curve: NotRequired[Sequence[tuple[float, float]]]
    """Shares that confidence would keep, ascending, and the error rate of the labels kept."""


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
    """What was said, what was heard instead, how often; None where there was nothing."""

    reference: str | None
    hypothesis: str | None
    count: int


class Heard(TypedDict):
    """What a system heard in an utterance, aligned with the reference."""

    role: Role
    wer: float | None
    pairs: Sequence[Pair]


class Utterance(TypedDict):
    """One utterance that went wrong, or that two heard otherwise; `audio` is a whole WAV, FLAC, Ogg or MP3 file."""

    id: str
    about: NotRequired[str]
    heard: Sequence[Heard]
    audio: NotRequired[bytes | None]


class Compared(TypedDict):
    """One judged utterance: what each system heard, aligned with the reference; None is what nobody told."""

    id: str
    speaker: str | None
    dataset: str | None
    duration_ms: int | None
    heard: Mapping[Role, Sequence[Pair]]


class Facts(TypedDict, total=False):
    """All that a report can tell; what is absent is left out."""

    title: str
    about: str
    systems: Sequence[System]
    judged: Judged
    paired: Paired
    """Of two systems that were compared; `worst` is where they differ then."""
    steps: Sequence[Step]
    funnel: Funnel
    metrics: Sequence[Mapping[str, Any]]
    """The rows of `metrics.jsonl`: `step` and `loss`; `split` and `wer` in those of a validation."""
    breakdowns: Sequence[Breakdown]
    confusions: Mapping[Role, Sequence[Confusion]]
    worst: Sequence[Utterance]
    utterances: Sequence[Compared]
    """All that were judged; each has been heard by the same systems."""
    config: str
    environment: Mapping[str, Any]


class Labeller(TypedDict):
    """One teacher of a comparison; `rtfx` is audio-seconds a second, `work_s` what the audio takes at that speed."""

    name: str
    recipe: str
    options: str
    labels: int
    failed: int
    wer: float | None
    rtfx: float | None
    work_s: float | None
    cost: float | None


class Version(TypedDict):
    """What a teacher, counted from 1, heard in an utterance, aligned with what it is held against."""

    number: int
    wer: float | None
    pairs: Sequence[Pair]


class Disputed(TypedDict):
    """One utterance that teachers heard otherwise; `said` tells whether they are held against what a human wrote."""

    id: str
    about: str
    said: bool
    versions: Sequence[Version]
    audio: bytes | None


class Comparison(TypedDict):
    """All that a comparison of teachers tells. Matrices have a row and a column for each, None for itself."""

    title: str
    about: str
    utterances: int
    hours: float
    words: int
    price: float | None
    labellers: Sequence[Labeller]
    equal: Sequence[Sequence[float | None]]
    apart: Sequence[Sequence[float | None]]
    disputed: Sequence[Disputed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A curve in a box of 480 x 200: points of the line, ticks of both axes, what its last value is."""

    title: str
    line: str
    dots: tuple[tuple[float, float], ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    last: str


def render(facts: Facts | Mapping[str, Any]) -> str:
    """The report as one self-contained page; everything that comes from data is escaped."""
    charts = [chart for chart in _charts(facts.get("metrics", ())) if chart is not None]
    systems = cast("Sequence[System]", facts.get("systems", ()))
    page = environment().get_template("report.html.j2")
    kept = [(100 * share, rate) for share, rate in facts.get("funnel", {}).get("curve", ())]
    curve = _chart("Word error rate of the labels kept", kept, percent)
    compared = cast("Sequence[Compared]", facts.get("utterances", ()))
    return page.render(
        facts=facts,
        charts=charts,
        curve=curve,
        verdict=_comparison(facts["paired"]) if "paired" in facts else _verdict(systems),
        roles=[role for role in ROLES if role in _present(facts)],
        heard_by=[role for role in ROLES if compared and role in compared[0]["heard"]],
        datasets=sorted({each["dataset"] for each in compared if each["dataset"]}),
        rows=_packed(compared) if compared else None,
        script=_script() if compared else None,
        script_hash=base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode() if compared else None,
        kinds=(("Another word", True, True), ("Left out", True, False), ("Put in", False, True)),
    )


def _packed(compared: Sequence[Compared]) -> str:
    """The utterances as the script of the page reads them: gzipped JSON in base64, about 90 bytes for each.

    Words are given once; the alignment is one character an edit: `=` hit, `s` another word, `d` left out, `i` put in.
    """
    roles = [role for role in ROLES if role in compared[0]["heard"]]
    rows = [
        [
            *(each["id"], each["speaker"], each["dataset"], each["duration_ms"]),
            " ".join(ref for ref, _ in each["heard"][roles[0]] if ref is not None),
            [_edits(each["heard"][role]) for role in roles],
        ]
        for each in compared
    ]
    text = json.dumps({"roles": roles, "rows": rows}, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _edits(pairs: Sequence[Pair]) -> tuple[str, str]:
    said = " ".join(hyp for _, hyp in pairs if hyp is not None)
    return said, "".join(
        "i" if ref is None else "d" if hyp is None else "=" if ref == hyp else "s" for ref, hyp in pairs
    )


@functools.cache
def _script() -> str:
    return resources.files("voxstill.report").joinpath("templates/utterances.js").read_text(encoding="utf-8")


def render_comparison(facts: Comparison) -> str:
    """The comparison as one self-contained page; everything that comes from data is escaped."""
    return environment().get_template("comparison.html.j2").render(facts=facts, script_hash=None)


def percent(rate: float | None) -> str:
    """0.1234 as `12.3 %`, nothing known as a dash."""
    return "–" if rate is None else f"{rate * 100:.1f}\u202f%"


def points(rate: float) -> str:
    """A difference of two rates: 0.0123 as `+1.23`."""
    return f"{100 * rate:+.2f}".replace("-", "\u2212")


def number(value: float | str | None) -> str:
    """Whole numbers with thin spaces, others to three figures, words as they are, nothing known as a dash."""
    if value is None or isinstance(value, bool | str):
        return "–" if value is None else str(value)
    if isinstance(value, int) or (abs(value) >= 100 and math.isfinite(value)):
        return f"{round(value):,}".replace(",", "\u202f")
    return f"{value:.3g}"


def magnitude(value: float | None) -> str:
    """1,640,000 as `1.6 M`."""
    if value is None:
        return "–"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}\u202f{letter}" if value < 100 * limit else f"{value / limit:.0f}\u202f{letter}"
    return number(value)


def duration(seconds: float) -> str:
    """95 as `1 min 35 s`."""
    if seconds < 60:
        return f"{seconds:.1f}\u202fs" if seconds < 10 else f"{seconds:.0f}\u202fs"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {rest}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60}\u202fmin"


def data_uri(audio: bytes) -> str:
    """The file as a `data:` URI, its type told by its first bytes."""
    kinds = {b"RIFF": "wav", b"fLaC": "flac", b"OggS": "ogg"}
    return f"data:audio/{kinds.get(audio[:4], 'mpeg')};base64,{base64.b64encode(audio).decode()}"


_SHARES = frozenset(
    {"wer", "wer_with_lm", "cer", "kept", "wer_before", "wer_after", "padding", "efficiency", "data_wait"}
)


def figure(value: float | str | None, name: str) -> str:
    """A figure of a step in the form its name asks for: rates and shares in percent."""
    return percent(value) if name in _SHARES and isinstance(value, int | float) else number(value)


@functools.cache
def environment() -> Environment:
    """The templates of all pages, with the forms in which figures are written."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("voxstill.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        percent=percent,
        points=points,
        number=number,
        magnitude=magnitude,
        duration=duration,
        data_uri=data_uri,
        figure=figure,
    )
    return found


def _verdict(systems: Iterable[System]) -> str:
    """The headline in words, as far as the intervals allow it."""
    by_role = {system["role"]: system for system in systems if system["wer"] is not None}
    if not {"teacher", "student"} <= by_role.keys():
        return ""
    teacher, student = by_role["teacher"], by_role["student"]
    (low, high), (teacher_low, teacher_high) = (each.get("interval") or (0.0, math.inf) for each in (student, teacher))
    if high < teacher_low:
        return "The student makes fewer errors than its teacher."
    if low > teacher_high:
        return "The student makes more errors than its teacher."
    return "The intervals of student and teacher overlap: this test does not tell them apart by intervals alone."


def _comparison(paired: Paired) -> str:
    """The same of two that were compared, as far as the test allows it."""
    if not paired["surely"]:
        return "The difference may be chance."
    return f"The second makes {'fewer' if paired['difference'] < 0 else 'more'} errors, which is hardly chance."


def _present(facts: Facts | Mapping[str, Any]) -> set[Role]:
    """Who was judged at all: by utterances, by groups or by confusions."""
    groups = (group for each in facts.get("breakdowns", ()) for group in each["groups"])
    return {*facts.get("confusions", {}), *(role for group in groups for role in group["wer"])}


def _charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart | None]:
    """Training loss, and the word error rate of each split it was validated on, over steps."""
    loss = _chart("Training loss", _points((row for row in rows if "split" not in row), "loss"), number)
    splits = dict.fromkeys(row["split"] for row in rows if "split" in row)
    return [
        loss,
        *(
            _chart(f"Word error rate, {split}", _points((r for r in rows if r.get("split") == split), "wer"), percent)
            for split in splits
        ),
    ]


def _points(rows: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    found = [(float(row["step"]), float(row[name])) for row in rows if row.get(name) is not None and "step" in row]
    return [(x, y) for x, y in found if math.isfinite(x) and math.isfinite(y)]


_WIDTH, _HEIGHT, _MOST_POINTS = 480, 200, 160


def _chart(title: str, points: Sequence[tuple[float, float]], form: Any) -> Chart | None:
    """The curve, or None for fewer than two points; long ones are averaged so that the trend shows."""
    if len(points) < 2:
        return None
    last = form(points[-1][1])
    size = math.ceil(len(points) / _MOST_POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    right = max(x for x, _ in points) or 1.0
    ticks_y = _ticks(max(0.0, *(y for _, y in means)), 5)
    top, bottom = ticks_y[-1], min(0.0, *(y for _, y in means))
    places = tuple(
        (round(x / right * _WIDTH, 1), round(_HEIGHT * (1 - (y - bottom) / (top - bottom)), 1)) for x, y in means
    )
    return Chart(
        title=title,
        line=" ".join(f"{x},{y}" for x, y in places),
        dots=places if len(places) <= 24 else (),
        ticks_x=tuple((round(x / right * _WIDTH, 1), number(int(x))) for x in _ticks(right, 4) if x <= right),
        ticks_y=tuple(
            (round(_HEIGHT * (1 - (y - bottom) / (top - bottom)), 1), form(y).replace(".0\u202f", "\u202f"))
            for y in ticks_y
        ),
        last=last,
    )


def _ticks(highest: float, most: int) -> list[float]:
    """Round numbers from 0 to the first at or above `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(highest / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor * most >= highest * (1 - 1e-9))
    return [step * i for i in range(math.ceil(highest / step - 1e-9) + 1)]
