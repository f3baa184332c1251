from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import CHROMIUM, Browser
from pages import Page
from report_facts import compared, comparison, example, tone
from voxstill.evaluation.report import charts
from voxstill.evaluation.report.formatting import data_uri, duration, magnitude, number, percent
from voxstill.evaluation.report.html import (
    Comparison,
    EvaluatedUtterance,
    Facts,
    Group,
    TeacherLabel,
    render,
    render_comparison,
)
from voxstill.evaluation.report.plain import markdown

SECTIONS = {
    "systems": "result",
    "grammar": "grammar",
    "results": "results",
    "steps": "steps",
    "funnel": "filter",
    "metrics": "learning",
    "breakdowns": "groups",
    "confusions": "confusions",
    "worst": "worst",
    "utterances": "utterances",
    "config": "made",
}


def test_the_whole_report_is_one_well_formed_file_that_loads_nothing() -> None:
    html = render(example())
    page = Page(html)
    assert page.sections == list(SECTIONS.values())
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r"https?://|@import|url\(", html)
    assert page.tags.count("script") == 2  # the rows, and what shows them
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
        "utterances": [
            {"id": evil, "speaker": evil, "dataset": evil, "duration_ms": 1, "heard": {"student": [(evil, evil)]}}
        ],
        "confusions": {"student": [{"reference": evil, "hypothesis": evil, "count": 1}]},
        "breakdowns": [{"by": evil, "groups": [{"name": evil, "words": 1, "wer": {"student": 0.5}}]}],
        "config": evil,
        "environment": {evil: evil, "packages": {evil: evil}},
    }
    page = Page(render(facts))
    assert page.tags.count("script") == 2  # our own


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
    assert "intervals alone do not show a difference" in render(facts)


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


def test_a_comparison_is_one_well_formed_file_that_loads_nothing() -> None:
    html = render_comparison(comparison())
    page = Page(html)
    assert page.sections == ["teachers", "agreement", "disputed"]
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} == {*page.sections, "content"}
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert not re.search(r"https?://|@import|url\(|\b(nan|inf|None)\b", html)
    assert "script" not in page.tags
    assert page.tags.count("audio") == 2
    agreeing: Comparison = {**comparison(), "disputed": [], "price": None}
    assert Page(render_comparison(agreeing)).sections == ["teachers", "agreement"]


@given(st.text())
def test_nothing_of_a_comparison_can_become_markup(text: str) -> None:
    evil = f'</p><script>alert("{text}")</script>'
    facts = comparison()
    facts["title"] = facts["about"] = evil
    facts["labellers"] = [
        {**labeller, "name": evil, "recipe": evil, "options": evil} for labeller in facts["labellers"]
    ]
    versions: list[TeacherLabel] = [{"number": 1, "wer": 1.0, "pairs": [(evil, None), (None, evil), (evil, evil)]}]
    facts["disputed"] = [
        {**utterance, "id": evil, "about": evil, "versions": versions} for utterance in facts["disputed"]
    ]
    assert "script" not in Page(render_comparison(facts)).tags


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_chromium_draws_it_and_it_fits_the_window(tmp_path: Path, width: int, kind: str) -> None:
    html = render(example()) if kind == "run" else render_comparison(comparison())
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    with Browser(tmp_path, width) as browser:
        browser.open((tmp_path / "report.html").as_uri())
        if kind == "run":
            browser.wait_for("!document.querySelector('#utterances').hidden")
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.screenshot(tmp_path / "report.png")
        assert not browser.errors
        assert all(url.startswith(("file:", "data:", "blob:")) for url in browser.network)
    assert (tmp_path / "report.png").stat().st_size > 50_000  # a blank page is a few kilobytes


ROWS = "[...document.querySelectorAll('#utterances tbody > tr:not(.opened)')]"
NAMES = f"{ROWS}.map((row) => row.querySelector('button').textContent)"
SHOWN_RANGE = "document.querySelector('[data-part=range]').textContent"


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
def test_in_chromium_utterances_are_sorted_searched_paged_opened_and_played(tmp_path: Path) -> None:
    facts = example()
    opened_utterance = facts["utterances"][7]
    facts["worst"][0]["id"] = opened_utterance["id"]  # type: ignore[index]
    (tmp_path / "report.html").write_text(render(facts), encoding="utf-8")
    student = {utterance["id"]: errors(utterance["heard"]["student"]) for utterance in facts["utterances"]}
    with Browser(tmp_path) as browser:
        browser.open((tmp_path / "report.html").as_uri())
        browser.wait_for("!document.querySelector('#utterances').hidden")
        assert browser.evaluate(SHOWN_RANGE) == "1 to 50 of 480"
        by_errors = sorted(student, key=lambda id_: (-student[id_], id_))
        assert browser.evaluate(NAMES) == by_errors[:50]
        browser.press("n")
        assert browser.evaluate(NAMES) == by_errors[50:100]
        browser.press("p")
        assert browser.evaluate(NAMES) == by_errors[:50]
        browser.evaluate("document.querySelector('[data-key=id] button').click()")
        assert browser.evaluate(NAMES) == sorted(student)[:50]
        browser.evaluate("document.querySelector('[data-key=id] button').click()")
        assert browser.evaluate(NAMES) == sorted(student)[::-1][:50]
        browser.evaluate(
            "{ const show = document.querySelector('[data-part=show]'); show.value = 'worse';"
            "show.dispatchEvent(new Event('change')); }"
        )
        worse = [
            utterance
            for utterance in facts["utterances"]
            if student[utterance["id"]] > errors(utterance["heard"]["teacher"])
        ]
        assert browser.evaluate(SHOWN_RANGE).endswith(f" of {len(worse)}")
        browser.evaluate("document.querySelector('[data-part=show]').value = 'all'; undefined")
        browser.evaluate("document.activeElement.blur()")
        browser.press("/")
        for key in opened_utterance["id"]:
            browser.press(key)
        assert browser.wait_for(f"{NAMES}.length === 1")
        assert browser.evaluate(SHOWN_RANGE) == "1 to 1 of 1"
        browser.evaluate(f"{ROWS}[0].querySelector('button').focus()")
        browser.press("Enter")
        pairs = "[...document.querySelectorAll('.opened .heard.student .aligned > span:not(.lead)')]"
        kinds = [
            "more" if r is None else "gone" if h is None else "hit" if r == h else "sub"
            for r, h in opened_utterance["heard"]["student"]
        ]
        assert browser.evaluate(f"{pairs}.map((each) => each.className)") == kinds
        hypothesis_words = [hypothesis or "∅nothing" for _, hypothesis in opened_utterance["heard"]["student"]]
        assert browser.evaluate(f"{pairs}.map((each) => each.lastChild.textContent)") == hypothesis_words
        browser.evaluate("document.querySelector('.opened audio').play()")
        browser.wait_for("document.querySelector('.opened audio').currentTime > 0")
        assert not browser.errors


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
def test_a_hundred_thousand_utterances_stay_usable(tmp_path: Path) -> None:
    chance = random.Random(0)
    samples = [compared(i, chance) for i in range(2000)]
    many: list[EvaluatedUtterance] = [{**samples[i % 2000], "id": f"u{i:06}"} for i in range(100_000)]
    page = render({"utterances": many})
    assert len(page) < 10_000_000
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    with Browser(tmp_path) as browser:
        browser.open((tmp_path / "report.html").as_uri())
        browser.wait_for("!document.querySelector('#utterances').hidden")
        search = (
            "(async () => { const search = document.querySelector('[data-part=search]'); search.value = 'seven u0999';"
            "const start = performance.now(); search.dispatchEvent(new Event('input'));"
            "return performance.now() - start; })()"
        )
        assert browser.evaluate(search) < 3000  # some 100 ms; this machine may be busy
        assert all(name.startswith("u0999") for name in browser.evaluate(NAMES))
        assert len(browser.evaluate(NAMES)) > 0


def errors(pairs: Iterable[tuple[str | None, str | None]]) -> int:
    return sum(reference != hypothesis for reference, hypothesis in pairs)


def many_speakers() -> Facts:
    groups: list[Group] = [
        {"name": f"s{i:04}", "words": 100, "wer": {"teacher": 0.5, "student": i / 3000}} for i in range(3000)
    ]
    return {"breakdowns": [{"by": "speaker", "groups": groups}]}


def test_of_thousands_of_speakers_the_worst_are_shown_and_what_half_of_them_have() -> None:
    page = render(many_speakers())
    assert len(page) < 100_000
    shown = [name for name in (f"s{i:04}" for i in range(3000)) if f"<dt>{name} " in page]
    assert shown == [f"s{i:04}" for i in range(2980, 3000)]
    assert page.index("s2999 ") < page.index("s2980 ")
    assert "The worst 20 of 3\u202f000." in page
    assert "Student: half of all are above 50.0\u202f%, a tenth above 90.0\u202f%." in page
    few = markdown(many_speakers())
    assert "the worst 20 of 3,000" in few
    assert few.count("\n") < 40


def test_learning_rate_gradient_norm_and_throughput_are_drawn() -> None:
    metrics = [
        {"step": i, "loss": 1.0, "lr": 1e-3 * i, "grad_norm": None if i == 3 else 2.0, "audio_seconds_per_second": 90.0}
        for i in range(9)
    ]
    titles = [chart.title for chart in charts.training_charts(metrics)]
    assert titles == ["Training loss", "Learning rate", "Gradient norm", "Throughput, seconds of audio per second"]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
def test_on_a_phone_the_texts_and_all_figures_are_within_the_window(tmp_path: Path) -> None:
    facts = example()
    folder = "/data/corpora/2026-11-23_calls_of_one_long_name/"
    line = facts["results"][0]
    facts["about"] = folder * 2
    facts["systems"] = [{**system, "name": folder} for system in facts["systems"]]
    facts["results"] = [{**line, "corpus": folder, "recogniser": "epoch=12-step=250000", "decoding": "beam-16-lm" * 3}]
    (tmp_path / "report.html").write_text(render(facts), encoding="utf-8")
    with Browser(tmp_path, 500) as browser:  # narrower windows are not made, but narrower pages are
        browser.set_width(390)
        browser.open((tmp_path / "report.html").as_uri())
        browser.wait_for("!document.querySelector('#utterances').hidden")
        cells = "[...document.querySelectorAll('#utterances tbody tr:first-child > *')]"
        boxes = f"{cells}.map((cell) => cell.getBoundingClientRect())"
        assert browser.evaluate(f"{boxes}.map((box) => box.width > 0 && box.right <= 390)") == [True] * 6
        text = "document.querySelector('#utterances tbody .text')"
        assert browser.evaluate(f"{text}.scrollWidth <= {text}.clientWidth")
        assert len(browser.evaluate(f"{text}.textContent").split()) > 2
        assert browser.evaluate("document.documentElement.scrollWidth <= 390")
        tables = "[...document.querySelectorAll(':is(#result, #results, #steps) .scroll')]"
        assert browser.evaluate(f"{tables}.map((table) => table.scrollWidth <= table.clientWidth)") == [True] * 3
        assert browser.evaluate("document.querySelector('#results .narrow').offsetHeight > 0")  # the interval
