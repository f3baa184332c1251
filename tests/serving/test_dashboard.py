"""The row of the dashboard for servers, by a real Prometheus that scrapes a real server."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from monitoring_files import dashboard
from prometheus import needs_prometheus, prometheus
from serving_process import API_KEY, serving, wav_of
from small_students import write_whisper
from waiting import until


@pytest.mark.slow
@needs_prometheus
def test_every_panel_of_a_server_shows_something(tmp_path: Path) -> None:
    with serving(tmp_path, [f"a={write_whisper(tmp_path / 'whisper')}"]) as server:
        targets = {"targets": [urlsplit(server.url).netloc], "labels": {"run": "serve"}}
        job = {"job_name": "voxstill-serve", "static_configs": [targets], "authorization": {"credentials": API_KEY}}
        times = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        with prometheus(tmp_path / "prometheus", {"global": times, "scrape_configs": [job]}) as scraper:
            start_s = time.time()
            until(lambda: scraper.query("voxstill_queue_seconds"))
            headers = {"Authorization": f"Bearer {API_KEY}"}
            for model in ("a", "a", "none"):
                httpx.post(
                    f"{server.url}/v1/audio/transcriptions",
                    headers=headers,
                    data={"model": model},
                    files={"file": wav_of()},
                    timeout=60,
                )
                time.sleep(1)
            time.sleep(1)
            for panel in dashboard().ROWS["Serving"]:
                query = panel.expression.replace("$run", "serve").replace("$__rate_interval", "5s")
                rows = scraper.range(query, start_s, time.time(), 0.5)
                assert any(value != "NaN" for row in rows for _, value in row["values"]), panel.title
            [of_steps] = [panel for panel in dashboard().ROWS["Steps"] if panel.title == "Times real time"]
            query = of_steps.expression.replace("$run", ".*").replace("$__rate_interval", "5s")
            assert scraper.range(query, start_s, time.time(), 0.5) == []  # those of a server are in its row
