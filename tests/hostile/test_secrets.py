"""Secrets that a configuration or a manifest holds are written nowhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from installed import install
from servers import SetEnvironment, http_server
from voxstill import cli
from voxstill.audio import codec
from voxstill.core import config
from voxstill.core.errors import DataError, StorageError
from voxstill.core.records import Utterance
from voxstill.indexing.scan import scan
from voxstill.labelling import label
from voxstill.storage import tables
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import holds_credentials, is_secret
from voxstill.storage.store import Store
from voxstill.text import lm
from voxstill.training.experiment import snapshot

PLUGIN = """
from pydantic import SecretStr
from voxstill.core.config import Section, option
from voxstill.teachers.echo import EchoTeacher
class Options(Section):
    api_key: str = option("")
    pin: SecretStr | None = option(None)
    more: dict[str, str] = option({})
    seed: int = option(0)
class Keyed(EchoTeacher):
    Options = Options
    def __init__(self, options): assert options.pin.get_secret_value() == "canary-pin-0123"
    def revision(self): return "1"
    def transcribe_batch(self, clips):
        from voxstill.teachers.teacher import Transcription
        return [Transcription(text="yes")] * len(clips)
"""
TEACHER = "{name: keyed, api_key: canary-key-0123, pin: canary-pin-0123, more: {hf_token: canary-token-0123}}"


def test_a_key_in_the_options_of_a_plugin_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "site", monkeypatch, "voxstill.teachers", "keyed", PLUGIN, "Keyed")
    (tmp_path / "a.wav").write_bytes(codec.encode(np.full(1600, 100, np.int16), "wav"))
    rows = [Utterance(id=f"u{i}", recording_id="r", uri=str(tmp_path / "a.wav"), end_ms=100) for i in range(4)]
    work = Store(str(tmp_path / "work"))
    work.create("utterances/test/0.parquet", tables.to_parquet(rows, Utterance))
    work.write_json(f"utterances/test/{tables.SUCCESS}", {"recipe": "test", "utterances": 4, "hours": 0.0})
    options = ("teacher=" + TEACHER, "engine={name: inline, workers: 1, teachers: 1, chunk: 2}")
    arguments = [work.root, *(word for option in options for word in ("--set", option))]
    allowed = ("--allow-teacher", "{seed: 1}", "--json", "--log-level", "debug")
    assert cli.main(["label", *arguments, "--max-chunks", "1", *allowed]) == 0
    assert cli.main(["control", work.root, "--set", "teacher.api_key=canary-key-0123"]) == 2
    assert cli.main(["control", work.root, "--set", "teacher.seed=1"]) == 0
    assert cli.main(["label", *arguments, *allowed]) == 0
    cfg = config.load(None, [f"work={work.root}", *options])
    assert label.finished(work, cfg.teacher).teachers is not None  # each made some
    shown = [*capfd.readouterr(), snapshot(cfg).replace("canary-pin-0123", "")]  # an experiment knows names, no types
    files = [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
    assert {"_SUCCESS.json"} < {path.name for path in files}
    assert [
        text for text in [*shown, *(path.read_bytes().decode("latin-1") for path in files)] if "canary-" in text
    ] == []


SECRET = ("api_key", "apikey", "API_KEY", "hf_token", "token", "password", "client_secret", "key", "pass")
NOT_SECRET = ("api_key_env", "max_tokens", "suppress_tokens", "bos_token", "keyphrases", "first_pass")


@pytest.mark.parametrize(
    ("option", "secret"), [*((name, True) for name in SECRET), *((name, False) for name in NOT_SECRET)]
)
def test_a_secret_is_known_by_its_name(option: str, secret: bool) -> None:
    assert is_secret(option) is secret


SIGNED = [
    "http://ann:canary@host/a.wav",
    "https://canary@host/a.wav",
    "https://host/a.wav?X-Amz-Credential=canary&X-Amz-Signature=canary",
    "https://host/a.wav?sv=2022&sig=canary",
    "https://host/a.wav?version=1&access_token=canary",
    "https://host/a.wav#token=canary",
    "https://host/a.wav?AWSAccessKeyId=canary",
    "s3://canary:canary@bucket/a.wav",
    "oss://bucket/a.wav?Signature=canary",
]
PLAIN = [
    "https://host/a.wav",
    "https://host/a.wav?id=3&version=1#0+9",
    "https://host/@user/a.wav",
    "https://host/design.wav?page=sig",
    "s3://bucket/a?b/c.wav",
    "/a/token=b.wav",
]


@pytest.mark.parametrize("uri", SIGNED)
def test_an_address_with_credentials_is_refused_and_not_repeated(tmp_path: Path, uri: str) -> None:
    assert holds_credentials(uri)
    for name, line in (("m.jsonl", f'{{"audio": "{uri}"}}'), ("m.csv", f"audio\n{uri}"), ("l.txt", uri)):
        (tmp_path / name).write_text(f"{line}\n")
        with pytest.raises((DataError, StorageError)) as caught:
            list(scan(config.Source(uri=str(tmp_path / name))))
        assert "canary" not in f"{caught.value}{caught.value!r}"


def test_other_addresses_are_taken(tmp_path: Path) -> None:
    assert not any(map(holds_credentials, PLAIN))
    (tmp_path / "m.jsonl").write_text("".join(f'{{"audio": "{uri}"}}\n' for uri in PLAIN))
    assert [entry.uri for entry in scan(config.Source(uri=str(tmp_path / "m.jsonl")))] == PLAIN


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["score", "words"], "a b\na b\n"),  # an id twice
        (["score", "words", "--form", "jsonl"], "{"),
        (["score", "words", "--by", "room"], "a b\n"),
        (["score", "meeting"], "a b\n"),
        (["score", "speakers"], "SPEAKER a\n"),
        (["score", "speakers"], "LEXEME a 1 0 1 x x b\n"),
    ],
)
def test_no_error_of_a_score_repeats_the_credentials_of_an_address(
    command: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server({"a.txt": text.encode()}) as port:
        uri = f"http://ann:canary1@127.0.0.1:{port}/a.txt?sig=canary2"
        assert cli.main([*command, uri, uri]) == 3
    shown = capsys.readouterr()
    assert f"http://127.0.0.1:{port}/a.txt?..." in shown.err
    assert "canary" not in shown.out + shown.err


def test_a_language_model_is_refused_without_the_credentials_of_its_address() -> None:
    with http_server({"a.arpa": b"none"}) as port, pytest.raises(DataError) as caught:
        lm.read(f"http://ann:canary1@127.0.0.1:{port}/a.arpa?sig=canary2")
    assert "canary" not in str(caught.value)


def test_user_and_password_of_a_web_server_come_from_netrc(tmp_path: Path, set_environment: SetEnvironment) -> None:
    file = tmp_path / "netrc"
    with http_server({"a.wav": b"audio"}, asks_for="ann:pass word") as port:
        uri = f"http://127.0.0.1:{port}/a.wav"
        file.write_text('machine 127.0.0.1 login ann password "pass word"\n')
        set_environment({"NETRC": str(file)})
        assert read_uri(uri) == b"audio"
        file.write_text("machine elsewhere login ann password canary\ndefault login ann password 'pass word'\n")
        set_environment({})
        with pytest.raises(StorageError):
            read_uri(uri)
        file.write_text("machine 127.0.0.1 canary\n")
        set_environment({})
        with pytest.raises(StorageError, match="cannot open") as caught:
            read_uri(uri)
        assert str(file) in caught.value.why
        assert "canary" not in str(caught.value)
