"""Speakers of a recording by diarization: its utterances are cut where another one begins to speak."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from voxstill.audio import codec, vad
from voxstill.diarization.diarizer import Diarization
from voxstill.diarization.turns import Turn
from voxstill.indexing.channels import AudioByChannel
from voxstill.indexing.formats.entry import SourceEntry

Diarize = Callable[[vad.Samples], Diarization]
Spoken = tuple[vad.Span, str | None]
"""A span and its speaker, None where nobody speaks in it or nothing was diarized."""


class SpeakersByChannel:
    """The turns of each channel of a recording, found when they are first asked for.

    A speaker is named after the recording, and numbered from 1 through all of its channels: `<recording>/1`.
    """

    def __init__(self, recording_id: str, by_channel: AudioByChannel, diarize: Diarize | None) -> None:
        self._recording_id, self._by_channel, self._diarize = recording_id, by_channel, diarize
        self._turns: dict[int | None, tuple[Turn, ...]] = {}
        self._doubts: list[str] = []
        self._num_speakers = 0

    @property
    def doubts(self) -> tuple[str, ...] | None:
        """Why channels have no speakers, or doubtful ones; None where no channel was diarized."""
        return tuple(self._doubts) if self._turns else None

    def cut(self, entry: SourceEntry, spans: Sequence[vad.Span], min_ms: int) -> Iterator[Spoken]:
        """The spans of an entry with their speakers, cut where these change; pieces are at least `min_ms` long.

        An entry with a speaker keeps its spans as they are. What the manifest has cut or has words for is not cut where
        it is one utterance, and its speaker is the one who speaks longest in it.
        """
        if self._diarize is None or entry.info.speaker is not None:
            yield from ((span, None) for span in spans)
            return
        turns = self._turns_of(entry.channel, self._diarize)
        is_whole = entry.is_cut and len(spans) == 1
        for span in spans:
            pieces = [(span, longest(turns, span))] if is_whole else cut_at_turns(turns, span, min_ms)
            yield from ((piece, None if speaker is None else self._name(speaker)) for piece, speaker in pieces)

    def _turns_of(self, channel: int | None, diarize: Diarize) -> tuple[Turn, ...]:
        if channel not in self._turns:
            audio = self._by_channel[channel]
            assert isinstance(audio, codec.Audio)  # entries of other channels have no utterances
            result = diarize(audio.samples_T)
            self._doubts += [doubt for doubt in (result.error, result.warning) if doubt is not None]
            self._turns[channel] = tuple(
                replace(turn, speaker=turn.speaker + self._num_speakers) for turn in result.turns
            )
            self._num_speakers += result.num_speakers
        return self._turns[channel]

    def _name(self, speaker: int) -> str:
        return f"{self._recording_id}/{speaker}"


def longest(turns: Sequence[Turn], span: vad.Span) -> int | None:
    """The speaker with most time in a span; None where nobody speaks."""
    time_ms: dict[int, int] = {}
    for turn in turns:
        shared_ms = min(turn.end_ms, span[1]) - max(turn.start_ms, span[0])
        if shared_ms > 0:
            time_ms[turn.speaker] = time_ms.get(turn.speaker, 0) + shared_ms
    return max(time_ms, key=lambda speaker: (time_ms[speaker], -speaker), default=None)


def cut_at_turns(turns: Sequence[Turn], span: vad.Span, min_ms: int) -> list[tuple[vad.Span, int | None]]:
    """Cut a span where another speaker begins: in the middle of the pause, or of the overlap, between two turns.

    A turn within another's is passed over, for no cut gives it audio of its own. A piece shorter than `min_ms` stays
    with the one before it.
    """
    start_ms, end_ms = span
    line = [turn for turn in _leading(turns) if turn.end_ms > start_ms and turn.start_ms < end_ms]
    cuts = [
        max(start_ms, min(end_ms, (left.end_ms + right.start_ms) // 2))
        for left, right in itertools.pairwise(line)
        if left.speaker != right.speaker
    ]
    pieces: list[tuple[vad.Span, int | None]] = []
    begin_ms = start_ms
    for cut_ms in [*cuts, end_ms]:
        if cut_ms - begin_ms < min_ms and pieces:
            (first_ms, _), speaker = pieces[-1]
            pieces[-1] = ((first_ms, cut_ms), speaker)
        elif cut_ms - begin_ms >= min_ms or cut_ms == end_ms:
            speaker = longest(turns, (begin_ms, cut_ms))
            if pieces and pieces[-1][1] == speaker:
                pieces[-1] = ((pieces[-1][0][0], cut_ms), speaker)
            else:
                pieces.append(((begin_ms, cut_ms), speaker))
        else:
            continue  # too short at the start: it is a part of what follows
        begin_ms = cut_ms
    return pieces


def _leading(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns in order, without those that end before an earlier one does."""
    latest_ms = -1
    for turn in turns:
        if turn.end_ms > latest_ms:
            latest_ms = turn.end_ms
            yield turn
