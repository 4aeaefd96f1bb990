"""The programs in `examples/`, run as their README says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobmsg import BlobConsumer
from tests.helpers.records import partition, read_to_end, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.lab import Stack

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(stack: Stack, prefix: str, name: str, *arguments: str) -> str:
    completed = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, **stack.environ(prefix), "BLOBMSG_ROUTE": "blob"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def payments_in(conf: dict[str, Any], topic: str) -> list[int]:
    """Of which orders there are committed payments."""
    more = {"group.id": "test", "enable.partition.eof": True, "isolation.level": "read_committed"}
    with BlobConsumer({**conf, **more}) as consumer:
        consumer.assign([partition(topic, number, 0) for number in range(2)])
        messages = read_to_end(consumer, 2).messages
    return [json.loads(message.value())["order"] for message in messages]


def test_every_order_is_paid_once_though_its_payer_is_killed(
    stack: Stack, conf: dict[str, Any], store_prefix: str, make_topic: Callable[..., str]
) -> None:
    orders, payments = make_topic(partitions=3), make_topic(partitions=2)
    total = 20_000
    names = ("--topic", orders, "--to", payments, "--group", payments)
    program = [sys.executable, str(EXAMPLES / "orders_to_payments.py"), *names]
    environ = {**os.environ, **stack.environ(store_prefix), "BLOBMSG_ROUTE": "blob"}
    paid: list[int] = []
    with subprocess.Popen([*program, "--orders", "1000000"], env=environ) as payer:
        # While it reads, so that it always has something open.
        for _ in range(total // 5000):
            run_example(
                stack, store_prefix, "orders_producer.py", "--topic", orders, "--orders", "5000"
            )
        wait_until(lambda: bool(payments_in(conf, payments)), "some are paid")
        payer.kill()
    paid = payments_in(conf, payments)
    assert paid
    rest = total - len(paid)
    if rest:
        run_example(stack, store_prefix, "orders_to_payments.py", *names, "--orders", str(rest))

    assert Counter(payments_in(conf, payments)) == dict.fromkeys(range(5000), total // 5000)


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (EXAMPLES.parent / "docs" / "transactions.md").read_text()
    program = (EXAMPLES / "orders_to_payments.py").read_text()
    shown = page.partition("```python\n")[2].partition("\n```")[0]
    assert shown.startswith("class Payments:")
    assert f"{shown}\n\n\ndef main" in program


def test_the_consumer_reads_every_order_that_the_producer_sent(
    stack: Stack, store_prefix: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=6)
    arguments = ("--topic", topic, "--orders", "5000")
    sent = run_example(stack, store_prefix, "orders_producer.py", *arguments)
    read = run_example(stack, store_prefix, "orders_consumer.py", *arguments)
    cents = sum(number * 31 % 10_000 for number in range(5000))
    assert sent == "sent 5000 orders, 0 failed\n"
    assert read == f"read 5000 orders of 97 customers, {cents / 100:.2f} in all\n"
    listing = stack.s3_client().list_objects_v2(Bucket=stack.bucket, Prefix=store_prefix)
    assert listing["KeyCount"] > 0
