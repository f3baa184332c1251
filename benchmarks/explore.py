"""The explorer on synthetic corpora: the first build of its file, requests over HTTP, memory, and click to sound.

    python benchmarks/explore.py --rows 1000000 --part 256 --folder /tmp/corpus --json benchmarks/results/explore.json

The corpus of `benchmarks/explore_corpus.py` is made where it is not there, and stays. Requests go one after the other
to a real `voxstill explore`, each with other values, so that none is answered twice. Where there is a Chromium, clicks
on rows of the page are timed until the audio plays: the tests' own driver of a browser is used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

import explore_corpus

ROOT = Path(__file__).resolve().parents[1]
NUM_REQUESTS = 60
NUM_CLICKS = 30
PAGE: Mapping[str, str | int] = {
    "limit": 100,
    "columns": "id,speaker,kept,judgement,label_first,duration_ms,confidence,reason",
}
"""What the page asks for."""
AUDIO_FILTER = {"where": [{"column": "tar", "in": ["shards/h/00000.tar"]}]}


def main() -> None:
    """Measure one size, and add it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--part", type=int, default=256, help="utterances in a part, as `engine.chunk`")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not (arguments.folder / "shards/h/_SUCCESS.json").exists():
        explore_corpus.make(arguments.folder, arguments.rows, arguments.part)
    figures = measure(arguments.folder, arguments.rows, arguments.part)
    print(json.dumps(figures, indent=1))
    if arguments.json is not None:
        known = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
        others = [row for row in known if (row["rows"], row["part"]) != (arguments.rows, arguments.part)]
        arguments.json.write_text(json.dumps([*others, figures], indent=1) + "\n")


def measure(folder: Path, rows: int, part: int) -> Mapping[str, object]:
    """Build, ask, click."""
    shutil.rmtree(folder / "explorer", ignore_errors=True)
    build_s, build_bytes = _start_and_stop(folder)
    reopen_s, _ = _start_and_stop(folder)
    process, url, _ = _start(folder)
    try:
        requests = {name: _percentiles(process, url, ask) for name, ask in _questions(rows).items()}
        clicks = _clicks(url)
        rss_bytes = _peak_bytes(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return {
        "rows": rows,
        "part": part,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}; load {os.getloadavg()[0]:.1f}",
        "build_s": round(build_s, 1),
        "build_s_per_million": round(build_s / rows * 1e6, 2),
        "build_peak_mb": round(build_bytes / 1e6),
        "file_mb": round((folder / "explorer/corpus.duckdb").stat().st_size / 1e6),
        "open_again_s": round(reopen_s, 2),
        "requests_ms": requests,
        "click_to_sound_ms": clicks,
        "peak_mb": round(rss_bytes / 1e6),
    }


def _start(folder: Path) -> tuple[subprocess.Popen[str], str, float]:
    command = [sys.executable, "-m", "voxstill", "explore", str(folder), "--json", "--log-level", "error"]
    start_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = str(json.loads(process.stdout.readline())["url"])
    return process, url, time.perf_counter() - start_s


def _start_and_stop(folder: Path) -> tuple[float, int]:
    process, _, seconds = _start(folder)
    peak_bytes = _peak_bytes(process.pid)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    return seconds, peak_bytes


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _questions(rows: int) -> Mapping[str, Callable[[random.Random, httpx.Client], httpx.Response]]:
    """Requests of each kind, with values of their own each time."""
    scores = ("confidence", "disagreement", "alignment", "compression_ratio", "duration_ms", "chars_per_s")

    def where(rng: random.Random) -> list[dict[str, object]]:
        low = rng.randint(1000, 6000)
        return [
            {"column": "duration_ms", "min": low, "max": low + rng.randint(500, 6000)},
            {"column": "split", "in": ["train"]},
            {"column": "confidence", "min": round(rng.uniform(0.3, 0.8), 4)},
        ]

    def page(rng: random.Random, client: httpx.Client) -> httpx.Response:
        order = rng.choice(["", "-"]) + rng.choice(scores)
        return client.get("rows", params={**PAGE, "order": order})

    def next_page(rng: random.Random, client: httpx.Client) -> httpx.Response:
        after = json.dumps([round(rng.uniform(0.3, 0.9), 6), rng.randrange(rows)])
        return client.get("rows", params={"order": "confidence", "after": after, **PAGE})

    def filtered(rng: random.Random, client: httpx.Client) -> httpx.Response:
        wanted = json.dumps({"where": where(rng)})
        return client.get("rows", params={"order": f"-{rng.choice(scores)}", "filter": wanted, **PAGE})

    def searched(rng: random.Random, client: httpx.Client) -> httpx.Response:
        word = "".join(rng.choice(explore_corpus.SYLLABLES) for _ in range(3))
        return client.get("rows", params={"filter": json.dumps({"text": word}), **PAGE})

    def missing(rng: random.Random, client: httpx.Client) -> httpx.Response:
        wanted = json.dumps({"text": f"qx{rng.randrange(10**6)}"})
        return client.get("rows", params={"filter": wanted, "order": "-confidence", **PAGE})

    def phrase(rng: random.Random, client: httpx.Client) -> httpx.Response:
        word = " ".join("".join(rng.choice(explore_corpus.SYLLABLES) for _ in range(2)) for _ in range(2))
        return client.get("rows", params={"filter": json.dumps({"text": word}), "order": "confidence", **PAGE})

    def letters(rng: random.Random, client: httpx.Client) -> httpx.Response:
        wanted = "".join(rng.choice("aeioubdfgklmnprstv") for _ in range(2))
        return client.get("rows", params={"filter": json.dumps({"text": wanted}), "order": "confidence", **PAGE})

    def totals(rng: random.Random, client: httpx.Client) -> httpx.Response:
        return client.get("totals", params={"filter": json.dumps({"where": where(rng)})})

    def histogram(rng: random.Random, client: httpx.Client) -> httpx.Response:
        wanted = json.dumps({"where": where(rng)})
        return client.get("histogram", params={"column": rng.choice(scores), "filter": wanted})

    def funnel(rng: random.Random, client: httpx.Client) -> httpx.Response:
        return client.get("funnel", params={"filter": json.dumps({"where": where(rng)})})

    def speakers(rng: random.Random, client: httpx.Client) -> httpx.Response:
        return client.get("facet", params={"column": "speaker", "filter": json.dumps({"where": where(rng)})})

    def utterance(rng: random.Random, client: httpx.Client) -> httpx.Response:
        return client.get(f"utterances/{rng.randrange(rows)}")

    return {
        "page, sorted by a score": page,
        "page further on": next_page,
        "page of a filter, sorted": filtered,
        "search of a word": searched,
        "search of what is not there, sorted": missing,
        "search of two words, sorted": phrase,
        "search of two letters, sorted": letters,
        "totals of a filter": totals,
        "histogram of a filter": histogram,
        "funnel of a filter": funnel,
        "speakers of a filter": speakers,
        "one utterance": utterance,
    }


def _percentiles(
    process: subprocess.Popen[str], url: str, ask: Callable[[random.Random, httpx.Client], httpx.Response]
) -> Mapping[str, float]:
    rng, times_ms = random.Random(0), []
    parts = urlsplit(url)
    headers = {"Authorization": f"Bearer {parts.query.removeprefix('token=')}"}
    with httpx.Client(base_url=f"http://{parts.netloc}/api/", headers=headers, timeout=60) as client:
        for _ in range(NUM_REQUESTS):
            start_s = time.perf_counter()
            answer = ask(rng, client)
            times_ms.append(1000 * (time.perf_counter() - start_s))
            answer.raise_for_status()
    assert process.poll() is None
    return {name: round(float(np.percentile(times_ms, share)), 1) for name, share in (("p50", 50), ("p95", 95))}


def _clicks(url: str) -> Mapping[str, float] | None:
    """From a click on a row that was not looked at to the first moment at which its audio plays."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import CHROMIUM, Browser  # of the tests

    if not CHROMIUM:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(Path(folder)) as browser:
        browser.open(url)
        browser.wait_for("document.body.dataset.ready === 'true'")
        address = f"http://{urlsplit(url).netloc}/#{json.dumps(AUDIO_FILTER)}"
        browser.open("about:blank")
        browser.open(address)
        browser.wait_for("document.body.dataset.ready === 'true'")
        times_ms = list(_click_times(browser))
    return {name: round(float(np.percentile(times_ms, share)), 1) for name, share in (("p50", 50), ("p95", 95))}


def _click_times(browser: Any) -> Iterator[float]:
    script = """(async () => {
      const row = document.querySelectorAll('#rows tbody tr')[%d], start = performance.now();
      row.click();
      const button = document.querySelector('.sound button');
      button.click();
      return await new Promise((resolve, reject) => {
        const look = () => {
          const fault = document.querySelector('.sound .fault').textContent;
          if (fault) reject(new Error(fault));
          else if (document.querySelector('.sound[data-playing]')) resolve(performance.now() - start);
          else if (performance.now() - start > 5000) reject(new Error('no sound'));
          else setTimeout(look, 2);
        };
        look();
      });
    })()"""
    for place in range(1, NUM_CLICKS + 1):
        yield float(browser.evaluate(script % place))


if __name__ == "__main__":
    main()
