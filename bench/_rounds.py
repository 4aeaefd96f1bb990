"""Runs pieces on a cluster, checks what they left, and keeps their figures.

Decides the order: each round goes once through all variants, so that whatever slows the machine
down slows all of them. Topics and objects of a piece are removed before the next one starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench._ceiling import PARALLEL_PUTS
from bench._cluster import PARTITIONS
from bench._plan import (
    BATCH_BYTES,
    CONSUMERS,
    DURABLE,
    MEBIBYTE,
    Figures,
    ProduceVariant,
    fastest,
    produce_variants,
)
from bench._producing import WARM_UP_RECORDS
from bench._records import VALUE_BYTES, Tally, differences, expected_tally, make_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bench._cluster import Cluster

    Report = Callable[[str], None]

__all__ = ["Rounds", "WrongRecords"]

_FINALISTS = 4


class WrongRecords(Exception):
    """What was read is not what was produced."""


class Rounds:
    """All measured pieces of one bench.

    Args:
        cluster: Where.
        records: Per piece.
        seed: Of the records.
        rounds: How often each variant is measured.
        report: Told every figure as it comes.

    Threads: one.
    """

    def __init__(
        self, cluster: Cluster, *, records: int, seed: int, rounds: int, report: Report
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._seed = seed
        self._rounds = rounds
        self._report = report
        self._warm_topics = {
            client: cluster.create_topic(f"warm-{client}") for client in ("stock", "blobmsg")
        }
        self._expected: dict[int, Tally] = {}
        self.records_verified = 0
        self.runs: dict[str, dict[str, list[Figures]]] = {}

    def warm_up(self, best: ProduceVariant) -> None:
        """Let the servers compile and cache what they need; nothing of it is kept.

        Args:
            best: A stock variant.
        """
        for variant in (best, ProduceVariant("blobmsg", "blobmsg", settings=DURABLE), best):
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
        self, best: ProduceVariant, our_best: ProduceVariant, *, parts: Collection[str]
    ) -> None:
        """Measure producing in all variants, and the store's ceiling between the rounds.

        Args:
            best: Stock's best.
            our_best: Ours.
            parts: Of `produce` and `ceiling`, those that are wanted.
        """
        variants = produce_variants(best, our_best)
        for number in range(self._rounds):
            if "ceiling" in parts:
                for engine in ("store", "boto3"):
                    self._ceiling(engine, BATCH_BYTES)
                if our_best.object_bytes != BATCH_BYTES:
                    self._ceiling("store", our_best.object_bytes)
            # Every other round goes backwards: nobody always runs behind the same neighbour.
            for variant in variants if number % 2 == 0 else variants[::-1]:
                if "produce" in parts:
                    self._produce("produce", variant, self._records)

    def _ceiling(self, engine: str, object_bytes: int) -> None:
        objects = max(PARALLEL_PUTS[-1], self._records * VALUE_BYTES // object_bytes)
        for parallel in PARALLEL_PUTS:
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
            name = f"{engine}, {parallel} parallel, {object_bytes // MEBIBYTE} MiB"
            self._add("ceiling", name, objects * object_bytes, figures)

    def _produce(self, section: str, variant: ProduceVariant, records: int) -> None:
        topic = self._cluster.create_topic(variant.client)
        self._measure_produce(section, variant, records, topic)
        self._verify(variant.client, topic, records)
        self._cluster.delete_topic(topic)
        self._cluster.delete_objects("data/")  # the warm-up's are not read: they may go, too

    def _measure_produce(
        self, section: str, variant: ProduceVariant, records: int, topic: str
    ) -> None:
        servers = self._cluster.servers
        figures = self._cluster.run(
            "produce",
            client=variant.client,
            conf={**self._cluster.conf(variant.client), **variant.settings},
            topic=topic,
            warm_topic=self._warm_topics[variant.client],
            records=records,
            seed=self._seed,
            call=variant.call,
            with_callback=variant.with_callback,
            servers=servers,
        )
        gibibytes = records * VALUE_BYTES / (1024 * MEBIBYTE)
        for name in servers:
            figures[f"{name}_cpu_s_per_gib"] = figures[f"{name}_cpu_s"] / gibibytes
        figures["tx_share"] = figures["tx_bytes"] / (records * VALUE_BYTES)
        if variant.client == "blobmsg":
            figures["object_bytes"] = variant.object_bytes
        self._add(section, variant.name, records * VALUE_BYTES, figures, records)

    # --- consuming ----------------------------------------------------------------------------

    def consume(self, best: ProduceVariant) -> None:
        """Measure consuming in all variants, from one topic of each client.

        Args:
            best: Stock's best way of producing: large batches are cheap to read.
        """
        ours = ProduceVariant("blobmsg", "blobmsg", settings=DURABLE)
        stock = ProduceVariant("stock, best", "stock", best.call, settings=best.settings)
        warm = min(WARM_UP_RECORDS, self._records)
        topics: dict[str, str] = {}
        warm_topics: dict[str, str] = {}
        for variant in (stock, ours):
            topics[variant.client] = self._fill(variant, self._records)
            warm_topics[variant.client] = self._fill(variant, warm)
        for number in range(self._rounds):
            for consumer in CONSUMERS if number % 2 == 0 else CONSUMERS[::-1]:
                figures = self._cluster.run(
                    "consume",
                    client=consumer.client,
                    conf=self._cluster.conf(consumer.client),
                    topic=topics[consumer.client],
                    warm_topic=warm_topics[consumer.client],
                    warm_records=warm,
                    partitions=PARTITIONS,
                    records=self._records,
                    call=consumer.call,
                )
                timed_bytes = figures["timed_records"] * VALUE_BYTES
                self._add("consume", consumer.name, timed_bytes, figures, self._records)
                # The same client, the same topic, once more and hashed.
                self._verify(consumer.client, topics[consumer.client], self._records)
        for topic in (*topics.values(), *warm_topics.values()):
            self._cluster.delete_topic(topic)
        self._cluster.delete_objects("data/")

    def _fill(self, variant: ProduceVariant, records: int) -> str:
        topic = self._cluster.create_topic(variant.client)
        self._measure_produce("fill", variant, records, topic)
        self._verify(variant.client, topic, records)
        return topic

    # --- checking and keeping -----------------------------------------------------------------

    def _verify(self, client: str, topic: str, records: int) -> None:
        expected = self._expected.get(records)
        if expected is None:
            expected = expected_tally(*make_records(records, self._seed), PARTITIONS)
            self._expected[records] = expected
        found = Tally(
            **self._cluster.run(
                "verify",
                client=client,
                conf=self._cluster.conf(client),
                topic=topic,
                partitions=PARTITIONS,
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
            figures["mib_per_cpu_s"] = records * VALUE_BYTES / MEBIBYTE / figures["cpu_s"]
            figures["cpu_us_per_record"] = figures["cpu_s"] / records * 1e6
        self.runs.setdefault(section, {}).setdefault(name, []).append(figures)
        self._report(
            f"{section:8} {name:44} {figures['mib_per_s']:8.1f} MiB/s "
            f"{figures['mib_per_cpu_s']:8.1f} MiB/CPU-s"
        )
