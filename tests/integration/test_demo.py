"""`blobmsg demo --stack real`: on real brokers and MinIO, beside plain Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.helpers.demo import run_demo

if TYPE_CHECKING:
    from pathlib import Path

    from blobmsg import lab


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_real_demo_runs_both_clients_and_leaves_the_stack_as_it_was(
    stack: lab.Stack, tmp_path: Path
) -> None:
    # Three seconds: in the first one the router learns the rate and sends through Kafka.
    code, output, figures = run_demo(
        tmp_path, "--stack", "real", "--records", "100000", environ=stack.environ()
    )

    assert code == 0, output
    runs = figures["runs"]
    assert [(run["client"], bool(run["rate"])) for run in runs] == [
        ("blobmsg", True),
        ("plain", True),
        ("blobmsg", False),
        ("plain", False),
    ]
    blob, plain = runs[:2]
    assert all(check["holds"] for run in runs for check in run["checks"])
    assert blob["puts"] > 0
    assert plain["puts"] == 0
    assert plain["producer_tx_bytes"] > plain["payload_bytes"]
    assert blob["producer_tx_bytes"] < plain["producer_tx_bytes"] / 2
    assert blob["bill"]["total_usd"] < plain["bill"]["total_usd"]
    assert _objects(stack) == 0
    # Kafka drops deleted topics from its metadata a moment later.
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    deadline = time.monotonic() + 20
    while any(name.startswith("flights-") for name in admin.list_topics(timeout=10).topics):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _objects(stack: lab.Stack) -> int:
    client = stack.s3_client()
    try:
        return int(client.list_objects_v2(Bucket=stack.bucket, Prefix="demo/")["KeyCount"])
    finally:
        client.close()
