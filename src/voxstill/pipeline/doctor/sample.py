"""What a sample of the audio sounds like: silence, clipping, and copies that were encoded again."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxstill.audio import read_utterances
from voxstill.audio.codec import SilentError
from voxstill.audio.level import MAX_CLIPPED, level_of
from voxstill.core.config import Config
from voxstill.core.errors import VoxstillError
from voxstill.core.records import Utterance, content_hash
from voxstill.pipeline.doctor.checks import Check, above, judged
from voxstill.storage import tables
from voxstill.storage.store import Store

NUM_SAMPLED = 200
NUM_PAIRS = 20
"""Utterances of one length and text, of two recordings, that are compared."""
_check = functools.partial(judged, "corpus")
_LIMIT_S = 20.0
_SILENT_PEAK = 10 ** (-50 / 20)
"""Share of full scale: speech that was recorded at all is louder."""
_SILENT = (0.01, 0.2)
_CLIPPED = (0.05, 0.5)
_UNREAD = (0.01, 0.2)
_MAX_ROWS = 2_000_000
"""Of a larger corpus the first so many are drawn from."""


@dataclass(slots=True)
class _Counts:
    read: int = 0
    silent: int = 0
    clipped: int = 0
    unread: int = 0
    first_silent: str = ""
    first_clipped: str = ""
    reason: str = ""


def checks(work: Store, parts: Sequence[str], cfg: Config) -> list[Check]:
    """Decode a sample of the utterances, and pairs that may be copies, for a limited time."""
    rows = _rows(work, parts)
    if not rows:
        return []
    random = np.random.default_rng(0)
    chosen = [rows[i] for i in sorted(random.permutation(len(rows))[:NUM_SAMPLED].tolist())]
    pairs = _pairs(rows)
    counts, hashes = _Counts(), dict[str, str]()
    give_up_s = time.monotonic() + _LIMIT_S
    reading = read_utterances.reading(cfg.model_copy(update={"work": work.root}))
    with reading.decoder() as decoder:
        wanted = [*chosen, *(one for pair in pairs for one in pair)]
        sampled = {utterance.id for utterance in chosen}
        for utterance, audio in read_utterances.samples(wanted, reading.cache, decoder.decode, reading.contents):
            if time.monotonic() > give_up_s:
                break
            if utterance.id in sampled:
                sampled.discard(utterance.id)
                _count(counts, utterance, audio)
            if not isinstance(audio, VoxstillError):
                hashes[utterance.id] = content_hash(audio.tobytes())
    return [*_judged(counts, len(rows)), *_copies(pairs, hashes)]


def _count(counts: _Counts, utterance: Utterance, audio: NDArray[np.int16] | VoxstillError) -> None:
    if isinstance(audio, VoxstillError) and not isinstance(audio, SilentError):
        counts.unread += 1
        counts.reason = counts.reason or f"`{utterance.id}`: {audio.what}"
        return
    counts.read += 1
    level = None if isinstance(audio, VoxstillError) else level_of(audio)
    if level is None or level.peak < _SILENT_PEAK:
        counts.silent += 1
        counts.first_silent = counts.first_silent or utterance.id
    elif level.clipped > MAX_CLIPPED:
        counts.clipped += 1
        counts.first_clipped = counts.first_clipped or utterance.id


def _judged(counts: _Counts, num: int) -> Iterator[Check]:
    of = f"of {counts.read:,} utterances that were decoded, of {num:,}"
    tried = max(1, counts.read + counts.unread)
    if counts.unread:
        text = f"{counts.unread:,} of {tried:,} utterances could not be read, such as {counts.reason}"
        fix = "restore the recordings, or run `voxstill index` again"
        yield _check("audio", above(counts.unread / tried, _UNREAD), text, fix)
    silent, clipped = (num / max(1, counts.read) for num in (counts.silent, counts.clipped))
    such = f", such as `{counts.first_silent}`" if counts.silent else ""
    fix = (
        "remove them from the source or with `voxstill remove WORK --ids FILE`, and check for a dead channel or device"
    )
    yield _check("silence", above(silent, _SILENT), f"{counts.silent:,} {of}, are silent{such}", fix)
    such = f", such as `{counts.first_clipped}`" if counts.clipped else ""
    text = f"{counts.clipped:,} {of}, have more than {MAX_CLIPPED:.1%} of their samples at full scale{such}"
    fix = "use recordings with a lower gain, or leave these out: clipped peaks cannot be restored"
    yield _check("clipping", above(clipped, _CLIPPED), text, fix)


def _pairs(rows: Sequence[Utterance]) -> list[tuple[Utterance, Utterance]]:
    """Pairs of one length and text from two recordings, those first of which one is held out."""
    first: dict[tuple[int, str | None], Utterance] = {}
    pairs = []
    for row in rows:
        other = first.setdefault((row.duration_ms, row.text), row)
        if other.recording_id != row.recording_id:
            pairs.append((other, row))
    pairs.sort(key=lambda pair: pair[0].split == pair[1].split)
    return pairs[:NUM_PAIRS]


def _copies(pairs: Sequence[tuple[Utterance, Utterance]], hashes: dict[str, str]) -> Iterator[Check]:
    """Utterances of equal samples, though their files differ, as of a copy in another format."""
    compared = [pair for pair in pairs if pair[0].id in hashes and pair[1].id in hashes]
    copies = [pair for pair in compared if hashes[pair[0].id] == hashes[pair[1].id]]
    if not copies:
        return
    one, other = copies[0]
    held_out = sum(pair[0].split != pair[1].split for pair in copies)
    text = (
        f"{len(copies):,} of {len(compared):,} pairs of the same length and text have the same samples in two "
        "files, such "
        f"as `{one.uri}` and `{other.uri}`; {held_out:,} of them are in two splits"
    )
    fix = "leave one of each pair out of the source"
    yield _check("copies", "fail" if held_out else "warn", text, fix)


def _rows(work: Store, parts: Sequence[str]) -> list[Utterance]:
    """The utterances, without their words; of a large corpus the first ones of each part."""
    names = ("id", "recording_id", "uri", "channel", "start_ms", "end_ms", "split", "text", "gain_db")
    rows: list[Utterance] = []
    for table in tables.columns(work, parts, Utterance, names):
        if len(rows) >= _MAX_ROWS:
            break
        rows += (tables.from_columns(row, Utterance) for row in table.to_pylist())
    return rows
