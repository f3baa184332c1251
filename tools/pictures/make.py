"""Makes the pictures of the documents: `python tools/pictures/make.py [OUTPUT [RUN]]`, or `make pictures`.

Runs the demo under a Prometheus in a temporary folder, and draws what was recorded; OUTPUT is docs/images. A run in a
folder RUN that is complete is drawn again. The demo takes options from the environment, as every command does.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]

import flow_svg  # noqa: E402
import metrics_svg  # noqa: E402
import screens  # noqa: E402
import terminal_svg  # noqa: E402
from browser import Browser  # noqa: E402
from demo_run import COMMAND, DemoRun  # noqa: E402
from voxstill.core import world  # noqa: E402

RUN = Path(tempfile.gettempdir()) / "voxstill-pictures"
"""Outside of the checkout: the explorer shows where a corpus lies."""
TITLES = {
    "metrics_label": "Six panels of the dashboard while the demo labels its corpus",
    "metrics_train": "Six panels of the dashboard while the demo trains its student",
}


def main(output: Path, run: DemoRun) -> None:
    """Write all pictures into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    if not run.recording.exists():
        run.make(world.environment())
    _write(output / "flow.svg", flow_svg.drawing())
    _write(output / "terminal.svg", terminal_svg.drawing(COMMAND, run.outputs()))
    for name, charts in run.charts().items():
        _write(output / f"{name}.svg", metrics_svg.drawing(TITLES[name], charts))
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        screens.report(browser, run, output)
        screens.explorer(browser, run, output)
        assert browser.errors == []


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    paths = [Path(argument).absolute() for argument in sys.argv[1:]]
    if len(paths) < 2:
        shutil.rmtree(RUN, ignore_errors=True)
    main(paths[0] if paths else ROOT / "docs/images", DemoRun(paths[1] if len(paths) > 1 else RUN))
