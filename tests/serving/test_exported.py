"""An exported student is served like the one in torch: the same texts, without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai
import pytest

from serving_process import API_KEY, ServerProcess, serving, wav_of
from tones import TEXTS

SERVER = """
import sys
from voxstill import cli
code = cli.main(["serve", *sys.argv[1:], "--port", "0", "--json", "--set", "serve.grace_s=0"])
heavy = {"torch", "transformers", "ray"} & set(sys.modules)
sys.exit(code or f"loaded: {heavy}" if heavy else code)
"""


@pytest.fixture(scope="module")
def both(
    tone_student: Path, exported_tone_student: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with the student in torch and with the exported one. Phrases weigh so much that they are audible."""
    models = [f"torch={tone_student}", f"onnx={exported_tone_student}"]
    with serving(tmp_path_factory.mktemp("server"), models, "decode.boost_weight=30") as process:
        yield process


def answers(url: str, model: str, keywords: Sequence[str]) -> list[tuple[str, list[object]]]:
    """Text, words and their times of each of the tones."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0) as client:
        transcripts = [
            client.audio.transcriptions.create(
                model=model,
                file=("a.wav", wav_of(text)),
                response_format="verbose_json",
                timestamp_granularities=["word"],
                keywords=list(keywords),
            )
            for text in TEXTS
        ]
    return [(transcript.text, [word.to_dict() for word in transcript.words or ()]) for transcript in transcripts]


def test_texts_and_word_times_are_those_of_torch(both: ServerProcess) -> None:
    plain = answers(both.url, "onnx", ())
    assert plain == answers(both.url, "torch", ())
    boosted = answers(both.url, "onnx", ["mi mi", "ba"])
    assert boosted == answers(both.url, "torch", ["mi mi", "ba"]) != plain


def test_a_server_of_exported_students_loads_no_torch(exported_tone_student: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "VOXSTILL_API_KEYS": API_KEY}
    arguments = [sys.executable, "-c", SERVER, f"tone={exported_tone_student}"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (tmp_path / "log").read_text()
            texts = [answer[0] for answer in answers(json.loads(line)["url"], "tone", ())]
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
    assert texts == list(TEXTS)
