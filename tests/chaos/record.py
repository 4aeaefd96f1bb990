"""The bytes of a chaos record: who made it, its place in that order, and a digest of it all."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

#: In place of a transaction, in records that were not written by a transformer.
NO_TRANSACTION = "-"

_DIGEST_BYTES = 8
_FIELDS = 4
# Records of many sizes, so that segments and batches end at odd places.
_SIZES = 509
_STEP = 31


class Identity(NamedTuple):
    """Which record it is.

    Attributes:
        transaction: Of the transformer that wrote it; `NO_TRANSACTION` for an original.
        instance: The producer that made the original.
        partition: Of the original.
        number: From 0, without gaps for each instance and partition.
    """

    transaction: str
    instance: str
    partition: int
    number: int


def encode_record(identity: Identity) -> bytes:
    """The record's value."""
    transaction, instance, partition, number = identity
    padding = "x" * (number * _STEP % _SIZES)
    body = f"{transaction}|{instance}|{partition}|{number}|{padding}|".encode()
    return body + _digest(body)


def decode_record(value: bytes | None) -> Identity | None:
    """Which record these bytes are; None: they are not as they were made."""
    if value is None or len(value) < 2 * _DIGEST_BYTES:
        return None
    body, digest = value[: -2 * _DIGEST_BYTES], value[-2 * _DIGEST_BYTES :]
    if digest != _digest(body):
        return None
    transaction, instance, partition, number = body.decode().split("|", _FIELDS)[:_FIELDS]
    return Identity(transaction, instance, int(partition), int(number))


def _digest(body: bytes) -> bytes:
    # Not a CRC: that is what blobmsg itself checks with.
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).hexdigest().encode()
