"""The two microservices of `examples/`: before and after the change, and in between."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer
from tests.helpers.records import partition, read
from tests.helpers.service import SERVICES, Service, post_orders
from tests.helpers.stock import StockConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.lab import Stack

pytestmark = pytest.mark.integration

ORDERS = 200


@pytest.mark.parametrize(
    ("checkout", "billing"),
    [("before", "before"), ("before", "after"), ("after", "after")],
    ids=["before", "consumers first", "after"],
)
def test_every_order_gets_its_invoice(
    stack: Stack,
    conf: dict[str, Any],
    make_topic: Callable[..., str],
    store_prefix: str,
    checkout: str,
    billing: str,
) -> None:
    environ = {
        **stack.environ(store_prefix),
        "BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "ORDERS_TOPIC": make_topic(partitions=3),
        "INVOICES_TOPIC": make_topic(),
        "GROUP_ID": store_prefix,
        "PORT": "0",
        "BLOBMSG_ROUTE": "blob",  # they are small and few: by cost all would stay with Kafka
    }
    with (
        Service(SERVICES / billing / "billing.py", environ) as biller,
        Service(SERVICES / checkout / "checkout.py", environ) as shop,
    ):
        orders: list[Any] = [{"customer": n % 7, "cents": 100 * n} for n in range(ORDERS)]
        statuses = post_orders(
            int(shop.wait_for(r"listening on port (\d+)")[1]), [*orders, "no order"]
        )
        code, said = shop.terminate()
        assert (code, said) == (0, f"delivered {ORDERS} orders, 0 failed\n")
        biller.wait_for(rf"^{ORDERS} orders, {ORDERS} invoices")
        code, _ = biller.terminate()
        assert code == 0

    assert statuses == [202] * ORDERS + [400]
    listing = stack.s3_client().list_objects_v2(Bucket=stack.bucket, Prefix=store_prefix)
    assert (listing["KeyCount"] > 0) == ("after" in (checkout, billing))
    client, settings = (StockConsumer, {}) if billing == "before" else (BlobConsumer, conf)
    reader_conf = {**settings, "bootstrap.servers": stack.bootstrap_servers, "group.id": "reader"}
    with client(reader_conf) as reader:
        reader.assign([partition(environ["INVOICES_TOPIC"], 0, 0)])
        invoices = [json.loads(message.value()) for message in read(reader, ORDERS)]
    invoices.sort(key=lambda invoice: invoice["cents"])
    assert invoices == [
        {"customer": str(n % 7), "cents": 100 * n, "tax": 19 * n} for n in range(ORDERS)
    ]


def test_the_readme_shows_the_whole_difference() -> None:
    difference: list[str] = []
    for before in sorted((SERVICES / "before").glob("*.py")):
        after = SERVICES / "after" / before.name
        lines = difflib.unified_diff(
            before.read_text().splitlines(),
            after.read_text().splitlines(),
            f"before/{before.name}",
            f"after/{before.name}",
            n=0,
            lineterm="",
        )
        difference += [line for line in lines if not line.startswith("@@")]

    shown = re.search(r"```diff\n(.*?)\n```", (SERVICES / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == difference
