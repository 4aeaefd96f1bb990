"""`RecordStep` takes what `RecordPath.append` would, the same way, and leaves the rest to it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.pipeline import PARTITIONS, TOPIC, RunningPipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 10_000


def take(
    running: RunningPipeline,
    messages: list[dict[str, Any]],
    first: int = 0,
    *,
    topic: str = TOPIC,
    partition: int = -1,
    callback: Any = None,
) -> int:
    return running.pipeline.record_step.join_messages(topic, messages, first, partition, callback)


class Running(RunningPipeline):
    """Produces as `produce_batch` does; counts who took how many."""

    taken_plain = 0

    def batch(
        self, messages: list[dict[str, Any]], partition: int = -1, callback: Any = None
    ) -> None:
        index = 0
        while index < len(messages):
            taken = take(self, messages, index, partition=partition, callback=callback)
            self.taken_plain += taken - index
            if taken == index:
                message = messages[index]
                key, value = message.get("key"), message.get("value")
                size = len(key or b"") + len(value or b"")
                self.pipeline.record_path.append(
                    TOPIC,
                    key,
                    value,
                    message.get("partition", partition),
                    7,
                    message.get("headers"),
                    callback,
                    size,
                )
                taken += 1
            index = taken


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    name = f"plain-{abs(hash(request.node.name))}"
    made = Running(name, **{"blobmsg.record.max.bytes": MAX_BYTES})
    made.produce(b"known now")
    assert made.pipeline.flush(10) == 0
    yield made
    made.pipeline.stop(2.0)


def plain(count: int, *, size: int = 50) -> list[dict[str, Any]]:
    return [
        {"key": b"k%d" % (number % 7), "value": b"%08d" % number + bytes(size)}
        for number in range(count)
    ]


def by_partition(running: Running) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = defaultdict(list)
    for partition, value in running.arrived()[1:]:
        found[partition].append(value)
    return found


def test_all_arrive_in_order_where_append_would_put_them(running: Running) -> None:
    messages = plain(5000)  # several times the size of a batch

    running.batch(messages)

    assert running.pipeline.flush(10) == 0
    found = by_partition(running)
    assert sum(map(len, found.values())) == 5000
    assert len(found) == PARTITIONS
    for values in found.values():
        assert values == sorted(values)
    # All but those for which a segment had to be opened.
    assert running.taken_plain > 4800
    assert running.pipeline._memory.held_bytes == 0
    before = found
    one_by_one = Running("one-by-one")
    one_by_one.produce(b"known now")
    for message in messages:
        one_by_one.pipeline.record_path.append(
            TOPIC, message["key"], message["value"], -1, 7, None, None, 60
        )
        one_by_one.pipeline.serve(0)
    assert one_by_one.pipeline.flush(10) == 0
    assert by_partition(one_by_one) == before
    one_by_one.pipeline.stop(2.0)


def test_a_partition_holds_for_all(running: Running) -> None:
    running.batch(plain(100), partition=2)

    assert running.pipeline.flush(10) == 0
    assert {place: len(values) for place, values in by_partition(running).items()} == {2: 100}


@pytest.mark.parametrize(
    "odd",
    [
        {"key": None, "value": b"no key"},
        {"key": b"", "value": b"empty key"},
        {"key": b"k", "value": None},
        {"key": b"k", "value": b"v", "headers": [("n", b"1")]},
        {"key": b"k", "value": b"v", "partition": 1},
        {"value": b"v", "partition": 1},
        {"value": b"v"},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_append(running: Running, odd: dict[str, Any]) -> None:
    opened = plain(50)
    running.batch(opened)
    running.taken_plain = 0
    messages = [*plain(3), odd, *plain(3)]

    place = take(running, messages)

    assert place == 3
    running.batch(messages[3:])
    assert running.pipeline.flush(10) == 0
    assert sum(map(len, by_partition(running).values())) >= 50 + 6


def test_a_record_over_the_limit_is_left_to_append(running: Running) -> None:
    running.batch(plain(50))

    messages = [*plain(2), {"key": b"k1", "value": bytes(MAX_BYTES)}]

    assert take(running, messages) == 2


def test_an_unknown_topic_and_partition_are_left_to_append(running: Running) -> None:
    assert take(running, plain(1), topic="other") == 0
    assert take(running, plain(1), partition=PARTITIONS) == 0


def test_a_full_buffer_takes_no_more(running: Running) -> None:
    running.batch(plain(50))
    pipeline = running.pipeline
    limit_bytes = pipeline._memory.record_limit_bytes
    with pipeline._core_lock.lock:  # nothing is sealed or freed meanwhile
        pipeline._memory.records_bytes += limit_bytes
        taken = take(running, plain(10))
        pipeline._memory.records_bytes -= limit_bytes

    assert taken == 0


def test_a_method_is_one_callback_in_every_batch(running: Running) -> None:
    class Heard:
        count = 0

        def of(self, error: object, _message: object) -> None:
            assert error is None
            self.count += 1

    heard = Heard()
    for _ in range(10):
        running.batch(plain(100), callback=heard.of)

    assert running.taken_plain >= 1000 - PARTITIONS * 10
    assert running.pipeline.flush(10) == 0
    assert heard.count == 1000


def test_callbacks_of_a_batch_go_with_wide_segments_too(running: Running) -> None:
    heard: list[bytes] = []
    running.pipeline.record_path.append(
        TOPIC, b"k", b"with headers", -1, 7, [("n", b"1")], lambda *_: None, 20
    )
    running.batch(plain(300), callback=lambda _error, message: heard.append(message.value()))

    assert running.pipeline.flush(10) == 0
    assert sorted(heard) == [message["value"] for message in plain(300)]
