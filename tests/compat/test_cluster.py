"""What both kinds of client tell of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.helpers.stack import wait_for_leaders

if TYPE_CHECKING:
    from tests.helpers.both import Both, Side


def test_the_cluster_looks_the_same_from_a_producer(both: Both) -> None:
    topic = both.stock.topic(3)

    def case(side: Side) -> Any:
        # Else the question makes the topic, and one that is asked again finds it.
        with side.producer({"allow.auto.create.topics": False}) as producer:
            return see_cluster(side, producer, topic)

    assert both.agree(case)["partitions"] == [0, 1, 2]


def test_the_cluster_looks_the_same_from_a_consumer(both: Both) -> None:
    topic = both.stock.topic(3)

    def case(side: Side) -> Any:
        with side.consumer() as consumer:
            return see_cluster(side, consumer, topic)

    assert both.agree(case)["partitions"] == [0, 1, 2]


def see_cluster(side: Side, client: Any, topic: str) -> dict[str, Any]:
    """What a client tells of the cluster."""
    wait_for_leaders(client, topic, 3)  # the broker it asks may not know them yet
    found = client.list_topics(topic, timeout=20)
    everything = client.list_topics(timeout=20)
    side.known(topic)
    nowhere = f"none-{side.name}-{topic}"
    unknown = client.list_topics(nowhere, 20)
    return {
        "type": type(found).__name__,
        "cluster": (found.cluster_id, client.cluster_id(20), client.cluster_id(timeout=20)),
        "brokers": sorted((b.id, b.host, b.port) for b in found.brokers.values()),
        "topics": side.see(list(found.topics)),
        "partitions": sorted(found.topics[topic].partitions),
        "leaders": {n: p.leader for n, p in found.topics[topic].partitions.items()},
        "is among all": topic in everything.topics,
        "unknown": side.see(unknown.topics[nowhere].error),
        "credentials": client.set_sasl_credentials("user", "password"),
    }
