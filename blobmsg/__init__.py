"""blobmsg: confluent-kafka's Producer and Consumer with the payload in object storage.

`BlobProducer` and `BlobConsumer` replace `confluent_kafka.Producer` and `Consumer` by a changed
import, `SerializingBlobProducer` and `DeserializingBlobConsumer` those that serialize,
`AIOBlobProducer` and `AIOBlobConsumer` those for asyncio. Settings: `docs/settings.md`; what
changes for you: the README.
"""

from __future__ import annotations

from blobmsg.aio import AIOBlobConsumer, AIOBlobProducer
from blobmsg.consumer import BlobConsumer
from blobmsg.message import Message
from blobmsg.patching import patch
from blobmsg.producer import BlobProducer
from blobmsg.serializing import DeserializingBlobConsumer, SerializingBlobProducer

__all__ = [
    "AIOBlobConsumer",
    "AIOBlobProducer",
    "BlobConsumer",
    "BlobProducer",
    "DeserializingBlobConsumer",
    "Message",
    "SerializingBlobProducer",
    "__version__",
    "patch",
]

__version__ = "0.1.0"
