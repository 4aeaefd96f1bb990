"""The programs in `examples/`, run as their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.lab import Stack

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(stack: Stack, name: str, *arguments: str) -> str:
    completed = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, **stack.environ()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_the_consumer_reads_every_order_that_the_producer_sent(
    stack: Stack, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=6)
    sent = run_example(stack, "orders_producer.py", "--topic", topic, "--orders", "5000")
    read = run_example(stack, "orders_consumer.py", "--topic", topic, "--orders", "5000")
    cents = sum(number * 31 % 10_000 for number in range(5000))
    assert sent == "sent 5000 orders, 0 failed\n"
    assert read == f"read 5000 orders of 97 customers, {cents / 100:.2f} in all\n"
