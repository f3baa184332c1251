"""Requests that a browser sends for a page of another server, and names of this machine, which such a page may bind.

A program says nothing of a page. A browser does, and no page can change it: `Origin`, in every POST and WebSocket, and
`Sec-Fetch-Site`, in newer ones over TLS and to the own machine (W3C Fetch Metadata).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.datastructures import Headers


def is_loopback(name: str) -> bool:
    """Whether a name or an address, without a port, is that of the own machine and of no other."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def host(headers: Headers) -> str:
    """The `Host` of a request; empty where there is none, or several, of which a proxy may have read another."""
    hosts = headers.getlist("host")
    return hosts[0] if len(hosts) == 1 else ""


def is_for_loopback(headers: Headers) -> bool:
    """Whether the request names this machine, at any port: a tunnel has one of its own.

    A page whose name was bound to this machine (DNS rebinding) names itself.
    """
    try:
        return is_loopback(urlsplit(f"//{host(headers)}").hostname or "")
    except ValueError:
        return False


def is_from_another_page(headers: Headers, schemes: Collection[str] = ("http", "https")) -> bool:
    """Whether a browser sent the request for a page that is not of the host which it names.

    A proxy with TLS may pass another `Host` on, and then `Sec-Fetch-Site` alone knows; in a WebSocket of some browsers
    `Origin` alone does. So one of them is enough.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return False
    return site not in ("none", "same-origin") and origin not in [f"{scheme}://{host(headers)}" for scheme in schemes]
