"""serve: what it is given, and what it refuses before it serves."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import forked
from command_lines import parse
from serving_process import API_KEY, samples_of, serving
from tones import TEXTS
from voxstill import cli
from voxstill.audio import codec
from voxstill.core.errors import ConfigError
from voxstill.serving.models import ModelSource, model_source
from waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs/serving.md"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("exp/mine", ModelSource(name="mine", source="exp/mine")),
        ("exp/mine/model", ModelSource(name="mine", source="exp/mine/model")),
        ("a=exp/mine/@90", ModelSource(name="a", source="exp/mine/", weight=90)),
        ("owner/name@main", ModelSource(name="name@main", source="owner/name@main")),
        ("a=owner/name@main@0.5", ModelSource(name="a", source="owner/name@main", weight=0.5)),
    ],
)
def test_a_model_may_have_a_name_and_a_weight(text: str, source: ModelSource) -> None:
    assert model_source(text) == source


@pytest.mark.parametrize("text", ["", "=exp/mine", "a=", "a=@3", "a=b@-1", "a=b@inf", "a=b@nan"])
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a model to serve"):
        model_source(text)


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.main(["serve", *map(str, arguments), "--port", "0"]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_served_is_an_error_in_words(
    tone_student: Path,
    exported_tone_student: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "would get no traffic" in fails(capsys, f"a={tone_student}@0")
    assert "cannot listen at 192.0.2.1:0" in fails(capsys, tone_student, "--host", "192.0.2.1")
    assert f"`{tmp_path}/nothing`" in fails(capsys, tmp_path / "nothing")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["serve", str(tone_student), "--port", str(port)]) == 2
        assert "Address already in use" in capsys.readouterr().err
    with_onnx = fails(capsys, tone_student, "--engine", "onnx")
    assert "cannot be run by onnxruntime" in with_onnx
    assert f"voxstill export {tone_student} --to DIR" in with_onnx
    assert "cannot be run by torch" in fails(capsys, exported_tone_student, "--engine", "torch")
    monkeypatch.setenv("VOXSTILL_API_KEYS", "geheim,schlüssel")
    assert "printable ASCII" in fails(capsys, tone_student)


def test_the_server_answers_probes_while_it_loads_and_ends_well_when_it_is_stopped(
    tone_student: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, [f"tone={tone_student}"], "serve.grace_s=0") as server:
        assert server.get("/health", None)[0] == 200
        assert server.stop() == 0
    assert "SIGTERM" in server.log.read_text()


def test_the_document_can_be_followed(
    tone_student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers are started as it says, on another port, and their clients as it says, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp").mkdir()
    for name in ("2026-11-22_mine", "2026-11-24_mine"):
        (tmp_path / "exp" / name).mkdir()
        shutil.copytree(tone_student, tmp_path / "exp" / name / "model")
    (tmp_path / "call.flac").write_bytes(codec.encode(samples_of(TEXTS[0]), "flac"))
    monkeypatch.setenv("VOXSTILL_ADMIN_KEY", "admin")
    monkeypatch.delenv("VOXSTILL_API_KEYS", raising=False)
    port = forked.free_port()
    url = f"http://127.0.0.1:{port}"
    process = None
    try:
        for language, content in blocks():
            text = content.replace("http://127.0.0.1:8000", url)
            if language == "python":
                exec(compile(text, "serving.md", "exec"), {})
                assert capsys.readouterr().out == f"{TEXTS[0]}\n"
                continue
            for line in text.splitlines():
                command = line.removeprefix("$ ")
                if " --ray " in command:  # tests/serving/test_ray.py serves on Ray
                    parse(command.split()[1:])
                elif command.startswith("voxstill serve "):
                    stop(process)
                    arguments = [*command.replace(" --port 8000", "").split()[1:], "--port", str(port)]
                    arguments += ["--set", "serve.grace_s=0"]  # nobody balances the load here
                    process = forked.start(forked.command, arguments, log=tmp_path / "serve.log")
                    until(lambda: answers(f"{url}/ready"), 250)
                elif command.startswith("voxstill listen "):
                    parse(command.split()[1:])
                    assert cli.main(command.split()[1:]) == 0, capsys.readouterr().err
                elif shutil.which("curl") is not None:
                    assert command.startswith("curl ")
                    answer = subprocess.run(
                        ["bash", "-c", f"{command} --fail --silent"], check=True, capture_output=True, timeout=200
                    )
                    assert TEXTS[0].encode() in answer.stdout or b'"versions"' in answer.stdout
        capsys.readouterr()
    finally:
        stop(process)


def blocks() -> list[tuple[str, str]]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(r"^```(console|python)\n(.*?)^```$", text, re.M | re.S)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def stop(process: Any) -> None:
    if process is not None:
        process.terminate()
        process.join(60)
        process.kill()
        process.join()


def test_keys_of_the_environment_are_told_apart_by_commas(tone_student: Path, tmp_path: Path) -> None:
    with serving(tmp_path, [f"tone={tone_student}"], environment={"VOXSTILL_API_KEYS": f" a , {API_KEY},"}) as server:
        assert [server.get("/v1/models", key)[0] for key in ("a", API_KEY, "", ",", None)] == [200, 200, 401, 401, 401]


def test_a_variable_without_a_key_is_no_open_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOXSTILL_API_KEYS", " , ")
    assert "contains no key" in fails(capsys, "mine=nothing")
