"""The word errors of a teacher's labels with who said them (cpWER), against human words of whole recordings."""

from __future__ import annotations

from voxstill.core.config import Config
from voxstill.core.errors import VoxstillError
from voxstill.core.monitor import log
from voxstill.evaluation import score_meetings
from voxstill.evaluation.score_meetings import MeetingScores
from voxstill.pipeline.exported import UNKNOWN_SPEAKER, LabelReader, transcript_segments
from voxstill.scoring import figures, words
from voxstill.text import transcripts
from voxstill.text.normalize import normalizer


def of_teacher(cfg: Config) -> MeetingScores | None:
    """The errors of the labels of the recordings that `evaluate.meetings` has words of.

    None if it is not set, or with a warning where there are no labels with speakers or the file cannot be used.
    """
    if cfg.evaluate.meetings is None:
        return None
    try:
        scores = _scores(cfg, cfg.evaluate.meetings)
    except VoxstillError as error:
        log.warning("report: no cpWER of the teacher: %s (%s)", error.what, error.why)
        return None
    if scores is None:
        log.warning("report: no cpWER of the teacher: no label of a recording of `evaluate.meetings` has a speaker")
    return scores


def _scores(cfg: Config, uri: str) -> MeetingScores | None:
    normalize = normalizer(cfg.evaluate.normalizer)
    references = score_meetings.by_session(transcripts.read(uri), uri, normalize)
    reader = LabelReader(cfg, scores=False, verdicts=False, kept=False)
    rows = [row for row in transcript_segments(reader.rows()) if row.session in references]
    if all(row.speaker == UNKNOWN_SPEAKER for row in rows):
        return None
    stamp = figures.stamp(cfg.evaluate.normalizer, words.versions())
    return score_meetings.of_sessions(references, score_meetings.by_session(rows, cfg.work, normalize), stamp)
