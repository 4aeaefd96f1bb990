from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from blobmsg.core.cost import (
    BUILT_IN_PRICES,
    GIB,
    NEVER_BYTES,
    Bill,
    PriceTable,
    Usage,
    blob_bill,
    break_even_bytes,
    marginal_segment_bytes,
    object_usd,
    plain_bill,
    plain_usd,
)

KIB = 1024
DATED = {"as_of": "2026-01-31", "source": "our contract"}


def test_a_gib_through_kafka_crosses_two_and_two_thirds_times() -> None:
    assert math.isclose(BUILT_IN_PRICES.crossings, 8 / 3)
    assert math.isclose(plain_usd(GIB, 0), 0.0533, rel_tol=0.01)


def test_a_gib_per_second_through_kafka_costs_192_usd_an_hour() -> None:
    assert math.isclose(plain_bill(GIB, 0).per_hour(1000).total_usd, 192.0)


@pytest.mark.parametrize(
    ("replication_factor", "zones", "crossings"),
    [
        (3, 3, 2 / 3 + 2),
        (2, 3, 2 / 3 + 1),
        (1, 3, 2 / 3),
        (2, 2, 1 / 2 + 1),
        (3, 2, 1 / 2 + 1 + 1 / 2),
        (3, 1, 0.0),
        (1, 1, 0.0),
    ],
)
def test_crossings_follow_replicas_and_zones(
    replication_factor: int, zones: int, crossings: float
) -> None:
    prices = replace(BUILT_IN_PRICES, replication_factor=replication_factor, zones=zones)

    assert math.isclose(prices.crossings, crossings)


def test_a_batch_breaks_even_at_about_110_kib() -> None:
    assert 100 * KIB < break_even_bytes() < 115 * KIB


def test_a_segment_breaks_even_at_about_8_kib() -> None:
    assert 7.5 * KIB < marginal_segment_bytes() < 8.5 * KIB


def test_the_break_even_is_the_first_size_that_is_not_dearer_as_an_object() -> None:
    size = break_even_bytes(groups=3, gets_per_group=2, notifications=5)
    cost = object_usd(5, groups=3, gets_per_group=2)

    assert plain_usd(size, 0) >= cost > plain_usd(size - 1, 0)


def test_one_group_reads_each_object_once_unless_told_otherwise() -> None:
    assert object_usd(1) == object_usd(1, groups=1, gets_per_group=1)
    assert break_even_bytes() == break_even_bytes(groups=1, gets_per_group=1, notifications=1)
    assert marginal_segment_bytes() == marginal_segment_bytes(groups=1, gets_per_group=1)


def test_more_readers_and_notifications_make_objects_dearer() -> None:
    assert (
        break_even_bytes(groups=0)
        < break_even_bytes(groups=1)
        < break_even_bytes(groups=3)
        < break_even_bytes(groups=3, gets_per_group=3)
        < break_even_bytes(groups=3, gets_per_group=3, notifications=12)
    )


def test_a_notification_crosses_900_bytes() -> None:
    notification_usd = object_usd(2) - object_usd(1)

    assert math.isclose(
        notification_usd / BUILT_IN_PRICES.crossing_usd_per_gib * GIB, 900, rel_tol=0.02
    )


@pytest.mark.parametrize("free", [{"crossing_usd_per_gib": 0.0}, {"zones": 1}])
def test_the_store_never_pays_where_crossing_is_free(free: dict[str, Any]) -> None:
    prices = replace(BUILT_IN_PRICES, **free)

    assert break_even_bytes(prices) == NEVER_BYTES
    assert marginal_segment_bytes(prices) == NEVER_BYTES


def test_a_16_mib_batch_through_the_store_is_a_hundred_times_cheaper() -> None:
    assert plain_usd(16 << 20, 0) > 100 * object_usd(12, groups=1)


def test_small_records_pay_for_their_overhead() -> None:
    assert plain_usd(1000, 100) > plain_usd(1000, 1) > plain_usd(1000, 0)


def test_a_run_is_billed_by_item() -> None:
    usage = Usage(puts=1_000_000, gets=2_500_000, kafka_bytes=GIB, stored_gib_hours=730.0)

    bill = blob_bill(usage)

    assert math.isclose(bill.puts_usd, 5.0)
    assert math.isclose(bill.gets_usd, 1.0)
    assert math.isclose(bill.storage_usd, 0.023)
    assert math.isclose(bill.crossing_usd, 0.02 * 8 / 3)
    assert math.isclose(bill.total_usd, 6.0763, rel_tol=1e-4)


def test_plain_kafka_keeps_every_replica_on_disk() -> None:
    bill = plain_bill(GIB, 0, stored_gib_hours=730.0)

    assert math.isclose(bill.storage_usd, 3 * 0.08)
    assert bill.puts_usd == bill.gets_usd == 0


def test_a_bill_per_hour_scales_every_item() -> None:
    assert Bill(1.0, 2.0, 3.0, 4.0).per_hour(1_800_000) == Bill(2.0, 4.0, 6.0, 8.0)


def test_a_run_of_a_millisecond_has_an_hourly_bill() -> None:
    assert Bill(1.0).per_hour(1) == Bill(3_600_000.0)


def test_a_run_of_no_time_has_no_hourly_bill() -> None:
    with pytest.raises(ValueError, match="duration_ms is 0"):
        Bill().per_hour(0)


def test_prices_left_out_of_a_file_are_the_built_in_ones() -> None:
    prices = PriceTable.from_json(json.dumps({**DATED, "put_usd": 1e-5, "zones": 2}))

    assert prices == replace(
        BUILT_IN_PRICES, as_of="2026-01-31", source="our contract", put_usd=1e-5, zones=2
    )


def test_the_built_in_prices_are_dated_and_sourced() -> None:
    assert len(BUILT_IN_PRICES.as_of) == len("2025-01-01")
    assert "AWS" in BUILT_IN_PRICES.source


@pytest.mark.parametrize(
    ("prices", "text"),
    [
        ({}, "as_of is missing"),
        ({"as_of": "2026-01-31"}, "source is missing"),
        ({**DATED, "as_of": ""}, "as_of is missing"),
        ({**DATED, "as_of": 2026}, "as_of is missing"),
        ({**DATED, "putt_usd": 1}, "unknown price 'putt_usd'"),
        ({**DATED, "put_usd": "5e-6"}, "put_usd is '5e-6': expected a number"),
        ({**DATED, "put_usd": True}, "put_usd is True: expected a number"),
        ({**DATED, "put_usd": None}, "put_usd is None: expected a number"),
        ({**DATED, "get_usd": -1}, "get_usd is -1: expected a price of 0 or more"),
        ({**DATED, "get_usd": math.nan}, "get_usd is nan"),
        ({**DATED, "get_usd": math.inf}, "get_usd is inf"),
        ({**DATED, "zones": 0}, "zones is 0: expected at least 1"),
        ({**DATED, "zones": 3.0}, "zones is 3.0: expected a whole number"),
        ({**DATED, "replication_factor": True}, "replication_factor is True"),
    ],
)
def test_a_bad_price_table_is_refused_by_name(prices: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PriceTable.from_json(json.dumps(prices))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "[" * 100_000, b"\xff"])
def test_what_is_not_a_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (json's own texts differ by version)
        PriceTable.from_json(text)
