"""A notification made to do harm: memory is not taken for what it does not promise."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import zstandard
from confluent_kafka import KafkaError

from blobmsg import BlobConsumer, BlobProducer
from blobmsg.format import Codec
from blobmsg.format.codec import decompress
from blobmsg.format.notification import NOTIFICATION_MAGIC
from tests.helpers.records import next_error, partition, send
from tests.helpers.stock import StockProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg import lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

MIB = 1 << 20
# As lz4 it takes 0.8 MiB, which still fits into a record.
BOMB_BYTES = 200 * MIB
PROMISED_BYTES = 1000


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _zstd_zeros(length: int) -> bytes:
    """A frame of so many zeros, made piece by piece: the test itself must stay small."""
    compressor = zstandard.ZstdCompressor().compressobj(size=length)
    pieces = [compressor.compress(bytes(MIB)) for _ in range(length // MIB)]
    return b"".join(pieces) + compressor.flush()


def _lz4_zeros(length: int) -> bytes:
    """A block of so many zeros, made by hand: one, a match of it, and five at the end."""
    more, rest = divmod(length - 1 - 5 - 4 - 15, 255)  # of a match of 4 and 15 more
    match = b"\x1f\x00" + b"\x01\x00" + b"\xff" * more + bytes((rest,))
    return match + b"\x50" + bytes(5)


def _send_notification(bootstrap: str, topic: str, packed: bytes) -> None:
    value = NOTIFICATION_MAGIC + b"\x01" + packed
    with StockProducer({"bootstrap.servers": bootstrap}) as stock:
        assert send(stock, topic, [value], headers=[("blobmsg", b"1")]).errors == []


def _refused(conf: dict[str, Any], topic: str) -> tuple[Any, dict[str, int], int]:
    """The error for the topic's first record, the reader's counters, and how much memory it took.

    Memory at its peak, that of the whole process.
    """
    reader = {**conf, "group.id": topic, "enable.auto.commit": False}
    with BlobConsumer(reader) as consumer:
        consumer.assign([partition(topic, 0, 0)])
        _forget_peak()
        before_bytes = _peak_bytes()
        message = next_error(consumer)
        more_bytes = _peak_bytes() - before_bytes
        return message, consumer.stats(), more_bytes


@pytest.mark.parametrize(
    ("codec", "zeros"), [(Codec.ZSTD, _zstd_zeros), (Codec.LZ4, _lz4_zeros)], ids=["zstd", "lz4"]
)
def test_a_bomb_is_refused_before_memory_is_taken_for_it(
    conf: dict[str, Any],
    bootstrap: str,
    topic: str,
    codec: Codec,
    zeros: Callable[[int], bytes],
) -> None:
    assert decompress(codec, zeros(MIB), MIB) == bytes(MIB)  # one that is what it says
    bomb = zeros(BOMB_BYTES)
    part = [0, len(bomb), 1, codec.value, PROMISED_BYTES, zlib.crc32(bomb), 0, 0, None]
    fields = {"n": 0, "i": bytes(16), "p": [part], "d": bomb}
    _send_notification(bootstrap, topic, msgpack.packb(fields))

    message, _, more_bytes = _refused(conf, topic)

    assert message.error().code() == KafkaError._BAD_MSG
    assert message.offset() == 0
    assert more_bytes < BOMB_BYTES // 2


@pytest.mark.parametrize("start", [8, 1 << 30], ids=["begins inside", "begins behind"])
def test_a_range_beyond_its_objects_end_is_refused_without_its_memory(
    conf: dict[str, Any],
    bootstrap: str,
    topic: str,
    make_topic: Callable[..., str],
    stack: lab.Stack,
    store_prefix: str,
    start: int,
) -> None:
    with BlobProducer({**conf, "blobmsg.route": "blob"}) as producer:
        send(producer, make_topic(), [b"an object that is there"])
    client = stack.s3_client()
    try:
        [entry] = client.list_objects_v2(Bucket=stack.bucket, Prefix=f"{store_prefix}/")["Contents"]
    finally:
        client.close()
    # As long as a reader takes at most.
    part = [start, BOMB_BYTES, 1, Codec.NONE.value, BOMB_BYTES, 0, 0, 0, None]
    key = entry["Key"].removeprefix(f"{store_prefix}/")
    fields = {"k": key, "n": 0, "i": bytes(16), "p": [part]}
    _send_notification(bootstrap, topic, msgpack.packb(fields))

    message, stats, more_bytes = _refused(conf, topic)

    assert message.error().code() == KafkaError._BAD_MSG
    assert message.offset() == (1 << 20) - 1
    assert f"{start}-{start + BOMB_BYTES - 1} are wanted" in str(message.error())
    assert more_bytes < BOMB_BYTES // 2
    assert stats["get_bytes"] < MIB


LEVELS = 150_000


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\x81\xa1x" + b"\x91" * LEVELS + b"\xc0", id="arrays in an unknown field"),
        pytest.param(b"\x81\xa1x" * LEVELS + b"\xc0", id="maps in an unknown field"),
        pytest.param(b"\x81\xa1p" + b"\x91" * LEVELS + b"\xc0", id="arrays for parts"),
        # The longest that a header of five bytes can claim, in every level.
        pytest.param(
            b"\x81\xa1x" + b"\xdd\xff\xff\xff\xff" * LEVELS, id="endless arrays in an unknown field"
        ),
    ],
)
def test_deep_nesting_is_refused(
    conf: dict[str, Any], bootstrap: str, topic: str, packed: bytes
) -> None:
    _send_notification(bootstrap, topic, packed)

    message, stats, more_bytes = _refused(conf, topic)

    assert message.error().code() == KafkaError._BAD_MSG
    assert message.offset() == 0
    assert stats["gets"] == 0
    assert more_bytes < 64 * MIB
