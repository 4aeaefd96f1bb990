"""Positions, watermarks, seeks and commits, in Kafka's offsets on both sides."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TopicPartition,
)

from tests.compat.conftest import FILLED_FROM_MS
from tests.helpers.records import next_error, next_message, read, read_to_end, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

    Filled = Callable[[Side], str]

_MANUAL = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}


def _values(messages: list[Any]) -> list[bytes]:
    return [message.value() for message in messages]


def test_positions_follow_what_was_read(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        both_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        with side.consumer(_MANUAL) as consumer:
            seen = [consumer.position(both_partitions)]
            consumer.assign([TopicPartition(topic, 0, side.position(3))])
            seen += [consumer.position(both_partitions), consumer.assignment()]
            for _ in range(3):
                [message] = read(consumer, 1)
                seen += [side.see_message(message), consumer.position(both_partitions)]
            # The idiom of everybody's code.
            seen.append(TopicPartition(topic, 0, message.offset() + 1))
            seen.append(consumer.assignment())
            consumer.unassign()
            # Stock forgets where it stood a moment later.
            wait_until(
                lambda: consumer.position(both_partitions)[0].offset < 0,
                "no position any more",
                serve=lambda: consumer.poll(0.05),
            )
            seen += [consumer.position(both_partitions), consumer.assignment()]
        return seen

    by_stock = readers.agree(case)
    assert [m["value"] for m in by_stock if "value" in m] == [b"0.3", b"0.4", b"0.5"]


def test_watermarks_and_those_cached_after_a_fetch(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

        def watermarks(*arguments: Any, **named: Any) -> list[int]:
            low, high = consumer.get_watermark_offsets(*arguments, **named)
            return [side.kafka_position(low), side.kafka_position(high)]

        with side.consumer({**_MANUAL, "enable.partition.eof": True}) as consumer:
            seen = [watermarks(first, cached=True), watermarks(first, 20)]
            consumer.assign([TopicPartition(topic, 1, OFFSET_BEGINNING)])
            read_to_end(consumer, 1)
            # What a fetch told; the start of the log it doesn't tell.
            seen += [watermarks(second, 20, cached=True)[1:], watermarks(second, timeout=20)]
        return seen

    assert readers.agree(case) == [[-1001, -1001], [0, 10], [10], [0, 10]]


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_end_of_partition_comes_behind_its_records(
    readers: Both, filled: Filled, call: str
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        with side.consumer({**_MANUAL, "enable.partition.eof": True}) as consumer:
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(2)])
            seen: dict[int, list[Any]] = {0: [], 1: []}
            while sum(map(len, seen.values())) < 22:
                messages = [next_message(consumer)] if call == "poll" else consumer.consume(5, 0.5)
                for message in messages:
                    is_record = message.error() is None
                    told = message.value() if is_record else side.see_message(message)
                    seen[message.partition()].append(told)
            ends = [seen[n].pop() for n in range(2)]
            for end in ends:
                # Names the broker that leads the partition, and Kafka's offset.
                end["error"] = end["error"][:1]
                end.pop("len"), end.pop("value")
            position = consumer.position([TopicPartition(topic, 0)])
        return seen, ends, position

    seen, ends, _ = readers.agree(case)
    assert seen[1] == [b"1.%d" % number for number in range(10)]
    assert [end["offset"] for end in ends] == [10, 10]


def test_seek_goes_forth_and_back_and_to_the_ends(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        seen: list[Any] = []
        with side.consumer({**_MANUAL, "enable.partition.eof": True}) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            read(consumer, 4)
            for number in (1, 8, 0):
                seen.append(consumer.seek(TopicPartition(topic, 0, side.position(number))))
                seen.append(_values(read(consumer, 2)))
            for special in (OFFSET_BEGINNING, OFFSET_END):
                seen.append(consumer.seek(TopicPartition(topic, 0, special)))
                seen.append(_values(read_to_end(consumer, 1).messages))
            messages = read_again(consumer, side, topic, 4)
            consumer.seek(TopicPartition(topic, 0, messages[1].offset()))
            seen.append(_values(read(consumer, 2)))
            seen.append(side.outcome(lambda: consumer.seek(TopicPartition(topic, 1, 0)))[0])
        return seen

    by_stock = readers.agree(case)
    assert by_stock[:2] == [None, [b"0.1", b"0.2"]]
    assert by_stock[-2:] == [[b"0.1", b"0.2"], "raised"]


def read_again(consumer: Any, side: Side, topic: str, count: int) -> list[Any]:
    """From the start."""
    consumer.seek(TopicPartition(topic, 0, side.position(0)))
    return read(consumer, count)


def test_a_paused_partition_gives_nothing_until_it_is_resumed(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        places = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(2)]
        with side.consumer(_MANUAL) as consumer:
            consumer.assign(places)
            first = read(consumer, 1)[0].partition()
            seen = [consumer.pause([TopicPartition(topic, first)])]
            others = read(consumer, 10)
            seen.append({message.partition() == first for message in others})
            seen += [consumer.poll(0.3), consumer.consume(5, 0.3)]
            # Paused again is paused, and resumed again is resumed.
            seen.append(consumer.pause(places))
            seen += [consumer.resume(places), consumer.resume(places)]
            rest = read(consumer, 9)
        seen.append([message.value().partition(b".")[2] for message in rest])
        return seen

    by_stock = readers.agree(case)
    assert by_stock[1] == {False}
    assert by_stock[-1] == [b"%d" % number for number in range(1, 10)]


@pytest.mark.parametrize("way", ["unassign", "assign", "incremental"])
def test_a_pause_outlives_the_assignment(readers: Both, filled: Filled, way: str) -> None:
    def case(side: Side) -> Any:
        place = [TopicPartition(filled(side), 0, OFFSET_BEGINNING)]
        with side.consumer(_MANUAL) as consumer:
            consumer.assign(place)
            read(consumer, 1)
            consumer.pause(place)
            if way == "incremental":
                consumer.incremental_unassign(place)
                consumer.incremental_assign(place)
            else:
                if way == "unassign":
                    consumer.unassign()
                consumer.assign(place)
            seen = [consumer.poll(0.5), consumer.resume(place)]
            seen.append([message.value().partition(b".")[2] for message in read(consumer, 5)])
        return seen

    assert readers.agree(case) == [None, None, [b"%d" % number for number in range(5)]]


def test_every_form_of_commit(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        place = [TopicPartition(topic, 0)]
        heard: list[Any] = []
        more = {**_MANUAL, "on_commit": lambda *told: heard.append(side.see(list(told)))}
        with side.consumer(more) as consumer:
            seen = [consumer.committed(place, 20)]

            def commit(*arguments: Any, **named: Any) -> None:
                seen.append(side.outcome(lambda: consumer.commit(*arguments, **named)))
                if named.get("asynchronous", True):
                    wait_until(lambda: bool(heard), "on_commit", serve=lambda: consumer.poll(0.1))
                seen.extend([list(heard), consumer.committed(place, 20)])
                heard.clear()

            def at(kafka_offset: int, *metadata: Any) -> list[TopicPartition]:
                return [TopicPartition(topic, 0, side.position(kafka_offset), *metadata)]

            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages = read(consumer, 6)
            consumer.pause(place)  # so that waiting reads nothing
            commit(message=messages[2], asynchronous=False)
            commit(messages[3], None, asynchronous=False)
            commit(offsets=at(5), asynchronous=False)
            commit(offsets=at(4, "a note"), asynchronous=False)
            commit(offsets=at(3, ""), asynchronous=False)
            commit(asynchronous=False)
            commit(asynchronous=False)  # nothing new
            commit(message=messages[0], asynchronous=False)  # back
            commit(message=messages[1])
            commit(offsets=at(2))
            consumer.seek(at(9)[0])
            consumer.resume(place)
            read(consumer, 1)
            commit()
            commit()
        return seen

    by_stock = readers.agree(case)
    assert by_stock[0][0]["offset"] == OFFSET_INVALID
    assert by_stock[3][0]["offset"] == 3


def test_several_partitions_are_committed_and_told_in_the_order_given(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        places = [TopicPartition(topic, n, side.position(n + 3), f"of {n}") for n in (1, 0)]
        with side.consumer(_MANUAL) as consumer:
            return [
                consumer.commit(offsets=places, asynchronous=False),
                consumer.committed([TopicPartition(topic, n) for n in (1, 0, 1)], 20),
                consumer.committed([TopicPartition(topic, 0, side.position(9), "asked")], 20),
            ]

    committed, *_ = readers.agree(case)
    assert sorted(place["offset"] for place in committed) == [3, 4]


def test_what_is_stored_is_what_a_commit_contains(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        place = [TopicPartition(topic, 0)]
        with side.consumer({**_MANUAL, "enable.auto.offset.store": False}) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages = read(consumer, 6)

            def commit() -> Any:
                return side.outcome(lambda: consumer.commit(asynchronous=False))

            seen = [commit(), consumer.store_offsets(message=messages[1]), commit()]
            stored = TopicPartition(topic, 0, side.position(5), "a note")
            seen += [consumer.store_offsets(offsets=[stored]), commit()]
            seen += [consumer.committed(place, 20), commit()]
            seen += [consumer.store_offsets(messages[3]), consumer.store_offsets(messages[5])]
            seen += [commit(), consumer.position(place)]
        return seen

    by_stock = readers.agree(case)
    assert by_stock[0][1][1] == "_NO_OFFSET"
    assert by_stock[2][1][0]["offset"] == 2


def test_an_earlier_place_that_is_stored_is_committed_only_here(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        with side.consumer({**_MANUAL, "enable.auto.offset.store": False}) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages = read(consumer, 3)
            consumer.store_offsets(messages[2])
            consumer.commit(asynchronous=False)
            consumer.store_offsets(messages[0])
            return {"again": side.outcome(lambda: consumer.commit(asynchronous=False))}

    def commits_what_changed(seen: dict[str, Any]) -> dict[str, Any]:
        """Positions inside one notification share Kafka's offset: that it grew is no measure."""
        what, (_, name, *_) = seen["again"]
        assert (what, name) == ("raised", "_NO_OFFSET")
        place = {"topic": "<topic 1>", "partition": 0, "offset": 1, "metadata": None, "error": None}
        return {"again": ("returned", [place])}

    readers.agree(case, commits_what_changed)


def test_the_committed_place_is_where_another_consumer_goes_on(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        group = {**_MANUAL, "group.id": f"{topic}-resumes"}
        with side.consumer(group) as consumer:
            consumer.commit(
                offsets=[TopicPartition(topic, 0, side.position(4))], asynchronous=False
            )
        seen = []
        for offset in (OFFSET_STORED, OFFSET_INVALID, side.position(6)):
            with side.consumer(group) as consumer:
                consumer.assign([TopicPartition(topic, 0, offset)])
                seen.append(_values(read(consumer, 2)))
        return seen

    assert readers.agree(case) == [[b"0.4", b"0.5"]] * 2 + [[b"0.6", b"0.7"]]


def test_automatic_commits_and_the_one_at_the_end(readers: Both, filled: Filled) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        group = {"group.id": f"{topic}-automatic", "auto.offset.reset": "earliest"}
        place = [TopicPartition(topic, 0)]
        heard: list[Any] = []

        def on_commit(error: Any, partitions: Any) -> None:
            heard.append((side.see(error), side.see(partitions)))

        often = {"auto.commit.interval.ms": 100, "on_commit": on_commit}
        with side.consumer({**group, **often}) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            read(consumer, 3)
            # A slow machine commits before all three are read, too.
            wait_until(
                lambda: consumer.committed(place, 20)[0].offset == side.position(3),
                "committed",
                serve=lambda: consumer.pause(place) or consumer.poll(0.1),
            )
            seen = [consumer.committed(place, 20)]
            wait_until(
                lambda: any(partitions[0]["offset"] == 3 for _, partitions in heard),
                "on_commit",
                serve=lambda: consumer.poll(0.1),
            )
            told = next(one for one in heard if one[1][0]["offset"] == 3)
        with side.consumer({**group, "auto.commit.interval.ms": 3_600_000}) as consumer:
            consumer.assign([TopicPartition(topic, 0, side.position(5))])
            read(consumer, 1)
        with side.consumer(group) as consumer:
            seen.append(consumer.committed(place, 20))
        return seen, told

    (first, at_the_end), _ = readers.agree(case)
    assert (first[0]["offset"], at_the_end[0]["offset"]) == (3, 6)


def test_automatic_commits_keep_the_metadata_of_stored_positions(
    readers: Both, filled: Callable[[Side], str]
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        group = {"group.id": f"{topic}-notes-{uuid.uuid4().hex}", "auto.commit.interval.ms": 100}
        place = [TopicPartition(topic, 0)]
        with side.consumer({**group, "enable.auto.offset.store": False}) as consumer:
            consumer.assign([TopicPartition(topic, 0, side.position(0))])
            read(consumer, 3)
            noted = TopicPartition(topic, 0, side.position(2), "a note: ü")
            consumer.store_offsets(offsets=[noted])
            wait_until(
                lambda: consumer.committed(place, 20)[0].offset == side.position(2),
                "committed",
                serve=lambda: consumer.pause(place) or consumer.poll(0.1),
            )
            amid = consumer.committed(place, 20)
            noted = TopicPartition(topic, 0, side.position(3), "another")
            consumer.store_offsets(offsets=[noted])
        with side.consumer(group) as consumer:
            return amid, consumer.committed(place, 20)

    [amid], [at_the_end] = readers.agree(case)
    assert (amid["offset"], amid["metadata"]) == (2, "a note: ü")
    assert (at_the_end["offset"], at_the_end["metadata"]) == (3, "another")


def test_offsets_for_times(readers: Both, filled: Filled) -> None:
    times = [0, *(FILLED_FROM_MS + after for after in (0, 1, 3000, 3001, 9000, 9001))]
    times += [OFFSET_BEGINNING, OFFSET_END]

    def case(side: Side) -> Any:
        topic = filled(side)
        with side.consumer(_MANUAL) as consumer:
            return [
                [
                    # The offset that is found is a record's.
                    place if place.offset < 0 else found_offset(side, place.offset)
                    for place in consumer.offsets_for_times(
                        [TopicPartition(topic, n, asked) for n in (1, 0)], 20
                    )
                ]
                for asked in times
            ]

    by_stock = readers.agree(case)
    assert by_stock[1:4] == [[0, 0], [1, 1], [3, 3]]


def found_offset(side: Side, offset: int) -> int | None:
    """Kafka's offset of a record or of an end of the log."""
    is_end = side.is_ours and offset % (1 << 20) == 0
    return side.kafka_position(offset) if is_end else side.kafka_offset(offset)


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_a_position_outside_of_the_log_resets_as_told(
    readers: Both, filled: Filled, reset: str
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        more = {"auto.offset.reset": reset, "enable.partition.eof": True}
        with side.consumer({**_MANUAL, **more}) as consumer:
            consumer.assign([TopicPartition(topic, 0, side.position(1000))])
            if reset == "error":
                error = side.see_message(next_error(consumer))
                # The text has Kafka's own offset and the broker's number.
                return error["topic"], error["partition"], error["error"][0], error["key"]
            return len(read_to_end(consumer, 1).messages)

    by_stock = readers.agree(case)
    assert by_stock in (10, 0, ("<topic 1>", 0, "_AUTO_OFFSET_RESET", None))


def test_without_an_interval_nothing_is_committed_before_the_end(
    readers: Both, filled: Filled
) -> None:
    def case(side: Side) -> Any:
        topic = filled(side)
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        group = {"group.id": f"compat-{uuid.uuid4().hex}"}
        heard: list[Any] = []
        more = {
            "auto.commit.interval.ms": 0,
            "auto.offset.reset": "earliest",
            "on_commit": lambda error, partitions: heard.append((error, side.see(partitions))),
        }
        with side.consumer({**group, **more}) as consumer:
            consumer.subscribe([topic])
            _values(read(consumer, 3))
            for _ in range(4):  # each of them would be a time to commit
                consumer.poll(0.3)
            while_it_reads = list(heard)
        with side.consumer(group) as other:
            committed = other.committed(partitions, 20)
        # Which of the two has come first is chance.
        return while_it_reads, any(p.offset >= 0 for p in committed), len(heard)

    assert readers.agree(case) == ([], True, 1)
