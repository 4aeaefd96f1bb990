from __future__ import annotations

import pickle

from blobmsg.core.cost import BUILT_IN_PRICES
from blobmsg.format.codec import Codec
from blobmsg.format.notification import Notification
from blobmsg.format.object_key import NO_ZONE
from blobmsg.format.part import Part
from blobmsg.format.ranges import ByteRange
from blobmsg_spark.reduce_task import _segment_usage
from blobmsg_spark.usage import ExchangeUsage, StageUsage, UsageParam, usage_table

_GIB = 1 << 30


def test_usage_adds_up_and_subtracts_field_by_field() -> None:
    one, two = StageUsage(rows=1, puts=2), StageUsage(rows=10, gets=5)

    assert one + two == StageUsage(rows=11, puts=2, gets=5)
    assert (one + two) - one == two
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301


def test_tasks_add_up_by_stage_and_by_zone() -> None:
    wrote, read = StageUsage(tasks=1, puts=2), StageUsage(tasks=1, gets=3)
    param = UsageParam()

    usage = param.zero(ExchangeUsage())
    for task in (
        ExchangeUsage.of_map_task(wrote, "az1", 7),
        ExchangeUsage.of_map_task(wrote, "az2", 7),
        ExchangeUsage.of_reduce_task(read, "az1", 8),
        ExchangeUsage.of_reduce_task(read, None, 9),
    ):
        usage = param.addInPlace(usage, pickle.loads(pickle.dumps(task)))  # noqa: S301

    assert usage.map == StageUsage(tasks=2, puts=4)
    assert usage.reduce == StageUsage(tasks=2, gets=6)
    assert usage.total == StageUsage(tasks=4, puts=4, gets=6)
    assert usage.zones == {"az1": StageUsage(tasks=2, puts=2, gets=3), "az2": wrote, "": read}
    assert sorted(usage.map_stages) == [7]
    assert sorted(usage.reduce_stages) == [8, 9]


def test_requests_cost_what_the_price_table_says() -> None:
    usage = StageUsage(puts=1_000_000, gets=1_000_000)

    assert round(usage.usd(BUILT_IN_PRICES), 6) == 5.4


def _notification(zone: str) -> Notification:
    part = Part(ByteRange(0, 100), 1, Codec.NONE, 100, 0, 0, 0, bytes(16))
    return Notification((part,), 0, bytes(16), f"shared.token/0/forever/{zone}/{'0' * 32}-0")


def test_only_segments_of_another_known_zone_are_foreign() -> None:
    assert _segment_usage(_notification("az1"), "az2") == StageUsage(segments=1, foreign_bytes=100)
    for written_in, read_in in (("az1", "az1"), (NO_ZONE, "az1"), ("az1", None)):
        assert _segment_usage(_notification(written_in), read_in) == StageUsage(segments=1)
    part = _notification("az1").parts[0]
    inline = Notification((part,), 0, bytes(16), None, inline=bytes(100))
    assert _segment_usage(inline, "az2") == StageUsage(segments=1)


def test_the_table_has_a_line_per_stage_and_their_sum() -> None:
    first = ExchangeUsage(
        map=StageUsage(tasks=2, rows=1000, puts=3, put_bytes=3 << 20),
        reduce=StageUsage(tasks=4, rows=1000, gets=12, get_bytes=2 << 20),
    )
    second = ExchangeUsage(map=StageUsage(tasks=1, rows=234, puts=1))

    table = usage_table([("1 repartition(4, key)", first), ("2 repartition(2)", second)],
                        BUILT_IN_PRICES)  # fmt: skip
    lines = table.splitlines()

    assert [line.partition("  ")[0] for line in lines[:-1]] == [
        "stage", "1 repartition(4, key): map", "1 repartition(4, key): reduce",
        "2 repartition(2): map", "2 repartition(2): reduce", "total",
    ]  # fmt: skip
    assert lines[1].split()[-11:] == [
        "2", "1,000", "0.0", "0", "3", "3.0", "0", "0.0", "0", "0.0", "0.000015",
    ]  # fmt: skip
    assert lines[2].split()[-11:] == [
        "4", "1,000", "0.0", "0", "0", "0.0", "12", "2.0", "0", "0.0", "0.000005",
    ]  # fmt: skip
    # Rows would be counted twice.
    assert lines[5].split() == ["total", "7", "0", "4", "3.0", "12", "2.0", "0", "0.0", "0.000025"]
    assert BUILT_IN_PRICES.as_of in lines[6]


def test_zones_are_told_with_what_a_crossing_would_have_cost() -> None:
    wrote = StageUsage(tasks=1, put_bytes=_GIB)
    read = StageUsage(tasks=1, get_bytes=_GIB, foreign_bytes=_GIB // 2)
    usage = ExchangeUsage.of_map_task(wrote, "az1", 1) + ExchangeUsage.of_reduce_task(
        read, "az2", 2
    )

    lines = usage_table([("1 repartition(4)", usage)], BUILT_IN_PRICES).splitlines()

    assert [line.split() for line in lines[-4:-2]] == [
        ["az1", "1", "1,024.0", "0.0", "0.0"],
        ["az2", "1", "0.0", "1,024.0", "512.0"],
    ]
    assert lines[-2].endswith("512.0 MiB from zone to zone, for 0.010000 USD")
