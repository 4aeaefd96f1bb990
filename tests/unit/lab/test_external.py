from __future__ import annotations

import pytest

from blobmsg import lab

ENVIRON = {
    "BLOBMSG_DEV_BOOTSTRAP": "a:1,b:2, c:3",
    "BLOBMSG_STORE_URL": "s3://somewhere/prefix",
    "BLOBMSG_S3_ENDPOINT_URL": "http://store:9000",
    "BLOBMSG_S3_REGION": "eu-central-1",
    "BLOBMSG_S3_ACCESS_KEY_ID": "id",
    "BLOBMSG_S3_SECRET_ACCESS_KEY": "secret",
}


def test_addresses_in_the_environment_make_a_stack() -> None:
    stack = lab.stack_from_environ(ENVIRON)

    assert stack is not None
    assert stack.bootstrap_servers == "a:1,b:2,c:3"
    assert [broker.zone for broker in stack.brokers] == ["az1", "az2", "az3"]
    assert stack.s3 == lab.S3Access(
        "http://store:9000", "eu-central-1", "id", "secret", "somewhere"
    )


def test_an_environment_that_names_nothing_makes_none() -> None:
    assert lab.stack_from_environ({"PATH": "/bin"}) is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BLOBMSG_DEV_BOOTSTRAP", "a:1,b"),
        ("BLOBMSG_DEV_BOOTSTRAP", "a:port"),
        ("BLOBMSG_S3_ENDPOINT_URL", ""),
        ("BLOBMSG_S3_ENDPOINT_URL", "store:9000"),
    ],
)
def test_what_is_no_address_is_named(variable: str, value: str) -> None:
    with pytest.raises(lab.LabError, match=variable):
        lab.stack_from_environ({**ENVIRON, variable: value})


def test_servers_of_others_are_used_and_never_hurt() -> None:
    stack = lab.stack_from_environ(ENVIRON)
    assert stack is not None

    assert stack.is_running()
    for hurt in (stack.broker(1).kill, stack.broker(1).pause, stack.minio.shut_down):
        with pytest.raises(lab.LabError, match="not ours"):
            hurt()
    stack.stop()
    assert stack.is_running()
