"""Files in, recordings and utterances out: a row for every file, whatever is in it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from voxstill.audio import codec, vad
from voxstill.config import Segment, Source
from voxstill.errors import ConfigError, DataError, StorageError
from voxstill.factory import scan
from voxstill.records import Recording, Utterance, fingerprint
from voxstill.store import read_uri

_SLACK_MS = 250  # a manifest may round up this much past the end of the audio


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """One file: its recording and, where that has no error, its utterances."""

    recording: Recording
    utterances: tuple[Utterance, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    """Makes the work of the index for the engine: files in, one `Indexed` for each out, in order."""

    cfg: Segment
    source: Source
    seed: int

    def __call__(self) -> Callable[[Sequence[scan.File], Any], list[Indexed]]:
        """The work itself; it needs nothing but the options."""
        return lambda files, _: [index(file, self.cfg, self.source, self.seed) for file in files]


def index(file: scan.File, cfg: Segment, source: Source, seed: int) -> Indexed:
    """Read, decode and divide one file; whatever is wrong with it is its recording's `error`."""
    try:
        audio = codec.decode(read_uri(file.found[0].uri))
        return _divide(file, audio, cfg, source, seed)
    except ConfigError:
        raise  # not the file's fault
    except StorageError as error:
        return set_aside(file, f"cannot be read: {error.why}")
    except DataError as error:
        return set_aside(file, f"{error.what}: {error.why}")
    except Exception as error:
        return set_aside(file, f"cannot be decoded: {type(error).__name__}: {error}")


def set_aside(file: scan.File, reason: str) -> Indexed:
    """The row of a file that cannot be used; the words before the colon say why in a way that can be counted."""
    first = file.found[0]
    return Indexed(
        recording=Recording(id=file.id, uri=first.uri, etag=first.etag, num_bytes=first.num_bytes, error=reason)
    )


def _divide(file: scan.File, audio: codec.Audio, cfg: Segment, source: Source, seed: int) -> Indexed:
    """Utterances of a sound file. Words that were written for more than one piece belong to none of them."""
    duration_ms = codec.samples_to_ms(len(audio.samples_T))
    if duration_ms < cfg.min_ms:
        raise DataError("too short", why=f"it lasts {duration_ms} ms and `segment.min_ms` is {cfg.min_ms}")
    utterances: dict[str, Utterance] = {}
    for found in file.found:
        start, end = _stretch(found, duration_ms)
        for piece in _pieces(found, audio, (start, end), cfg):
            whole = piece == (start, end)
            id_ = found.id if whole and found.id else fingerprint(file.id, None, *piece)
            utterances[id_] = Utterance(
                id=id_,
                recording_id=file.id,
                uri=found.uri,
                start_ms=piece[0],
                end_ms=piece[1],
                split=scan.split_of(found, source, seed),
                language=found.language or source.language,
                speaker=found.speaker,
                dialect=found.dialect,
                dataset=found.dataset or source.dataset,
                text=found.text if whole else None,
            )
    if not utterances:
        raise DataError("no speech", why="the voice-activity detector heard none")
    first = file.found[0]
    recording = Recording(
        id=file.id,
        uri=first.uri,
        etag=first.etag,
        num_bytes=first.num_bytes,
        codec=audio.codec,
        rate_hz=audio.rate_hz,
        num_channels=audio.num_channels,
        duration_ms=duration_ms,
    )
    return Indexed(recording=recording, utterances=tuple(utterances.values()))


def _stretch(found: scan.Found, duration_ms: int) -> vad.Span:
    """What the manifest means of the file; where that lies past its end, the manifest speaks of other audio."""
    start, end = found.start_ms or 0, duration_ms if found.end_ms is None else found.end_ms
    if start >= duration_ms or end > duration_ms + _SLACK_MS:
        why = f"the manifest knows {start} to {end} ms, the audio ends at {duration_ms} ms"
        raise DataError("beyond the end", why=why)
    return start, min(end, duration_ms)


def _pieces(found: scan.Found, audio: codec.Audio, stretch: vad.Span, cfg: Segment) -> list[vad.Span]:
    start, end = stretch
    by_hand = found.text is not None or found.start_ms is not None or found.end_ms is not None
    if by_hand and end - start <= cfg.max_ms:
        return [stretch]
    samples_T = audio.samples_T[codec.ms_to_samples(start) : codec.ms_to_samples(end)]
    return [(start + left, start + right) for left, right in vad.utterances(samples_T, cfg)]
