"""`blobmsg demo --stack real`: on real brokers and MinIO, beside plain Kafka."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.helpers.demo import processes_of, run_demo, start_demo
from tests.helpers.records import wait_until

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
    _expect_no_topics(stack)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_ctrl_c_ends_the_real_demo_and_leaves_the_stack_as_it_was(
    stack: lab.Stack, tmp_path: Path
) -> None:
    process = start_demo(
        tmp_path, "--stack", "real", "--records", "60000", "--rate", "2000", environ=stack.environ()
    )
    try:
        wait_until(lambda: bool(_objects(stack)), "an object is stored")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)

        assert process.returncode == 130
        assert errors.endswith("blobmsg: interrupted\n")
        assert "Traceback" not in output + errors
        assert processes_of(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
        assert _objects(stack) == 0
        _expect_no_topics(stack)
    finally:
        process.kill()
        process.communicate()


def _expect_no_topics(stack: lab.Stack) -> None:
    """Wait: Kafka drops deleted topics from its metadata a moment later."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    wait_until(
        lambda: (
            not any(name.startswith("flights-") for name in admin.list_topics(timeout=10).topics)
        ),
        "the demo's topics are gone",
        timeout_s=20,
    )


def _objects(stack: lab.Stack) -> int:
    client = stack.s3_client()
    try:
        return int(client.list_objects_v2(Bucket=stack.bucket, Prefix="demo/")["KeyCount"])
    finally:
        client.close()
