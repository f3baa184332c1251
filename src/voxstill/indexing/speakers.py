"""Speakers of a recording by diarization: its utterances are cut where another one begins to speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from voxstill.audio import codec, vad
from voxstill.diarization.cutting import cut_at_turns, longest
from voxstill.diarization.diarizer import Diarization
from voxstill.diarization.turns import Turn
from voxstill.indexing.channels import AudioByChannel
from voxstill.indexing.formats.entry import SourceEntry

Diarize = Callable[[vad.Samples], Diarization]
Spoken = tuple[vad.Span, str | None]
"""A span and its speaker, None without speech or diarization."""


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
        """Why channels have no speakers, or doubtful ones; None if no channel was diarized."""
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
