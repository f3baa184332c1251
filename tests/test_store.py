"""The store: whole or absent, one winner, the same in a folder, in memory, on S3 and on OSS; errors to act on."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers import bad_line, http_server, moto_server, oss_environment, oss_server, s3_environment
from voxstill import store as store_module
from voxstill.cache import Cache
from voxstill.errors import DataError, StorageError
from voxstill.store import Blob, Store, fetch, is_local, local_etag, local_path, read_many, read_uri, shown, stream

_numbers = itertools.count()
SetEnvironment = Callable[[dict[str, str]], None]


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with moto_server("bucket") as port:
        yield port


@pytest.fixture(scope="module")
def oss_port() -> Iterator[int]:
    with oss_server() as port:
        yield port


@pytest.fixture
def set_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetEnvironment]:
    """What clients are made from; those of other tests are forgotten before and after."""

    def to(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        store_module._client.cache_clear()

    for name in [name for name in os.environ if name.startswith(("AWS_", "OSS_"))]:
        monkeypatch.delenv(name)
    to({})
    yield to
    store_module._client.cache_clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a minute in earnest takes a second here."""
    for name, value in {"STALL_S": 0.4, "WHOLE_S": 1.0, "MAX_RETRIES": 2, "MAX_PAUSE_S": 0.2}.items():
        monkeypatch.setattr(store_module, name, value)


@pytest.fixture(params=["folder", "file", "memory", "s3", "oss"])
def store(request: pytest.FixtureRequest, tmp_path: Path, set_environment: SetEnvironment) -> Store:
    root = tmp_path / "a folder ü"
    if request.param == "s3":
        set_environment(s3_environment(request.getfixturevalue("s3_port")))
    if request.param == "oss":
        set_environment(oss_environment(request.getfixturevalue("oss_port")))
    roots = {
        "folder": str(root),
        "file": f"file://{root}",
        "memory": f"memory://test-store-{next(_numbers)}",
        "s3": f"s3://bucket/a folder ü/{next(_numbers)}",
        "oss": f"oss://127/a folder ü/{next(_numbers)}",
    }
    return Store(roots[request.param])


def test_what_is_written_is_read_back_whole_and_by_range(store: Store) -> None:
    data = bytes(range(256)) * 100
    assert store.create("a/b.bin", data)
    assert store.read("a/b.bin") == data
    assert read_uri(store.uri("a/b.bin") + "#300+20") == data[300:320]
    store.replace("a/b.bin", b"new")
    assert store.read("a/b.bin") == b"new"


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9äß語 %=#.-]{1,20}x", fullmatch=True), st.binary(max_size=100)))
def test_any_name_a_table_may_have_is_listed_as_it_was_given(files: dict[str, bytes]) -> None:
    store = Store(f"memory://test-names-{next(_numbers)}")
    for name, data in files.items():
        assert store.create(f"p/{name}", data)
    assert {entry.key: entry.num_bytes for entry in store.list("p")} == {
        f"p/{name}": len(data) for name, data in files.items()
    }
    assert all(store.read(f"p/{name}") == data for name, data in files.items())


def test_of_many_who_create_a_key_at_once_exactly_one_wins_and_its_bytes_stay(store: Store) -> None:
    payloads = [bytes([i]) * 100_000 for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda data: store.create("k", data), payloads))
    assert sum(won) == 1
    assert store.read("k") == payloads[won.index(True)]


def test_a_reader_never_sees_a_key_half_replaced(store: Store) -> None:
    payloads = [bytes([i]) * 300_000 for i in range(4)]
    store.replace("k", payloads[0])
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(store.replace, "k", payloads[i % 4]) for i in range(40)]
        seen = [store.read("k") for _ in range(40)]
        for each in writes:
            each.result()
    assert all(data in payloads for data in seen)


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    code = (
        "import sys, itertools\n"
        "from voxstill.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "for i in itertools.count():\n"
        "    store.create(f'p/{i}', bytes([i % 256]) * 3_000_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    store = Store(str(tmp_path))
    for entry in store.list("p"):
        number = int(entry.key.removeprefix("p/"))
        assert store.read(entry.key) == bytes([number % 256]) * 3_000_000


def test_a_prefix_is_a_folder_and_an_absent_one_is_empty(store: Store) -> None:
    for key in ("labels/a/1", "labels/ab/2", "labels/a/b/3"):
        store.create(key, b"x")
    assert {entry.key for entry in store.list("labels/a")} == {"labels/a/1", "labels/a/b/3"}
    assert {entry.key for entry in store.list()} == {"labels/a/1", "labels/ab/2", "labels/a/b/3"}
    assert list(store.list("nowhere")) == []


def test_the_etag_changes_when_the_content_does(store: Store) -> None:
    store.replace("k", b"one")
    (before,) = store.list()
    store.replace("k", b"longer")
    (after,) = store.list()
    assert before.etag
    assert (before.etag, before.num_bytes) != (after.etag, after.num_bytes)


def test_an_absent_key_is_a_storage_error_that_says_what_why_and_the_fix(store: Store) -> None:
    for read in (lambda: store.read("gone"), lambda: read_uri(store.uri("gone") + "#0+1")):
        with pytest.raises(StorageError, match="gone") as caught:
            read()
        assert (caught.value.why, caught.value.exit_code) == ("it does not exist", 4)
        assert caught.value.fix
    assert not store.exists("gone")
    assert store.read_json("gone") is None


def test_a_range_beyond_the_end_is_short_or_a_storage_error(store: Store) -> None:
    store.create("k", b"abc")
    assert read_uri(store.uri("k") + "#1+100") == b"bc"
    with pytest.raises(StorageError):
        read_uri(store.uri("k") + "#50+10")


def test_json_keeps_its_order_and_a_torn_one_is_a_data_error_that_names_it(store: Store) -> None:
    value = {"b": 1, "a": ["ü", None], "c": {"x": 0.1}}
    store.write_json("s.json", value)
    found = store.read_json("s.json")
    assert found == value
    assert list(found) == list(value)
    store.replace("s.json", b'{"b": 1, "a')
    with pytest.raises(DataError, match=r"s\.json"):
        store.read_json("s.json")


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        Store(str(tmp_path / "file" / "work")).create("k", b"")
    assert caught.value.why
    for address in ("nosuch://bucket", "s3://", "s3:///key", "oss://"):
        with pytest.raises(StorageError, match=re.escape(address)):
            Store(address)


def test_equal_roots_see_the_same_keys_also_through_pickle(store: Store) -> None:
    store.create("k", b"1")
    assert Store(store.root).read("k") == b"1"
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.root, copy.read("k"), repr(copy)) == (store.root, b"1", repr(store))


def test_a_uri_opens_what_the_store_wrote(store: Store) -> None:
    store.create("a/b", b"data")
    assert read_uri(store.uri("a/b")) == b"data"
    with pytest.raises(StorageError, match="gone"):
        read_uri(store.uri("a/gone"))


def test_more_keys_than_fit_on_a_page_are_listed_once_each(store: Store) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda i: store.create(f"many/{i:04d}", b"x"), range(1_030)))
    assert sorted(entry.key for entry in store.list("many")) == [f"many/{i:04d}" for i in range(1_030)]


def test_an_address_may_name_a_stretch_of_its_bytes(store: Store) -> None:
    data = bytes(range(200))
    store.create("a/b.tar", data)
    uri = store.uri("a/b.tar")
    whole, part = fetch(uri), fetch(f"{uri}#50+20")
    assert (whole.data, part.data) == (data, data[50:70])
    assert (part.etag, part.num_bytes) == (whole.etag, 200) == (whole.etag, whole.num_bytes)
    assert read_uri(f"{uri}#190+100") == data[190:]
    with pytest.raises(StorageError):
        read_uri(f"{uri}#200+1")


def test_what_is_fetched_has_the_etag_it_is_listed_with(store: Store) -> None:
    store.create("k", b"abc")
    (entry,) = store.list()
    blob = fetch(store.uri("k"))
    assert blob.num_bytes == entry.num_bytes
    if is_local(store.root):
        assert blob.etag == local_etag(local_path(store.uri("k")).stat())
    else:
        assert blob.etag == entry.etag


def test_many_are_read_in_order_and_a_bad_one_is_an_error_in_its_place(store: Store) -> None:
    for i in range(40):
        store.create(f"k{i}", bytes([i]) * i)
    uris = [store.uri(f"k{i}") if i % 7 != 3 else store.uri(f"gone{i}") for i in range(40)]
    found = list(read_many([*uris, store.uri("k9") + "#2+3"], concurrency=8))
    for i, each in enumerate(found[:40]):
        if i % 7 == 3:
            assert isinstance(each, StorageError)
            assert f"gone{i}" in each.what
        else:
            assert isinstance(each, Blob)
            assert (each.uri, each.data) == (uris[i], bytes([i]) * i)
    assert isinstance(found[40], Blob)
    assert found[40].data == bytes([9]) * 3
    assert list(read_many([])) == []


def test_reading_ahead_asks_for_no_more_than_was_agreed() -> None:
    asked: list[str] = []

    def uris() -> Iterator[str]:
        for i in range(100):
            asked.append(f"memory://test-ahead/{i}")
            yield asked[-1]

    reader = read_many(uris(), concurrency=4)
    for taken in range(1, 20):
        next(reader)
        assert len(asked) <= taken + 3
    reader.close()
    assert len(asked) < 25


def test_reading_ahead_of_large_objects_waits_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "AHEAD_BYTES", 2500)
    store = Store("memory://test-large")
    for i in range(30):
        store.create(f"{i}", bytes(1000))
    asked = itertools.count()
    reader = read_many((store.uri(f"{next(asked)}") for _ in range(30)), concurrency=16)
    assert all(isinstance(next(reader), Blob) for _ in range(20))
    assert next(asked) <= 22
    reader.close()


@pytest.mark.usefixtures("impatient")
def test_a_bucket_without_credentials_says_where_they_belong(set_environment: SetEnvironment) -> None:
    set_environment({"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID") as caught:
        Store("s3://bucket").read("k")
    assert caught.value.why == "there are no credentials"


def test_a_bucket_is_one_place_whatever_root_it_is_reached_by(store: Store) -> None:
    store.create("a/b/k", b"1")
    below = Store(store.uri("a"))
    assert below.read("b/k") == b"1"
    assert [entry.key for entry in below.list()] == ["b/k"]
    below.replace("c", b"2")
    assert store.read("a/c") == b"2"


def test_a_page_of_the_web_is_read_with_its_user_and_with_its_signed_query() -> None:
    name = "a dir/ä 100%.wav"
    with http_server({name: b"audio"}, asks_for="user:pass@word") as port:
        assert read_uri(f"http://user:pass%40word@127.0.0.1:{port}/a%20dir/%C3%A4%20100%25.wav") == b"audio"
        with pytest.raises(StorageError, match="refuses"):
            read_uri(f"http://127.0.0.1:{port}/a%20dir/x.wav")
    with http_server({name: b"audio"}, asks_for="sig=a/b") as port:
        assert read_uri(f"http://127.0.0.1:{port}/a%20dir/%C3%A4%20100%25.wav?x=1&sig=a/b") == b"audio"
    with http_server({name: b"audio"}) as port:
        web = Store(f"http://127.0.0.1:{port}/a%20dir")
        assert web.read("ä 100%.wav") == b"audio" == read_uri(web.uri("ä 100%.wav"))
        assert not web.exists("gone")


def test_oss_is_asked_in_its_own_style_only(oss_port: int, set_environment: SetEnvironment) -> None:
    set_environment(
        {**oss_environment(oss_port), "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_SESSION_TOKEN": "x"}
    )
    assert Store("oss://127/style").create("k", b"1")
    set_environment({"OSS_ENDPOINT": f"0.0.1:{oss_port}"})
    with pytest.raises(StorageError):
        Store("oss://127/style").read("k")  # an endpoint without a scheme is https
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    path_style = S3Store(
        "127",
        aws_endpoint_url_s3=f"http://localhost:{oss_port}",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True},
    )
    with pytest.raises(BaseError, match="SecondLevelDomainForbidden"):
        path_style.get("style/k")


def test_a_bucket_of_oss_has_a_name_below_its_region(set_environment: SetEnvironment) -> None:
    with pytest.raises(StorageError, match="OSS_REGION"):
        Store("oss://bucket/a")
    for region in ("cn-hangzhou", "oss-cn-hangzhou"):
        set_environment({"OSS_REGION": region})
        assert store_module._oss_endpoint("bucket") == "https://bucket.oss-cn-hangzhou.aliyuncs.com"
    set_environment({"OSS_ENDPOINT": "https://oss-cn-beijing-internal.aliyuncs.com/"})
    assert store_module._oss_endpoint("bucket") == "https://bucket.oss-cn-beijing-internal.aliyuncs.com"


FAULTS = {"error": 0.05, "slow_down": 0.05, "reset": 0.05, "cut": 0.05, "lost": 0.05}
"""Nine tries in a row fail once in 50,000 operations."""


def test_of_two_hundred_operations_on_a_bad_line_all_succeed(
    s3_port: int, set_environment: SetEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_PAUSE_S", 0.2)
    with bad_line(s3_port, seed=7, **FAULTS) as line:
        set_environment(s3_environment(line.port))
        store = Store(f"s3://bucket/bad-line/{next(_numbers)}")
        data = {f"k{i}": bytes([i]) * (i * 500) for i in range(50)}
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(store.create, data, data.values()))  # 50
            assert not any(pool.map(store.create, data, [b"late"] * 50))  # 100
            assert list(pool.map(store.read, data)) == list(data.values())  # 150
        found = list(read_many([store.uri(key) for key in data]))  # 200
        large = os.urandom(6 << 20)
        store.create("large", large)
        for start, length in ((0, len(large)), (12_345, 3 << 20)) * 10:
            assert b"".join(stream(f"{store.uri('large')}#{start}+{length}")) == large[start : start + length]
        assert [each.data for each in found if isinstance(each, Blob)] == list(data.values())
        assert {entry.key for entry in store.list()} == {*data, "large"}
    assert all(line.seen[fault] for fault in FAULTS)


@pytest.mark.parametrize("kind", ["s3", "oss"])
def test_a_write_whose_answer_is_lost_was_ours_and_another_one_was_not(
    kind: str, request: pytest.FixtureRequest, set_environment: SetEnvironment
) -> None:
    with bad_line(request.getfixturevalue(f"{kind}_port"), lost=1.0) as line:
        set_environment(s3_environment(line.port) if kind == "s3" else oss_environment(line.port))
        store = Store(f"s3://bucket/lost/{next(_numbers)}" if kind == "s3" else f"oss://127/lost/{next(_numbers)}")

        def mend() -> None:
            while not line.seen["lost"]:
                time.sleep(0.005)
            line.shares = {}

        mender = threading.Thread(target=mend)
        mender.start()
        assert store.create("k", b"ours")  # written at once, told later
        mender.join()
        assert line.seen["lost"]
        assert not store.create("k", b"theirs")
        assert not store.create("k", b"ours")  # nothing was lost this time: it is there, so we were not first
        line.seen.clear()
        line.shares = {"lost": 1.0}
        mender = threading.Thread(target=mend)
        mender.start()
        assert not store.create("k", b"other")
        mender.join()
        assert store.read("k") == b"ours"


def test_of_many_who_create_a_key_on_a_bad_line_exactly_one_wins(
    s3_port: int, set_environment: SetEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_PAUSE_S", 0.2)
    with bad_line(s3_port, seed=3, lost=0.2, error=0.05, reset=0.05) as line:
        set_environment(s3_environment(line.port))
        store = Store(f"s3://bucket/race/{next(_numbers)}")
        for key in ("a", "b", "c"):
            payloads = [f"writer {i}".encode() for i in range(8)]
            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(lambda data: store.create(key, data), payloads))  # noqa: B023
            assert sum(won) == 1
            assert store.read(key) == payloads[won.index(True)]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("error", r"500 Internal Server Error \(InternalError\)"),
        ("slow_down", r"503 Service Unavailable \(SlowDown\)"),
        ("reset", "breaks"),
        ("stall", "in time"),
        ("cut", "breaks"),
    ],
)
def test_what_does_not_pass_is_told_in_bounded_time_with_the_fix(
    s3_port: int, set_environment: SetEnvironment, fault: str, says: str
) -> None:
    with bad_line(s3_port) as line:
        set_environment(s3_environment(line.port))
        store = Store(f"s3://bucket/permanent/{next(_numbers)}")
        store.create("k", b"1" * 1000)
        line.shares, line.stall_s = {fault: 1.0}, 1.5
        acts: list[Callable[[], object]] = [lambda: store.read("k"), lambda: list(stream(store.uri("k")))]
        if fault != "cut":
            acts += [lambda: store.create("new", b"1"), lambda: store.replace("k", b"2"), lambda: list(store.list())]
        for act in acts:
            start = time.monotonic()
            with pytest.raises(StorageError) as caught:
                act()
            assert time.monotonic() - start < 6
            assert re.search(says, caught.value.why)
            assert "again" in caught.value.fix


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
    assert len(list(cache.folder.iterdir())) == 2
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
    assert [shown(each) for each in plain] == plain
    assert shown("https://u:p@host/a?sig=b/c#1+2") == "https://host/a?...#1+2"
    assert shown("https://u@host:80?token=b/c@d") == "https://host:80?..."
    assert shown("https://host/a#access_token=b") == "https://host/a?..."
    assert shown("s3://k:s@bucket/a?Signature=b") == "s3://bucket/a?..."


@given(st.from_regex(r"[A-Za-z0-9+%._~-]{8,20}", fullmatch=True), st.from_regex(r"[a-z0-9/.-]{0,20}", fullmatch=True))
def test_no_secret_in_user_or_query_is_shown(secret: str, path: str) -> None:
    for uri in (
        f"https://user:{secret}@host/{path}",
        f"https://host/{path}?Signature={secret}",
        f"s3://{secret}@b/{path}",
    ):
        assert secret not in shown(uri).replace(path, "")


def test_what_a_server_refuses_is_not_tried_again(set_environment: SetEnvironment) -> None:
    with http_server({}, status=403) as port:
        set_environment(s3_environment(port))
        start = time.monotonic()
        for act in (lambda: Store("s3://b").read("k"), lambda: Store("s3://b").create("k", b"")):
            with pytest.raises(StorageError, match=r"403 Forbidden \(SomeCode\)"):
                act()
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("kind", ["s3", "oss", "http"])
def test_what_is_cached_is_not_sent_again_until_it_changes(
    kind: str, request: pytest.FixtureRequest, set_environment: SetEnvironment, tmp_path: Path
) -> None:
    cache = Cache(tmp_path, 10**7)
    if kind == "http":
        objects = {"k": b"one" * 1000}
        with http_server(objects) as port:
            uri = f"http://127.0.0.1:{port}/k"
            assert read_uri(uri, cache) == b"one" * 1000
            kept = cache.read(uri)
            assert kept is not None
            assert fetch(uri, cache) == Blob(uri=uri, data=kept.data, etag=kept.etag, num_bytes=3000)
        return
    with bad_line(request.getfixturevalue(f"{kind}_port")) as line:
        set_environment(s3_environment(line.port) if kind == "s3" else oss_environment(line.port))
        store = Store(f"s3://bucket/cached/{next(_numbers)}" if kind == "s3" else f"oss://127/cached/{next(_numbers)}")
        store.replace("k", b"one" * 1000)
        uri = store.uri("k")
        first = fetch(uri, cache)
        assert fetch(f"{uri}#3+3", cache).data == b"one"
        sent = line.num_bytes
        assert fetch(uri, cache) == first
        assert fetch(f"{uri}#3+3", cache) == Blob(uri=f"{uri}#3+3", data=b"one", etag=first.etag, num_bytes=3000)
        assert line.num_bytes == sent
        store.replace("k", b"two" * 1000)
        assert read_uri(uri, cache) == b"two" * 1000
        assert [each.data for each in read_many([uri], cache=cache) if isinstance(each, Blob)] == [b"two" * 1000]


def test_making_a_store_of_a_folder_makes_its_root_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("w")
    assert store.root == str(tmp_path / "w")
    assert store.uri("k") == str(tmp_path / "w" / "k")


def test_local_uris_are_told_from_others() -> None:
    assert [is_local(each) for each in ("a/b", "/a", "file:///a", "s3://b/a", "memory://x")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert local_path("file:///a/b") == Path("/a/b") == local_path("/a/b")
