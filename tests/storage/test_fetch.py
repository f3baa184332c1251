"""Reading by address: whole objects, ranges, many ahead of the caller, and what is in the cache already."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from faulty_proxy import faulty_proxy
from servers import Handler, SetEnvironment, http_server, oss_environment, s3_environment, serve
from voxstill.core.errors import StorageError
from voxstill.storage import fetch as fetch_module
from voxstill.storage.cache import Cache
from voxstill.storage.fetch import Blob, RefusedError, fetch, local_etag, read_many, read_uri, stream
from voxstill.storage.store import Store
from voxstill.storage.uri import is_local, local_path

_numbers = itertools.count()


def test_an_address_may_name_a_range_of_its_bytes(store: Store) -> None:
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
    blobs = list(read_many([*uris, store.uri("k9") + "#2+3"], concurrency=8))
    for i, blob in enumerate(blobs[:40]):
        if i % 7 == 3:
            assert isinstance(blob, StorageError)
            assert f"gone{i}" in blob.what
        else:
            assert isinstance(blob, Blob)
            assert (blob.uri, blob.data) == (uris[i], bytes([i]) * i)
    assert isinstance(blobs[40], Blob)
    assert blobs[40].data == bytes([9]) * 3
    assert list(read_many([])) == []


def test_reading_ahead_asks_for_no_more_than_was_agreed() -> None:
    asked: list[str] = []

    def uris() -> Iterator[str]:
        for i in range(100):
            asked.append(f"memory://test-ahead/{i}")
            yield asked[-1]

    reader = read_many(uris(), concurrency=4)
    for num_read in range(1, 20):
        next(reader)
        assert len(asked) <= num_read + 3
    reader.close()
    assert len(asked) < 25


def test_reading_ahead_of_large_objects_waits_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "AHEAD_BYTES", 2500)
    store = Store("memory://test-large")
    for i in range(30):
        store.create(f"{i}", bytes(1000))
    asked = itertools.count()
    reader = read_many((store.uri(f"{next(asked)}") for _ in range(30)), concurrency=16)
    assert all(isinstance(next(reader), Blob) for _ in range(20))
    assert next(asked) <= 22
    reader.close()


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


def test_an_answer_that_is_shorter_than_the_server_says_is_an_error(impatient: None) -> None:
    data = bytes(range(100))

    class Short(Handler):
        def answer_short(self) -> None:
            if "Range" in self.headers:  # its lengths do not agree with one another
                self.answer(206, data[10:15], Content_Range="bytes 10-29/100")
            else:  # it hangs up in the middle
                self.answer(200, data[:50], Content_Length="100")
                self.close_connection = True

        do_GET = answer_short

    with serve(Short) as port:
        for uri in (f"http://127.0.0.1:{port}/a", f"http://127.0.0.1:{port}/a#10+20"):
            with pytest.raises(StorageError):
                fetch(uri)


class Dated(Handler):
    """A server without etags, as that of `python -m http.server`: it goes by the time of the last change."""

    objects: dict[str, tuple[bytes, float | None]]
    """The bytes of each path and when they were changed, in seconds since 1970."""
    sent: list[str]
    """The path of each body."""
    refuses_head = False

    def get(self) -> None:
        data, changed_s = self.objects[self.path]
        if self.command == "HEAD" and self.refuses_head:
            self.refuse(405, "NoHead")
            return
        if self.command == "GET":
            self.sent.append(self.path)
        headers = {} if changed_s is None else {"Last_Modified": formatdate(changed_s, usegmt=True)}
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2]) + 1, len(data))
            self.answer(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}", **headers)
        else:
            self.answer(200, data, Content_Length=str(len(data)), **headers)

    do_GET = do_HEAD = get


HOUR_AGO_S = int(time.time()) - 3600


@pytest.mark.parametrize("part", ["", "#3+3"])
@pytest.mark.parametrize("refuses_head", [False, True])
def test_without_an_etag_a_version_is_the_time_of_the_last_change_and_the_size(
    tmp_path: Path, part: str, refuses_head: bool
) -> None:
    cache, cut = Cache(tmp_path, 10**7), slice(3, 6) if part else slice(None)
    objects: dict[str, tuple[bytes, float | None]] = {"/k": (b"one" * 1000, HOUR_AGO_S)}
    sent: list[str] = []
    with serve(Dated, objects=objects, sent=sent, refuses_head=refuses_head) as port:
        uri = f"http://127.0.0.1:{port}/k{part}"
        first = fetch(uri, cache)
        assert (first.data, first.etag, first.num_bytes) == ((b"one" * 1000)[cut], None, 3000)
        assert fetch(uri, cache) == first
        assert len(sent) == 1 or refuses_head
        for version in (
            (b"two" * 1000, HOUR_AGO_S + 1),
            (b"six" * 1000, HOUR_AGO_S - 5000),  # put back from a copy: the time is an earlier one
            (b"seven" * 1000, HOUR_AGO_S - 5000),
        ):
            objects["/k"] = version
            assert fetch(uri, cache).data == version[0][cut]
            assert fetch(uri, cache).data == version[0][cut]


@pytest.mark.parametrize("age_s", [None, math.inf, 5, -5000], ids=["none", "1970", "just now", "in the future"])
def test_what_may_change_within_its_second_or_has_no_date_is_not_cached_and_that_is_logged_once(
    tmp_path: Path, age_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    cache, sent = Cache(tmp_path, 10**7), list[str]()
    changed_s = None if age_s is None else max(time.time() - age_s, 0.0)
    with serve(Dated, objects={"/k": (b"one", changed_s)}, sent=sent) as port:
        for number in (1, 2, 3):
            assert fetch(f"http://127.0.0.1:{port}/k", cache).data == b"one"
            assert len(sent) == number
        (record,) = [record for record in caplog.records if "cache" in record.getMessage()]
        assert f"http://127.0.0.1:{port}" in record.getMessage()


def test_an_answer_without_its_length_is_refused_with_what_to_do_and_not_tried_again() -> None:
    paths = list[str]()

    class Chunked(Handler):
        def get(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\naudio\r\n0\r\n\r\n")

        do_GET = get

    with serve(Chunked) as port:
        with pytest.raises(RefusedError) as caught:
            fetch(f"http://127.0.0.1:{port}/a.wav")
        with pytest.raises(StorageError) as of_pieces:
            list(stream(f"http://127.0.0.1:{port}/a.wav"))
    for error in (caught.value, of_pieces.value):
        assert "`Content-Length`" in error.why
        assert "copy" in error.fix
    assert len(paths) == 2


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
    with faulty_proxy(request.getfixturevalue(f"{kind}_port")) as line:
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
        assert [blob.data for blob in read_many([uri], cache=cache) if isinstance(blob, Blob)] == [b"two" * 1000]
