"""`blobmsg lag`: how many records a group has not read.

Brokers count notifications. This reads what lies between the committed places and the ends, with
the stock client, as a member of no group; `partition_lag` counts. The store is not asked.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from blobmsg.asking import ask
from blobmsg.cli.command import FINDING, OK, Command, Finding, UserMistake
from blobmsg.cli.partition_lag import PartitionLag
from blobmsg.cli.settings_argument import add_settings_argument, read_settings, with_brokers
from blobmsg.group_commits import committed, find_commits
from blobmsg.inner_config import admin_config

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Mapping, Sequence

_EPILOG = """examples:
  blobmsg lag --group billing                        of all topics it has committed in
  blobmsg lag --group billing --topic orders --topic clicks
  blobmsg lag --group billing --json -X bootstrap.servers=kafka-1:9092
  blobmsg lag --group billing -X isolation.level=read_uncommitted --timeout 600

Of each partition: the Kafka offset that is committed, how many records of the notification there
remain (nothing: all), the end, how many Kafka records are not read, how many records those stand
for, and how old the first of them is (inside of a notification: the oldest of its segment). Where
nothing is committed ("-") all counts from the log's start, whatever auto.offset.reset says; also
where what is committed lies before it. A place behind the end has no lag.

Kafka records are counted as they are found: marks of transactions and, unless isolation.level is
read_uncommitted, records of aborted and open ones do not count. So the numbers may be smaller than
the differences of offsets that other tools show. All that is not read is fetched from Kafka once,
with what Kafka holds of its payload; nothing is committed, and no store is asked. A notification
that can't be read is named on standard error and counts as one record.

Settings come from -X and from the environment, as for a consumer. Exit codes: 0 counted, 1 Kafka
did not give all in time or something can't be read, 2 a wrong request or no broker answers.
"""

# Of what is named one by one; more of it tells nobody more.
_MOST_FINDINGS: Final = 100
# Ctrl-C comes through between two looks.
_LOOK_S: Final = 0.5
# By default librdkafka reads 64 MiB ahead, and 100,000 records of each partition, and rests for a
# second when it has them. A million records of 200 bytes took 9.4 s and 123 MiB with that, 3.3 s
# and 55 MiB with this (two cores beside the brokers, November 2026).
_READ_AHEAD: Final = {
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 10_000,
    "fetch.queue.backoff.ms": 10,
}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--group", required=True, help="the consumer group")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        help="only this one, committed or not; may be repeated",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="most time for all of it (default: %(default)g)",
    )
    add_settings_argument(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.timeout > 0:
        raise UserMistake("--timeout wants more than 0")
    _, rest = read_settings(arguments.settings)
    conf = with_brokers(rest)
    findings = _Findings()
    kafka = _Kafka(conf, arguments.group, arguments.timeout)
    try:
        lags = _find_partitions(kafka, arguments.topic, findings)
        kafka.read(lags, findings)
    finally:
        kafka.close()
        findings.tell_rest()
    facts = {
        "group": arguments.group,
        "isolation_level": conf.get("isolation.level", "read_committed"),
        "partitions": [_facts(lag, time.time_ns() // 1_000_000) for lag in lags],
        "kafka_records": sum(lag.kafka_records for lag in lags),
        "records": sum(lag.records for lag in lags),
        "unreadable": sum(lag.unreadable for lag in lags),
        "findings": findings.texts,
    }
    print(json.dumps(facts, indent=2) if arguments.json else _text(facts))
    return FINDING if findings.texts else OK


COMMAND = Command(
    name="lag",
    help="count the records that a consumer group has not read",
    configure=_configure,
    run=_run,
)


class _Findings:
    """What is wrong with what was read: told at once; the first of it is kept."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._others = 0

    def add(self, text: str | None) -> None:
        if text is None:
            return
        if len(self.texts) == _MOST_FINDINGS:
            self._others += 1
            return
        self.texts.append(text)
        print(f"blobmsg lag: {text}", file=sys.stderr, flush=True)

    def tell_rest(self) -> None:
        if self._others:
            print(f"blobmsg lag: and {self._others:,} more like these", file=sys.stderr)


def _find_partitions(
    kafka: _Kafka, topics: Sequence[str], findings: _Findings
) -> list[PartitionLag]:
    """Every partition of these topics, or of those with a commit, and what is committed there."""
    found = kafka.topics(topics)
    for topic in topics:
        if found[topic].error is not None:
            raise UserMistake(f"topic {topic!r}: {found[topic].error.str()}")
    partitions = [(topic, number) for topic in found for number in sorted(found[topic].partitions)]
    commits = kafka.commits(partitions)
    if not topics:
        its_own = {topic for topic, _ in commits}
        partitions = [place for place in partitions if place[0] in its_own]
    if not partitions:
        raise UserMistake(
            f"group {kafka.group!r} has committed nothing, or there is none: name topics by --topic"
        )
    lags: list[PartitionLag] = []
    for topic, partition in partitions:
        lag = PartitionLag(topic, partition, *kafka.watermarks(topic, partition))
        commit = commits.get((topic, partition))
        if commit is not None:
            findings.add(lag.committed(commit.offset, commit.metadata))
        lags.append(lag)
    return lags


class _Kafka:
    """The stock clients, and how long they may take.

    Args:
        conf: The user's, with `bootstrap.servers`.
        group: Of whom the commits are.
        timeout_s: For all that is asked and read.

    Raises:
        UserMistake: These are no settings of a consumer; from any method, also: Kafka refuses or
            does not answer.

    Threads: one.
    """

    def __init__(self, conf: Mapping[str, Any], group: str, timeout_s: float) -> None:
        self.group = group
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._last_problem = ""
        # The client wants a group; this one's commits must be readable anyway. Who assigns
        # partitions to itself joins nothing. Where the log's start moves it goes on there.
        settings = {
            **_READ_AHEAD,
            **conf,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "error_cb": self._heard,
        }
        # What was committed counts while a transaction that commits more is open.
        asking = {
            **admin_config(conf),
            "group.id": group,
            "isolation.level": "read_uncommitted",
            "error_cb": self._heard,
        }
        try:
            self._consumer = Consumer(settings)
            self._asker = Consumer(asking)
        except KafkaException as error:
            raise UserMistake(f"these settings are no consumer's: {error.args[0].str()}") from error

    def close(self) -> None:
        self._consumer.close()
        self._asker.close()

    # The stubs leave open what metadata is.
    def topics(self, names: Sequence[str]) -> dict[str, Any]:
        """What there is of these topics, in their order; of all if none is named."""
        if not names:
            return dict(sorted(self._list_topics(None).items()))
        return {name: self._list_topics(name)[name] for name in names}

    def _list_topics(self, topic: str | None) -> dict[str, Any]:
        """Of one or all; none is created."""
        with self._asking():
            found: dict[str, Any] = ask(
                partial(self._asker.list_topics, topic), self._left_s()
            ).topics
        return found

    def commits(
        self, partitions: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], TopicPartition]:
        """What the group has committed in these."""

        def ask_for(places: list[TopicPartition]) -> list[TopicPartition]:
            return ask(partial(committed, self._asker, places), self._left_s())

        with self._asking():
            return {
                (place.topic, place.partition): place for place in find_commits(ask_for, partitions)
            }

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """The log's start and its end; before open transactions if those are not read."""
        place = TopicPartition(topic, partition)
        with self._asking():
            low, high = ask(
                lambda timeout_s: self._consumer.get_watermark_offsets(place, timeout=timeout_s),
                self._left_s(),
            )
        return low, high

    def read(self, lags: Sequence[PartitionLag], findings: _Findings) -> None:
        """Read each partition up to its end.

        Raises:
            Finding: A partition can't be read, or not in time.
        """
        unread = {(lag.topic, lag.partition): lag for lag in lags if not lag.is_done}
        with self._asking():
            self._consumer.assign(
                [TopicPartition(lag.topic, lag.partition, lag.start) for lag in unread.values()]
            )
            while unread:
                self._check_time(unread)
                message: Any = self._consumer.poll(min(_LOOK_S, self._left_s()))
                if message is None:
                    continue
                key = (message.topic(), message.partition())
                lag = unread.get(key)
                if lag is None:  # of the client, or behind an end
                    continue
                findings.add(_take(lag, message))
                if lag.is_done:
                    del unread[key]
                    # Its producers may go on; what they write now nobody needs.
                    self._consumer.pause([TopicPartition(*key)])

    def _check_time(self, unread: Mapping[tuple[str, int], PartitionLag]) -> None:
        if self._left_s() > 0:
            return
        lag = next(iter(unread.values()))
        more = f" (and of {len(unread) - 1:,} more)" if len(unread) > 1 else ""
        raise Finding(
            f"Kafka did not give all of {lag.place}{more} within {self._timeout_s:g} s: "
            f"{lag.records:,} records were counted there{self._because()}; allow more by --timeout"
        )

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _heard(self, error: KafkaError) -> None:
        # That all brokers are down comes behind the reason, and says less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._last_problem:
            self._last_problem = error.str()

    def _because(self) -> str:
        return f" ({self._last_problem})" if self._last_problem else ""

    @contextlib.contextmanager
    def _asking(self) -> Generator[None]:
        try:
            yield
        except KafkaException as error:
            for client in (self._asker, self._consumer):
                client.poll(0)  # for what it has heard meanwhile, which says more
            raise UserMistake(f"Kafka: {error.args[0].str()}{self._because()}") from error


def _take(lag: PartitionLag, message: Any) -> str | None:
    """Count what came of a partition; what is wrong with it."""
    error: KafkaError | None = message.error()
    if error is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise Finding(f"{lag.place}: {error.str()}")
        lag.end_reached()
        return None
    kind, timestamp_ms = message.timestamp()
    return lag.received(
        message.offset(),
        message.headers(),
        message.value(),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        is_append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
    )


def _facts(lag: PartitionLag, now_timestamp_ms: int) -> dict[str, Any]:
    first_ms = lag.first_timestamp_ms
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "committed_kafka_offset": lag.committed_kafka_offset,
        "committed_remaining_records": lag.committed_remaining_records,
        "end_kafka_offset": lag.end,
        "kafka_records": lag.kafka_records,
        "records": lag.records,
        "unreadable": lag.unreadable,
        "first_timestamp_ms": first_ms,
        "first_age_ms": None if first_ms is None else now_timestamp_ms - first_ms,
    }


def _text(facts: Mapping[str, Any]) -> str:
    head = [
        "topic",
        "partition",
        "committed",
        "remaining",
        "end",
        "Kafka records",
        "records",
        "age",
    ]
    rows = [head, *map(_row, facts["partitions"])]
    rows.append(["total", *[""] * 4, f"{facts['kafka_records']:,}", f"{facts['records']:,}", ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"group {facts['group']}, {facts['isolation_level']}"]
    for topic, *numbers in rows:
        cells = [topic.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(facts: Mapping[str, Any]) -> list[str]:
    committed, remaining = facts["committed_kafka_offset"], facts["committed_remaining_records"]
    age_ms = facts["first_age_ms"]
    return [
        facts["topic"],
        str(facts["partition"]),
        "-" if committed is None else str(committed),
        "" if remaining is None else f"{remaining:,}",
        str(facts["end_kafka_offset"]),
        f"{facts['kafka_records']:,}",
        f"{facts['records']:,}",
        "" if age_ms is None else f"{age_ms / 1000:,.1f} s",
    ]
