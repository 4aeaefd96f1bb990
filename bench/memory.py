"""Memory of a producer and of a consumer through an outage of the store.

    python -m bench.memory                  # or: make bench-memory
    python -m bench.memory --outage-s 20    # for a first look

The store is behind a proxy that refuses every request during the outage. Each client runs in a
process of its own and may take what it had behind its constructor, its limits, and 50 MiB. At the
end everything must have been delivered. Exit code 1 if one takes more, or loses something.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

_ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # run by its path
    sys.path[0] = str(_ROOT)

from bench._cluster import Cluster, open_cluster  # noqa: E402
from bench._plan import MEBIBYTE  # noqa: E402
from bench._report import fact_list, machine, markdown_table, table  # noqa: E402
from bench._run import exit_code_of, update_results, write_figures  # noqa: E402
from tests.helpers.fault_proxy import Answer, FaultProxy  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.helpers.fault_proxy import Fault, Request

__all__ = ["ALLOWANCE_BYTES", "CASES", "Case", "main", "measure"]

#: What a client may take besides its limits.
ALLOWANCE_BYTES = 50 * MEBIBYTE
_PARTITIONS = 12
_BUFFER_BYTES = 128 * MEBIBYTE
_PREFETCH_BYTES = 32 * MEBIBYTE
_CACHE_BYTES = 32 * MEBIBYTE
# Records wait for the store in the buffer, so they may take as long as it is away and more.
_MESSAGE_TIMEOUT_MS = 3_600_000
# The most that brokers allow by default.
_TRANSACTION_MS = 900_000
_READ_BYTES = 128 * MEBIBYTE
_HEAD = ("client", "record", "limits", "at first", "most", "above its limits", "allowed")


@dataclass(frozen=True, slots=True)
class Case:
    """One client.

    Attributes:
        name: In tables.
        value_bytes: Of a record.
        is_producer: Else a consumer.
        with_callback: Of a producer: whether somebody hears of every record.
        way: `plain`, `asyncio`, and of a producer `transaction` (all records in one).
        codec: `blobmsg.compression.type`.
    """

    name: str
    value_bytes: int
    is_producer: bool = True
    with_callback: bool = False
    way: str = "plain"
    codec: str = "none"

    @property
    def limit_bytes(self) -> int:
        """What its settings allow it to hold."""
        return _BUFFER_BYTES if self.is_producer else _PREFETCH_BYTES + _CACHE_BYTES


CASES = (
    Case("producer", 100),
    Case("producer, callbacks", 100, with_callback=True),
    Case("producer, callbacks, zstd", 100, with_callback=True, codec="zstd"),
    Case("producer, callbacks", 1024, with_callback=True),
    Case("producer, a transaction", 100, way="transaction"),
    Case("producer, asyncio", 100, with_callback=True, way="asyncio"),
    Case("producer, asyncio", 1024, with_callback=True, way="asyncio"),
    Case("consumer", 100, is_producer=False),
    Case("consumer, asyncio", 100, is_producer=False, way="asyncio"),
    Case("consumer, zstd", 1024, is_producer=False, codec="zstd"),
)


def measure(cluster: Cluster, proxy: FaultProxy, case: Case, outage_s: float) -> dict[str, Any]:
    """Run one case.

    Args:
        cluster: Where.
        proxy: Before its store; its rule is set here.
        case: What.
        outage_s: How long the store refuses everything.

    Returns:
        `base_bytes`, `most_bytes`, `records`, and `lost`: what is wrong, as a list of texts.

    Raises:
        PieceFailed: The client ended with an error.
    """
    topic = cluster.create_topic("memory", _PARTITIONS)
    conf = {
        **cluster.conf("blobmsg"),
        "blobmsg.route": "blob",
        "blobmsg.compression.type": case.codec,
        "message.timeout.ms": _MESSAGE_TIMEOUT_MS,
        "queue.buffering.max.kbytes": _BUFFER_BYTES >> 10,
        "queue.buffering.max.messages": 10_000_000,
    }
    proxied = {**conf, "blobmsg.s3.endpoint.url": proxy.url}
    arguments = {"client": "blobmsg", "topic": topic, "value_bytes": case.value_bytes}
    with tempfile.TemporaryDirectory() as folder:
        heal_file = Path(folder) / "the store is back"
        outage = {"outage_s": outage_s, "heal_file": str(heal_file)}
        try:
            if case.is_producer:
                proxy.rule = _refuse_until_there(heal_file)
                figures = _produce(cluster, case, proxied, topic, outage)
                return {**figures, "lost": _lost_of_producer(figures, case)}
            count = _READ_BYTES // (case.value_bytes + 8)
            cluster.run("fill", conf=conf, records=count, **arguments)
            proxy.rule = _refuse_until_there(heal_file)
            figures = _consume(cluster, case, _reader_conf(proxied), topic, count, outage)
            missing = count - figures["records"]
            lost = [f"{missing} of {count} records not read"] if missing else []
            return {**figures, "lost": lost}
        finally:
            proxy.rule = None
            cluster.delete_topic(topic)
            cluster.delete_objects("data/")


def _produce(
    cluster: Cluster, case: Case, conf: dict[str, Any], topic: str, outage: dict[str, Any]
) -> dict[str, Any]:
    arguments = {"topic": topic, "value_bytes": case.value_bytes, **outage}
    if case.way == "asyncio":
        return cluster.run("produce_in_loop_through_outage", conf=conf, **arguments)
    if case.way == "transaction":
        times = dict.fromkeys(("message.timeout.ms", "transaction.timeout.ms"), _TRANSACTION_MS)
        conf = {**conf, **times, "transactional.id": topic}
    return cluster.run(
        "produce_through_outage",
        client="blobmsg",
        conf=conf,
        with_callback=case.with_callback,
        **arguments,
    )


def _consume(
    cluster: Cluster,
    case: Case,
    conf: dict[str, Any],
    topic: str,
    count: int,
    outage: dict[str, Any],
) -> dict[str, Any]:
    arguments = {"conf": conf, "topic": topic, "records": count, **outage}
    if case.way == "asyncio":
        return cluster.run("consume_slowly_in_loop", **arguments)
    return cluster.run("consume_slowly", client="blobmsg", **arguments)


def _reader_conf(conf: dict[str, Any]) -> dict[str, Any]:
    common = {n: value for n, value in conf.items() if n.startswith(("bootstrap.", "blobmsg."))}
    return {
        **common,
        "blobmsg.prefetch.max.bytes": _PREFETCH_BYTES,
        "blobmsg.cache.memory.bytes": _CACHE_BYTES,
    }


def _refuse_until_there(heal_file: Path) -> Any:
    def rule(_request: Request) -> Fault | None:
        return None if heal_file.exists() else Answer(503, "ServiceUnavailable")

    return rule


def _lost_of_producer(figures: dict[str, Any], case: Case) -> list[str]:
    lost: list[str] = list(figures["failed"])
    if figures["undelivered"]:
        lost.append(f"{figures['undelivered']} records undelivered after the flush")
    if case.with_callback and figures["delivered"] != figures["records"]:
        lost.append(f"{figures['delivered']} of {figures['records']} records reported")
    if not figures["refusals"]:
        lost.append("the buffer was never full: this shows nothing")
    return lost


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / MEBIBYTE:.0f} MiB"


def _row(case: Case, figures: dict[str, Any]) -> list[str]:
    above = figures["most_bytes"] - figures["base_bytes"] - case.limit_bytes
    return [
        case.name,
        f"{case.value_bytes} B",
        _mib(case.limit_bytes),
        _mib(figures["base_bytes"]),
        _mib(figures["most_bytes"]),
        _mib(above),
        _mib(ALLOWANCE_BYTES),
    ]


def _section(about: dict[str, str], outage_s: float, rows: list[list[str]]) -> str:
    return (
        f"## Memory through an outage of the store\n\n"
        f"`python -m bench.memory --outage-s {outage_s:.0f}`: {_PARTITIONS} partitions; the store "
        f"refuses every request for {outage_s:.0f} s, and until the producer's buffer was full. "
        f"RSS of a process of its own.\n\n"
        f"{fact_list(about)}\n\n{markdown_table(_HEAD, rows)}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, print the table, decide."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory",
        description="Memory of a producer and of a consumer through an outage of the store.",
    )
    parser.add_argument("--outage-s", type=float, default=300.0, help="of the store (300)")
    parser.add_argument("--only", default="", help="clients whose names begin like this")
    parser.add_argument("--update-results", action="store_true", help="write docs/results.md")
    arguments = parser.parse_args(argv)
    return exit_code_of(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    rows: list[list[str]] = []
    wrong: list[str] = []
    about = machine()
    results: dict[str, Any] = {"about": about, "outage_s": arguments.outage_s}
    with (
        open_cluster() as cluster,
        FaultProxy(*cluster.store_address) as proxy,
    ):
        for case in [case for case in CASES if case.name.startswith(arguments.only)]:
            figures = measure(cluster, proxy, case, arguments.outage_s)
            rows.append(_row(case, figures))
            print(*rows[-1], sep="  ", flush=True)
            name = f"{case.name} of {case.value_bytes} B"
            results[name] = figures
            wrong += [f"{name}: {text}" for text in figures["lost"]]
            taken = figures["most_bytes"] - figures["base_bytes"]
            if taken > case.limit_bytes + ALLOWANCE_BYTES:
                wrong.append(f"{name}: {_mib(taken)} are more than it may take")
    print()
    print(table(_HEAD, rows))
    for text in wrong or ["all within their limits, nothing lost"]:
        print(text)
    write_figures("memory", results)
    if arguments.update_results:
        update_results("memory", _section(about, arguments.outage_s, rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
