"""Options of the transcription server and of live transcription."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from voxstill.core.config.section import Section, option
from voxstill.core.errors import ConfigError


class Serve(Section):
    """How `voxstill serve` answers requests, and how live audio is transcribed."""

    max_upload_mb: int = option(100, unit="MB", ge=1, le=4096)
    """Largest request; a larger one is answered with 413. OpenAI takes 25 MB."""
    max_audio_s: float = option(14_400.0, unit="s", gt=0, le=21_600)
    """Longest recording; a longer one is answered with 413."""
    max_queue_s: float = option(120.0, unit="s of audio", gt=0)
    """Audio that may wait to be decoded and for one version of a model; what comes on top is answered with 429 and
    Retry-After, before it is read where no version has room."""
    decoders: int = option(2, unit="processes", ge=1, le=256)
    """Processes that decode uploads, one recording at a time each."""
    threads: int = option(1, unit="threads", ge=1, le=1024)
    """CPU threads of the models."""
    grace_s: float = option(5.0, unit="s", ge=0, le=3600)
    """After a SIGTERM `/ready` answers 503 for so long before connections are closed, so that load balancers send no
    more requests."""
    drain_s: float = option(60.0, unit="s", gt=0, le=3600)
    """Requests under way have so long to be answered when the server stops."""
    partial_every_ms: int = option(240, unit="ms", ge=100, le=10_000)
    """Live audio is transcribed again this often. Shorter shows words sooner; more of them are wrong, and it costs
    more. A streaming student takes its chunks instead."""
    min_replicas: int = option(1, unit="replicas", ge=1)
    """With `--ray`: processes that serve at least, on all machines together."""
    max_replicas: int | None = option(None, unit="replicas", ge=1)
    """With `--ray`: processes that serve at most; Ray starts and ends them so that each has `replica_requests`. Null:
    `min_replicas`, always."""
    replica_requests: float = option(16.0, unit="requests", gt=0)
    """Requests that one replica should have under way, on average."""
    replica_cpus: float = option(1.0, unit="cores", ge=0)
    """CPU cores that Ray reserves for a replica."""
    replica_gpus: float = option(0.0, unit="GPUs", ge=0)
    """GPUs, or a share of one, that Ray reserves for a replica."""

    @model_validator(mode="after")
    def _replicas_have_a_range(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ConfigError(
                f"`serve.max_replicas` is {self.max_replicas}, and `serve.min_replicas` {self.min_replicas}",
                code="option-conflict",
                why="the minimum must not exceed the maximum",
                fix="raise `serve.max_replicas`",
            )
        return self
