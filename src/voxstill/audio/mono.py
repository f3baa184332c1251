"""From the blocks of a decoder to 16 kHz mono int16: channels, resampling, level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import soxr
from numpy.typing import NDArray

from voxstill.audio import flac, level
from voxstill.core.errors import DataError
from voxstill.core.records import RATE_HZ, Normalization

_RATES_HZ = range(1_000, 768_001)  # from low-rate telephony to the fastest studio converters
MAX_CHANNELS = 64
NO_SUCH_CHANNEL = "no such channel"
CANCELLED = 0.01
"""Energy of the mix as a share of the mean energy of its channels, below which they cancel: -20 dB. Where they have
nothing in common it is 1 / channels, and so never below -18 dB."""


class MonoResampler:
    """Down-mix and resample blocks to 16 kHz int16.

    Memory holds the output and one block; the output is float32 until its end where a gain is computed of it. With
    `write` the output goes there instead, a block at a time and before that gain.
    """

    def __init__(
        self,
        channel: int | None,
        max_s: float,
        gain: level.Gain = "none",
        header: flac.StreamInfo | None = None,
        write: Callable[[NDArray[Any]], None] | None = None,
    ) -> None:
        self.rate_hz = 0
        self.num_channels = 0
        self.num_samples = 0
        self.num_written = 0
        self.header = header
        self._md5 = None if header is None or header.md5 is None else flac.SampleHash(header.bits)
        self.meter = level.LevelMeter()
        self.gain_db: float | None = None if isinstance(gain, str) else gain
        self._target: Normalization | None = gain if isinstance(gain, str) and gain != "none" else None
        self._channel, self._max_s = channel, max_s
        self._resampler: soxr.ResampleStream | None = None
        self._write = write
        self._parts: list[NDArray[Any]] = []
        """Of int16; of float32 until all are there, where the gain is computed of them."""
        self._energy_C = np.zeros(1)
        """Of each channel, where channels are mixed."""
        self._mix_energy = 0.0
        self._has_equal_blocks = True

    def expect(self, rate_hz: int, num_channels: int) -> None:
        """Refuse a rate or a number of channels that no recording has."""
        if rate_hz not in _RATES_HZ:
            raise DataError(
                "impossible rate",
                code="audio-damaged",
                why=f"{rate_hz} Hz",
                fix="write the file again with its true sampling rate",
            )
        if not 1 <= num_channels <= MAX_CHANNELS:
            raise DataError(
                "impossible channels", code="audio-damaged", why=f"{num_channels} channels", fix="write the file again"
            )

    @property
    def block_type(self) -> Literal["int16", "int32", "float32"]:
        """The type of blocks that is wanted: integers where they are compared with a checksum, scaled to all bits."""
        return "float32" if self._md5 is None else self._md5.block_type

    def checksum_fault(self) -> DataError | None:
        """The error of samples that are not those of the MD5 in the header; None if it is theirs, or has none."""
        if self._md5 is None or self.header is None or self._md5.digest() == self.header.md5:
            return None
        return DataError(
            "damaged",
            code="audio-damaged",
            why="its samples do not match the MD5 in its header",
            fix="get an intact copy of the file",
        )

    def add(self, block_TC: NDArray[np.float32] | NDArray[np.int16] | NDArray[np.int32], rate_hz: int) -> None:
        """Add the next block. The number of channels may change between blocks, the rate may not."""
        if block_TC.dtype.kind == "i":
            if self._md5 is not None:
                self._md5.add(cast("NDArray[np.int16] | NDArray[np.int32]", block_TC))
            float_TC = block_TC.astype(np.float32)
            float_TC *= np.float32(2.0 ** (1 - 8 * block_TC.itemsize))
            self._add(float_TC, rate_hz)
        else:
            self._add(np.asarray(block_TC, np.float32), rate_hz)

    def _add(self, block_TC: NDArray[np.float32], rate_hz: int) -> None:
        num_samples, num_channels = block_TC.shape
        self.expect(rate_hz, num_channels)
        if not self.rate_hz:
            self.rate_hz = rate_hz
            if rate_hz != RATE_HZ:
                self._resampler = soxr.ResampleStream(rate_hz, RATE_HZ, 1, dtype="float32")
        if rate_hz != self.rate_hz:
            raise DataError(
                "changing rate", code="audio-damaged", why=f"{self.rate_hz} Hz, then {rate_hz} Hz", fix="split the file"
            )
        if self._channel is not None and self._channel >= num_channels:
            raise DataError(
                NO_SUCH_CHANNEL,
                code="not-in-audio",
                why=f"channel {self._channel} of {num_channels}",
                fix="choose another channel",
            )
        self.num_samples += num_samples
        self._has_equal_blocks &= self.num_channels in (0, num_channels)
        self.num_channels = max(self.num_channels, num_channels)
        if self.num_samples > self._max_s * rate_hz:
            raise DataError(
                "too long", code="audio-too-long", why=f"longer than {self._max_s:.0f} s", fix="split the file"
            )
        if self._channel is None and num_channels > 1:
            samples_T, used = _mean(block_TC), block_TC
            if self._has_equal_blocks:
                self._energy_C = self._energy_C + [np.dot(channel_T, channel_T) for channel_T in block_TC.T]
                self._mix_energy += float(np.dot(samples_T, samples_T))
        else:
            samples_T = used = np.ascontiguousarray(block_TC[:, self._channel or 0])
        if not np.isfinite(samples_T).all():
            raise DataError(
                "not finite",
                code="audio-damaged",
                why="a sample is infinite or not a number",
                fix="write the file again",
            )
        self.meter.add(used, samples_T)
        self._resample(samples_T, last=False)

    def finish(self) -> NDArray[np.int16]:
        """Flush the resampler, apply the gain and return all samples; none where they were written."""
        self._resample(np.empty(0, np.float32), last=True)
        if self._write is not None:
            return np.empty(0, np.int16)
        if self._target is not None:
            self.gain_db = level.gain_db(self._parts, self._target)
            for i, part_T in enumerate(self._parts):
                self._parts[i] = level.quantized(part_T, self.gain_db)
        return np.concatenate(self._parts) if len(self._parts) != 1 else self._parts[0]

    @property
    def louder_channel(self) -> int | None:
        """The loudest channel where the channels cancel one another in the mix of the whole recording; else None."""
        if not self._has_equal_blocks or not self._mix_energy < CANCELLED * self._energy_C.mean():
            return None
        return int(self._energy_C.argmax())

    def _resample(self, samples_T: NDArray[np.float32], *, last: bool) -> None:
        if self._resampler is not None:
            samples_T = self._resampler.resample_chunk(samples_T, last=last)
        part_T = samples_T if self._target is not None else level.quantized(samples_T, self.gain_db)
        self.num_written += len(part_T)
        if self._write is not None:
            self._write(part_T)
        elif len(samples_T) or not self._parts:
            self._parts.append(part_T)


def _mean(block_TC: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of the channels; that of two the fast way, with the same result."""
    if block_TC.shape[1] == 2:
        return (block_TC[:, 0] + block_TC[:, 1]) / np.float32(2)
    mean_T: NDArray[np.float32] = block_TC.mean(axis=1)
    return mean_T
