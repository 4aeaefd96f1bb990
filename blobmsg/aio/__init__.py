"""The clients for asyncio."""

from __future__ import annotations

from blobmsg.aio.consumer import AIOBlobConsumer
from blobmsg.aio.producer import AIOBlobProducer

__all__ = ["AIOBlobConsumer", "AIOBlobProducer"]
