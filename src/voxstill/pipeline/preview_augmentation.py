"""explain --hear: write augmented audio as WAV files to listen to, each augmentation alone and all together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from voxstill.audio import codec
from voxstill.audio.decoder import Decoder
from voxstill.core import pcm
from voxstill.core.config import Augment, Config
from voxstill.core.errors import DataError, VoxstillError
from voxstill.core.monitor import log
from voxstill.core.records import RATE_HZ
from voxstill.core.result import Result
from voxstill.indexing.scan import scan
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_uri
from voxstill.tasks import noise as noises
from voxstill.tasks.recognition import frontend_of

_OFF: dict[str, float] = {
    "noise_prob": 0.0,
    "rir_prob": 0.0,
    "gain_db": 0.0,
    "tempo": 0.0,
    "vtlp": 0.0,
    "time_masks": 0,
    "mel_masks": 0,
}
"""Options of the augmentation that leave everything as it is."""
_FILES, _LONGEST_S = 4, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Result):
    """The files that were written: `file`, its `source`, and `what` was done to it."""

    files: Sequence[Mapping[str, str]]

    def to_text(self) -> str:
        """A line for each file."""
        return "\n".join(f"{row['file']}: {row['what']}" for row in self.files)


def augmentation(cfg: Config, folder: Path) -> Preview:
    """Write audio of the source as WAV files: unchanged, through the student's features, and with each augmentation.

    What happens to a share of the utterances happens to each of them here. DataError if nothing can be read.
    """
    torch.set_num_threads(cfg.train.threads)
    read = _some_audio(cfg)
    audio_BT = torch.nn.utils.rnn.pad_sequence([samples_T for _, samples_T in read], batch_first=True)
    audio_len_B = torch.tensor([len(samples_T) for _, samples_T in read])
    folder.mkdir(parents=True, exist_ok=True)
    files: list[dict[str, str]] = []

    def write(name: str, wave_BT: torch.Tensor, len_B: torch.Tensor, what: str) -> None:
        for (uri, _), wave_T, num in zip(read, wave_BT, len_B.tolist(), strict=True):
            path = folder / f"{len(files) % len(read) + 1}-{name}.wav"
            samples_T = pcm.quantize(wave_T[:num].clamp(-1, 1).numpy())
            path.write_bytes(codec.encode(samples_T, "wav"))
            files.append({"file": str(path), "source": redact_uri(uri), "what": what})

    write("before", audio_BT.float() / pcm.FULL_SCALE, audio_len_B, "original")
    noise_bank = noises.load(cfg.augment)
    for name, options, what in _augmentations(cfg.augment, frontend_of(cfg, None).has_mel_features):
        one = cfg.augment.model_copy(update={**_OFF, **options})
        frontend = frontend_of(cfg.model_copy(update={"augment": one}), noise_bank)
        tempo_B = 1 + one.tempo * torch.tensor([1.0, -1.0] * len(read))[: len(read)]
        generator = torch.Generator().manual_seed(cfg.seed)
        wave_BT, len_B = frontend.to_waveform(audio_BT, audio_len_B, tempo_B, generator)
        write(name, wave_BT, len_B, what)
    return Preview(files=files)


def _augmentations(cfg: Augment, has_mel_features: bool) -> Iterator[tuple[str, dict[str, float], str]]:
    """Name of each augmentation that is on, the options that are its own, and what it is."""
    noise = {"noise_prob": 1.0} if cfg.noise_prob else {}
    room = {"rir_prob": 1.0} if cfg.rir_prob and cfg.rirs else {}
    gain = {"gain_db": cfg.gain_db} if cfg.gain_db else {}
    tempo = {"tempo": cfg.tempo} if cfg.tempo else {}
    vtlp = {"vtlp": cfg.vtlp} if cfg.vtlp and has_mel_features else {}
    masks: dict[str, float] = {"time_masks": cfg.time_masks, "mel_masks": cfg.mel_masks} if has_mel_features else {}
    yield "heard", {}, "as the student gets it, without augmentation"
    if noise:
        yield "noise", noise, f"noise at {cfg.min_snr_db:g} to {cfg.max_snr_db:g} dB"
    if room:
        yield "room", room, "with reverberation"
    if gain:
        yield "gain", gain, f"gain changed by up to {cfg.gain_db:g} dB"
    if tempo:
        yield "tempo", tempo, f"tempo changed by {cfg.tempo:.0%}"
    if vtlp:
        yield "warp", vtlp, f"vocal tract length changed by up to {cfg.vtlp:.0%}"
    if any(masks.values()):
        yield "masks", masks, "time and frequency masks"
    yield "all", noise | room | gain | tempo | vtlp | masks, "all together"


def _some_audio(cfg: Config) -> list[tuple[str, torch.Tensor]]:
    """Read the first files of the source that can be decoded; return their addresses and samples."""
    read: list[tuple[str, torch.Tensor]] = []
    reason = "the source is empty"
    with Decoder(cfg.engine.decode_s, cfg.engine.decode_mb) as decoder:
        for entry in scan(cfg.source):
            if entry.uri in {uri for uri, _ in read}:
                continue
            try:
                samples_T = decoder.decode(read_uri(entry.uri)).samples_T[: _LONGEST_S * RATE_HZ].copy()
            except VoxstillError as error:
                reason = f"{redact_uri(entry.uri)}: {error.what}"
                log.warning("%s", reason)
                continue
            read.append((entry.uri, torch.from_numpy(samples_T)))
            if len(read) == _FILES:
                break
    if not read:
        raise DataError("there is no audio to preview", code="no-audio", why=reason, fix="give audio in `source.uri`")
    return read
