from __future__ import annotations

import json

import pytest

from blobmsg.inner_events import InnerStatistics, with_own_statistics

# As librdkafka writes it: a space here and there, the client's own numbers behind the topics.
EVENT = (
    '{ "name": "rdkafka#producer-1", "type": "producer", "brokers":{ "b/1": { "txbytes":11 } }, '
    '"topics":{ "tx_bytes": { "partitions":{ "0": { "txbytes":7, "rxbytes":8 } } } } , '
    '"tx":3, "tx_bytes":4242, "rx":2, "rx_bytes":17, "txmsgs":9 }'
)


def test_the_clients_own_wire_bytes_are_read_and_no_partitions() -> None:
    statistics = InnerStatistics()

    statistics.take(EVENT)

    told = json.loads(EVENT)
    assert (statistics.tx_bytes, statistics.rx_bytes) == (told["tx_bytes"], told["rx_bytes"])
    assert (statistics.tx_bytes, statistics.rx_bytes) == (4242, 17)


@pytest.mark.parametrize("text", ["{}", '{ "topics":{ "tx_bytes": { "partitions":{} } } }'])
def test_an_event_without_them_has_none(text: str) -> None:
    statistics = InnerStatistics()

    statistics.take(text)

    assert (statistics.tx_bytes, statistics.rx_bytes) == (0, 0)


def test_our_statistics_are_a_member_beside_librdkafkas() -> None:
    told = json.loads(with_own_statistics(EVENT, {"batches": 3, "puts": 4}))

    assert told.pop("blobmsg") == {"batches": 3, "puts": 4}
    assert told == json.loads(EVENT)
