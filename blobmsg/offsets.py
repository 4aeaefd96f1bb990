"""Conversion of offsets that are kept outside of Kafka, for example in a database.

A position that the stock client stored is a Kafka offset; convert it once with `to_virtual`
before giving it to a `BlobConsumer`. `to_kafka` is the way back.
"""

from __future__ import annotations

from blobmsg.core.offsets import to_kafka, to_virtual

__all__ = ["to_kafka", "to_virtual"]
