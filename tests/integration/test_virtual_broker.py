"""The simulation's broker gives the results, errors and offsets that real Kafka gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.helpers.kafka_histories import (
    RealHistory,
    Result,
    Step,
    VirtualHistory,
    draw_history,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORIES = 240
AT_ONCE = 40
_THREADS = 8

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_the_virtual_broker_does_as_real_kafka(
    first: int, bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=AT_ONCE)
    conf = {"bootstrap.servers": bootstrap}
    admin = AdminClient({**conf, "log_level": 0})
    # Kept until all are done: a librdkafka that ends while it is being fenced has aborted the
    # process, once.
    kept: list[RealHistory] = []

    def differences(number: int) -> list[str]:
        seed = first + number
        real = RealHistory(admin, conf, topic, number, f"{topic}-{seed}")
        kept.append(real)
        return _differences(seed, real)

    with ThreadPoolExecutor(_THREADS) as pool:
        found = [text for texts in pool.map(differences, range(AT_ONCE)) for text in texts]

    for real in kept:
        real.close()
    assert not found, "\n".join(found)


def test_histories_have_every_kind_of_step() -> None:
    steps = [step for seed in range(HISTORIES) for step in draw_history(seed)]

    assert {step[0] for step in steps} == {
        "produce", "init", "begin", "send", "offsets", "end", "read", "commit", "committed",
        "watermarks", "delete",
    }  # fmt: skip
    assert any("fatal" in str(result) for _, result in _virtual(range(HISTORIES)))
    assert any("_AUTO_OFFSET_RESET" in str(result) for _, result in _virtual(range(HISTORIES)))


def _virtual(seeds: range) -> list[tuple[Step, Result]]:
    found: list[tuple[Step, Result]] = []
    for seed in seeds:
        virtual = VirtualHistory(seed)
        found += [(step, virtual.do(step)) for step in draw_history(seed)]
    return found


def _differences(seed: int, real: RealHistory) -> list[str]:
    steps = draw_history(seed)
    virtual = VirtualHistory(seed)
    expected = [virtual.do(step) for step in steps]
    for place, step in enumerate(steps):
        result = real.do(step, expected[place])
        if result != expected[place]:
            done = zip(steps[:place], expected, strict=False)
            before = "\n    ".join(f"{step} -> {result}" for step, result in done)
            text = f"history {seed}, step {place} {step}: Kafka gives {result}, the virtual "
            return [f"{text}broker {expected[place]}; before:\n    {before}"]
    return []
