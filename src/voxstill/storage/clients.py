"""The obstore clients behind addresses: one for each bucket, host, folder or memory, and for each purpose.

Credentials and endpoints come from the environment or the provider's chain, those of a web server from `~/.netrc`.
"""

from __future__ import annotations

import base64
import functools
import netrc
import re
import tempfile
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict
from urllib.parse import unquote, urlsplit

from voxstill.core import world
from voxstill.core.errors import StorageError
from voxstill.storage import retry
from voxstill.storage.redaction import USER, redact_uri
from voxstill.storage.retry import storage_error
from voxstill.storage.uri import is_local

if TYPE_CHECKING:
    from obstore.store import ClientConfig, MemoryStore, ObjectStore, RetryConfig, S3Credential

CONNECT_S = 5.0
STALL_S = 30.0
"""A read that gets no data for this long has failed."""
WHOLE_S = 600.0
"""A request may take so long altogether: a gigabyte at 2 MB/s."""
_MEMORY: dict[str, MemoryStore] = {}
"""The stores of `memory://`, each for as long as the process lives."""
Purpose = Literal["read", "replace", "create"]


class _Settings(TypedDict):
    """Time limits and retries, as every client of obstore takes them."""

    client_options: ClientConfig
    retry_config: RetryConfig


@functools.lru_cache(maxsize=256)
def client(base: str, purpose: Purpose = "read") -> ObjectStore:
    """The obstore client of `base`, which is a bucket, a host or a folder; StorageError if there can be none.

    Only creating is not retried in there: `Store.create` must know how often it asked.
    """
    try:
        return _open(base, purpose)
    except StorageError:
        raise
    except Exception as error:
        raise storage_error("open", base, error) from None


def _open(base: str, purpose: Purpose) -> ObjectStore:
    from obstore.store import LocalStore, MemoryStore

    if base.startswith("memory://"):
        return _MEMORY.setdefault(base, MemoryStore())
    if is_local(base):
        store = LocalStore(base, mkdir=True)
        if purpose != "read":
            _check_takes_files(base)
        return store
    if base.startswith(("http://", "https://")):
        return _open_web(base, purpose)
    if base.startswith("oss://"):
        return _open_oss(base.removeprefix("oss://"), purpose)
    return _open_bucket(base, purpose)


def _check_takes_files(folder: str) -> None:
    """StorageError if the system says that a new file does not exist, as in /proc: the client would retry forever."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileNotFoundError:
        why = "no file can be created there"
        raise StorageError(
            f"cannot write to `{folder}`", code="no-permission", why=why, fix="give a folder that you may write to"
        ) from None
    except OSError:  # the error of the write itself says more
        pass


def _open_web(base: str, purpose: Purpose) -> ObjectStore:
    from obstore.store import HTTPStore

    scheme, _, rest = base.partition("://")
    headers = {}
    user = USER.match(rest)
    if login := unquote(user[0].removesuffix("@")) if user else _netrc_login(base):
        headers["authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    settings = _settings(purpose, allow_http=scheme == "http", headers=headers)
    return HTTPStore.from_url(f"{scheme}://{USER.sub('', rest)}", **settings)


def _netrc_login(base: str) -> str | None:
    """`user:password` of a web server in `~/.netrc`, or the file that `NETRC` names; None if it has none."""
    path = Path(world.environment().get("NETRC") or "~/.netrc").expanduser()
    try:
        hosts = netrc.netrc(path).hosts if path.is_file() else {}
    except (OSError, netrc.NetrcParseError) as error:  # which may repeat a password
        where = f", line {error.lineno}" if isinstance(error, netrc.NetrcParseError) else ""
        raise StorageError(
            f"cannot open `{redact_uri(base)}`",
            code="access-refused",
            why=f"`{path}`{where} cannot be read",
            fix="correct the file",
        ) from None
    login = hosts.get(urlsplit(base).hostname or "")  # not the `default` of all hosts: a manifest may contain any host
    return f"{login[0]}:{login[2]}" if login else None


def _open_oss(bucket: str, purpose: Purpose) -> ObjectStore:
    from obstore.store import S3Store

    endpoint = oss_endpoint(bucket)
    headers = {"x-oss-forbid-overwrite": "true"} if purpose == "create" else {}
    settings = _settings(purpose, allow_http=endpoint.startswith("http://"), headers=headers)
    environment = world.environment()
    return S3Store(  # what the environment says of AWS must not reach it
        bucket=bucket,
        endpoint=endpoint,
        aws_endpoint_url_s3=endpoint,  # which would take precedence over the other one if set for AWS
        region=environment.get("OSS_REGION", "").removeprefix("oss-") or "oss",
        virtual_hosted_style_request=True,
        credential_provider=_oss_credentials,
        skip_signature=not environment.get("OSS_ACCESS_KEY_ID"),
        **settings,
    )


def _oss_credentials() -> S3Credential:
    """The keys of the environment; a client asks for them again, since a session's token may have been renewed."""
    environment = world.environment()
    keys: S3Credential = {
        "access_key_id": environment.get("OSS_ACCESS_KEY_ID", ""),
        "secret_access_key": environment.get("OSS_ACCESS_KEY_SECRET", ""),
        "expires_at": None,
    }
    token = environment.get("OSS_SESSION_TOKEN")
    return {**keys, "token": token} if token else keys


def _open_bucket(base: str, purpose: Purpose) -> ObjectStore:
    from obstore.store import from_url

    environment = world.environment()
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if base.startswith("s3://") and name in environment:
            _check_endpoint(base, name, environment[name])
    allow_http = environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
    return from_url(base, **_settings(purpose, allow_http=allow_http, headers={}))


def _settings(purpose: Purpose, *, allow_http: bool, headers: dict[str, str]) -> _Settings:
    """The settings of a client that is opened for a purpose."""
    options: ClientConfig = {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=WHOLE_S),
        "default_headers": headers,
    }
    if purpose == "read":
        options["read_timeout"] = timedelta(seconds=STALL_S)
    max_pause = timedelta(seconds=retry.MAX_PAUSE_S)
    retries: RetryConfig = {
        "max_retries": 0 if purpose == "create" else retry.MAX_RETRIES,
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": max_pause, "base": 2},
        "retry_timeout": timedelta(seconds=retry.MAX_RETRYING_S),
    }
    return {"client_options": options, "retry_config": retries}


def oss_endpoint(bucket: str) -> str:
    """Where a bucket of Alibaba Cloud OSS answers: only under a host name of its own; StorageError if unknown."""
    environment = world.environment()
    endpoint, region = environment.get("OSS_ENDPOINT", ""), environment.get("OSS_REGION", "")
    if not endpoint and not region:
        why = "neither `OSS_ENDPOINT` nor `OSS_REGION` says where it is"
        raise StorageError(
            f"cannot open `oss://{bucket}`", code="address-unusable", why=why, fix="set OSS_REGION, such as cn-hangzhou"
        )
    endpoint = endpoint or f"oss-{region.removeprefix('oss-')}.aliyuncs.com"
    scheme, colon, host = endpoint.rpartition("://")
    endpoint = f"{scheme if colon else 'https'}://{bucket}.{host.rstrip('/')}"
    _check_endpoint(f"oss://{bucket}", "OSS_ENDPOINT", endpoint)
    return endpoint


def _check_endpoint(base: str, name: str, endpoint: str) -> None:
    """StorageError if `endpoint` is not an address of a server: the client would panic, not raise an error."""
    match = re.fullmatch(r"https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/\S*)?", endpoint)
    host = match[1].strip("[]") if match else ""
    try:
        if ":" in host or host.rstrip(".").rpartition(".")[2].isdigit():
            ip_address(host)
        if host:
            return
    except ValueError:
        pass
    why = f"`{name}` does not say where a server is"
    raise StorageError(
        f"cannot open `{redact_uri(base)}`",
        code="address-unusable",
        why=why,
        fix=f"set {name}, such as https://host.example:9000",
    )
