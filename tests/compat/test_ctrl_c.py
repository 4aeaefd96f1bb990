"""Ctrl-C in a `poll` that waits: the application hears it at once, and the client goes on.

`tests/integration` has our other calls: stock's `consume` may lose what it has gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.helpers.ctrl_c import call_with_ctrl_c
from tests.helpers.records import read, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.both import Both, Side

_WAIT_S = 60
_PRESSED_AFTER_S = 1.0
# Far more than a client may take to notice, far less than the call would wait.
_PROMPT_S = 20


def _poll_with_ctrl_c(client: Any) -> tuple[str, bool]:
    """How a poll ended in which Ctrl-C was pressed, and whether soon."""
    was_heard, took_s = call_with_ctrl_c(lambda: client.poll(_WAIT_S), _PRESSED_AFTER_S)
    ended = "interrupted" if took_s >= _PRESSED_AFTER_S else "returned before"
    return ended if was_heard else "returned", took_s < _PROMPT_S


def test_ctrl_c_while_a_producer_polls(both: Both) -> None:
    def case(side: Side) -> Any:
        with side.producer() as producer:
            ended = _poll_with_ctrl_c(producer)
            return ended, send(producer, side.topic(), [b"v"]).codes

    assert both.agree(case) == (("interrupted", True), [None])


def test_ctrl_c_while_a_consumer_polls(both: Both, filled: Callable[[Side], str]) -> None:
    def case(side: Side) -> Any:
        with side.consumer({"auto.offset.reset": "earliest"}) as consumer:
            before_it_joined = _poll_with_ctrl_c(consumer)
            consumer.subscribe([filled(side)])
            first = {message.value() for message in read(consumer, 20)}
            at_the_end = _poll_with_ctrl_c(consumer)
        return before_it_joined, len(first), at_the_end

    assert both.agree(case) == (("interrupted", True), 20, ("interrupted", True))
