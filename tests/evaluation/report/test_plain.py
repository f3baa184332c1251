from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from report_facts import example
from voxstill.evaluation.report.plain import as_json, markdown


def test_json_holds_every_fact_but_those_with_a_file_of_their_own() -> None:
    facts = example()
    stored = json.loads(as_json(facts))
    assert set(stored) == set(facts) - {"utterances", "metrics"}
    assert stored["systems"][1]["wer"] == 0.094
    assert stored["worst"][0]["heard"][0]["pairs"]
    assert "audio" not in stored["worst"][0]
    assert as_json(facts) == as_json(example())


def test_markdown_says_what_the_page_says() -> None:
    text = markdown(example())
    assert "| student | FastConformer-CTC tiny | 9.4 % | 7.1 % to 12.2 % | 6.1 %" in text
    assert "## WER by speaker" in text
    assert "| five | nine | 41 |" in text
    assert "| too\\_fast | 31 |" in text
    assert markdown({}) == "# Report\n"


@given(st.text())
def test_what_comes_from_data_stays_in_its_cell(text: str) -> None:
    evil = f"a | b\n# {text} <script> [x](y)"
    rendered = markdown(
        {"confusions": {"student": [{"reference": evil, "hypothesis": None, "count": 1}]}, "title": evil}
    )
    rows = [line for line in rendered.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)
    assert len(rendered.splitlines()) == 7
