"""The name of the table of utterances, which every step asks for."""

from __future__ import annotations

from voxstill.core.config import Config, identity
from voxstill.diarization import registry
from voxstill.storage import workdir
from voxstill.storage.store import Store


def utterances_recipe(cfg: Config) -> str:
    """Name of the table of utterances that this configuration segments."""
    source = [identity(one) for one in cfg.source] if isinstance(cfg.source, list) else cfg.source
    audio = [identity(cfg.audio)] if identity(cfg.audio) else []  # at its defaults tables keep the names they had
    diarize = [{"diarize": turns}] if (turns := registry.identity_of(cfg.diarize)) else []
    return workdir.recipe(Store(cfg.work), "utterances", "segment", cfg.segment, source, cfg.seed, *audio, *diarize)
