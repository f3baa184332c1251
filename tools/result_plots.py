"""Writes `docs/images/results_*.svg`: voxstill beside its peers, out of the figures in `benchmarks/results/`.

    python tools/result_plots.py

Bars begin at zero; a dashed mark is the aim of that bar. The colours follow the reader's light or dark scheme. A test
compares the plots with what this writes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title, .ours text { font-weight: 600 }
.note { font-size: 11px; fill: #59636e }
.page { fill: #ffffff; stroke: #d1d9e0 }
.bar { fill: #afb8c1 }
.ours .bar { fill: #0b6e99 }
.axis { stroke: #d1d9e0 }
.gap { stroke: #ffffff; stroke-width: 5 }
.aim { stroke: #bc4c00; stroke-width: 2; stroke-dasharray: 4 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.note { fill: #9ea7b1 }
.page { fill: #1c2027; stroke: #3d444d }
.bar { fill: #66707b }
.ours .bar { fill: #4cb8e6 }
.axis { stroke: #3d444d }
.gap { stroke: #1c2027 }
.aim { stroke: #ffa266 }
}
"""
# Lengths are in pixels.
WIDTH = 800
MARGIN = 16
LEGEND_HEIGHT = 36
LABEL_WIDTH = 168
BAR_WIDTH = 150
VALUE_END = 368
BAR_HEIGHT = 14
BAR_PITCH = 22
TITLE_HEIGHT = 42
AXIS_HEIGHT = 34


@dataclass(frozen=True)
class Bar:
    """One figure of voxstill or of a peer, and its aim where it has one."""

    label: str
    value: float
    is_ours: bool = False
    aim: float | None = None


def ours(label: str, value: float, aim: float | None = None) -> Bar:
    """A figure of voxstill."""
    return Bar(label, value, is_ours=True, aim=aim)


def peer(label: str, value: float) -> Bar:
    """A figure of a peer."""
    return Bar(label, value)


@dataclass(frozen=True)
class Panel:
    """One comparison: bars with a common axis."""

    title: str
    unit: str
    bars: Sequence[Bar]


def recognition() -> list[Panel]:
    """Error rates of students beside those of their teachers."""
    digits = _figures("fsdd_muon").values()
    words = {
        side: 100 * fmean(run[side]["by_dataset"]["strings"]["wer"] for run in digits)
        for side in ("teacher", "student")
    }
    runs_by_name = _figures("train_quality")["found"]
    trained = {name: 100 * fmean(run["wer"] for run in runs) for name, runs in runs_by_name.items()}
    orders = []
    for run in _figures("coffee"):
        refused = {side: 100 * share for side, share in run["refused"].items()}
        orders += [ours(f"seed {run['seed']}: student", refused["student"], aim=0.82 * refused["teacher"])]
        orders += [peer(f"seed {run['seed']}: teacher", refused["teacher"])]
    return [
        Panel(
            "Spoken digits, unseen speakers",
            "WER of strings, %, mean of six; less is better",
            [ours("student", words["student"], aim=13.0), peer("its teacher", words["teacher"])],
        ),
        Panel(
            "After 120 CPU seconds of training",
            "WER, %, mean of three seeds; less is better",
            [
                ours("voxstill", trained["voxstill"], aim=0.9 * trained["Trainer"]),
                peer("transformers.Trainer", trained["Trainer"]),
            ],
        ),
        Panel("Coffee orders, with and without noise", "commands refused, %; less is better", orders),
    ]


def labelling() -> list[Panel]:
    """The labelling engine, and teachers beside bare scripts."""
    engine = _figures("engine")["cases"]["20 ms"]
    others = ("Ray Data", "Ray Data in our chunks")
    teachers = {
        name.replace("vllm", "vLLM"): next(row for row in run["rows"] if row["side"] == "voxstill")
        for name, run in _figures("teachers").items()
    }
    return [
        Panel(
            "Labelling engine, teachers of 20 ms",
            "seconds for 2,400 utterances; less is better",
            [
                ours("voxstill", engine["ours"]["s"], aim=engine["Ray Data"]["s"] / 1.5),
                *(peer(name, engine[name]["s"]) for name in others),
                peer("ideal, no overhead", engine["ideal_s"]),
            ],
        ),
        Panel(
            "The same, processor",
            "CPU seconds; less is better",
            [ours("voxstill", engine["ours"]["cpu_s"]), *(peer(name, engine[name]["cpu_s"]) for name in others)],
        ),
        Panel(
            "Speed of a teacher, Whisper tiny.en",
            "ratio to a bare script, by CPU second; more is better",
            [
                *(ours(name, row["ratio_cpu"], aim=0.97) for name, row in teachers.items()),
                peer("bare script of each", 1.0),
            ],
        ),
        Panel(
            "Its memory",
            "ratio to a bare script, at the peak; less is better",
            [
                *(ours(name, row["ratio_mb"], aim=1.05) for name, row in teachers.items()),
                peer("bare script of each", 1.0),
            ],
        ),
    ]


def training() -> list[Panel]:
    """The data loader, and throughput of trainings on a CPU and on a GPU."""
    loader = _figures("loader")
    hours = {name: 60 * loader["hours"] / cpu_s for name, cpu_s in loader["median_cpu_s"].items()}
    small = _medians(_figures("train_speed")["rounds"]["small"], "audio_s_per_s")
    tiny = _medians(_figures("train_peers")["rounds"]["tiny"], "audio_s_per_cpu_s")
    return [
        Panel(
            "Reading shards, the same decoder",
            "hours of audio a CPU minute; more is better",
            [
                ours("voxstill", hours["voxstill"], aim=1.25 * hours["webdataset, fast"]),
                peer("WebDataset", hours["webdataset, fast"]),
                peer("Lhotse 1.33.0", hours["lhotse, fast"]),
                peer("Lhotse 2.0.0a7", hours["lhotse 2, fast"]),
            ],
        ),
        Panel(
            "Small student, one CPU thread",
            "seconds of audio a second; more is better",
            [
                ours("voxstill", small["voxstill"], aim=1.5 * small["Trainer"]),
                peer("Trainer, grouped by length", small["Trainer"]),
                peer("Trainer, its default", small["Trainer, lengths mixed"]),
            ],
        ),
        Panel(
            "Tiny Conformer, one CPU thread",
            "seconds of audio a CPU second; more is better",
            [
                ours("voxstill, AdamW", tiny["voxstill"]),
                ours("voxstill, Muon", tiny["voxstill, Muon"]),
                peer("SpeechBrain", tiny["SpeechBrain"]),
                peer("ESPnet", tiny["ESPnet"]),
            ],
        ),
        *_on_a_gpu(),
    ]


def _on_a_gpu() -> Iterator[Panel]:
    gpu = _figures("gpu")
    bars = []
    for size in ("tiny", "small", "medium", "large"):
        speed, of_trainer = (gpu["steps"][f"{size}, {side}"]["audio_s_per_s"] for side in ("voxstill", "Trainer"))
        bars += [ours(f"{size}: voxstill", speed, aim=1.5 * of_trainer), peer(f"{size}: Trainer", of_trainer)]
    yield Panel("Students of all sizes, one H200", "seconds of audio a second; more is better", bars)
    step = {side: median(runs["seconds"]) for side, runs in _figures("pretrain")["step"].items()}
    example = "example of transformers"
    yield Panel(
        "wav2vec 2.0, base, one CPU thread",
        "seconds a step; less is better",
        [ours("voxstill", step["ours"], aim=step["theirs"] / 2), peer(example, step["theirs"])],
    )
    rate = gpu["pretrain"]["audio_seconds_per_second"]
    yield Panel(
        "wav2vec 2.0, base, one H200",
        "seconds of audio a second; more is better",
        [ours("voxstill", rate["ours"]), peer(example, rate["theirs"])],
    )


def inference() -> list[Panel]:
    """Exported students, transcribing, serving, decoding and scoring."""
    speeds = {name: system["speed"] for name, system in _figures("export")["systems"].items()}
    runs = _figures("transcribe_peers")["runs"]
    starts = {name: median(run["first_text_s"] for run in cases["one"]) for name, cases in runs.items()}
    requests = {(row["name"], row["clients"]): row["requests_per_s"] for row in _figures("serve")["rows"]}
    loads = []
    for clients, name, aim in ((1, "1 client", None), (8, "8 clients", None), (32, "32 clients", 250.0)):
        loads += [ours(f"{name}: voxstill", requests["steady", clients], aim)]
        loads += [peer(f"{name}: sherpa-onnx", requests["sherpa-onnx", clients])]
    searches = {name: row["utterances_per_second"] for name, row in _figures("decode")["peaky"].items()}
    pairs = _figures("score")["pairs_per_second"]
    return [
        Panel(
            "Exported student, single utterances",
            "seconds of audio a CPU second; more is better",
            [
                ours("voxstill, onnxruntime", speeds["onnxruntime"], aim=2.5 * speeds["torch"]),
                ours("voxstill, torch", speeds["torch"]),
                peer("sherpa-onnx", speeds["sherpa-onnx"]),
            ],
        ),
        Panel(
            "First text of a short recording",
            "seconds from the start of the command; less is better",
            [
                ours("voxstill, exported", starts["voxstill, exported"]),
                ours("voxstill, torch", starts["voxstill"]),
                *(peer(name, starts[name]) for name in ("transformers.pipeline", "faster-whisper", "sherpa-onnx")),
            ],
        ),
        Panel("Server, two cores with its clients", "requests a second; more is better", loads),
        Panel(
            "CTC beam search, beam of 10",
            "utterances a CPU second; more is better",
            [
                ours("voxstill", searches["ours"], aim=150),
                peer("flashlight-text", searches["flashlight-text, pruned"]),
                peer("pyctcdecode", searches["pyctcdecode, pruned"]),
                ours("voxstill, 3-gram", searches["ours, 3-gram"], aim=60),
                peer("flashlight-text, 3-gram", searches["flashlight-text, 3-gram"]),
            ],
        ),
        Panel(
            "Word errors of texts",
            "pairs a CPU second; more is better",
            [
                ours("voxstill", pairs["voxstill, words"], aim=10_000),
                *(peer(name, pairs[f"{name}, words"]) for name in ("kaldialign", "jiwer")),
            ],
        ),
    ]


PLOTS = {
    "recognition": ("Error rates of voxstill and of its peers", recognition),
    "labelling": ("Labelling with voxstill and with its peers", labelling),
    "training": ("Training with voxstill and with its peers", training),
    "inference": ("Inference with voxstill and with its peers", inference),
}


def svg(title: str, panels: Sequence[Panel]) -> str:
    """One image: a legend, and panels two in a row."""
    rows = [panels[start : start + 2] for start in range(0, len(panels), 2)]
    heights = [max(_height(panel) for panel in row) for row in rows]
    height = LEGEND_HEIGHT + sum(heights)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        *_legend(),
    ]
    y = LEGEND_HEIGHT
    for row, row_height in zip(rows, heights, strict=True):
        for column, panel in enumerate(row):
            lines.append(f'<g transform="translate({MARGIN + column * WIDTH // 2} {y})">')
            lines += _panel(panel)
            lines.append("</g>")
        y += row_height
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    yield f'<g transform="translate({MARGIN} 14)">'
    yield '<g class="ours"><rect class="bar" width="12" height="12"/><text x="18" y="10">voxstill</text></g>'
    yield '<rect class="bar" x="90" width="12" height="12"/><text x="108" y="10">peer</text>'
    yield '<line class="aim" x1="160" x2="160" y1="-2" y2="14"/><text x="168" y="10">aim</text>'
    yield "</g>"


def _height(panel: Panel) -> int:
    return TITLE_HEIGHT + BAR_PITCH * len(panel.bars) + AXIS_HEIGHT


def _panel(panel: Panel) -> Iterator[str]:
    top = _axis_end(max(max(bar.value, bar.aim or 0.0) for bar in panel.bars))
    bottom = TITLE_HEIGHT + BAR_PITCH * len(panel.bars)
    yield f'<text class="title" y="16">{escape(panel.title)}</text>'
    yield f'<text class="note" y="32">{escape(panel.unit)}</text>'
    for share in (0.0, 0.5, 1.0):
        x = LABEL_WIDTH + BAR_WIDTH * share
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TITLE_HEIGHT}" y2="{bottom + 2}"/>'
        yield f'<text class="note" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{top * share:,g}</text>'
    for number, bar in enumerate(panel.bars):
        yield from _bar(bar, TITLE_HEIGHT + BAR_PITCH * number + (BAR_PITCH - BAR_HEIGHT) // 2, top)


def _bar(bar: Bar, y: int, top: float) -> Iterator[str]:
    yield '<g class="ours">' if bar.is_ours else "<g>"
    yield f'<text x="{LABEL_WIDTH - 8}" y="{y + 11}" text-anchor="end">{escape(bar.label)}</text>'
    length = BAR_WIDTH * bar.value / top
    yield f'<rect class="bar" x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}"/>'
    if bar.aim is not None:
        x = LABEL_WIDTH + BAR_WIDTH * bar.aim / top
        for style in ("gap", "aim"):
            yield f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + BAR_HEIGHT + 3}"/>'
    yield f'<text x="{VALUE_END}" y="{y + 11}" text-anchor="end">{_number(bar.value)}</text>'
    yield "</g>"


def _axis_end(value: float) -> float:
    """The next of 1, 2, 4, 6 and 8 times a power of ten."""
    power: float = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _figures(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def _medians(rounds: dict[str, list[dict[str, Any]]], figure: str) -> dict[str, float]:
    return {name: median(run[figure] for run in runs) for name, runs in rounds.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    for name, (title, panels) in PLOTS.items():
        (folder / f"results_{name}.svg").write_text(svg(title, panels()), encoding="utf-8")
