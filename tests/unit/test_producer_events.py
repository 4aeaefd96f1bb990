from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError

from blobmsg.inner_config import KafkaCallbacks
from blobmsg.producer_events import ProducerEvents

ERROR = KafkaError(KafkaError._ALL_BROKERS_DOWN)


class Pipeline:
    """Notes what it is told."""

    counters: dict[str, int] = {"records": 3}  # noqa: RUF012

    def __init__(self) -> None:
        self.told: list[Any] = []

    def event(self, _callback: Any, *arguments: Any) -> None:
        self.told += arguments

    def all_brokers_down(self) -> None:
        self.told.append("down")

    def log_failed(self, failure: Exception) -> None:
        self.told.append(failure)


def test_what_comes_between_connect_and_disconnect_is_told() -> None:
    user = KafkaCallbacks(error_cb=print, stats_cb=print, throttle_cb=print)
    stores: Any = SimpleNamespace(totals=lambda: {"puts": 2})
    events, pipeline = ProducerEvents(user, stores), Pipeline()
    callbacks = events.for_inner()
    connected: Any = pipeline

    def all_come() -> None:
        callbacks["error_cb"](ERROR)
        callbacks["throttle_cb"]("throttle")
        callbacks["stats_cb"]('{"tx_bytes":7, "rx_bytes":8}')
        events.on_log_failure(failure)

    failure = ValueError("of a handler")
    all_come()
    assert pipeline.told == []

    events.connect(connected)
    all_come()
    own = '{"records": 3, "puts": 2, "tx_bytes": 7, "rx_bytes": 8}'
    statistics = f'{{"tx_bytes":7, "rx_bytes":8, "blobmsg": {own} }}'
    assert pipeline.told == ["down", ERROR, "throttle", statistics, failure]

    events.disconnect()
    all_come()
    assert len(pipeline.told) == 5


def test_callbacks_keep_no_events_alive() -> None:
    events, pipeline = ProducerEvents(KafkaCallbacks(error_cb=print), SimpleNamespace()), Pipeline()  # type: ignore[arg-type]
    callbacks = events.for_passthrough()
    connected: Any = pipeline
    events.connect(connected)

    del events
    callbacks["error_cb"](ERROR)

    assert pipeline.told == []
