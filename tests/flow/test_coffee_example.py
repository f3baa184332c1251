"""`examples/coffee/run.sh` goes from recordings to the comparison."""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxstill.audio import codec
from voxstill.synthesis.voices import SpeechJob, synthesize
from voxstill.text import jsgf

ROOT = Path(__file__).parents[2]
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks/coffee.py"))
ORDERS = {
    "make me a latte": {"coffeeDrink": "latte"},
    "i want a small mocha with milk": {"coffeeDrink": "mocha", "size": "small", "milkAmount": " milk"},
    "double shot espresso": {"coffeeDrink": "espresso", "numberOfShots": "double shot"},
    "dark roast iced coffee": {"coffeeDrink": "iced coffee", "roast": "dark roast"},
}


def test_every_sentence_of_the_grammar_fills_slots_with_all_of_its_words() -> None:
    grammar = jsgf.parse((ROOT / "examples/coffee/orders.jsgf").read_text())
    others = {
        "brew",
        "can",
        "may",
        "i",
        "get",
        "have",
        "give",
        "make",
        "me",
        "want",
        "i'd",
        "like",
        "a",
        "an",
        "with",
        "and",
    }
    for number in range(300):
        text = " ".join(grammar.sample(random.Random(number)))
        filled = BENCHMARK["slots"](text)
        if filled is None:  # two sizes, say
            continue
        assert "coffeeDrink" in filled
        assert set(text.split()) - others <= set(" ".join(filled.values()).split())


def test_noise_is_mixed_at_the_ratio_of_the_loudest_frames() -> None:
    random_ = np.random.default_rng(0)
    speech_T, noise_T = random_.normal(size=30_000) * np.linspace(0, 1, 30_000), random_.normal(size=7_000)
    loudest, mixed = BENCHMARK["loudest"], BENCHMARK["mixed"]
    assert mixed(speech_T, noise_T, None, "a") is speech_T
    noisy_T = mixed(speech_T, noise_T, 12.0, "a")
    assert np.abs(noisy_T).max() == pytest.approx(0.5)
    scale = np.linalg.lstsq(np.stack([speech_T, np.ones_like(speech_T)], 1), noisy_T, rcond=None)[0][0]
    ratio = loudest(speech_T) / loudest(noisy_T / scale - speech_T)
    assert 10 * np.log10(ratio) == pytest.approx(12, abs=0.5)
    assert np.array_equal(noisy_T, mixed(speech_T, noise_T, 12.0, "a"))


def test_silent_clips_stay_silent_in_silent_noise() -> None:
    assert not BENCHMARK["mixed"](np.zeros(3000), np.zeros(100), 6.0, "a").any()


def test_blank_lines_of_a_manifest_are_no_orders(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text('\ufeff{"id": "a"}\r\n\r\n{"id": "b"}\n', encoding="utf-8")
    assert [row["id"] for row in BENCHMARK["manifest"](tmp_path)] == ["a", "b"]


def test_orders_to_judge_by_are_read_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text('{"id": "a", "audio": "a.wav"}\n')
    (tmp_path / "noise.wav").write_bytes(codec.encode(np.ones(100, np.int16), "wav"))
    args = argparse.Namespace(test=tmp_path, noise=tmp_path / "noise.wav", seed=0)
    with pytest.raises(SystemExit, match="with `slots`"):
        BENCHMARK["judged"](args)


@pytest.mark.parametrize("change", [{}, {"seed": 1}, {"hours": 0.2}, {"train": "others"}])
def test_other_orders_voices_and_seeds_are_trained_in_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    commands: list[tuple[str, ...]] = []

    def recorded(*words: str) -> str:
        commands.append(words)
        return "{}"

    monkeypatch.setitem(BENCHMARK["student"].__globals__, "voxstill", recorded)
    for name in ("orders", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.jsonl").write_text(f'{{"id": "{name}", "audio": "a.wav", "slots": {{}}}}\n')
        (tmp_path / name / "coffee.jsgf").write_text("#JSGF V1.0;\ngrammar g;\npublic <s> = latte;\n")
    options = {"train": "orders", "work": tmp_path / "work", "hours": 0.1, "seed": 0, "set": []}
    works = []
    for own in (options, {**options, **change}):
        cfg, _ = BENCHMARK["student"](argparse.Namespace(**{**own, "train": tmp_path / own["train"]}))
        works.append(cfg.work)
    assert (works[0] == works[1]) == (not change)
    assert [words[0] for words in commands] == ["voices", "run"] * 2


def test_one_session_has_no_interval() -> None:
    sides = ("teacher", "student")
    figures = {
        **{side: dict.fromkeys(BENCHMARK["CONDITIONS"], 0.5) for side in sides},
        **{"refused": dict.fromkeys(sides, 0.5), "intervals": dict.fromkeys(sides), "p": None},
        **{"difference": 0.0, "difference_interval": None, "sessions": 1},
        **{"parameters": 1, "rtfx": dict.fromkeys(sides, 1.0), "seconds": 1.0},
    }
    assert "no interval" in BENCHMARK["table"](figures)


def test_one_command_goes_from_raw_audio_to_the_comparison(tmp_path: Path) -> None:
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    benchmark = tmp_path / "given/data"
    for name in ("label", "noise", "speech/clean"):
        (benchmark / name).mkdir(parents=True)
    texts = [text for text in ORDERS for _ in range(3)]
    jobs = [SpeechJob(text=text, voice=f"en-us+m{number % 4 + 1}") for number, text in enumerate(texts)]
    labels = {}
    for number, (text, samples_T) in enumerate(zip(texts, synthesize(jobs), strict=True)):
        (benchmark / f"speech/clean/{number}.wav").write_bytes(codec.encode(samples_T, "wav"))
        labels[f"{number}.wav"] = {"intent": "orderDrink", "slots": ORDERS[text]}
    (benchmark / "label/label.json").write_text(json.dumps(labels))
    noise_T = np.random.default_rng(0).normal(0, 3000, 80_000).astype(np.int16)
    (benchmark / "noise/kitchen.wav").write_bytes(codec.encode(noise_T, "wav"))
    programs = {
        "git": f'for folder; do true; done\nmkdir -p "${{folder%/*}}"\ncp -r "{tmp_path}/given" "$folder"\n',
        "python": f'exec "{sys.executable}" "$@"\n',
    }
    for name, script in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)
    options = ["--json", "--hours", "0.01", "--set", "train.steps=2", "--set", "train.loader_workers=0"]
    done = subprocess.run(
        ["examples/coffee/run.sh", *options],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)
    rows = {part: (tmp_path / f"data/coffee/{part}/manifest.jsonl").read_text() for part in ("train", "test")}
    assert len(rows["train"].splitlines()) + len(rows["test"].splitlines()) == len(texts)
    assert figures["commands"] == len(rows["test"].splitlines()) > 0
    assert set(figures["teacher"]) == set(figures["student"]) == {"clean", "24", "18", "12", "6"}
    assert figures["teacher"]["clean"] > 0.5
    [orders] = (tmp_path / "work/coffee").glob("*/orders.jsonl")
    assert "slots" not in orders.read_text()
    assert 0 <= figures["p"] <= 1
    assert figures["parameters"] < 3_000_000
