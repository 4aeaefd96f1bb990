from __future__ import annotations

from typing import Any

import pytest

from bench._plan import (
    BATCH_BYTES,
    CONSUMERS,
    LINKS_GBIT,
    ProduceVariant,
    Requirement,
    blobmsg_sweep_variants,
    fastest,
    judge,
    medians_of,
    produce_variants,
    sweep_variants,
    through,
)
from blobmsg.config import parse_settings


def medians(**changes: Any) -> dict[str, Any]:
    """A run that reaches everything exactly, with changes by `section__variant__figure`."""
    figures: dict[str, Any] = {
        "produce": {
            "stock, defaults": {"mib_per_s": 10.0, "cpu_us_per_record": 9.0},
            "stock, best": {"mib_per_s": 50.0, "cpu_us_per_record": 4.0},
            "stock, best, callbacks": {"mib_per_s": 90.0, "cpu_us_per_record": 5.0},
            "blobmsg": {
                "mib_per_s": 250.0,
                "tx_share": 0.002,
                "object_bytes": 16,
                "cpu_us_per_record": 3.0,
            },
            "blobmsg, best": {"mib_per_s": 150.0, "object_bytes": 64, "cpu_us_per_record": 2.0},
            "blobmsg, callbacks": {"cpu_us_per_record": 5.0},
        },
        "ceiling": {
            "store, 1": {"mib_per_s": 200.0, "object_bytes": 16},
            "boto3, 4": {"mib_per_s": 357.0, "object_bytes": 16},
            "store, 4": {"mib_per_s": 500.0, "object_bytes": 64},
        },
        "link": {
            through(gbit, what): {"mib_per_s": rate}
            for gbit in LINKS_GBIT
            for what, rate in (("raw PUT", 100.0 * gbit), ("blobmsg", 70.0 * gbit))
        },
        "consume": {
            "stock, poll": {"cpu_us_per_record": 2.0},
            "blobmsg, poll": {"cpu_us_per_record": 2.0},
            "stock, consume(1000)": {"cpu_us_per_record": 1.0},
            "blobmsg, consume(1000)": {"cpu_us_per_record": 1.0},
        },
    }
    for path, value in changes.items():
        section, variant, figure = path.split("__")
        figures[section][variant.replace("_", " ")][figure] = value
    return figures


def verdicts(figures: dict[str, Any]) -> list[str]:
    return [requirement.verdict for requirement in judge(figures)]


def test_everything_exactly_at_its_limit_passes() -> None:
    assert verdicts(medians()) == ["PASS", "-", "PASS", "-", "-", *["PASS"] * 10]
    unlimited = [r.measured for r in judge(medians()) if r.limit is None]
    assert unlimited == [5.0, 250 / 357, 250 / 357]


def test_boto3_is_a_measure_of_its_own_whatever_our_store_class_reaches() -> None:
    figures = medians()
    figures["ceiling"]["store, 1"]["mib_per_s"] = 1000.0

    assert [r.measured for r in judge(figures) if r.limit is None] == [5.0, 0.25, 250 / 357]


def test_behind_a_link_we_stand_beside_raw_puts_through_the_same_link() -> None:
    figures = medians()
    figures["link"]["blobmsg, 4 Gbit/s"]["mib_per_s"] = 279.0

    assert [n for n, verdict in enumerate(verdicts(figures)) if verdict == "FAIL"] == [7]


def test_stocks_best_is_its_best_without_callbacks_whatever_it_is_called() -> None:
    figures = medians()
    figures["produce"]["stock, defaults"]["mib_per_s"] = 51.0

    assert verdicts(figures)[:2] == ["FAIL", "-"]


def test_our_best_counts_as_stocks_does_beside_the_ceiling_of_its_own_objects() -> None:
    figures = medians()
    figures["produce"]["stock, defaults"]["mib_per_s"] = 51.0
    figures["ceiling"]["boto3, 4"]["mib_per_s"] = 358.0
    figures["produce"]["blobmsg, best"]["mib_per_s"] = 350.0

    assert verdicts(figures)[:4] == ["PASS", "-", "PASS", "-"]
    figures["ceiling"]["store, 4"]["mib_per_s"] = 501.0
    assert verdicts(figures)[:4] == ["PASS", "-", "FAIL", "-"]


def test_the_ceiling_is_the_best_of_all_ways_to_put() -> None:
    figures = medians()
    figures["ceiling"]["boto3, 4"]["mib_per_s"] = 358.0

    assert verdicts(figures)[2:4] == ["FAIL", "-"]


def test_more_tx_bytes_than_a_500th_fail() -> None:
    assert verdicts(medians(produce__blobmsg__tx_share=0.00201))[9] == "FAIL"


@pytest.mark.parametrize(
    ("variant", "at"), [("blobmsg, best", 10), ("blobmsg", 11), ("blobmsg, callbacks", 12)]
)
def test_the_clients_cpu_is_judged_beside_its_like_of_stock(variant: str, at: int) -> None:
    figures = medians()
    figures["produce"][variant]["cpu_us_per_record"] *= 1.01

    assert [n for n, verdict in enumerate(verdicts(figures)) if verdict == "FAIL"] == [at]


@pytest.mark.parametrize(("call", "at"), [("consume(1000)", 13), ("poll", 14)])
def test_each_way_of_consuming_is_judged_against_the_same_way_of_stock(call: str, at: int) -> None:
    figures = medians()
    figures["consume"][f"blobmsg, {call}"]["cpu_us_per_record"] *= 1.01

    assert [n for n, verdict in enumerate(verdicts(figures)) if verdict == "FAIL"] == [at]


def test_what_was_not_run_is_not_measured_instead_of_passed() -> None:
    assert verdicts({}) == ["not measured"] * 15
    assert verdicts({"produce": medians()["produce"]})[2] == "not measured"


def test_a_line_says_measured_and_limit() -> None:
    assert Requirement("x", 4.0, 3.5, True).line() == "FAIL         x: 3.50 (>= 4.00)"
    assert Requirement("x", 4.0, None, True).line() == "not measured x: - (>= 4.00)"
    assert Requirement("x", None, 3.5, True).line() == "-            x: 3.50 (-)"


def test_medians_are_the_middle_run_of_every_number_in_all_runs() -> None:
    runs = [
        {"wall_s": 3.0, "stats": {"puts": 1}, "tx": 5},
        {"wall_s": 1.0, "stats": {"puts": 1}, "tx": 6},
        {"wall_s": 9.0, "stats": {"puts": 1}},
    ]

    assert medians_of(runs) == {"wall_s": 3.0}


def test_the_sweep_covers_what_it_says_once_each() -> None:
    variants = sweep_variants()

    cells = {(v.settings["linger.ms"], v.settings["batch.size"], v.call) for v in variants}
    assert cells == {
        (linger_ms, size_bytes, call)
        for linger_ms in (0, 5, 50, 500)
        for size_bytes in (64 << 10, 256 << 10, 1 << 20, 4 << 20)
        for call in ("produce", "produce_batch")
    }
    assert len(variants) == len(cells) == len({v.name for v in variants})


def test_a_batch_of_stock_always_fits_into_its_message_limit() -> None:
    for variant in sweep_variants():
        assert variant.settings["message.max.bytes"] > variant.settings["batch.size"]


def test_both_sides_wait_for_all_replicas_and_are_idempotent() -> None:
    for variant in (*sweep_variants(), *blobmsg_sweep_variants(), *measured()):
        assert variant.settings["acks"] == "all"
        assert variant.settings["enable.idempotence"] is True


def measured() -> list[ProduceVariant]:
    return produce_variants(sweep_variants()[0], blobmsg_sweep_variants()[-1])


def test_blobmsg_runs_with_its_defaults_and_with_its_best() -> None:
    ours = {v.name: v for v in measured() if v.client == "blobmsg"}

    assert set(ours) == {"blobmsg", "blobmsg, best", "blobmsg, callbacks"}
    best = ours.pop("blobmsg, best")
    assert (best.call, best.object_bytes) == ("produce_batch", 64 << 20)
    assert all(set(v.settings) == {"acks", "enable.idempotence"} for v in ours.values())


def test_the_default_batch_size_is_the_one_of_the_settings() -> None:
    settings, _ = parse_settings({"blobmsg.store.url": "memory://x"}, {})

    assert settings.batch_size_bytes == BATCH_BYTES
    assert {v.object_bytes for v in measured() if v.name == "blobmsg"} == {BATCH_BYTES}
    assert blobmsg_sweep_variants()[0].object_bytes == BATCH_BYTES


def test_every_way_of_consuming_stands_beside_stock() -> None:
    assert {c.call for c in CONSUMERS if c.client == "stock"} == {
        c.call for c in CONSUMERS if c.client == "blobmsg"
    }


def test_the_fastest_is_first_by_its_median_not_by_one_lucky_run() -> None:
    lucky, steady, slow = sweep_variants()[:3]
    runs = {
        lucky.name: [{"mib_per_s": value} for value in (10.0, 99.0, 20.0)],
        steady.name: [{"mib_per_s": value} for value in (30.0, 31.0, 32.0)],
        slow.name: [{"mib_per_s": 5.0}],
    }

    assert fastest([slow, lucky, steady], runs) == [steady, lucky, slow]
