"""Which channels of a file become utterances, as `source.channels` and the manifest say, and their audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from voxstill.audio import codec
from voxstill.audio.mono import MAX_CHANNELS, NO_SUCH_CHANNEL
from voxstill.core.errors import DataError
from voxstill.indexing.formats.entry import SourceEntry

AudioByChannel = Mapping[int | None, codec.Audio | DataError]
"""The audio of each channel, or why it cannot be used; that of None is the mix of all."""


def decoded(
    entries: Sequence[SourceEntry], channels: Literal["mix", "split"] | int, decode: Callable[..., codec.Audio]
) -> tuple[tuple[SourceEntry, ...], AudioByChannel]:
    """The entries of a file, each with the channel that it is of, and the audio of these channels.

    Where recordings are split, an entry without a channel becomes one for each, without the words and the id that were
    given to all of them. Raises the error of a file of which no channel can be used.
    """
    by_channel: dict[int | None, codec.Audio | DataError] = {}
    if channels == "split" and any(entry.channel is None for entry in entries):
        by_channel = _all_channels(decode)
        entries = [one for entry in entries for one in _split(entry, list(by_channel))]
    elif isinstance(channels, int):
        entries = [replace(entry, channel=channels) if entry.channel is None else entry for entry in entries]
    for channel in dict.fromkeys(entry.channel for entry in entries):
        if channel not in by_channel:
            by_channel[channel] = _audio_or_error(decode, channel)
    if all(isinstance(audio, DataError) for audio in by_channel.values()):
        raise next(error for error in by_channel.values() if isinstance(error, DataError))
    return tuple(entries), by_channel


def _all_channels(decode: Callable[..., codec.Audio]) -> dict[int | None, codec.Audio | DataError]:
    """The audio of every channel, of which some may be silent; that of a mono file is its mix."""
    by_channel: dict[int | None, codec.Audio | DataError] = {}
    for channel in range(MAX_CHANNELS):
        audio = _audio_or_error(decode, channel)
        if isinstance(audio, DataError) and not isinstance(audio, codec.SilentError):
            if channel == 0 or audio.what != NO_SUCH_CHANNEL:
                raise audio
            break
        if isinstance(audio, codec.Audio) and audio.num_channels == 1:
            return {None: audio}
        by_channel[channel] = audio
        if isinstance(audio, codec.Audio) and channel + 1 == audio.num_channels:
            break
    return by_channel


def _audio_or_error(decode: Callable[..., codec.Audio], channel: int | None) -> codec.Audio | DataError:
    try:
        return decode(channel=channel)
    except DataError as error:
        return error


def _split(entry: SourceEntry, channels: Sequence[int | None]) -> list[SourceEntry]:
    if entry.channel is not None or channels == [None]:
        return [entry]
    return [replace(entry, channel=channel, id=None, implied_id=None, text=None, words=None) for channel in channels]
