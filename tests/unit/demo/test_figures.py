from __future__ import annotations

from array import array

import pytest

from blobmsg.core.cost import BUILT_IN_PRICES, GIB
from blobmsg.demo.figures import (
    Check,
    Latency,
    bill_of_blob,
    bill_of_plain,
    check_of_store,
    checks_of,
    stored_gib_hours,
)
from blobmsg.demo.job import Arrivals
from blobmsg.demo.oracle import Finding, Verdict
from blobmsg.format.object_key import ObjectKey
from tests.unit.demo.samples import run_of

HOUR_MS = 3_600_000


def test_percentiles_are_over_all_consumers() -> None:
    slow, quick = Arrivals(), Arrivals()
    slow.latencies_ms = array("q", range(51, 101))
    quick.latencies_ms = array("q", range(1, 51))

    assert Latency.of([slow, quick]) == Latency(51, 96, 100, 100)


def test_no_arrivals_have_no_latency() -> None:
    assert Latency.of([Arrivals()]) == Latency(0, 0, 0, 0)


def checks(verdict: Verdict, *, delivered: int = 10, errors: int = 0) -> list[Check]:
    return checks_of(
        verdict,
        expected=10,
        keyless=1,
        partition_count=12,
        producers=[{"delivered": delivered, "reasons": ["it timed out"]}],
        consumers=[{"errors": errors, "reasons": ["it is gone"], "falling_offsets": 0}],
    )


def test_all_checks_hold_where_nothing_was_found() -> None:
    assert all(check.holds for check in checks(Verdict(arrived=10)))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("lost", "none lost"),
        ("doubled", "none doubled"),
        ("altered", "none altered"),
        ("reordered", "none reordered"),
        ("misplaced", "each key in its partition"),
    ],
)
def test_a_finding_fails_its_check_and_says_where(field: str, name: str) -> None:
    verdict = Verdict(arrived=10)
    setattr(verdict, field, Finding(1, ["id 7"]))

    (failed,) = [check for check in checks(verdict) if not check.holds]

    assert failed == Check(name, False, "1: id 7")


def test_a_record_without_a_good_report_fails_the_run() -> None:
    (failed,) = [check for check in checks(Verdict(), delivered=9) if not check.holds]

    assert failed == Check("all reported delivered", False, "1: it timed out")


def test_an_error_at_a_consumer_fails_the_run() -> None:
    (failed,) = [check for check in checks(Verdict(), errors=2) if not check.holds]

    assert failed == Check("no error at a consumer", False, "2: it is gone")


@pytest.mark.parametrize(
    ("objects", "holds"),
    [({"a": 3, "b": 4}, True), ({"a": 3}, False), ({"a": 3, "b": 5}, False), ({}, False)],
)
def test_the_store_must_have_what_the_counters_say(objects: dict[str, int], holds: bool) -> None:
    assert check_of_store(objects=objects, batches=2, put_bytes=7).holds is holds


def test_storage_lasts_until_the_expiry_hour_of_each_object() -> None:
    def key(hour: str) -> str:
        return ObjectKey("shared", "0", hour, "az1", "0" * 32, 1).encode()

    now_ms = 1_767_225_600_000  # 2026-01-01 00:00 UTC
    objects = {key("2026010110"): GIB, key("2026010100"): GIB}

    assert stored_gib_hours(objects, now_ms) == pytest.approx(10)


def test_a_run_of_the_drop_in_costs_requests_crossings_and_storage() -> None:
    bill = bill_of_blob(
        puts=1000, gets=1000, kafka_tx_bytes=GIB, gib_hours=730, prices=BUILT_IN_PRICES
    )

    assert bill.puts_usd == pytest.approx(0.005)
    assert bill.gets_usd == pytest.approx(0.0004)
    assert bill.crossing_usd == pytest.approx(8 / 3 * 0.02)
    assert bill.storage_usd == pytest.approx(0.023)


def test_plain_kafka_crosses_with_what_was_measured_where_it_was() -> None:
    computed = bill_of_plain(
        payload_bytes=GIB, records=0, retention_ms=730 * HOUR_MS, prices=BUILT_IN_PRICES
    )
    measured = bill_of_plain(
        payload_bytes=GIB,
        records=0,
        retention_ms=730 * HOUR_MS,
        prices=BUILT_IN_PRICES,
        tx_bytes=2 * GIB,
    )

    assert computed.crossing_usd == pytest.approx(8 / 3 * 0.02)
    assert measured.crossing_usd == pytest.approx(2 * computed.crossing_usd)
    assert computed.storage_usd == measured.storage_usd == pytest.approx(3 * 0.08)


def test_sums_of_a_run_are_in_its_json() -> None:
    figures = run_of().to_dict()

    assert (figures["puts"], figures["gets"]) == (90, 90)
    assert figures["put_bytes"] == figures["get_bytes"] == 105 << 20
    assert figures["bill"]["total_usd"] == pytest.approx(0.00071)
