from __future__ import annotations

import base64
import io
import math
import random
import re
import shutil
import struct
import subprocess
import wave
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxstill.factory.filter import RULES
from voxstill.report.html import (
    Comparison,
    Facts,
    Version,
    data_uri,
    duration,
    magnitude,
    number,
    percent,
    render,
    render_comparison,
)
from voxstill.score.words import align

VOID = {"meta", "link", "br", "hr", "img", "input", "source"}
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def tone() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i / 5))) for i in range(24_000)))
    return buffer.getvalue()


def example() -> Facts:
    chance = random.Random(3)
    dropped = {"failed": 2, "too_fast": 31, "repeated": 12, "low_confidence": 951}

    def wrong(words: list[str], share: float) -> list[str]:
        heard = [chance.choice(DIGITS) if chance.random() < share else word for word in words]
        return [word for word in heard for _ in range(chance.choices([0, 1, 2], [share / 4, 1, share / 4])[0])]

    def utterance(i: int) -> dict[str, object]:
        said = chance.choices(DIGITS, k=7)
        heard = [(role, align(said, wrong(said, share))) for role, share in (("teacher", 0.5), ("student", 0.4))]
        return {
            "id": f"jackson-7f3a{i}",
            "about": "jackson, 10 dB, 3.4 s",
            "audio": tone(),
            "heard": [{"role": role, "wer": counts.rate, "pairs": pairs} for role, (counts, pairs) in heard],
        }

    def groups(names: list[str]) -> list[dict[str, object]]:
        return [
            {
                "name": name,
                "words": chance.randint(300, 1200),
                "wer": {"teacher": chance.uniform(0.15, 0.7), "student": chance.uniform(0.05, 0.2)},
            }
            for name in names
        ]

    training = [
        {"step": 5 * i, "loss": 0.25 + 4 * math.exp(-i / 40) + chance.uniform(0, 0.2), "lr": 1e-3} for i in range(300)
    ]
    validation = [
        {"step": 150 * i, "split": "dev", "wer": 0.09 + 0.8 * math.exp(-i / 2), "loss": 0.4} for i in range(1, 11)
    ]
    return {
        "title": "A student of 1.6 million parameters for spoken commands",
        "about": "demo, 6 December 2025. Learnt from 1,404 pseudo-labels without one human transcript.",
        "systems": [
            {
                "role": "teacher",
                "name": "pocketsphinx@5.1.1",
                "wer": 0.366,
                "interval": (0.301, 0.428),
                "cer": 0.291,
                "parameters": None,
                "rtfx": 48.2,
            },
            {
                "role": "student",
                "name": "FastConformer-CTC tiny",
                "wer": 0.094,
                "interval": (0.071, 0.122),
                "cer": 0.061,
                "parameters": 1_640_000,
                "rtfx": 487.0,
            },
        ],
        "judged": {"split": "test", "utterances": 480, "words": 2613, "drawn": "speakers", "resamples": 1000},
        "steps": [
            {"name": "index", "seconds": 1.9, "figures": {"recordings": 3120, "damaged": 0, "hours": 1.82}},
            {"name": "label", "seconds": 88.0, "figures": {"labels": 2400, "failed": 2, "rtfx": 48.2}},
            {"name": "filter", "seconds": 0.8, "figures": {"kept": 0.585, "wer_before": 0.389, "wer_after": 0.191}},
            {"name": "shard", "seconds": 3.1, "figures": {"shards": 1, "utterances": 1404, "hours": 0.62}},
            {"name": "train", "seconds": 151.4, "figures": {"steps": 1500, "loss": 0.31, "padding": 0.06}},
            {"name": "evaluate", "seconds": 9.7, "figures": {"wer": 0.094, "cer": 0.061}},
        ],
        "funnel": {
            "labels": 2400,
            "rules": [
                {
                    "name": name,
                    "why": why,
                    "dropped": dropped.get(name, 0),
                    "examples": [
                        {"id": f"{name}-{i}", "about": "jackson", "text": "seven"[: 5 * i], "audio": [None, tone()][i]}
                        for i in range(min(dropped.get(name, 0), 2))
                    ],
                }
                for name, (_, why) in RULES.items()
            ],
            "curve": [(0.5, 0.02), (0.75, 0.08), (1.0, 0.16)],
        },
        "metrics": [*training, *validation],
        "breakdowns": [
            {"by": "speaker", "groups": groups(["en-029+f2", "en-us+m3", "en-gb-scotland+m7", "en-gb-x-rp+f4"])},
            {"by": "dataset", "groups": groups(["clean", "20 dB", "10 dB", "5 dB"])},
        ],
        "confusions": {
            "teacher": [
                {"reference": "five", "hypothesis": "nine", "count": 41},
                {"reference": "the", "hypothesis": None, "count": 33},
                {"reference": None, "hypothesis": "eight", "count": 17},
            ],
            "student": [
                {"reference": "five", "hypothesis": "nine", "count": 9},
                {"reference": "off", "hypothesis": "of", "count": 4},
            ],
        },
        "worst": [utterance(i) for i in range(3)],  # type: ignore[misc]
        "config": "work: work/demo\nseed: 0\nteacher:\n  name: pocketsphinx\nstudent:\n  size: tiny\n",
        "environment": {
            "voxstill": "0.1.0",
            "python": "3.11.7",
            "packages": {"torch": "2.13.0", "numpy": "2.4.0"},
            "threads": 1,
        },
    }


def compared() -> Comparison:
    chance = random.Random(5)
    said = [chance.choices(DIGITS, k=6) for _ in range(3)]
    heard = [[[chance.choice([word, word, "oh"]) for word in each] for _ in range(3)] for each in said]
    return {
        "title": "Teachers compared",
        "about": "Labels of 3 teachers",
        "utterances": 4440,
        "hours": 1.62,
        "words": 9457,
        "price": 0.5,
        "labellers": [
            {
                "name": f"teacher-{i}@1",
                "recipe": 16 * str(i),
                "options": "beam_size: 5",
                "labels": 4440,
                "failed": i,
                "wer": [0.16, None, 0.3][i],
                "rtfx": [12.3, 0.0, 353.0][i],
                "work_s": [475.0, None, 17.0][i],
                "cost": [0.07, None, 0.002][i],
            }
            for i in range(3)
        ],
        "equal": [[None, 0.66, 0.8], [0.66, None, 0.75], [0.8, 0.75, None]],
        "apart": [[None, 0.22, 0.13], [0.235, None, 0.1], [0.12, 1.4, None]],
        "disputed": [
            {
                "id": f"george-{i}",
                "about": "george",
                "said": i > 0,
                "versions": [
                    {"number": n, "wer": counts.rate, "pairs": pairs}
                    for n, (counts, pairs) in enumerate((align(each, one) for one in some), start=1)
                ],
                "audio": None if i == 1 else tone(),
            }
            for i, (each, some) in enumerate(zip(said, heard, strict=True))
        ],
    }


def test_a_comparison_is_one_well_formed_file_that_loads_nothing() -> None:
    html = render_comparison(compared())
    page = Page(html)
    assert page.sections == ["teachers", "agreement", "disputed"]
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} == {*page.sections, "content"}
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r"https?://|@import|url\(|\b(nan|inf|None)\b", html)
    assert "script" not in page.tags
    assert page.tags.count("audio") == 2
    alike: Comparison = {**compared(), "disputed": [], "price": None}
    assert Page(render_comparison(alike)).sections == ["teachers", "agreement"]


@given(st.text())
def test_nothing_of_a_comparison_can_become_markup(text: str) -> None:
    evil = f'</p><script>alert("{text}")</script>'
    facts = compared()
    facts["title"] = facts["about"] = evil
    facts["labellers"] = [{**each, "name": evil, "recipe": evil, "options": evil} for each in facts["labellers"]]
    versions: list[Version] = [{"number": 1, "wer": 1.0, "pairs": [(evil, None), (None, evil), (evil, evil)]}]
    facts["disputed"] = [{**each, "id": evil, "about": evil, "versions": versions} for each in facts["disputed"]]
    assert "script" not in Page(render_comparison(facts)).tags


SECTIONS = {
    "systems": "result",
    "steps": "steps",
    "funnel": "filter",
    "metrics": "learning",
    "breakdowns": "groups",
    "confusions": "confusions",
    "worst": "worst",
    "config": "made",
}


class Page(HTMLParser):
    """Every tag closed in order, and what the page refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        self.links += [known[name] or "" for name in ("src", "href", "data", "poster", "srcset") if name in known]
        if tag == "section":
            self.sections.append(known["id"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_whole_report_is_one_well_formed_file_that_loads_nothing() -> None:
    html = render(example())
    page = Page(html)
    assert page.sections == list(SECTIONS.values())
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r"https?://|@import|url\(", html)
    assert "script" not in page.tags
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} == {*page.sections, "content"}


def test_the_audio_is_inside() -> None:
    html = render(example())
    assert Page(html).tags.count("audio") == 3 + 4  # the worst utterances, and one of each rule that dropped some
    assert base64.b64encode(tone()).decode() in html
    assert data_uri(b"fLaC....").startswith("data:audio/flac;base64,")


@pytest.mark.parametrize("fact", SECTIONS)
def test_a_section_is_absent_without_its_facts(fact: str) -> None:
    facts = {name: value for name, value in example().items() if name not in {fact, "environment"}}
    page = Page(render(facts))
    assert page.sections == [section for name, section in SECTIONS.items() if name != fact]
    assert f"#{SECTIONS[fact]}" not in page.links


def test_no_facts_make_an_empty_page_and_each_section_stands_alone() -> None:
    assert Page(render({})).sections == []
    facts = example()
    for fact, section in SECTIONS.items():
        assert Page(render({fact: facts[fact]})).sections == [section]  # type: ignore[literal-required]


@given(st.text())
def test_what_comes_from_data_cannot_become_markup(text: str) -> None:
    evil = f'</pre><script>alert("{text}")</script>'
    facts: Facts = {
        "title": evil,
        "about": evil,
        "worst": [{"id": evil, "about": evil, "heard": [{"role": "student", "wer": 1.0, "pairs": [(evil, evil)]}]}],
        "confusions": {"student": [{"reference": evil, "hypothesis": evil, "count": 1}]},
        "breakdowns": [{"by": evil, "groups": [{"name": evil, "words": 1, "wer": {"student": 0.5}}]}],
        "config": evil,
        "environment": {evil: evil, "packages": {evil: evil}},
    }
    page = Page(render(facts))
    assert "script" not in page.tags


def test_what_is_not_known_is_a_dash() -> None:
    facts: Facts = {
        "systems": [{"role": "student", "name": "s", "wer": None}],
        "funnel": {"labels": 0, "rules": []},
        "metrics": [{"step": 1, "loss": 2.0}],
        "breakdowns": [{"by": "speaker", "groups": [{"name": "ann", "words": 0, "wer": {"student": None}}]}],
    }
    page = Page(render(facts))
    assert page.sections == ["result", "filter", "groups"]
    assert render(facts) == render(facts)


def test_the_verdict_says_no_more_than_the_intervals_do() -> None:
    facts = example()
    assert "The student makes fewer errors than its teacher." in render(facts)
    facts["systems"][1]["interval"] = (0.05, 0.31)
    assert "does not tell them apart" in render(facts)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"step": st.integers(0, 10**7), "loss": st.none() | st.floats(width=32)}, optional={"split": st.just("dev")}
        ),
        max_size=400,
    )
)
def test_any_metrics_make_a_page(rows: list[dict[str, float]]) -> None:
    html = render({"metrics": rows})
    assert not re.search(r"\b(nan|inf)\b", html)


def test_numbers_are_written_for_people() -> None:
    assert [percent(None), percent(0.1234), percent(1.5)] == ["–", "12.3\u202f%", "150.0\u202f%"]
    assert [number(1234567), number(0.12345), number("x"), number(None)] == ["1\u202f234\u202f567", "0.123", "x", "–"]
    assert [magnitude(1_640_000), magnitude(110e6), magnitude(12)] == ["1.6\u202fM", "110\u202fM", "12"]
    assert [duration(1.94), duration(95), duration(7260)] == [
        "1.9\u202fs",
        "1\u202fmin 35\u202fs",
        "2\u202fh 1\u202fmin",
    ]


@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("google-chrome")), reason="no Chromium at hand")
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_chromium_draws_it_and_it_fits_the_window(tmp_path: Path, width: int, kind: str) -> None:
    html = render(example()) if kind == "run" else render_comparison(compared())
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    page = (tmp_path / "report.html").as_uri()
    browser = str(shutil.which("chromium") or shutil.which("google-chrome"))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    quiet = f"--disable-component-update --disable-sync --user-data-dir={tmp_path / 'profile'}"
    shot = tmp_path / "report.png"
    subprocess.run(
        [browser, *flags.split(), *quiet.split(), f"--window-size={width},4000", f"--screenshot={shot}", page],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert shot.read_bytes()[16:24] == struct.pack(">II", width, 4000)
    assert shot.stat().st_size > 50_000  # a blank page is a few kilobytes
