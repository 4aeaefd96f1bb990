from __future__ import annotations

import pickle

from blobmsg.core.cost import BUILT_IN_PRICES
from blobmsg_spark.usage import StageUsage, UsageParam, usage_table

# As wide as its widest cell.
_HEADERS = [
    "1,234", "MiB in", "objects", "PUTs", "MiB put", "GETs", "MiB got", "retries", "KiB by Spark",
    "0.000025",
]  # fmt: skip


def test_usage_adds_up_and_subtracts_field_by_field() -> None:
    one, two = StageUsage(rows=1, puts=2), StageUsage(rows=10, gets=5)

    assert one + two == StageUsage(rows=11, puts=2, gets=5)
    assert (one + two) - one == two
    assert UsageParam().addInPlace(UsageParam().zero(one), two) == two
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301


def test_requests_cost_what_the_price_table_says() -> None:
    usage = StageUsage(puts=1_000_000, gets=1_000_000)

    assert round(usage.usd(BUILT_IN_PRICES), 6) == 5.4


def test_the_table_has_a_line_per_exchange_and_their_sum() -> None:
    stages = [
        ("1 repartition(4, key)", StageUsage(rows=1000, puts=3, gets=12, put_bytes=3 << 20)),
        ("2 repartition(2)", StageUsage(rows=234, puts=1)),
    ]

    header, first, second, total, prices = usage_table(stages, BUILT_IN_PRICES).splitlines()

    assert header.startswith("exchange  ")
    cells = ["1,000", "0.0", "0", "3", "3.0", "12", "0.0", "0", "0.0", "0.000020"]
    assert first == "1 repartition(4, key)  " + "  ".join(
        cell.rjust(len(name)) for cell, name in zip(cells, _HEADERS, strict=True)
    )
    assert second.startswith("2 repartition(2)  ")
    assert total.split()[:2] == ["total", "1,234"]
    assert BUILT_IN_PRICES.as_of in prices
