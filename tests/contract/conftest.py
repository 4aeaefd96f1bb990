"""Where the contract's S3 is: named by the environment, else the tests' own stack.

`BLOBMSG_TEST_S3_ENDPOINT` (with `BLOBMSG_TEST_S3_BUCKET`, `_ACCESS_KEY_ID`, `_SECRET_ACCESS_KEY`)
names any S3 that may be written to; it spares the start of three brokers.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

ENDPOINT = os.environ.get("BLOBMSG_TEST_S3_ENDPOINT", "")

if ENDPOINT:

    @pytest.fixture
    def s3_conf(store_prefix: str) -> dict[str, Any]:
        """Settings of a store below a prefix of the test's own."""
        environ = os.environ
        return {
            "blobmsg.store.url": f"s3://{environ['BLOBMSG_TEST_S3_BUCKET']}/{store_prefix}",
            "blobmsg.s3.endpoint.url": ENDPOINT,
            "blobmsg.s3.region": environ.get("BLOBMSG_TEST_S3_REGION", "us-east-1"),
            "blobmsg.s3.access.key.id": environ["BLOBMSG_TEST_S3_ACCESS_KEY_ID"],
            "blobmsg.s3.secret.access.key": environ["BLOBMSG_TEST_S3_SECRET_ACCESS_KEY"],
        }

else:

    @pytest.fixture
    def s3_conf(conf: dict[str, Any]) -> dict[str, Any]:
        """Settings of a store below a prefix of the test's own."""
        return {key: value for key, value in conf.items() if key.startswith("blobmsg.")}
