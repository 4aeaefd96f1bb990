"""Tiers that keep fetched ranges nearer than the store.

The modules of this package never fetch and never check content: who reads from a tier verifies
the segment's checksum after every tier, and evicts what is wrong.
"""

from __future__ import annotations

from blobmsg.cache.base import Cache, CachedBytes
from blobmsg.cache.memory import MemoryCache

__all__ = ["Cache", "CachedBytes", "MemoryCache"]
