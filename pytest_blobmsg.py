"""Fixtures for tests of programs that use blobmsg; pytest finds them by itself.

A module of its own beside the package: pytest loads it in every run, and importing anything below
`blobmsg` loads confluent_kafka. So nothing of either is imported before a test asks for a fixture.
What each fixture is: docs/testing.md.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.testing import FaultStore, MockKafka

__all__ = [
    "blobmsg_broker",
    "blobmsg_conf",
    "blobmsg_consumer_conf",
    "blobmsg_store",
    "blobmsg_topic",
]

# What is produced is to be there at once.
_BATCH_INTERVAL_MS = 20
_RETENTION_MS = 24 * 3600 * 1000


@pytest.fixture(scope="session")
def blobmsg_broker() -> Iterator[MockKafka]:
    """Kafka in the tests' process: three brokers, for the whole session."""
    from blobmsg.testing import MockKafka

    with MockKafka() as broker:
        yield broker


@pytest.fixture
def blobmsg_store() -> Iterator[FaultStore]:
    """The store of this test alone, in memory; look at its objects, make it fail."""
    from blobmsg.testing import FaultStore, MemoryStore

    name = f"test-{uuid.uuid4().hex}"
    store = FaultStore(MemoryStore(name))
    yield store
    store.close()
    MemoryStore.forget(name)


@pytest.fixture
def blobmsg_conf(blobmsg_broker: MockKafka, blobmsg_store: FaultStore) -> dict[str, Any]:
    """Settings of a producer, and those that producers and consumers have in common."""
    return {
        "bootstrap.servers": blobmsg_broker.bootstrap_servers,
        "blobmsg.store.url": blobmsg_store.url,
        # The router would leave the few records of a test with Kafka.
        "blobmsg.route": "blob",
        "blobmsg.batch.interval.ms": _BATCH_INTERVAL_MS,
        # The mock cluster can't be asked for the settings of its topics.
        "blobmsg.retention.ms": _RETENTION_MS,
    }


@pytest.fixture
def blobmsg_consumer_conf(blobmsg_conf: dict[str, Any]) -> dict[str, Any]:
    """Settings of a consumer: a group of this test's own that begins at the first record."""
    return {
        **blobmsg_conf,
        "group.id": f"test-{uuid.uuid4().hex}",
        "auto.offset.reset": "earliest",
    }


@pytest.fixture
def blobmsg_topic(blobmsg_broker: MockKafka) -> str:
    """The name of a topic of one partition that only this test uses."""
    name = f"test-{uuid.uuid4().hex}"
    blobmsg_broker.create_topic(name)
    return name
