"""Tiers that keep fetched ranges nearer than the store.

The modules of this package never fetch and never check content: who reads from a tier verifies
the segment's checksum after every tier, and evicts what is wrong.
"""

from __future__ import annotations

from blobmsg.cache.base import Cache
from blobmsg.cache.memory import MemoryCache
from blobmsg.cache.part_buffers import PartBuffer, PartBuffers, StoredPart

__all__ = ["Cache", "MemoryCache", "PartBuffer", "PartBuffers", "StoredPart"]
