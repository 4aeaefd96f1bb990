"""What our own tests use, and yours may: an in-process Kafka, a store that fails, a clock.

Nothing here needs a server or a network beyond this machine. With pytest, the fixtures
`blobmsg_broker`, `blobmsg_store`, `blobmsg_conf`, `blobmsg_consumer_conf` and `blobmsg_topic` are
there without an import; see docs/testing.md.
"""

from __future__ import annotations

from blobmsg.store.memory import MemoryStore
from blobmsg.testing.fault_store import Fault, FaultStore
from blobmsg.testing.manual_clock import ManualClock
from blobmsg.testing.mock_kafka import MockKafka

__all__ = ["Fault", "FaultStore", "ManualClock", "MemoryStore", "MockKafka"]
