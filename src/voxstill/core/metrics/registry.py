"""The collector of this process: it asks its sources for samples when it is scraped, and computes nothing before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

PREFIX = "voxstill_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; the name of a counter gets the suffix `_total` in Prometheus."""

    name: str
    """Without `PREFIX`."""
    description: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False

    def sample(self, value: float, *labels: str) -> Sample:
        """A value of it for these values of its labels."""
        return Sample(self, value, labels)


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric for values of its labels."""

    metric: Metric
    value: float
    labels: tuple[str, ...]


class Source(Protocol):
    """Something with metrics, such as a step or a training. No label holds a path, an id or a key."""

    def samples(self) -> Iterator[Sample]:
        """Its samples now; called from the thread of a scrape."""
        ...


class Metrics:
    """A Prometheus collector over the sources of this process."""

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        self._sources = dict(sources or {})

    def add(self, name: str, source: Source) -> None:
        """Export a source from now on, in place of an older one of its name."""
        self._sources[name] = source

    def collect(self) -> Iterator[PrometheusMetric]:
        """The families of metrics: the samples of all sources by metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        samples: dict[Metric, list[Sample]] = {}
        for source in list(self._sources.values()):
            for sample in source.samples():
                samples.setdefault(sample.metric, []).append(sample)
        for metric, members in samples.items():
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.description, labels=metric.labels)
            for sample in members:
                family.add_metric(sample.labels, sample.value)
            yield family


def gauges(labels: Sequence[str], descriptions: Mapping[str, str]) -> dict[str, Metric]:
    """Gauges with the same labels, by name."""
    return {name: Metric(name, text, tuple(labels)) for name, text in descriptions.items()}


def counters(labels: Sequence[str], descriptions: Mapping[str, str]) -> dict[str, Metric]:
    """Counters with the same labels, by name."""
    return {name: Metric(name, text, tuple(labels), is_counter=True) for name, text in descriptions.items()}
