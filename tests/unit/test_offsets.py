from __future__ import annotations

import blobmsg.offsets
from blobmsg.offsets import to_kafka, to_virtual

MIB = 1_048_576


def test_an_offset_kept_elsewhere_is_converted_once() -> None:
    assert to_virtual(42) == 42 * MIB


def test_a_virtual_offset_tells_its_kafka_offset() -> None:
    assert to_kafka(43 * MIB - 1) == 42
    assert to_kafka(43 * MIB) == 43


def test_logical_offsets_stay() -> None:
    assert to_virtual(-1001) == -1001
    assert to_kafka(-1001) == -1001


def test_nothing_else_is_public() -> None:
    assert sorted(blobmsg.offsets.__all__) == ["to_kafka", "to_virtual"]
