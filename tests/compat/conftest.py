"""The two clients for every test of this folder, and topics that tests share."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.both import Both, Side
from tests.helpers.records import recent_ms, send

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def store_prefix() -> str:
    """One for the whole suite, so that tests can share topics whose records are in the store."""
    return f"test/compat-{uuid.uuid4().hex}"


@pytest.fixture
def both(conf: dict[str, Any], make_topic: Callable[..., str]) -> Both:
    """Stock, and ours once with every record in the store and once with all of them plain."""
    # Batches wait for nothing but the test.
    ours = {**conf, "blobmsg.batch.interval.ms": 50}
    stock = Side(
        "stock", {k: v for k, v in conf.items() if not k.startswith("blobmsg.")}, make_topic
    )
    blob, plain = ({**ours, "blobmsg.route": route} for route in ("blob", "plain"))
    return Both(stock, (Side("blob", blob, make_topic), Side("plain", plain, make_topic)))


@pytest.fixture
def by_every_route(both: Both, make_topic: Callable[..., str]) -> Both:
    """The same with every way of sending that there is, `auto` being the default."""
    conf = both.ours[0].conf
    more = [Side(way, {**conf, "blobmsg.route": way}, make_topic) for way in ("inline", "auto")]
    return Both(both.stock, (*both.ours, *more))


@pytest.fixture
def readers(both: Both) -> Both:
    """The same for tests that only read: how a consumer's settings say to send is no matter."""
    return Both(both.stock, both.ours[:1])


@pytest.fixture
def filled(both: Both, pytestconfig: pytest.Config) -> Callable[[Side], str]:
    """For each side a topic of two partitions with ten records each; read only, shared by all.

    One record to a notification, in the store and plain by turns: as positions, ours are then
    Kafka's, shifted. Partition p has values b"p.0" to b"p.9", and all have keys and headers.
    """
    made = pytestconfig.stash.setdefault(_filled, {})
    filling = threading.Lock()

    def topic_of(side: Side) -> str:
        name = "ours" if side.is_ours else "stock"
        with filling:
            if name not in made:
                made[name] = side.topic(2)
                writers = both.ours if side.is_ours else (both.stock,)
                _fill(writers, made[name])
        return side.known(made[name])

    return topic_of


#: Of the first record; each is a second later than the one before.
FILLED_FROM_MS = recent_ms()
_filled = pytest.StashKey[dict[str, str]]()


def _fill(writers: tuple[Side, ...], topic: str) -> None:
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(side.producer()) for side in writers]
        for number in range(10):
            producer = producers[number % len(producers)]
            for partition in range(2):
                reports = send(
                    producer, topic, [b"%d.%d" % (partition, number)], partition=partition,
                    key=b"%d" % number, headers=[("number", b"%d" % number)],
                    timestamp=FILLED_FROM_MS + 1000 * number,
                )  # fmt: skip
                assert reports.codes == [None]
