"""Options of the audio itself: its level."""

from __future__ import annotations

from voxstill.core.config.section import Section, option
from voxstill.core.records import Normalization


class Audio(Section):
    """How audio becomes 16-bit samples."""

    normalize: Normalization = option("none")
    """Level of each recording before its samples are rounded to 16 bits: `peak` brings its peak to -1 dBFS, `rms` its
    mean level to -20 dBFS, `loudness` its loudness (ITU-R BS.1770) to -23 LUFS; no peak is above -1 dBFS. `none` rounds
    the samples as they are and clips what is beyond full scale."""
