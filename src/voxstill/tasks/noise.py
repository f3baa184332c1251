"""The noise bank of the augmentation: recordings of noise and room impulse responses, read from anywhere."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from voxstill.audio.decoder import Decoder
from voxstill.core.config import Augment, Engine, Source
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ
from voxstill.indexing.scan import scan
from voxstill.nn.augment_waveform import NoiseBank
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri

MOST_S = {"augment.noise": 7200, "augment.rirs": 600}
"""Seconds kept in memory, on each device."""


def load(cfg: Augment) -> NoiseBank:
    """What `augment.noise` and `augment.rirs` name: all of it, or as many files as are kept, the same each time.

    A file that cannot be read is named in the log; DataError if none can.
    """
    return NoiseBank.from_recordings(_read("augment.noise", cfg.noise), _read("augment.rirs", cfg.rirs))


def _read(option: str, uri: str | None) -> list[Tensor]:
    if uri is None:
        return []
    uris = sorted({entry.uri for entry in scan(Source(uri=uri))})
    random.Random(0).shuffle(uris)  # of a corpus that is too large something of everything is kept
    kept: list[Tensor] = []
    num_left, reason = MOST_S[option] * RATE_HZ, f"there are no files in {redact_uri(uri)}"
    with Decoder(Engine().decode_s, Engine().decode_mb) as decoder:
        for file_uri in uris:
            try:
                kept.append(torch.from_numpy(decoder.decode(read_uri(file_uri)).samples_T[:num_left].copy()))
            except VoxstillError as error:
                reason = f"{redact_uri(file_uri)}: {error.what}" + (f": {error.why}" if error.why else "")
                log.warning("%s: %s", option, reason)
                continue
            num_left -= len(kept[-1])
            if num_left <= 0:
                log.info("%s: %d files, %d of them used, %.1f h", option, len(uris), len(kept), MOST_S[option] / 3600)
                break
    if not kept:
        raise DataError(f"`{option}` has no audio", code="no-audio", why=reason, fix="give a folder with audio files")
    return kept
