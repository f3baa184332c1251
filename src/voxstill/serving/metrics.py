"""The figures of the server for Prometheus. Labels are names of models and versions, and never what clients send."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from voxstill.core.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_MODEL = ""
"""The label of requests that name no model of the server."""
_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128)
_VERSION = ("model", "version")


class ServerMetrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "voxstill_requests", "Requests answered.", (*_VERSION, "endpoint", "status"), registry=registry
        )
        self.audio_s = Counter("voxstill_audio_seconds", "Audio transcribed.", _VERSION, registry=registry)
        self.latency_s = Histogram(
            "voxstill_request_seconds",
            "From the last byte of a request to the last byte of its answer, by model.",
            ("model", "endpoint"),
            registry=registry,
            buckets=_LATENCY_S,
        )
        self.batch = Histogram(
            "voxstill_batch_utterances", "Utterances transcribed at once.", _VERSION, registry=registry, buckets=_BATCH
        )
        self.queue_s = Gauge("voxstill_queue_seconds", "Audio that waits for decoding.", _VERSION, registry=registry)
        self.in_flight = Gauge("voxstill_requests_in_flight", "Requests in progress.", _VERSION, registry=registry)
        self.weight = Gauge("voxstill_version_weight", "Share of the traffic.", _VERSION, registry=registry)
        self.sessions = Gauge("voxstill_realtime_sessions", "Open realtime sessions.", registry=registry)
        self.shadow = Counter(
            "voxstill_shadow_utterances", "Utterances of shadow traffic.", (*_VERSION, "outcome"), registry=registry
        )
        info = Gauge("voxstill_info", "The version of voxstill.", ("version",), registry=registry)
        info.labels(__version__).set(1)

    def forget(self, model: str, version: str) -> None:
        """Drop the gauges of a version that is closed; what was counted stays."""
        for gauge in (self.queue_s, self.in_flight, self.weight):
            gauge.remove(model, version)

    def page(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)
