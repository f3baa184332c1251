"""Clients: where OSS answers and in which style, and what is said where there are no credentials."""

from __future__ import annotations

import pytest

from servers import SetEnvironment, oss_environment
from voxstill.core.errors import StorageError
from voxstill.storage import clients
from voxstill.storage.store import Store


@pytest.mark.usefixtures("impatient")
def test_a_bucket_without_credentials_says_where_they_belong(set_environment: SetEnvironment) -> None:
    set_environment({"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID") as caught:
        Store("s3://bucket").read("k")
    assert caught.value.why == "there are no credentials"


@pytest.mark.usefixtures("impatient")
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
        assert clients.oss_endpoint("bucket") == "https://bucket.oss-cn-hangzhou.aliyuncs.com"
    set_environment({"OSS_ENDPOINT": "https://oss-cn-beijing-internal.aliyuncs.com/"})
    assert clients.oss_endpoint("bucket") == "https://bucket.oss-cn-beijing-internal.aliyuncs.com"
