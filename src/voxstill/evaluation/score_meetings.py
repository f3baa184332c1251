"""score meeting: word error rates with speaker attribution, cpWER and tcpWER, of two files with speakers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from voxstill.core.arguments import not_negative
from voxstill.core.config import Config
from voxstill.core.errors import DataError
from voxstill.core.records import ErrorCounts
from voxstill.core.result import Figures
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.evaluation.score import duration_ms, first_ids, rules
from voxstill.evaluation.tables import ending, percent
from voxstill.scoring import figures, meetings, words
from voxstill.scoring.figures import Stamp
from voxstill.storage.redaction import redact_uri
from voxstill.text import transcripts
from voxstill.text.transcripts import TranscriptSegment

Sessions = Mapping[str, Sequence[TranscriptSegment]]
"""Segments with speakers by session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScores:
    """The word errors of one session, in any time and in the right time, and its speakers."""

    session: str
    counts: ErrorCounts
    counts_in_time: ErrorCounts | None
    """None if not every row has its times."""
    num_speakers: tuple[int, int]
    """Of the reference and of the hypothesis."""
    mapping: Mapping[str, str]
    """Speakers of the hypothesis to those of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingScores(Figures):
    """The word errors of all sessions and of each."""

    counts: ErrorCounts
    counts_in_time: ErrorCounts | None
    """None if not every row has its times."""
    collar_s: float
    sessions: Sequence[SessionScores]
    warnings: Sequence[str]
    stamp: Stamp

    def to_dict(self) -> dict[str, object]:
        """All figures side by side."""
        return {
            **_rates(self.counts, self.counts_in_time),
            "collar_s": self.collar_s,
            "sessions": [
                {
                    "session": row.session,
                    **_rates(row.counts, row.counts_in_time),
                    "speakers": list(row.num_speakers),
                    "mapping": dict(row.mapping),
                }
                for row in self.sessions
            ],
            "warnings": list(self.warnings),
            **self.stamp.to_dict(),
        }

    def to_text(self) -> str:
        """A line for each session, and one for all."""
        rows = [(one_line(row.session, MOST_NAME), row.counts, row.counts_in_time) for row in self.sessions]
        rows += [("all", self.counts, self.counts_in_time)] if len(rows) > 1 else []
        width = max(len(name) for name, _, _ in rows) + 2
        lines = [f"{'':<{width}}{'cpWER':>10}{'tcpWER':>10}{'errors':>9}{'words':>9}"]
        for name, counts, in_time in rows:
            both_rates = f"{percent(counts.rate):>10}{percent(None if in_time is None else in_time.rate):>10}"
            lines.append(f"{name:<{width}}{both_rates}{counts.errors:>9,}{counts.reference:>9,}")
        collar = f"tcpWER with a collar of {self.collar_s} s"
        return "\n".join([*lines, collar, *ending(self.warnings, self.stamp)])


def of_meetings(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    form: str | None = None,
    language: str | None = None,
    normalizer: str | None = None,
    collar_s: float = 5.0,
) -> MeetingScores:
    """Compute cpWER over all sessions of the reference, and tcpWER where both files have times.

    DataError if a row names no session or speaker, or where the files share no session; ConfigError if the
    collar is no time.
    """
    name, normalize = rules(cfg, language, normalizer)
    references, hypotheses = (
        by_session(transcripts.read(uri, form), uri, normalize) for uri in (reference, hypothesis)
    )
    if not references.keys() & hypotheses.keys():
        raise DataError(
            f"`{redact_uri(reference)}` and `{redact_uri(hypothesis)}` have no session in common",
            code="no-common-ids",
            why=f"{len(references):,} and {len(hypotheses):,} were read, such as {first_ids(references, hypotheses)}",
            fix="use the same session names in both",
        )
    return of_sessions(references, hypotheses, figures.stamp(name, words.versions()), collar_s)


def of_sessions(references: Sessions, hypotheses: Sessions, stamp: Stamp, collar_s: float = 5.0) -> MeetingScores:
    """Compute the word errors of the sessions of the reference; ConfigError if the collar is no time."""
    collar_s = not_negative("collar_s", collar_s)
    shared = [references, {key: rows for key, rows in hypotheses.items() if key in references}]
    timed = all(duration_ms(row) is not None for side in shared for rows in side.values() for row in rows)
    total, total_in_time, sessions = ErrorCounts(), ErrorCounts(), []
    for key, rows in sorted(references.items()):
        other = hypotheses.get(key, [])
        errors = meetings.cpwer(rows, other)
        in_time = meetings.tcpwer(rows, other, round(collar_s * 1000)).counts if timed else None
        total += errors.counts
        total_in_time += in_time or ErrorCounts()
        sessions.append(
            SessionScores(
                session=key,
                counts=errors.counts,
                counts_in_time=in_time,
                num_speakers=(_num_speakers(rows), _num_speakers(other)),
                mapping=errors.mapping,
            )
        )
    warnings = [] if timed else ["some rows have no times, so tcpWER is not computed"]
    missed, added = sorted(references.keys() - hypotheses.keys()), sorted(hypotheses.keys() - references.keys())
    warnings += [f"{session}: the session is missing in the hypothesis" for session in missed]
    warnings += [f"{session}: the session is missing in the reference: left out" for session in added]
    warnings += [
        f"{row.session}: {row.num_speakers[1]} speakers in the hypothesis, {row.num_speakers[0]} in the reference"
        for row in sessions
        if row.num_speakers[0] != row.num_speakers[1]
    ]
    return MeetingScores(
        counts=total,
        counts_in_time=total_in_time if timed else None,
        collar_s=collar_s,
        sessions=sessions,
        warnings=warnings,
        stamp=stamp,
    )


def _num_speakers(rows: Sequence[TranscriptSegment]) -> int:
    return len({row.speaker for row in rows})


def by_session(
    rows: Sequence[TranscriptSegment], uri: str, normalize: Callable[[str], str]
) -> dict[str, list[TranscriptSegment]]:
    """The segments of each session with normalized texts; DataError if one names no session or speaker."""
    sessions: dict[str, list[TranscriptSegment]] = {}
    for row in rows:
        if row.session is None or row.speaker is None:
            raise DataError(
                f"`{redact_uri(uri)}` has no session or speaker for `{row.id}`",
                code="field-missing",
                why="words of meetings are scored per speaker",
                fix="give STM, SegLST, or JSONL with `session` and `speaker`",
            )
        sessions.setdefault(row.session, []).append(replace(row, text=normalize(row.text)))
    return sessions


def _rates(counts: ErrorCounts, in_time: ErrorCounts | None) -> dict[str, float | None]:
    return {
        "cpwer": counts.rate,
        "tcpwer": None if in_time is None else in_time.rate,
        "errors": counts.errors,
        "errors_in_time": None if in_time is None else in_time.errors,
        "words": counts.reference,
        "substitutions": counts.substitutions,
        "insertions": counts.insertions,
        "deletions": counts.deletions,
    }
