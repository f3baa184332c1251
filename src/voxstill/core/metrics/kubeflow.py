"""The status of a training for Kubeflow Trainer, which asks for it by variables of the environment (KEP-2779).

The request is that of `KubeflowCallback` in transformers.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path

from voxstill.core import world
from voxstill.core.background import repeating
from voxstill.core.monitor import log

URL, TOKEN_FILE, CA_FILE = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
)
INTERVAL_S = 5.0
"""The least time between two reports."""
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of a training so far."""

    progress: float | None = None
    """Share that is done, 0 to 1."""
    time_left_s: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """The body of a report."""
        status: dict[str, object] = {
            "lastUpdatedTime": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "metrics": [{"name": name, "value": f"{value:.10g}"} for name, value in self.figures.items()],
        }
        if self.progress is not None:
            status["progressPercentage"] = int(100 * self.progress)
        if self.time_left_s is not None:
            status["estimatedRemainingSeconds"] = int(self.time_left_s)
        return json.dumps({"trainerStatus": status})


@contextlib.contextmanager
def reporting(status: Callable[[], Status]) -> Iterator[None]:
    """Within this block a thread reports the status, and once more at the end; nothing if it is not requested."""
    if not world.environment().get(URL):
        yield
        return
    try:
        with repeating("kubeflow", INTERVAL_S, lambda: _report(status())):
            yield
    finally:
        _report(status())


def _report(status: Status) -> None:
    """Send one report; the training continues whatever comes of it."""
    environment = world.environment()
    try:
        url = environment[URL]
        if not url.startswith(("https://", "http://")):
            raise ValueError("it is not an address")
        headers = {"Content-Type": "application/json"}
        if token_file := environment.get(TOKEN_FILE):  # the token in it is renewed
            headers["Authorization"] = f"Bearer {Path(token_file).read_text(encoding='utf-8').strip()}"
        context = ssl.create_default_context(cafile=environment.get(CA_FILE)) if url.startswith("https://") else None
        request = urllib.request.Request(url, status.to_json().encode(), headers, method="POST")
        urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context).close()
    except (OSError, ValueError, HTTPException) as error:
        log.debug("Kubeflow Trainer got no status: %s", error)
