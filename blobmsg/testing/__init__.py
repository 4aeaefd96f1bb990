"""What our own tests use and yours may: a clock to turn, a store that fails on demand.

Nothing here sleeps, opens a socket or needs a service. For a store in memory, set
`blobmsg.store.url` to `memory://name`.
"""

from __future__ import annotations

from blobmsg.store.memory import MemoryStore
from blobmsg.testing.fault_store import Fault, FaultStore
from blobmsg.testing.manual_clock import ManualClock

__all__ = ["Fault", "FaultStore", "ManualClock", "MemoryStore"]
