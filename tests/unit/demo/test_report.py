from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from blobmsg.core.cost import Bill
from blobmsg.demo.figures import Check
from blobmsg.demo.report import COLUMNS, report_json, report_text
from tests.unit.demo.samples import BAD, outcome_of, run_of

PLAIN = replace(run_of("plain"), bill=Bill(storage_usd=0.0007, crossing_usd=0.0060))
FLAT_OUT = run_of(rate=0.0)


def test_no_line_is_too_long() -> None:
    wordy = Check("none altered", False, "x" * 300)
    runs = (run_of(check=wordy), PLAIN, FLAT_OUT, run_of("plain", 0.0, wordy))

    for outcome in (outcome_of(), outcome_of(*runs)):
        assert max(map(len, report_text(outcome).splitlines())) <= COLUMNS


def test_columns_of_a_table_end_together() -> None:
    lines = report_text(outcome_of()).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("Through the store"))

    assert len({len(line) for line in lines[start + 1 : start + 6]}) == 1


def test_a_good_run_says_so() -> None:
    text = report_text(outcome_of())

    assert "All checks hold." in text
    assert "FAILED" not in text


def test_a_failed_check_is_seen_wherever_it_is() -> None:
    first = report_text(outcome_of(run_of(check=BAD)))
    later = report_text(outcome_of(run_of(), replace(PLAIN, checks=(BAD,))))

    for text in (first, later):
        assert "FAILED  none lost                       2: id 17; id 18" in text
        assert "1 checks FAILED." in text
    assert "FAILED  plain Kafka, 30,000/s" in later


def test_the_saving_is_told_from_the_computed_bill_without_a_plain_run() -> None:
    # 1 - 0.00071 / 0.0062
    assert "The bill: 89% less than plain Kafka" in report_text(outcome_of())


def test_the_saving_is_told_from_the_measured_run_where_there_is_one() -> None:
    text = report_text(outcome_of(run_of(), PLAIN))

    assert "its producers' measured bytes" in text
    assert "0.006700" in text  # its run, not the computed 0.0062


def test_a_dearer_run_is_called_dearer() -> None:
    outcome = replace(outcome_of(), plain_bill=Bill(crossing_usd=0.0001))

    assert "The bill: 610% MORE than plain Kafka" in report_text(outcome)


def test_free_crossing_is_no_division_by_zero() -> None:
    outcome = replace(outcome_of(), plain_bill=Bill())

    assert "plain Kafka costs nothing" in report_text(outcome)


def test_inline_segments_and_plain_records_are_not_hidden() -> None:
    run = replace(run_of(), inline_segments=1660, plain_records=3)

    text = report_text(outcome_of(run))

    assert "360 notifications, 1,660 inline segments, 3 plain records" in text


def test_a_run_that_sent_nothing_to_the_store_has_a_report() -> None:
    run = replace(run_of(), zones=(), batches=0, notifications=0, producer_tx_bytes=0)

    assert "0.00 GETs per PUT" in report_text(outcome_of(run))


def test_the_kept_folder_is_named() -> None:
    outcome = replace(outcome_of(), kept=Path("kept-store"))

    assert "kept-store" in report_text(outcome)


def test_the_json_is_complete_and_has_no_secret() -> None:
    report = json.loads(json.dumps(report_json(outcome_of(run_of(), PLAIN))))

    assert report["holds"] is True
    assert [run["client"] for run in report["runs"]] == ["blobmsg", "plain"]
    assert report["runs"][0]["latency"]["p99_ms"] == 1234
    assert report["prices"]["as_of"]
    assert report["computed_plain_bill"]["total_usd"] > 0
