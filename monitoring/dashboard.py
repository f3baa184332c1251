"""The Grafana dashboard, from one table of panels: `python monitoring/dashboard.py` writes it.

Tests ask a real Prometheus for every query here, after a real labelling, a real training and requests to a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parent / "grafana/dashboards/voxstill.json"
WIDTH, HEIGHT, COLUMNS = 8, 8, 24
OF_RUN = '{run=~"$run"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart; `RUN` in its query stands for the selected runs, and `legend` names its series."""

    title: str
    unit: str
    description: str
    query: str
    legend: str
    needs: str = ""
    """What there must be for the query to return anything: `GPU`, `engine` or `server`."""

    @property
    def expression(self) -> str:
        """The query in PromQL."""
        return self.query.replace("{RUN}", OF_RUN).replace("RUN,", 'run=~"$run",')


ROWS: dict[str, tuple[Panel, ...]] = {
    "Steps": (
        Panel(
            "Progress",
            "percentunit",
            "Share of the items that are written.",
            "voxstill_items_total{RUN} / voxstill_items_planned{RUN}",
            "{{step}}",
        ),
        Panel(
            "Time left",
            "s",
            "At the rate so far; 0 at the end.",
            "voxstill_time_left_seconds{RUN}",
            "{{step}}",
        ),
        Panel(
            "Since the last commit",
            "s",
            "Time since a chunk was written; it rises while nothing is, and an alert fires at 15 minutes.",
            "(time() - voxstill_last_commit_timestamp_seconds{RUN}) * voxstill_step_running{RUN}",
            "{{step}}",
        ),
        Panel(
            "Items a second",
            "short",
            "Items that are written; level is good.",
            "rate(voxstill_items_total{RUN}[$__rate_interval])",
            "{{step}}",
        ),
        Panel(
            "Times real time",
            "short",
            "Seconds of audio for each second, all workers together.",
            'rate(voxstill_audio_seconds_total{RUN,step!=""}[$__rate_interval])',
            "{{step}}",
        ),
        Panel(
            "Errors by kind",
            "short",
            "Items that have an error instead of a result, so far.",
            "voxstill_errors_total{RUN}",
            "{{step}}: {{kind}}",
        ),
        Panel(
            "Attempts",
            "short",
            "Parts of chunks that were tried again, and workers that were replaced, so far.",
            'label_replace(voxstill_retries_total{RUN}, "of", "retries", "", "") '
            'or label_replace(voxstill_worker_restarts_total{RUN}, "of", "restarts", "", "")',
            "{{step}} {{of}}",
        ),
    ),
    "Stages: which one starves which": (
        Panel(
            "Workers at work",
            "percentunit",
            "The stage near 1 is the bottleneck; it should be the teacher.",
            'rate(voxstill_stage_seconds_total{RUN,state="work"}[$__rate_interval]) '
            "/ ignoring (state) voxstill_stage_workers{RUN}",
            "{{step}} {{stage}}",
        ),
        Panel(
            "Waiting for input",
            "percentunit",
            "The stage before is too slow, or the source is.",
            'rate(voxstill_stage_seconds_total{RUN,state="wait_in"}[$__rate_interval]) '
            "/ ignoring (state) voxstill_stage_workers{RUN}",
            "{{step}} {{stage}}",
        ),
        Panel(
            "Waiting for the stages after",
            "percentunit",
            "As many chunks are on their way as may be: a later stage, or the commit, is too slow.",
            'rate(voxstill_stage_seconds_total{RUN,state="wait_out"}[$__rate_interval]) '
            "/ ignoring (state) voxstill_stage_workers{RUN}",
            "{{step}} {{stage}}",
        ),
        Panel(
            "Queue",
            "short",
            "Parts of chunks that wait for a worker of the stage.",
            "voxstill_stage_queue_parts{RUN}",
            "{{step}} {{stage}}",
        ),
        Panel(
            "Chunks in progress",
            "short",
            "Let in and not written yet.",
            "voxstill_chunks_open{RUN}",
            "{{step}}",
        ),
    ),
    "Teacher's engine (vLLM)": (
        Panel(
            "KV cache in use",
            "percentunit",
            "Full with requests waiting: the engine preempts, and does work twice.",
            "voxstill_teacher_kv_cache_ratio{RUN}",
            "{{step}}",
            needs="engine",
        ),
        Panel(
            "Requests",
            "short",
            "Running, and waiting for a place.",
            'label_replace(voxstill_teacher_requests_running{RUN}, "of", "running", "", "") '
            'or label_replace(voxstill_teacher_requests_waiting{RUN}, "of", "waiting", "", "")',
            "{{of}}",
            needs="engine",
        ),
        Panel(
            "Tokens a second",
            "short",
            "That the teacher writes.",
            "voxstill_teacher_tokens_per_second{RUN}",
            "{{step}}",
            needs="engine",
        ),
    ),
    "Training": (
        Panel("Loss", "short", "Of the last step, over all ranks.", "voxstill_train_loss{RUN}", "{{experiment}}"),
        Panel(
            "Gradient norm",
            "short",
            "Before it is clipped; a rise without end is a divergence.",
            "voxstill_train_grad_norm{RUN}",
            "{{experiment}}",
        ),
        Panel(
            "Learning rate",
            "sci",
            "Of the last step.",
            "voxstill_train_learning_rate{RUN}",
            "{{experiment}}",
        ),
        Panel(
            "Progress",
            "percentunit",
            "Share of the training that is done.",
            "voxstill_train_progress_ratio{RUN}",
            "{{experiment}}",
        ),
        Panel("Time left", "s", "At the rate so far.", "voxstill_train_time_left_seconds{RUN}", "{{experiment}}"),
        Panel(
            "Audio seconds a second",
            "short",
            "All ranks together.",
            "sum by (experiment) (rate(voxstill_train_audio_seconds_total{RUN}[$__rate_interval]))",
            "{{experiment}}",
        ),
        Panel(
            "Skipped and replaced",
            "short",
            "Steps without a finite loss or gradient, and utterances that could not be read, so far.",
            'label_replace(voxstill_train_skipped_steps_total{RUN}, "of", "steps skipped", "", "") '
            'or label_replace(voxstill_train_replaced_utterances_total{RUN}, "of", "utterances replaced", "", "")',
            "{{of}}",
        ),
    ),
    "Ranks": (
        Panel(
            "Steps a second",
            "short",
            "The ranks step together; one alone that is lower hangs.",
            "rate(voxstill_train_steps_total{RUN}[$__rate_interval])",
            "rank {{rank}}",
        ),
        Panel(
            "Waiting for data",
            "percentunit",
            "One rank alone: its disk or its machine. All: more loader workers where cores are idle.",
            "rate(voxstill_train_data_wait_seconds_total{RUN}[$__rate_interval])",
            "rank {{rank}}",
        ),
        Panel(
            "Own part of a step",
            "percentunit",
            "Share of the time without waiting for another rank. One alone that is higher is what the others wait for.",
            "rate(voxstill_train_own_seconds_total{RUN}[$__rate_interval])",
            "rank {{rank}}",
        ),
        Panel(
            "Since the last step",
            "s",
            "Since each rank gave its last sign of life; an alert fires at 5 minutes.",
            "(time() - voxstill_train_last_step_timestamp_seconds{RUN}) "
            "* on (job, instance, run, experiment) group_left () voxstill_train_running{RUN}",
            "rank {{rank}}",
        ),
    ),
    "Serving": (
        Panel(
            "Requests a second",
            "reqps",
            "Answered, also with an error; that of a live session is not among them.",
            'sum by (run, model, version) (rate(voxstill_requests_total{RUN,endpoint=~"/v1/.*"}[$__rate_interval]))',
            "{{model}} {{version}}",
            needs="server",
        ),
        Panel(
            "Errors a second",
            "reqps",
            "Answers with a status of 400 or more: 408 where uploads stall, 429 where too much audio waits.",
            'sum by (run, status) (rate(voxstill_requests_total{RUN,status=~"[45].."}[$__rate_interval]))',
            "{{status}}",
            needs="server",
        ),
        Panel(
            "Audio that waits",
            "s",
            "For each version; above `serve.max_queue_s` requests are refused.",
            "voxstill_queue_seconds{RUN}",
            "{{model}} {{version}}",
            needs="server",
        ),
        Panel(
            "Times real time, served",
            "short",
            "Seconds of audio that are transcribed in each second.",
            'rate(voxstill_audio_seconds_total{RUN,model!=""}[$__rate_interval])',
            "{{model}} {{version}}",
            needs="server",
        ),
        Panel(
            "Latency of 19 in 20",
            "s",
            "From the last byte of a request to the last byte of its answer, at most, for 95 % of the requests.",
            "histogram_quantile(0.95, "
            "sum by (run, model, le) (rate(voxstill_request_seconds_bucket{RUN}[$__rate_interval])))",
            "{{model}}",
            needs="server",
        ),
        Panel(
            "Requests and sessions under way",
            "short",
            "Requests of each version, and live sessions.",
            "voxstill_requests_in_flight{RUN} or voxstill_realtime_sessions{RUN}",
            "{{model}} {{version}}",
            needs="server",
        ),
    ),
    "GPUs": (
        Panel(
            "Utilisation",
            "percentunit",
            "Share of the time with any kernel at work; it says nothing of how full the GPU is.",
            "voxstill_gpu_utilization_ratio{RUN}",
            "{{host}} {{gpu}}",
            needs="GPU",
        ),
        Panel(
            "Memory in use",
            "percentunit",
            "By anyone.",
            "voxstill_gpu_memory_used_bytes{RUN} / voxstill_gpu_memory_size_bytes{RUN}",
            "{{host}} {{gpu}}",
            needs="GPU",
        ),
        Panel("Power", "watt", "Drawn now.", "voxstill_gpu_power_watts{RUN}", "{{host}} {{gpu}}", needs="GPU"),
        Panel(
            "Temperature",
            "celsius",
            "Of the chip.",
            "voxstill_gpu_temperature_celsius{RUN}",
            "{{host}} {{gpu}}",
            needs="GPU",
        ),
        Panel(
            "Slowed down",
            "short",
            "1 while heat or a power brake slows the GPU down.",
            "voxstill_gpu_slowed_down{RUN}",
            "{{host}} {{gpu}}",
            needs="GPU",
        ),
    ),
    "Processes": (
        Panel(
            "Memory",
            "bytes",
            "Resident memory of the process that serves the metrics.",
            "process_resident_memory_bytes{RUN}",
            "{{run}} {{instance}}",
        ),
        Panel(
            "Cores in use",
            "short",
            "By that process.",
            "rate(process_cpu_seconds_total{RUN}[$__rate_interval])",
            "{{run}} {{instance}}",
        ),
        Panel(
            "Open files",
            "percentunit",
            "Share of its limit.",
            "process_open_fds{RUN} / process_max_fds{RUN}",
            "{{run}} {{instance}}",
        ),
        Panel(
            "Free disk space",
            "bytes",
            "Where the tables and the experiments lie.",
            "voxstill_disk_free_bytes{RUN}",
            "{{folder}} of {{run}}",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": "voxstill",
        "title": "voxstill",
        "tags": ["voxstill"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "run",
                    "label": "Run",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "prometheus"},
                    "query": "label_values(voxstill_info, run)",
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                }
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = number = 0
    for row, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row, "gridPos": place, "collapsed": False, "panels": []}
        top += 1
        for i, panel in enumerate(panels):
            number += 1
            lines, column = divmod(i, COLUMNS // WIDTH)
            place = {"x": column * WIDTH, "y": top + lines * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield {
                "id": number,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.description,
                "datasource": {"type": "prometheus", "uid": "prometheus"},
                "gridPos": place,
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": [{"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}],
            }
        top += -(-len(panels) // (COLUMNS // WIDTH)) * HEIGHT


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
