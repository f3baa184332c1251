"""score speakers: the diarization error rate (DER) of two RTTM files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from voxstill.core import pcm
from voxstill.core.arguments import not_negative
from voxstill.core.config import Config
from voxstill.core.errors import DataError, StorageError
from voxstill.core.result import Figures
from voxstill.core.terminal import MOST_NAME, one_line
from voxstill.evaluation.tables import ending, percent
from voxstill.scoring import checks, figures, speakers
from voxstill.scoring.figures import Stamp
from voxstill.scoring.speakers import DiarizationErrors, SpeakerTime
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path
from voxstill.text import rttm
from voxstill.text.rttm import RttmEvent, ScoredRegion

Timed = TypeVar("Timed", RttmEvent, ScoredRegion)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingScores:
    """The errors of one channel of a recording, and how long its audio is, where that is known."""

    recording: str
    channel: str
    errors: DiarizationErrors
    duration_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerScores(Figures):
    """The speaker time of all recordings and of each, and how it was scored."""

    time: SpeakerTime
    recordings: Sequence[RecordingScores]
    has_audio: bool
    """Whether the audio was there to say how long recordings are."""
    collar_s: float
    ignore_overlap: bool
    warnings: Sequence[str]
    stamp: Stamp

    def to_dict(self) -> dict[str, object]:
        """All figures side by side, times in milliseconds; `duration_ms` of recordings where the audio was given."""
        return {
            **_times(self.time),
            "recordings": [
                {
                    "recording": row.recording,
                    "channel": row.channel,
                    **_times(row.errors.time),
                    "mapping": dict(row.errors.mapping),
                    **({"duration_ms": row.duration_ms} if self.has_audio else {}),
                }
                for row in self.recordings
            ],
            "collar_s": self.collar_s,
            "ignore_overlap": self.ignore_overlap,
            "warnings": list(self.warnings),
            **self.stamp.to_dict(),
        }

    def to_text(self) -> str:
        """A line for each recording, and one for all."""
        rows = [(one_line(f"{row.recording} {row.channel}", MOST_NAME), row.errors.time) for row in self.recordings]
        rows += [("all ", self.time)] if len(rows) > 1 else []
        width = max(len(name) for name, _ in rows) + 2
        lines = [f"{'':<{width}}{'DER':>10}{'missed':>12}{'false alarm':>13}{'confused':>12}{'scored':>12}"]
        for name, time in rows:
            parts_us = (time.missed_us, time.false_alarm_us, time.confused_us, time.scored_us)
            parts = zip(parts_us, (12, 13, 12, 12), strict=True)
            times = "".join(f"{part_us / 1000 / 1000:>{size - 2},.2f} s" for part_us, size in parts)
            lines.append(f"{name:<{width}}{percent(time.rate):>10}{times}")
        overlap = "not judged" if self.ignore_overlap else "judged"
        collar = f"collar {self.collar_s} s either side, overlap {overlap}"
        return "\n".join([*lines, collar, *ending(self.warnings, self.stamp)])


def of_speakers(
    cfg: Config,
    reference: str,
    hypothesis: str,
    *,
    uem: str | None = None,
    collar_s: float = 0.0,
    ignore_overlap: bool = False,
    audio: str | None = None,
) -> SpeakerScores:
    """Compute the diarization error rate (DER) of two RTTMs as md-eval does, over all recordings of the reference.

    `audio`, a folder or a file, tells how long they are; it changes no rate. DataError if they share no recording,
    ConfigError if the collar is no time.
    """
    collar_s = not_negative("collar_s", collar_s)
    references, hypotheses = _by_channel(rttm.read(reference)), _by_channel(rttm.read(hypothesis))
    references = {key: rows for key, rows in references.items() if any(row.kind == "SPEAKER" for row in rows)}
    if not references or (hypotheses and not references.keys() & hypotheses.keys()):
        raise DataError(
            f"`{redact_uri(reference)}` and `{redact_uri(hypothesis)}` have no recording in common",
            code="no-common-ids",
            why=f"{_channels(references)} and {_channels(hypotheses)} were read, with their channels",
            fix="use the same names of recordings and channels in both",
        )
    judged_in = _by_channel(rttm.read_uem(uem)) if uem else {}
    total, rows = speakers.SpeakerTime(), []
    lengths_ms, warnings = _lengths(cfg, audio, sorted({session for session, _ in references})) if audio else ({}, [])
    for key, marks in sorted(references.items()):
        other, stretches = hypotheses.get(key, []), judged_in.get(key, [])
        judged = speakers.score_diarization(
            marks, other, stretches, collar_us=round(collar_s * 1e6), ignore_overlap=ignore_overlap
        )
        total += judged.time
        length_ms = lengths_ms.get(key[0])
        rows.append(RecordingScores(recording=key[0], channel=key[1], errors=judged, duration_ms=length_ms))
        warnings += [f"{key[0]}: {warning}" for warning in checks.check_turns(marks, other, stretches, length_ms)]
    for what, keys in (
        ("are not in the hypothesis, and all their speech is missed", references.keys() - hypotheses.keys()),
        ("of the hypothesis are not in the reference and were left out", hypotheses.keys() - references.keys()),
        ("are not in the UEM and are scored from their first turn to their last", references.keys() - judged_in.keys()),
    ):
        if keys and (uem or "UEM" not in what):
            warnings.append(f"{len(keys)} recordings {what}: {_channels(keys)}")
    return SpeakerScores(
        time=total,
        recordings=rows,
        has_audio=audio is not None,
        collar_s=collar_s,
        ignore_overlap=ignore_overlap,
        warnings=[*checks.check_speaker_time(total), *warnings],
        stamp=figures.stamp(None, {}),
    )


def _lengths(cfg: Config, audio: str, sessions: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Decode each recording to its end; return durations in ms by session, and warnings.

    Files are named as recordings are, whatever their ending; one file alone is that of a recording alone.
    """
    from voxstill.audio import (
        read_utterances,
    )
    from voxstill.indexing.formats.webdataset import AUDIO

    files: dict[str, list[str]] = {}
    if is_local(audio) and local_path(audio).is_file():
        files[sessions[0] if len(sessions) == 1 else PurePosixPath(audio).stem] = [audio]
    else:
        store = Store(audio)
        for entry in store.list():
            path = PurePosixPath(entry.key)
            if path.suffix[1:].lower() in AUDIO:
                files.setdefault(path.stem, []).append(store.uri(entry.key))
    lengths_ms, warnings = {}, []
    with read_utterances.reading(cfg).decoder() as decoder:
        for session in (name for name in sessions if name in files):
            uri = min(files[session])
            if len(files[session]) > 1:
                number = len(files[session])
                warnings.append(f"{session}: {number} files have this name; `{redact_uri(uri)}` is used")
            try:
                lengths_ms[session] = pcm.samples_to_ms(len(decoder.decode(read_uri(uri)).samples_T))
            except (DataError, StorageError) as error:
                warnings.append(f"{session}: the duration of its audio cannot be read: {error.what}")
    if missing := [session for session in sessions if session not in files]:
        warnings.append(f"{len(missing)} recordings have no audio in `{redact_uri(audio)}`: {_names(missing)}")
    return lengths_ms, warnings


def _by_channel(rows: Sequence[Timed]) -> dict[tuple[str, str], list[Timed]]:
    by_channel: dict[tuple[str, str], list[Timed]] = {}
    for row in rows:
        by_channel.setdefault((row.session, row.channel), []).append(row)
    return by_channel


def _channels(keys: Iterable[tuple[str, str]]) -> str:
    return _names([f"{session} {channel}" for session, channel in sorted(keys)])


def _names(names: Sequence[str]) -> str:
    return ", ".join([*(f"`{name}`" for name in names[:3]), *(["..."] if len(names) > 3 else [])]) or "none"


def _times(time: speakers.SpeakerTime) -> dict[str, float | None]:
    return {
        "der": time.rate,
        "scored_ms": time.scored_us / 1000,
        "missed_ms": time.missed_us / 1000,
        "false_alarm_ms": time.false_alarm_us / 1000,
        "confused_ms": time.confused_us / 1000,
    }
