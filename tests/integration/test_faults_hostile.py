"""A notification made to do harm: memory is not taken for what it does not promise."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import zstandard
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer
from blobmsg.format import Codec
from blobmsg.format.notification import NOTIFICATION_MAGIC
from tests.helpers.records import next_error, partition, send
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

MIB = 1 << 20
BOMB_BYTES = 300 * MIB
PROMISED_BYTES = 1000


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _zeros(length: int) -> bytes:
    """A zstd frame of so many zeros, made piece by piece: the test itself must stay small."""
    compressor = zstandard.ZstdCompressor().compressobj(size=length)
    pieces = [compressor.compress(bytes(MIB)) for _ in range(length // MIB)]
    return b"".join(pieces) + compressor.flush()


def test_a_bomb_is_refused_before_memory_is_taken_for_it(
    conf: dict[str, Any], bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    bomb = _zeros(BOMB_BYTES)
    part = [0, len(bomb), 1, Codec.ZSTD.value, PROMISED_BYTES, zlib.crc32(bomb), 0, 0, None]
    fields = {"n": 0, "i": bytes(16), "p": [part], "d": bomb}
    value = NOTIFICATION_MAGIC + b"\x01" + msgpack.packb(fields)
    with StockProducer({"bootstrap.servers": bootstrap}) as stock:
        send(stock, topic, [value], headers=[("blobmsg", b"1")])

    reader = {**conf, "group.id": topic, "enable.auto.commit": False}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        _forget_peak()
        before_bytes = _peak_bytes()
        message = next_error(consumer)
        more_bytes = _peak_bytes() - before_bytes

    assert message.error().code() == KafkaError._BAD_MSG
    assert message.offset() == 0
    assert more_bytes < BOMB_BYTES // 2
