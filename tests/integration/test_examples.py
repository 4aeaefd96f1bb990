"""The programs in `examples/`, run as their README says."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.records import partition, read_to_end, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.lab import Stack

EXAMPLES = Path(__file__).parents[2] / "examples"
_WAIT_S = 60.0


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
    times = 5
    names = ("--topic", orders, "--to", payments, "--group", payments)
    program = [sys.executable, str(EXAMPLES / "orders_to_payments.py"), *names]
    environ = {**os.environ, **stack.environ(store_prefix), "BLOBMSG_ROUTE": "blob"}

    def order() -> None:
        more = ("--topic", orders, "--orders", "5000")
        run_example(stack, store_prefix, "orders_producer.py", *more)

    with subprocess.Popen([*program, "--orders", "1000000"], env=environ) as payer:
        # While it reads, so that it always has something open.
        for _ in range(times - 1):
            order()
        wait_until(lambda: bool(payments_in(conf, payments)), "some are paid")
        payer.kill()
    paid = payments_in(conf, payments)
    assert paid
    order()
    rest = str(times * 5000 - len(paid))
    run_example(stack, store_prefix, "orders_to_payments.py", *names, "--orders", rest)

    assert Counter(payments_in(conf, payments)) == dict.fromkeys(range(5000), times)


def test_payments_that_are_open_when_their_orders_go_to_another_are_dropped_and_made_once(
    conf: dict[str, Any], make_topic: Callable[..., str]
) -> None:
    orders, payments = make_topic(partitions=3), make_topic(partitions=2)
    example = runpy.run_path(str(EXAMPLES / "orders_to_payments.py"))
    with BlobProducer(conf) as producer:
        for number in range(300):
            order = {"order": number, "cents": number * 31, "customer": number % 97}
            producer.produce(orders, json.dumps(order), partition=number % 3)
    dropped: list[int] = []

    def member(instance: str) -> Any:
        producer = BlobProducer({**conf, "transactional.id": f"{payments}-{instance}"})
        producer.init_transactions(_WAIT_S)
        group = {"group.id": payments, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        made = example["Payments"](BlobConsumer({**conf, **group}), producer, payments)

        def drop(*revoked: object) -> None:
            dropped.append(made.count)
            made.drop(*revoked)

        made.consumer.subscribe([orders], on_revoke=drop, on_lost=drop)
        return made

    def add(made: Any) -> None:
        message = made.consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            made.add(message)

    first = member("1")
    wait_until(lambda: first.count >= 100, "a hundred payments are open", serve=lambda: add(first))
    second = member("2")
    members = (first, second)

    def serve() -> None:
        for made in members:
            add(made)

    wait_until(lambda: bool(dropped), "orders go to the other", serve=serve)
    committed: list[int] = []

    def commit() -> bool:
        committed.extend(made.commit() for made in members)
        return sum(committed) == 300

    wait_until(commit, "all is paid", serve=serve)
    for made in members:
        made.consumer.close()
        made.producer.close()

    assert dropped[0] >= 100
    assert Counter(payments_in(conf, payments)) == dict.fromkeys(range(300), 1)


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
