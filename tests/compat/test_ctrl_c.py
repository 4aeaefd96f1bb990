"""Ctrl-C in a call that waits: the application hears it at once, and the client goes on.

Stock has `poll`, `consume` and `flush`; its `consume` may lose what it has gathered. That ours does
not, and our other calls, is in `tests/integration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.compat.differences import instead
from tests.helpers.ctrl_c import call_with_ctrl_c
from tests.helpers.records import Reports, flush, partition, read, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

_WAIT_S = 60
_PRESSED_AFTER_S = 1.0
# Far more than a client may take to notice, far less than the call would wait.
_PROMPT_S = 20


def _poll_with_ctrl_c(client: Any) -> tuple[str, bool]:
    return _with_ctrl_c(lambda: client.poll(_WAIT_S))


def _with_ctrl_c(call: Callable[[], Any]) -> tuple[str, bool]:
    """How a call ended in which Ctrl-C was pressed, and whether soon."""
    was_heard, took_s = call_with_ctrl_c(call, _PRESSED_AFTER_S)
    ended = "interrupted" if took_s >= _PRESSED_AFTER_S else "returned before"
    return ended if was_heard else "returned", took_s < _PROMPT_S


def test_ctrl_c_while_a_producer_polls(both: Both) -> None:
    def case(side: Side) -> Any:
        with side.producer() as producer:
            ended = _poll_with_ctrl_c(producer)
            return ended, send(producer, side.topic(), [b"v"]).codes

    assert both.agree(case, in_turn=True) == (("interrupted", True), [None])


def test_ctrl_c_while_a_consumer_polls(both: Both, filled: Callable[[Side], str]) -> None:
    def case(side: Side) -> Any:
        with side.consumer({"auto.offset.reset": "earliest"}) as consumer:
            before_it_joined = _poll_with_ctrl_c(consumer)
            consumer.subscribe([filled(side)])
            first = {message.value() for message in read(consumer, 20)}
            at_the_end = _poll_with_ctrl_c(consumer)
        return before_it_joined, len(first), at_the_end

    assert both.agree(case, in_turn=True) == (("interrupted", True), 20, ("interrupted", True))


def test_ctrl_c_while_a_consumer_consumes(readers: Both, filled: Callable[[Side], str]) -> None:
    def case(side: Side) -> Any:
        with side.consumer() as consumer:
            consumer.assign([partition(filled(side), 0, side.position(10))])  # its end
            ended, is_prompt = _with_ctrl_c(lambda: consumer.consume(5, _PROMPT_S + 2))
            consumer.assign([partition(filled(side), 0, side.position(7))])
            values = [message.value() for message in read(consumer, 3)]
        return {"ended": ended, "values": values, "at once": is_prompt}

    # Stock's hears it when its time is over.
    by_stock = readers.agree(case, instead({"at once": True}), in_turn=True)
    assert by_stock["ended"] == "interrupted"
    assert by_stock["values"] == [b"0.7", b"0.8", b"0.9"]


def test_ctrl_c_while_a_producer_flushes(both: Both) -> None:
    def case(side: Side) -> Any:
        # With an `error_cb` stock's raises SystemError instead.
        nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
        reports = Reports()
        producer = side.producer(nowhere)
        producer.produce("nowhere", b"v", on_delivery=reports)
        ended = _with_ctrl_c(lambda: producer.flush(_WAIT_S))
        kept = len(producer) >= 1, len(reports.outcomes)
        producer.purge()
        flush(producer)
        return ended, kept, reports.codes

    ended, kept, codes = both.agree(case, in_turn=True)
    assert (ended, kept) == (("interrupted", True), (True, 0))
    assert len(codes) == 1
