from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from bench._process_tree import processes_below, tree_cpu_seconds
from bench._spark_cases import CASES
from bench._spark_parts import adapt_source
from bench._spark_plan import difference, judge, page_section, terminal_text
from bench._spark_sides import MODES, NATIVE, OURS, S3_SHUFFLE
from bench._store_requests import parse_requests, request_usd
from bench.spark_source import judge as judge_source
from blobmsg.core.cost import BUILT_IN_PRICES


def figures(wall_s: float, cpu_s: float, puts: int = 0, shuffle_bytes: int = 0) -> dict[str, Any]:
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "store_cpu_s": 0.1,
        "shuffle_bytes": shuffle_bytes,
        "remote_bytes": 0,
        "requests": {"PutObject": puts} if puts else {},
    }


def results(**ours: float) -> dict[str, Any]:
    """A run that reaches everything exactly, with other figures of ours."""
    own = {"wall_s": 1.6, "cpu_s": 1.0, "puts": 1, "shuffle_bytes": 1, **ours}
    runs = {
        NATIVE: [figures(1.0, 1.0, 0, 5000)],
        OURS: [figures(own["wall_s"], own["cpu_s"], int(own["puts"]), int(own["shuffle_bytes"]))],
        S3_SHUFFLE: [figures(1.6 / 0.95, 1.0 / 0.75, 2, 5000)],
    }
    cases = {name: {"runs": runs, "payload_bytes": 5000} for name in ("random", "skew")}
    return dict.fromkeys(MODES, cases)


MEMORY = {"skew": {"base_bytes": 100, "most_bytes": 100 + (80 << 20), "prefetch_bytes": 64 << 20}}


def verdicts(cases: dict[str, Any], wrong: int = 0) -> dict[str, str]:
    found = judge(cases, {"local[2], random, blobmsg": wrong}, MEMORY)
    return {requirement.text: requirement.verdict for requirement in found}


def test_a_run_at_the_limits_passes() -> None:
    assert set(verdicts(results()).values()) == {"PASS"}


@pytest.mark.parametrize(
    ("figure", "value", "missed"),
    [
        ("wall_s", 1.7, {"wall, ours / native", "wall, ours / spark-s3-shuffle"}),
        ("cpu_s", 1.1, {"client CPU, ours / native", "client CPU, ours / spark-s3-shuffle"}),
        ("puts", 2, {"request cost, ours / spark-s3-shuffle"}),
        ("shuffle_bytes", 2, {"Spark's own shuffle bytes"}),
    ],
)
def test_what_is_beyond_a_limit_fails_and_nothing_else(
    figure: str, value: float, missed: set[str]
) -> None:
    found = verdicts(results(**{figure: value}))
    failed = {text for text, verdict in found.items() if verdict == "FAIL"}

    assert failed == {text for text in found if any(one in text for one in missed)}
    assert failed


def test_one_row_that_differs_fails() -> None:
    found = verdicts(results(), wrong=1)

    assert [text for text, verdict in found.items() if verdict == "FAIL"] == [
        "rows that differ from native's, 1 comparisons"
    ]


def test_a_side_that_could_not_be_had_is_not_judged() -> None:
    cases = results()
    for mode in cases.values():
        for case in mode.values():
            case["runs"].pop(S3_SHUFFLE, None)

    found = verdicts(cases)

    assert {found[text] for text in found if S3_SHUFFLE in text} == {"not measured"}


def test_the_page_says_what_was_skipped_and_has_every_side() -> None:
    whole: dict[str, Any] = {
        "about": {"command": "python -m bench.spark", "commit": "abc"},
        "arguments": {"mib": 1024, "rounds": 3},
        "what": {case.name: case.what for case in CASES},
        "skipped": ["spark-s3-shuffle could not be built"],
        "cases": results(),
        "memory": MEMORY,
    }
    requirements = judge(whole["cases"], {}, MEMORY)

    page = page_section(whole, requirements)
    assert "**Skipped:** spark-s3-shuffle could not be built" in page
    assert "| local-cluster, skew | blobmsg | 1.6 |" in page
    assert "- commit: abc" in page
    text = terminal_text(whole, requirements)
    assert "SKIPPED: spark-s3-shuffle could not be built" in text


def test_rows_differ_by_how_often_they_are_there() -> None:
    one = np.array([[0, 1], [0, 1], [1, 2]])

    assert difference(one, one[::-1]) == 0
    assert difference(one, one[1:]) == 1
    assert difference(one, np.array([[0, 1], [1, 1], [1, 2]])) == 2


def test_requests_are_counted_and_priced_by_kind() -> None:
    requests = parse_requests(
        '# TYPE minio_api_requests_total counter\n'
        'minio_api_requests_total{name="PutObject",server="a:1",type="s3"} 3\n'
        'minio_api_requests_total{name="GetObject",server="a:1",type="s3"} 10\n'
        'minio_api_requests_total{name="ListObjectsV2",server="a:1",type="s3"} 2\n'
        'minio_api_requests_total{name="DeleteMultipleObjects",server="a:1",type="s3"} 7\n'
        'minio_api_requests_errors_total{name="GetObject",server="a:1",type="s3"} 5\n'
    )  # fmt: skip

    assert requests == {
        "PutObject": 3, "GetObject": 10, "ListObjectsV2": 2, "DeleteMultipleObjects": 7,
    }  # fmt: skip
    prices = BUILT_IN_PRICES
    assert request_usd(requests, prices) == pytest.approx(5 * prices.put_usd + 10 * prices.get_usd)


def test_a_tree_has_the_cpu_of_children_that_run_and_that_have_ended() -> None:
    # A process of its own: servers of other tests below this one end when they like.
    root = textwrap.dedent("""
        import subprocess, sys
        burn = "import time\\nwhile time.process_time() < 0.3: pass\\n"
        child = [sys.executable, "-c"]
        subprocess.run([*child, burn], check=True)
        print("ended", flush=True)
        input()
        child = subprocess.Popen([*child, burn + "print(flush=True); input()"], stdout=-1, stdin=-1)
        child.stdout.readline()
        print(child.pid, flush=True)
        input()
        child.communicate(b"\\n")
    """)
    with subprocess.Popen(
        [sys.executable, "-c", root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"
        ended = tree_cpu_seconds(process.pid)
        print(file=process.stdin, flush=True)
        child = int(process.stdout.readline())
        running = tree_cpu_seconds(process.pid)
        assert {child, process.pid} == set(processes_below(process.pid))
        process.communicate("\n")

    assert ended >= 0.25
    assert running - ended >= 0.25


def test_only_the_kind_of_the_shuffle_manager_is_changed() -> None:
    text = "class S3ShuffleManager(conf: SparkConf) extends ShuffleManager with Logging {"

    assert "extends BlockingShuffleManager with" in adapt_source(text)
    assert adapt_source("extends SortShuffleManager") == "extends SortShuffleManager"


def test_the_source_is_judged_by_cpu_and_beside_kafka_round_by_round() -> None:
    def runs(rate: float) -> list[dict[str, Any]]:
        return [{"mib_per_cpu_s": rate, "mib_per_s": rate}] * 3

    found = judge_source(
        {
            "blobmsg, count": runs(150),
            "kafka, count": runs(100),
            "blobmsg, rows": runs(149),
            "kafka, rows": runs(100),
        }
    )

    assert [requirement.verdict for requirement in found] == [
        "PASS", "-", "PASS", "PASS", "FAIL", "FAIL",
    ]  # fmt: skip
