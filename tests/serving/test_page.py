"""The page at `/`: one file that asks no other server, under a policy that lets its own script run alone."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from browser import CHROMIUM, Browser
from serving_process import ServerProcess, serving, wav_of
from tones import TEXTS
from voxstill.core.records import RATE_HZ
from voxstill.synthesis.voices import SpeechJob, synthesize


@pytest.fixture(scope="module")
def open_server(tone_student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without keys."""
    folder = tmp_path_factory.mktemp("open_server")
    with serving(folder, [f"tone={tone_student}"], environment={}) as process:
        yield process


def test_the_policy_names_the_script_and_the_style_of_the_page(open_server: ServerProcess) -> None:
    answer = httpx.get(open_server.url)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        [content] = re.findall(rf"<{kind}>(.*?)</{kind}>", answer.text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.search(r"(?:src|href)=\"(?!data:)|style=\"|\son\w+=\"|https?://", answer.text)


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
def test_a_file_that_is_dropped_becomes_words_with_times(open_server: ServerProcess, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(open_server.url)
        browser.wait_for("document.querySelector('#model').options.length === 1")
        data = base64.b64encode(wav_of(TEXTS[2])).decode()
        browser.evaluate(
            f"""(() => {{
            const bytes = Uint8Array.from(atob("{data}"), (character) => character.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "a.wav"));
            dispatchEvent(new DragEvent("drop", {{ dataTransfer: transfer, cancelable: true }}));
        }})()"""
        )
        browser.wait_for("document.querySelectorAll('.word').length === 4")
        words = browser.evaluate("[...document.querySelectorAll('.word')].map((word) => word.firstChild.data)")
        assert words == TEXTS[2].split()
        assert float(browser.evaluate("document.querySelector('.word small').textContent")) == pytest.approx(
            0.12, abs=0.1
        )
        assert browser.errors == []
        assert {url.split("/")[2] for url in browser.network if url.startswith("http")} == {open_server.url[7:]}


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium at hand")
def test_what_is_spoken_into_the_microphone_becomes_words(open_server: ServerProcess, tmp_path: Path) -> None:
    [speech_T] = synthesize([SpeechJob(text="ba du ko mi ba du ko mi", voice="en-us")], processes=1)
    pause_T = np.random.default_rng(0).normal(0, 3, 2 * RATE_HZ).astype(np.int16)
    microphone = tmp_path / "speech.wav"
    soundfile.write(microphone, np.concatenate([pause_T[: RATE_HZ // 2], speech_T, pause_T]), RATE_HZ)
    with Browser(tmp_path, microphone=microphone) as browser:
        browser.open(open_server.url)
        browser.wait_for("document.querySelector('#model').options.length === 1")
        browser.evaluate("document.querySelector('#speak').click()")
        browser.wait_for("document.querySelector('#speak').getAttribute('aria-pressed') === 'true'")
        browser.wait_for("document.querySelectorAll('.word').length > 0")  # while it is spoken
        browser.evaluate("document.querySelector('#speak').click()")  # in the middle: the rest follows
        browser.wait_for("document.querySelector('#speak').getAttribute('aria-pressed') === 'false'")
        words = browser.evaluate("[...document.querySelectorAll('.word')].map((word) => word.firstChild.data)")
        assert words
        assert set(words) <= {word for text in TEXTS for word in text.split()}
        assert browser.evaluate("document.querySelectorAll('#words > [class]:not([class=\"\"])').length") == 0
        assert browser.errors == []
