"""OpenTelemetry's instrumentation of confluent-kafka on our clients: spans, links, headers.

Every test runs on the stock client, too: what holds there must hold with ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.either import Either
    from tests.helpers.framework_environment import FrameworkProgram

_COUNT = 6


@pytest.mark.parametrize("how", ["instrument", "by client"])
def test_a_record_carries_its_trace_from_produce_to_the_span_that_processes_it(
    either: Either,
    start: Callable[..., FrameworkProgram],
    make_topic: Callable[..., str],
    how: str,
) -> None:
    topic = make_topic()
    program = start(
        "opentelemetry_spans",
        patched=either.is_ours,
        topic=topic,
        group=topic,
        count=_COUNT,
        how=how,
    )
    program.wait_for("ended")
    assert program.wait() == 0
    spans = [event for event in program.events if event["event"] == "span"]
    handled = [event for event in program.events if event["event"] == "handled"]
    by_id = {span["id"]: span for span in spans}

    def named(name: str) -> list[dict[str, Any]]:
        return [span for span in spans if span["name"] == name]

    sends, processes = named(f"{topic} send"), named(f"{topic} process")
    assert [send["kind"] for send in sends] == ["PRODUCER"] * _COUNT
    assert [by_id[send["parent"]]["name"] for send in sends] == [
        f"order {number}" for number in range(_COUNT)
    ]
    # One for each of the three that `poll` gave, and one for what `consume` gave.
    assert [process["kind"] for process in processes] == ["CONSUMER"] * 4
    links = [process["links"] for process in processes]
    ids = [send["id"] for send in sends]
    assert links == [ids[0:1], ids[1:2], ids[2:3], ids[3:6]]
    for number in range(_COUNT):
        [handle] = named(f"handle order {number}")
        assert handle["parent"] == processes[min(number, 3)]["id"]
    for number, process in enumerate(processes[:3]):
        attributes = process["attributes"]
        assert attributes["messaging.system"] == "kafka"
        assert attributes["messaging.destination"] == topic
        assert attributes["messaging.message.id"] == handled[number]["place"]

    assert [event["key"] for event in handled] == [f"customer-{n % 3}" for n in range(_COUNT)]
    # The version, the span that sent it, the flags: the W3C's header, behind the application's own.
    for number, message in enumerate(either.records(topic, 1)):
        (first, own), (second, context) = message.headers()
        assert (first, own) == ("number", b"%d" % number)
        assert second == "traceparent"
        assert context.startswith(f"00-{ids[number]}-".encode())
        assert message.value() == b"order %d" % number
        assert message.key() == b"customer-%d" % (number % 3)
    assert either.committed(topic, topic, 1) == [0]
    either.check_route(topic, 1, b"order ")
