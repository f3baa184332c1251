"""The models of a server: versions side by side with weights, switches from one to another, and shadow traffic."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from voxstill.core.errors import ConfigError
from voxstill.core.monitor import log
from voxstill.core.records import Hypothesis
from voxstill.decoding.loaded import Samples
from voxstill.serving.errors import RequestError
from voxstill.serving.metrics import ServerMetrics
from voxstill.serving.versions import Hints, ServedRecognizer, StreamedPart, Version

Opener = Callable[[str], Callable[[], ServedRecognizer]]
"""Makes a recogniser of what names a model, without loading it; ConfigError where it names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """What `voxstill serve` is given: the name that clients ask for, the model and its weight."""

    name: str
    source: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class _Route:
    """Where the traffic of one model goes; replaced as a whole, so that no request sees half of a change."""

    weights: Mapping[Version, float]
    shadow: Version | None = None
    shadow_share: float = 1.0


class Models:
    """All models of a server by the names that clients ask for. It lives in one event loop."""

    def __init__(self, opener: Opener, metrics: ServerMetrics, seed: int | None = None) -> None:
        self._opener, self._metrics = opener, metrics
        self._routes: dict[str, _Route] = {}
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._draining: dict[asyncio.Task[None], Version] = {}
        self._loading: set[tuple[str, str]] = set()

    @property
    def names(self) -> Sequence[str]:
        """The names of the models, in the order in which they were given."""
        return list(self._routes)

    async def load(self, sources: Sequence[ModelSource]) -> None:
        """Load all models, one after the other; VoxstillError where one cannot be."""
        for source in sources:
            version = await self._open(source.name, source.source, None)
            weights = self._routes[source.name].weights if source.name in self._routes else {}
            self._set(source.name, _Route({**weights, version: source.weight}))

    @property
    def least_queued(self) -> Version:
        """The version with the least audio that waits."""
        versions = (version for route in self._routes.values() for version in route.weights)
        return min(versions, key=lambda version: version.queued_s)

    async def have_transcribed_lately(self) -> bool:
        """Whether each version that has traffic has transcribed something lately."""
        versions = [version for route in self._routes.values() for version, weight in route.weights.items() if weight]
        return all(await asyncio.gather(*(version.has_transcribed_lately() for version in versions)))

    def versions(self, name: str) -> Mapping[str, Version]:
        """The versions of a model by their names; RequestError for a model that is not there."""
        return {version.name: version for version in self._route(name).weights}

    @contextmanager
    def request(self, name: str) -> Iterator[Version]:
        """The version that answers a request, drawn by the weights; it is not closed before the block ends."""
        version = self._pick(self._route(name))
        version.num_requests += 1
        try:
            yield version
        finally:
            version.num_requests -= 1

    async def transcribe(
        self, version: Version, samples_T: Samples, hints: Hints, part: StreamedPart | None = None
    ) -> Hypothesis:
        """Transcribe one utterance, or what is new of a stream; the shadow hears utterances, too, and is compared."""
        hypothesis = await version.transcribe(samples_T, hints, part)
        if part is not None and not part.is_last:
            return hypothesis
        route = self._routes[version.model]
        if route.shadow is not None and route.shadow is not version and self._random.random() < route.shadow_share:
            self._compare(route.shadow, samples_T, hints, hypothesis)
        return hypothesis

    async def switch(self, name: str, source: str, weight: float | None, version_name: str | None) -> Version:
        """Load another version beside those that there are, and route to it.

        Without a weight it takes all traffic and the others are closed when they have answered what they have.
        RequestError where it cannot be loaded: then everything stays as it was.
        """
        self._route(name)
        version = await self._open(name, source, version_name)
        before = self._route(name)
        if weight is None:
            self._set(name, _Route({version: 1.0}))
            self._retire(before.weights)
        else:
            shadow = before.shadow, before.shadow_share
            self._set(name, _Route({**before.weights, version: weight}, *shadow))
        return version

    def set_weights(self, name: str, weights: Mapping[str, float | None]) -> None:
        """Change the weights of versions; those without a number are closed when they have answered what they have."""
        route, versions = self._route(name), self.versions(name)
        for version_name in weights:
            self._named(name, version_name)
        kept = {
            version: weights.get(version.name, before)
            for version, before in route.weights.items()
            if weights.get(version.name, before) is not None
        }
        numbers = {version: weight for version, weight in kept.items() if weight is not None}
        if not sum(numbers.values()) > 0:
            raise RequestError(400, "no version would get any traffic: keep a weight above 0", param="weights")
        shadow = route.shadow if route.shadow in numbers else None
        self._set(name, _Route(numbers, shadow, route.shadow_share))
        self._retire([version for version in versions.values() if version not in numbers])

    def set_shadow(self, name: str, version_name: str | None, share: float) -> None:
        """Let a version transcribe a share of what the others answer, and compare; None ends it."""
        shadow = None if version_name is None else self._named(name, version_name)
        if shadow is not None and len(self._route(name).weights) == 1:
            message = f"`{name}` has no other version to compare `{shadow.name}` with"
            raise RequestError(400, message, param="version")
        self._set(name, _Route(self._route(name).weights, shadow, share))

    def state(self) -> dict[str, object]:
        """Versions, weights and shadows of all models, and what is being drained."""
        return {
            name: {
                "versions": [_facts(version, weight=weight) for version, weight in route.weights.items()],
                "shadow": None
                if route.shadow is None
                else {"version": route.shadow.name, "share": route.shadow_share, **self._compared(route.shadow)},
                "draining": [_facts(version) for version in self._draining.values() if version.model == name],
            }
            for name, route in self._routes.items()
        }

    async def close(self) -> None:
        """Close all versions when they have answered what they have."""
        for route in self._routes.values():
            self._retire(route.weights)
        await asyncio.gather(*self._draining)

    def _route(self, name: str) -> _Route:
        if name not in self._routes:
            known = ", ".join(f"`{known_name}`" for known_name in self._routes)
            raise RequestError(
                404, f"unknown model `{name}`; the models are {known}", param="model", code="model_not_found"
            )
        return self._routes[name]

    def _named(self, name: str, version_name: str) -> Version:
        versions = self.versions(name)
        if version_name not in versions:
            raise RequestError(404, f"`{name}` has no version `{version_name}`; it has {', '.join(versions)}")
        return versions[version_name]

    def _pick(self, route: _Route) -> Version:
        [version] = self._random.choices(list(route.weights), list(route.weights.values()))
        return version

    def _set(self, name: str, route: _Route) -> None:
        self._routes[name] = route
        for version, weight in route.weights.items():
            self._metrics.weight.labels(name, version.name).set(weight)

    async def _open(self, name: str, source: str, version_name: str | None) -> Version:
        version_name = version_name or f"v{next(self._numbers)}"
        taken = self._routes[name].weights if name in self._routes else ()
        draining = [version for version in self._draining.values() if version.model == name]
        is_taken = any(version.name == version_name for version in (*taken, *draining))
        if is_taken or (name, version_name) in self._loading:
            raise RequestError(400, f"`{name}` already has a version `{version_name}`", param="version")
        self._loading.add((name, version_name))
        try:
            load_recognizer = await asyncio.to_thread(self._opener, source)
            version = Version(name, version_name, source, load_recognizer, self._metrics)
            log.info("serve: loading `%s`, %s of %s", source, version_name, name)
            await version.load()
        finally:
            self._loading.discard((name, version_name))
        return version

    def _retire(self, versions: Sequence[Version] | Mapping[Version, float]) -> None:
        for version in versions:
            task = asyncio.create_task(version.drain())
            self._draining[task] = version
            task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        version = self._draining.pop(task)
        self._metrics.forget(version.model, version.name)
        log.info("serve: %s of %s is closed", version.name, version.model)

    def _compare(self, shadow: Version, samples_T: Samples, hints: Hints, answer: Hypothesis) -> None:
        """Let the shadow transcribe what was answered, unless it is behind: clients wait for none of it."""

        def outcome(future: concurrent.futures.Future[Hypothesis]) -> str:
            if future.exception() is not None or future.result().error is not None:
                return "failed"
            return "equal" if future.result().text == answer.text else "different"

        count = self._metrics.shadow
        if shadow.queued_s > _MOST_SHADOW_S:
            count.labels(shadow.model, shadow.name, "skipped").inc()
            return
        future = shadow.submit(samples_T, hints)
        future.add_done_callback(lambda done: count.labels(shadow.model, shadow.name, outcome(done)).inc())

    def _compared(self, shadow: Version) -> dict[str, int]:
        """How many utterances of a shadow had which outcome."""
        counts = {outcome: self._metrics.shadow.labels(shadow.model, shadow.name, outcome) for outcome in _OUTCOMES}
        return {outcome: int(next(iter(count.collect())).samples[0].value) for outcome, count in counts.items()}


_OUTCOMES = ("equal", "different", "failed", "skipped")
_MOST_SHADOW_S = 60.0
"""Seconds of audio that may wait for a shadow; more is skipped."""


def _facts(version: Version, **more: float) -> dict[str, object]:
    return {
        "version": version.name,
        "model": version.source,
        "requests_in_flight": version.num_requests,
        "queue_s": round(version.queued_s, 3),
        **more,
    }


def model_source(text: str) -> ModelSource:
    """Read `[NAME=]MODEL[@WEIGHT]`; ConfigError where it is none.

    Without a name it is the last part of the model's. What follows the last `@` is a weight where it is a number.
    """
    name, equals, source = text.partition("=")
    if not equals:
        name, source = "", text
    source, at, number = source.rpartition("@") if "@" in source else (source, "", "")
    weight = 1.0
    if at:
        try:
            weight = float(number)
        except ValueError:
            source = f"{source}@{number}"  # the revision of a name on the Hub
    name = name if equals else source.rstrip("/").removesuffix("/model").rpartition("/")[2]
    if not source or not name or not 0 <= weight < float("inf"):
        raise ConfigError(
            f"`{text}` is not a model to serve",
            code="option-value",
            why="it must be MODEL, NAME=MODEL or NAME=MODEL@WEIGHT, with a weight of 0 or more",
            fix="write `mine=exp/2026-11-22_mine@90`, for example",
        )
    return ModelSource(name=name, source=source, weight=weight)
