"""Clients hold no more memory than their limits allow while the store is away, and lose nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench._cluster import Cluster
from bench.memory import ALLOWANCE_BYTES, CASES, Case, measure

if TYPE_CHECKING:
    from blobmsg.lab import Stack
    from tests.helpers.fault_proxy import FaultProxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Long enough for every buffer to fill; `make bench-memory` takes 5 minutes.
OUTAGE_S = 12.0


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.value_bytes == 100 and case.codec == "none"],
    ids=lambda case: case.name,
)
def test_memory_stays_within_the_limits_while_the_store_is_away(
    stack: Stack, proxy: FaultProxy, case: Case
) -> None:
    cluster = Cluster(stack)
    try:
        figures = measure(cluster, proxy, case, OUTAGE_S)
    finally:
        cluster.clean_up()

    assert figures["lost"] == []
    assert proxy.faults
    taken_bytes = figures["most_bytes"] - figures["base_bytes"]
    assert taken_bytes <= case.limit_bytes + ALLOWANCE_BYTES
