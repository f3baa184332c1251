"""Options of the engine that runs the steps, and of what a run reports."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from voxstill.core.config.section import Section, option

RAY_OWN = {"CPU": "teacher_cpus", "GPU": "teacher_gpus", "memory": None, "object_store_memory": "object_store_memory"}
"""Resources that Ray itself counts, and the option for each."""


class Engine(Section):
    """Who does the work: a Ray cluster, or the calling process."""

    name: Literal["ray", "inline"] = option("ray")
    """`ray` spreads chunks over workers; `inline` runs the same stages in this process (tests, small corpora)."""
    address: str | None = option(None)
    """Ray cluster to join; unset starts one on this machine."""
    object_store_memory: int | None = option(None, unit="bytes", ge=75 << 20, pace=True)
    """Shared memory of the Ray that is started here, for audio on its way; unset takes an eighth of the memory, at most
    8 GiB. A cluster that is joined has its own."""
    workers: int | None = option(None, unit="processes", ge=1)
    """CPU workers that fetch and decode; unset takes one for each core of the cluster."""
    teachers: int | None = option(None, unit="processes", ge=1)
    """Teachers side by side; unset takes as many as fit on the GPUs, or one for each core without `teacher_gpus`."""
    teacher_cpus: float = option(1, unit="cores", gt=0)
    """Cores that each teacher reserves, and the threads of its libraries."""
    teacher_gpus: float = option(0, unit="GPUs", ge=0)
    """GPUs that each teacher reserves: 0.5 puts two on one GPU, 2 gives two to each for tensor parallelism."""
    resources: dict[str, float] = option({}, pace=True)
    """Resources of the Ray cluster that each of `workers` reserves, by their names there: `{big_disk: 1}`."""
    teacher_resources: dict[str, float] = option({}, pace=True)
    """Resources of the Ray cluster that each teacher reserves besides CPUs and GPUs: `{TPU: 4}`."""
    chunk: int = option(256, unit="utterances", ge=1)
    """Unit of work, of retry and of output."""
    chunk_hours: float = option(4.0, unit="h of audio", gt=0)
    """Most audio in a chunk, so that long recordings do not outlive `engine.lease_s`. The index estimates it from the
    size of a file. A chunk ends between two recordings where it can: each chunk decodes its recordings anew."""
    in_flight: int = option(2, unit="chunks", ge=1, le=1000)
    """Chunks handed to one worker at a time; this is the back-pressure. A teacher that transcribes two chunks at once
    is handed one more."""
    attempts: int = option(3, unit="tries", ge=1, le=1_000_000)
    """A chunk that fails so often is halved, down to the one utterance at fault, which is set aside with its reason."""
    max_failed_share: float = option(0.2, unit="share", ge=0, le=1)
    """Share of files or utterances that may fail: above it `index` and `label` say so and end with an exit code."""
    decode_s: float = option(120.0, unit="s", gt=0)
    """A recording that takes longer to decode is a row with that reason: some files make a decoder run for ever."""
    decode_mb: int = option(4096, unit="MB", ge=64)
    """Memory that the decoder of one recording may take: six hours of audio take 2 GB, a decompression bomb any."""
    lease_s: float = option(600.0, unit="s", gt=0, le=1_000_000)
    """A chunk not back after this long is taken from its worker, which is ended, and given to others in halves. A slow
    teacher wants a smaller `engine.chunk` or `engine.chunk_hours`, or a longer lease."""

    @field_validator("resources", "teacher_resources")
    @classmethod
    def _resources_are_custom(cls, resources: dict[str, float]) -> dict[str, float]:
        for name, amount in resources.items():
            if name in RAY_OWN:
                instead = f": set `engine.{RAY_OWN[name]}`" if RAY_OWN[name] else ""
                raise ValueError(f"`{name}` is counted by Ray itself{instead}")
            if not amount > 0:
                raise ValueError(f"the amount of `{name}` must be above 0")
        return resources


class Monitor(Section):
    """What a run tells while it works."""

    port: int | None = option(None, ge=0, le=65_535)
    """Prometheus scrapes `/metrics` of a run at this port; 0 lets the system choose, unset serves nothing."""
    host: str = option("127.0.0.1")
    """Address that is listened on: only this machine can ask, unless another is set. Another needs TLS and a token, or
    `insecure`."""
    tls_cert: str | None = option(None)
    """PEM file of the certificate with which metrics are served by HTTPS."""
    tls_key: str | None = option(None)
    """PEM file of its key, where `tls_cert` does not hold it."""
    insecure: bool = option(False)
    """Whether anyone who reaches `host` may read the metrics, without TLS and without a token."""
    discovery: str | None = option(None)
    """Folder of files for Prometheus' `file_sd_configs`: a run writes where its metrics are, and removes it at the
    end."""
    log_level: Literal["debug", "info", "warning", "error"] = option("info")
    """Messages of this weight and above are shown; `--log-level` is the same."""
    log_format: Literal["text", "json"] = option("text")
    """Messages are lines of text, or objects of JSON, one a line; `--log-format` is the same."""
