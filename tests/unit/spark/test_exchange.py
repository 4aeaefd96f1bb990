from __future__ import annotations

from dataclasses import replace

from blobmsg.format.codec import Codec
from blobmsg.format.encoded_segment import EncodedSegment
from blobmsg.format.object_key import ObjectKey
from blobmsg_spark.exchange import Exchange

_EXCHANGE = Exchange(
    conf={"blobmsg.store.url": "memory://a", "blobmsg.s3.secret.access.key": "hidden"},
    environment={"BLOBMSG_S3_SECRET_ACCESS_KEY": "hidden"},
    name="token-1",
    partitions=4,
    isolation="shared.token",
    expiry_hour="2026112415",
    begun_ms=5,
    producer_id=bytes(range(16)),
    batch_bytes=1,
    segment_bytes=1,
    prefetch_bytes=1,
    disk_reserve_bytes=None,
    is_dealt=False,
)


def _segment(partition: int, checksum: int) -> EncodedSegment:
    return EncodedSegment(
        "token-1", partition, "", [b"12345678"], 8, checksum, 1, Codec.NONE, 8, 5, 5, bytes(16)
    )


def _key(task: int = 0, number: int = 0, *segments: EncodedSegment) -> str:
    return _EXCHANGE.object_key(task, number, segments or (_segment(0, 7),), "az1")


def test_the_same_rows_of_a_task_have_the_same_key_in_every_attempt() -> None:
    assert _key() == _key()
    key = ObjectKey.decode(_key(3, 9))
    assert (key.isolation, key.expiry_hour, key.zone, key.number) == (
        "shared.token",
        "2026112415",
        "az1",
        9,
    )


def test_other_rows_tasks_numbers_and_exchanges_have_other_keys() -> None:
    keys = {
        _key(),
        _key(1),
        _key(0, 1),
        _key(0, 0, _segment(0, 8)),
        _key(0, 0, _segment(1, 7)),
        _key(0, 0, _segment(0, 7), _segment(1, 7)),
        replace(_EXCHANGE, producer_id=bytes(16)).object_key(0, 0, [_segment(0, 7)], "az1"),
    }

    assert len(keys) == 7


def test_its_text_has_no_secret() -> None:
    assert "hidden" not in repr(_EXCHANGE)
