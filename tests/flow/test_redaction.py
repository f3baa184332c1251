"""Canaries planted where credentials are kept are found in nothing that a run shows."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

import pytest

from forked import command, finish, start
from servers import http_server

pytestmark = pytest.mark.slow
CANARIES = {
    name: f"canary-{name.lower().replace('_', '-')}-0123456789"
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "OSS_ACCESS_KEY_SECRET",
        "GOOGLE_APPLICATION_CREDENTIALS_JSON_KEY",
        "HF_TOKEN",
        "OPENAI_API_KEY",
    )
}


def test_no_credential_of_the_environment_or_of_an_address_is_shown_by_a_run(digits: Path, tmp_path: Path) -> None:
    password, signature = "canary-password-0123456789", "canary-signature-0123456789"
    objects = {path.name: path.read_bytes() for path in digits.iterdir()}
    with http_server(objects, asks_for=f"ann:{password}") as port:
        rows = [json.loads(line) for line in objects["manifest.jsonl"].splitlines()]
        for row in rows:
            name = row["audio"] if row["id"] != "m1-0" else "gone.flac"  # one that cannot be read
            row["audio"] = f"http://127.0.0.1:{port}/{name}?version=1"
        objects["manifest.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        tree = {
            "work": str(tmp_path / "work"),
            "source": {"uri": f"http://ann:{password}@127.0.0.1:{port}/manifest.jsonl?X-Amz-Signature={signature}"},
            "engine": {"name": "inline"},
            "cache": {"folder": str(tmp_path / "cache")},
            "monitor": {"port": 0},
            "teacher": {"name": "echo"},
            "plan": {"budget_ms": 8000},
            "train": {"steps": 4, "log_every": 2, "loader_workers": 0, "root": str(tmp_path / "exp")},
        }
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps(tree))
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine 127.0.0.1 login ann password {password}\n")
        output, log = tmp_path / "output", tmp_path / "log"
        arguments, environment = ["run", config, "--log-level", "debug"], os.environ | CANARIES | {"NETRC": str(netrc)}
        finish(start(command, arguments, log=log, output=output, environment=environment), log=log)
    assert "metrics: http://127.0.0.1:" in log.read_text()
    secrets = [*CANARIES.values(), password, signature]
    texts = {"output": output.read_text(), "log": log.read_text()}
    kept = ("exp/**/*", "work/**/_SUCCESS.json", "work/logs/**/*", "cache/**/*")
    for path in (path for pattern in kept for path in tmp_path.glob(pattern)):
        if path.is_file():
            texts[str(path.relative_to(tmp_path))] = path.read_bytes().decode("latin-1")
    assert {name for name in texts if name.endswith("config.yaml")}
    assert {name for name in texts if name.endswith("report.html")}
    assert {name for name in texts if name.startswith("work/logs/label/")}
    assert [(name, secret) for name, text in texts.items() for secret in secrets if secret in text] == []


def test_metrics_of_a_failing_step_show_no_address(digits: Path) -> None:
    from voxstill.core.config import Monitor
    from voxstill.core.metrics.endpoint import Endpoint
    from voxstill.core.metrics.registry import Metrics
    from voxstill.core.metrics.steps import StepMeter

    meter = StepMeter("index", 1, "files")
    port = Endpoint(Monitor(port=0), Metrics({"step": meter})).port
    meter.count_done(0, ["cannot read `http://ann:canary@host/x?token=canary`: refused", "s3://bucket/canary: gone"])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'voxstill_errors_total{kind="other",step="index"} 2.0' in text
    assert "canary" not in text
