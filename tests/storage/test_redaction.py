"""No credential of the environment or of an address is in an error, a log, a pickle or a file."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers import SetEnvironment, http_server, oss_environment, s3_environment
from voxstill.core.errors import StorageError
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import read_uri
from voxstill.storage.redaction import redact_arguments, redact_uri
from voxstill.storage.store import Store

CANARIES = {
    "AWS_ACCESS_KEY_ID": "CANARYKEYID",
    "AWS_SECRET_ACCESS_KEY": "CANARYSECRET",
    "AWS_SESSION_TOKEN": "CANARYTOKEN",
    "OSS_ACCESS_KEY_ID": "CANARYOSSID",
    "OSS_ACCESS_KEY_SECRET": "CANARYOSSSECRET",
    "OSS_SESSION_TOKEN": "CANARYOSSTOKEN",
}


@pytest.mark.usefixtures("impatient")
def test_no_error_log_pickle_or_file_holds_a_credential(
    s3_port: int, oss_port: int, set_environment: SetEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []

    def fails(act: Callable[[], object]) -> None:
        with pytest.raises(StorageError) as caught:
            act()
        log = logging.getLogger("voxstill")
        log.exception("it failed", exc_info=caught.value)
        texts.extend([str(caught.value), repr(caught.value), repr(pickle.dumps(caught.value))])
        texts.extend(traceback.format_exception(caught.value))

    everywhere = {**s3_environment(s3_port), **oss_environment(oss_port), **CANARIES}
    set_environment(everywhere)
    for root in ("s3://bucket/canary", "oss://127/canary"):
        store = Store(root)
        fails(lambda: store.read("gone"))  # noqa: B023
        fails(lambda: Store(root.replace("127", "0").replace("bucket", "nobucket")).replace("k", b""))  # noqa: B023
        texts += [repr(store), repr(pickle.dumps(store)), store.uri("k")]
    signed = "X-Amz-Signature=CANARYSIGNED&X-Amz-Security-Token=CANARY/TOKEN&token=CANARY&sig=CANARY"
    cache = Cache(tmp_path / "cache", 10**6)
    for status in (200, 400, 401, 403, 404, 500, 503):
        with http_server({}, status=status, asks_for="CANARY") as port:
            for uri in (f"http://127.0.0.1:{port}/a.wav?{signed}", f"http://user:CANARY@127.0.0.1:{port}/a.wav#0+9"):
                fails(lambda: read_uri(uri, cache))  # noqa: B023
                fails(lambda: Store(uri))  # noqa: B023
            set_environment({**everywhere, **s3_environment(port), **CANARIES})
            fails(lambda: Store("s3://bucket/canary").read("k"))
            fails(lambda: Store("s3://bucket/canary").create("k", b""))
    for endpoint in ("http://127.0.0.1:1", "http://nosuch.invalid", "no address CANARY", "http://u:CANARY@127.0.0.1:1"):
        set_environment({**everywhere, "AWS_ENDPOINT_URL": endpoint, "OSS_ENDPOINT": endpoint})
        fails(lambda: Store("s3://bucket/canary").read("k"))
        fails(lambda: Store("oss://bucket/canary").replace("k", b""))
    for uri in (
        f"http://127.0.0.1:1/a?{signed}",
        f"https://nosuch.invalid/a?{signed}",
        f"http://127.0.0.1:1?{signed}",
        "http://user:CANARY/with@127.0.0.1:1/a",
        "s3://CANARY:CANARY@bucket/k",
        f"oss://bucket/k?Signature=CANARY&{signed}#3+5",
        f"nosuch://user:CANARY@host/k?{signed}",
    ):
        fails(lambda: read_uri(uri))  # noqa: B023
        fails(lambda: Store(uri).read("k"))  # noqa: B023
    with http_server({"a.wav": b"x"}, asks_for="CANARY") as port:
        assert read_uri(f"http://127.0.0.1:{port}/a.wav?{signed}", cache) == b"x"
    texts += [f"{path}{path.read_bytes()!r}" for path in cache.folder.iterdir()]
    assert [path.name.startswith("lock") for path in cache.folder.iterdir()].count(False) == 1
    for text in [*texts, *(record.getMessage() for record in caplog.records), caplog.text]:
        assert "CANARY" not in text


def test_an_address_is_shown_without_what_signs_it() -> None:
    plain = [
        "/a b/c?d=e",
        "c.wav",
        "file:///a?b=c",
        "s3://bucket/a?b/c",
        "https://host:8080/@user/a.wav",
        "memory://m/k",
    ]
    assert [redact_uri(uri) for uri in plain] == plain
    assert redact_uri("https://u:p@host/a?sig=b/c#1+2") == "https://host/a?...#1+2"
    assert redact_uri("https://u@host:80?token=b/c@d") == "https://host:80?..."
    assert redact_uri("https://host/a#access_token=b") == "https://host/a?..."
    assert redact_uri("s3://k:s@bucket/a?Signature=b") == "s3://bucket/a?..."


@given(st.from_regex(r"[A-Za-z0-9+%._~-]{8,20}", fullmatch=True), st.from_regex(r"[a-z0-9/.-]{0,20}", fullmatch=True))
def test_no_secret_in_user_or_query_is_shown(secret: str, path: str) -> None:
    for uri in (
        f"https://user:{secret}@host/{path}",
        f"https://host/{path}?Signature={secret}",
        f"s3://{secret}@b/{path}",
    ):
        assert secret not in redact_uri(uri).replace(path, "")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--set", "teacher.api_key=CANARY it goes on"], ["--set", "teacher.api_key=***"]),
        (["--set=teacher.api_key=CANARY"], ["--set=teacher.api_key=***"]),
        (
            ["--set", "teacher={name: openai, api_key: CANARY}"],
            ["--set", 'teacher={"name": "openai", "api_key": "***"}'],
        ),
        (["""--set=teacher={"hf_token": "CANARY B", "n": 1}"""], ["""--set=teacher={"hf_token": "***", "n": 1}"""]),
        (["--set", "teacher={api_key: 'a''CANARY', n: 1}"], ["--set", 'teacher={"api_key": "***", "n": 1}']),
        (["--set", r'teacher={api_key: "a\"CANARY", n: 1}'], ["--set", 'teacher={"api_key": "***", "n": 1}']),
        (["--set", r'teacher={"api\x5fk\u0065y": CANARY}'], ["--set", 'teacher={"api_key": "***"}']),
        (["--set", r'teacher={? "p\x61ss" : CANARY, 1: 2}'], ["--set", 'teacher={"pass": "***", "1": 2}']),
        (["--set", "teacher={key: !!str CANARY, n: ~}"], ["--set", 'teacher={"key": "***", "n": null}']),
        (["--set", "teacher={api_key: [a, CANARY], n: 1}"], ["--set", 'teacher={"api_key": ["***", "***"], "n": 1}']),
        (["--set", "teacher={api_key: {a: CANARY}, n: 1}"], ["--set", 'teacher={"api_key": {"a": "***"}, "n": 1}']),
        (["--set", "teacher={password: 12345, token: true}"], ["--set", 'teacher={"password": "***", "token": true}']),
        (["--set", "teacher={n: 1, api_key: CANARY"], ["--set", "teacher={n: 1, api_key: ***"]),
        (["--allow-teacher", "{seed: 1, key: CANARY}"], ["--allow-teacher", '{"seed": 1, "key": "***"}']),
        (
            ["--set", r'teacher={"api\x5fkey": CANARY, base_url: http://me:CANARY@host/v?sig=CANARY}'],
            ["--set", 'teacher={"api_key": "***", "base_url": "http://host/v?..."}'],
        ),
        (
            ["--set", "teacher={pass: CANARY, name: a}", "k.yaml"],
            ["--set", 'teacher={"pass": "***", "name": "a"}', "k.yaml"],
        ),
        (["--set", "teacher.headers.Authorization=Bearer CANARY"], ["--set", "teacher.headers.Authorization=***"]),
        (["--api-key", "CANARY", "--n", "1"], ["--api-key", "***", "--n", "1"]),
        (["train", "--set", "train.max_minutes=5", "a b.yaml"], ["train", "--set", "train.max_minutes=5", "a b.yaml"]),
        (["https://me:CANARY@host/a?sig=CANARY"], ["https://host/a?..."]),
    ],
)
def test_a_command_line_is_shown_without_secrets(arguments: list[str], shown: list[str]) -> None:
    assert redact_arguments(arguments) == shown
