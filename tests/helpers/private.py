"""What tests look at inside of a client."""

from __future__ import annotations

from typing import Any

from blobmsg import BlobConsumer, BlobProducer


def private(client: BlobProducer | BlobConsumer, name: str) -> Any:
    """A private attribute; its name is mangled, for a user's subclass may have any name."""
    owner = BlobProducer if isinstance(client, BlobProducer) else BlobConsumer
    return getattr(client, f"_{owner.__name__}__{name}")
