"""Runs pieces on a cluster, checks what they left, and keeps their figures.

Decides the order: each round goes once through all variants, so that whatever slows the machine
down slows all of them. Topics and objects of a piece are removed before the next one starts.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from bench._ceiling import PARALLEL_PUTS
from bench._plan import (
    BATCH_BYTES,
    CONSUMERS,
    MEBIBYTE,
    OURS,
    ConsumeVariant,
    Figures,
    ProduceVariant,
    fastest,
    medians_of,
    through,
)
from bench._records import Tally, Workload, differences, expected_tally, make_records
from bench._store_link import limited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench._cluster import Cluster

    Report = Callable[[str], None]

__all__ = ["Rounds", "WrongRecords"]

_FINALISTS = 4
# Enough to fill a link that is slower than the machine.
_LINK_PUTS = 4
# What a consumer reads before the clock starts.
_WARM_UP_RECORDS = 131_072
_WARM_UP_MIB = 128


class WrongRecords(Exception):
    """What was read is not what was produced."""


class Rounds:
    """All measured pieces of one bench.

    Args:
        cluster: Where.
        records: Per piece.
        workload: What they are.
        rounds: How often each variant is measured.
        report: Told every figure as it comes.

    Threads: one.
    """

    def __init__(
        self, cluster: Cluster, *, records: int, workload: Workload, rounds: int, report: Report
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._workload = workload
        self._rounds = rounds
        self._report = report
        self._expected: dict[int, Tally] = {}
        self.records_verified = 0
        self.runs: dict[str, dict[str, list[Figures]]] = {}

    @property
    def medians(self) -> dict[str, dict[str, Figures]]:
        """Of all figures, by section and variant."""
        return {
            section: {name: medians_of(figures) for name, figures in variants.items()}
            for section, variants in self.runs.items()
        }

    def warm_up(self, best: ProduceVariant) -> None:
        """Let the servers compile and cache what they need; nothing of it is kept.

        Args:
            best: A stock variant.
        """
        for variant in (best, OURS, best):
            self._produce("warm-up", variant, self._records)
        del self.runs["warm-up"]

    # --- producing ----------------------------------------------------------------------------

    def sweep(self, variants: Sequence[ProduceVariant], records: int) -> ProduceVariant:
        """Find the variant with the highest wall throughput.

        One short run per cell says which ones are good, not which is best: the best few run again
        with all records.

        Args:
            variants: Of the stock client.
            records: Per cell; verified as well.
        """
        for variant in variants:
            self._produce("sweep", variant, records)
        finalists = fastest(variants, self.runs["sweep"])[:_FINALISTS]
        for variant in finalists:
            self._produce("final", variant, self._records)
        return fastest(finalists, self.runs["final"])[0]

    def sweep_blobmsg(self, variants: Sequence[ProduceVariant]) -> ProduceVariant:
        """Find our variant with the highest wall throughput.

        Args:
            variants: Of blobmsg; all records go once through each, forwards and backwards.
        """
        for variant in (*variants, *reversed(variants)):
            self._produce("our sweep", variant, self._records)
        return fastest(variants, self.runs["our sweep"])[0]

    def produce(
        self,
        variants: Sequence[ProduceVariant],
        ceilings: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Measure producing in all variants, and the store's ceiling between the rounds.

        Args:
            variants: Of both clients.
            ceilings: Engine and size of objects of each ceiling.
        """
        for number in range(self._rounds):
            for engine, object_bytes in ceilings:
                self._ceiling(engine, object_bytes)
            # Every other round goes backwards: nobody always runs behind the same neighbour.
            for variant in variants if number % 2 == 0 else variants[::-1]:
                self._produce("produce", variant, self._records)

    def produce_through_links(
        self, variants: Sequence[ProduceVariant], links_gbit: Sequence[int]
    ) -> None:
        """Measure producing and raw PUTs while only so much per second gets to the store.

        Args:
            variants: Of blobmsg.
            links_gbit: Limits, in 10^9 bits per second.
        """
        _, port = self._cluster.store_address
        for number in range(self._rounds):
            for gbit in links_gbit if number % 2 == 0 else links_gbit[::-1]:
                with limited(port, gbit):
                    self._put("link", through(gbit, "raw PUT"), "store", _LINK_PUTS, BATCH_BYTES)
                    for variant in variants:
                        name = through(gbit, variant.name)
                        self._produce("link", replace(variant, name=name), self._records)

    def _ceiling(self, engine: str, object_bytes: int) -> None:
        for parallel in PARALLEL_PUTS:
            name = f"{engine}, {parallel} parallel, {object_bytes // MEBIBYTE} MiB"
            self._put("ceiling", name, engine, parallel, object_bytes)

    def _put(self, section: str, name: str, engine: str, parallel: int, object_bytes: int) -> None:
        objects = max(PARALLEL_PUTS[-1], self._payload_bytes(self._records) // object_bytes)
        figures = self._cluster.run(
            "put",
            engine=engine,
            conf=self._cluster.conf("blobmsg", "ceiling"),
            parallel=parallel,
            objects=objects,
            object_bytes=object_bytes,
        )
        self._cluster.delete_objects("ceiling/")
        figures["object_bytes"] = object_bytes
        self._add(section, name, objects * object_bytes, figures)

    def _payload_bytes(self, records: int) -> int:
        return records * self._workload.value_bytes

    def _produce(self, section: str, variant: ProduceVariant, records: int) -> None:
        topic = self._cluster.create_topic(variant.client, self._workload.partitions)
        self._measure_produce(section, variant, records, topic)
        self._verify(variant.client, topic, records)
        self._cluster.delete_topic(topic)
        self._cluster.delete_objects("data/")  # the warm-up's are not read: they may go, too

    def _measure_produce(
        self, section: str, variant: ProduceVariant, records: int, topic: str
    ) -> None:
        servers = self._cluster.servers
        warm_topic = self._cluster.create_topic("warm", self._workload.partitions)
        figures = self._cluster.run(
            "produce",
            client=variant.client,
            conf={**self._cluster.conf(variant.client), **variant.settings},
            topic=topic,
            warm_topic=warm_topic,
            records=records,
            workload=asdict(self._workload),
            call=variant.call,
            with_callback=variant.with_callback,
            servers=servers,
        )
        self._cluster.delete_topic(warm_topic)
        payload_bytes = self._payload_bytes(records)
        gibibytes = payload_bytes / (1024 * MEBIBYTE)
        for name in servers:
            figures[f"{name}_cpu_s_per_gib"] = figures[f"{name}_cpu_s"] / gibibytes
        figures["tx_share"] = figures["tx_bytes"] / payload_bytes
        if variant.client == "blobmsg":
            figures["object_bytes"] = variant.object_bytes
        self._add(section, variant.name, payload_bytes, figures, records)

    # --- consuming ----------------------------------------------------------------------------

    def consume(
        self,
        best: ProduceVariant,
        ours: ProduceVariant = OURS,
        consumers: Sequence[ConsumeVariant] = CONSUMERS,
    ) -> None:
        """Measure consuming, from one topic of each client.

        Args:
            best: Stock's best way of producing: large batches are cheap to read.
            ours: How our topic is written.
            consumers: In these ways.
        """
        warm = min(_WARM_UP_RECORDS, self._workload.records_of(_WARM_UP_MIB), self._records)
        topics: dict[str, str] = {}
        warm_topics: dict[str, str] = {}
        for variant in (best, ours):
            topics[variant.client] = self.fill(variant, self._records)
            warm_topics[variant.client] = self.fill(variant, warm)
        for number in range(self._rounds):
            for consumer in consumers if number % 2 == 0 else consumers[::-1]:
                figures = self._cluster.run(
                    "consume",
                    client=consumer.client,
                    conf=self._cluster.conf(consumer.client),
                    topic=topics[consumer.client],
                    warm_topic=warm_topics[consumer.client],
                    warm_records=warm,
                    partitions=self._workload.partitions,
                    records=self._records,
                    call=consumer.call,
                )
                timed_bytes = self._payload_bytes(figures["timed_records"])
                self._add("consume", consumer.name, timed_bytes, figures, self._records)
                # The same client, the same topic, once more and hashed.
                self._verify(consumer.client, topics[consumer.client], self._records)
        for topic in (*topics.values(), *warm_topics.values()):
            self._cluster.delete_topic(topic)
        self._cluster.delete_objects("data/")

    def fill(self, variant: ProduceVariant, records: int) -> str:
        """Make a topic with the records of the workload, verified, and return its name.

        Args:
            variant: How it is written.
            records: How many.
        """
        topic = self._cluster.create_topic(variant.client, self._workload.partitions)
        self._measure_produce("fill", variant, records, topic)
        self._verify(variant.client, topic, records)
        return topic

    # --- checking and keeping -----------------------------------------------------------------

    def _verify(self, client: str, topic: str, records: int) -> None:
        expected = self._expected.get(records)
        if expected is None:
            expected = expected_tally(
                *make_records(records, self._workload), self._workload.partitions
            )
            self._expected[records] = expected
        found = Tally(
            **self._cluster.run(
                "verify",
                client=client,
                conf=self._cluster.conf(client),
                topic=topic,
                workload=asdict(self._workload),
                records=records,
            )
        )
        wrong = differences(expected, found)
        if wrong:
            raise WrongRecords(f"{client}: " + "; ".join(wrong))
        self.records_verified += records

    def _add(
        self,
        section: str,
        name: str,
        payload_bytes: int,
        figures: dict[str, Any],
        records: int | None = None,
    ) -> None:
        figures["mib_per_s"] = payload_bytes / MEBIBYTE / figures["wall_s"]
        if records is None:
            figures["mib_per_cpu_s"] = payload_bytes / MEBIBYTE / figures["cpu_s"]
        else:
            figures["mib_per_cpu_s"] = self._payload_bytes(records) / MEBIBYTE / figures["cpu_s"]
            figures["cpu_us_per_record"] = figures["cpu_s"] / records * 1e6
        self.runs.setdefault(section, {}).setdefault(name, []).append(figures)
        self._report(
            f"{section:8} {name:44} {figures['mib_per_s']:8.1f} MiB/s "
            f"{figures['mib_per_cpu_s']:8.1f} MiB/CPU-s"
        )
