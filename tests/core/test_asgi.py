"""Sockets of servers: an address that cannot be used is an error in words."""

from __future__ import annotations

import pytest

from voxstill.core.asgi import listening
from voxstill.core.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 99_999), ("127.0.0.1", -1), ("::1", 1 << 40), ("192.0.2.1", 0), ("no host", 0)]
)
def test_an_address_that_cannot_be_used_names_the_way_out(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot listen at") as caught:
        listening(host, port, fix="use another --port")
    assert caught.value.fix == "use another --port"
