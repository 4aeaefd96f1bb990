"""A demo from start to end: records read, workers started and told, arrivals judged.

Knows the order of things; what is right, what it costs and how it looks is decided elsewhere.
Removes on every way out what it made: processes first, then what they wrote.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from blobmsg.config import parse_settings
from blobmsg.core.cost import BUILT_IN_PRICES, Bill, PriceTable
from blobmsg.demo import figures
from blobmsg.demo.children import Children
from blobmsg.demo.figures import Latency, RunFigures, ZoneFigures
from blobmsg.demo.flights import FLIGHTS, read_flights, to_line
from blobmsg.demo.job import Arrivals, Job
from blobmsg.demo.oracle import Expectation
from blobmsg.demo.stage import PARTITIONS, RETENTION_MS, ZONES, embedded_stage, real_stage

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from blobmsg.demo.children import Child
    from blobmsg.demo.progress import Progress
    from blobmsg.demo.stage import Stage

__all__ = ["DEFAULT_RATE", "Options", "Outcome", "run_demo"]

#: Records per second of a zone. Three of them are 9 MiB/s, for which the six clients took 5 s of
#: CPU in 12 s on two cores: so latency is the batches' and not that of a full queue.
DEFAULT_RATE: Final = 10_000.0

_WORKER: Final = "blobmsg.demo.worker"
_BEGIN: Final = "blobmsg-demo-"
_READING: Final = "reading flights"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        stack: `mock`: librdkafka's mock cluster and a folder; `real`: brokers and MinIO.
        records: How many.
        rate: Records per second of each zone's producer.
        is_kept: Leave the store's folder there (`mock` only).
        prices: For the bill.
    """

    stack: Literal["mock", "real"] = "mock"
    records: int = FLIGHTS
    rate: float = DEFAULT_RATE
    is_kept: bool = False
    prices: PriceTable = BUILT_IN_PRICES


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a report needs.

    Attributes:
        options: What was asked for.
        kafka: What the records went through.
        store: Likewise.
        payload_bytes: Keys and values of all records.
        settings: Of blobmsg's clients, secrets left out.
        runs: In the order in which they were made.
        plain_bill: Computed, not run: the same records through plain Kafka.
        kept: The store's folder, if it was to be kept.
    """

    options: Options
    kafka: str
    store: str
    payload_bytes: int
    settings: dict[str, Any]
    runs: tuple[RunFigures, ...]
    plain_bill: Bill
    kept: Path | None

    @property
    def holds(self) -> bool:
        """Whether every check of every run does."""
        return all(check.holds for run in self.runs for check in run.checks)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A run to be made."""

    client: Literal["blobmsg", "plain"]
    rate: float
    topic: str

    @property
    def name(self) -> str:
        return f"{self.client}, {f'{self.rate * len(ZONES):,.0f}/s' if self.rate else 'flat out'}"


def run_demo(options: Options, progress: Progress) -> Outcome:
    """Run the demo.

    Raises:
        DemoError: Something broke; the text says what.
        lab.LabError, lab.PartsMissing: There can be no real stack.
        KeyboardInterrupt: Ctrl-C; nothing is left behind.
    """
    kept = Path(tempfile.mkdtemp(prefix=f"{_BEGIN}store-")) if options.is_kept else None
    try:
        with (
            tempfile.TemporaryDirectory(prefix=_BEGIN) as name,
            Children(Path(name)) as children,
        ):
            session = _Session(options, progress, Path(name), children)
            return session.run(kept or Path(name) / "store", kept)
    except BaseException:
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
        raise


class _Session:
    """State of one demo.

    Args:
        options: What was asked for.
        progress: Told how far it is.
        folder: For the records, arrivals and logs.
        children: Its processes.
    """

    def __init__(
        self, options: Options, progress: Progress, folder: Path, children: Children
    ) -> None:
        self._options = options
        self._progress = progress
        self._folder = folder
        self._children = children

    def run(self, store_folder: Path, kept: Path | None) -> Outcome:
        """Make all runs."""
        options = self._options
        expectation = self._prepare()
        plans = self._plans()
        with self._stage(store_folder, [plan.topic for plan in plans]) as stage:
            runs = tuple(self._perform(stage, plan, expectation) for plan in plans)
        self._progress.clear()
        return Outcome(
            options=options,
            kafka=stage.kafka,
            store=stage.store,
            payload_bytes=expectation.payload_bytes,
            settings=_shown_settings(stage.conf),
            runs=runs,
            plain_bill=figures.bill_of_plain(
                payload_bytes=expectation.payload_bytes,
                records=len(expectation),
                retention_ms=RETENTION_MS,
                prices=options.prices,
            ),
            kept=kept,
        )

    def _prepare(self) -> Expectation:
        """Write each producer's records to a file of its own, and note what has to arrive."""
        expectation = Expectation(PARTITIONS)
        total = self._options.records
        with contextlib.ExitStack() as files:
            lines = {zone: files.enter_context(self._records(zone).open("wb")) for zone in ZONES}
            for flight in read_flights(total):
                lines[flight.zone].write(to_line(flight))
                expectation.add(flight)
                if not flight.number % 2000:
                    self._progress.show(_READING, flight.number, total)
        return expectation

    def _records(self, zone: str) -> Path:
        return self._folder / f"records-{zone}"

    def _plans(self) -> list[_Plan]:
        # A stack that runs already has topics of earlier demos in it, maybe.
        suffix = uuid.uuid4().hex[:8]
        rate = self._options.rate
        plans = [_Plan("blobmsg", rate, f"flights-1-{suffix}")]
        if self._options.stack == "real":
            plans += [
                _Plan("plain", rate, f"flights-2-{suffix}"),
                _Plan("blobmsg", 0.0, f"flights-3-{suffix}"),
                _Plan("plain", 0.0, f"flights-4-{suffix}"),
            ]
        return plans

    @contextlib.contextmanager
    def _stage(self, store_folder: Path, topics: Sequence[str]) -> Generator[Stage]:
        if self._options.stack == "real":
            with real_stage(topics, self._children, self._progress.note) as stage:
                yield stage
        else:
            yield embedded_stage(store_folder, self._children, topics)

    def _perform(self, stage: Stage, plan: _Plan, expectation: Expectation) -> RunFigures:
        """Make one run and judge it."""
        before = stage.objects()
        consumers = [self._start_consumer(stage, plan, zone) for zone in ZONES]
        producers = [self._start_producer(stage, plan, zone) for zone in ZONES]
        everyone = [*consumers, *producers]
        counts: dict[Child, int] = dict.fromkeys(everyone, 0)
        started_at = 0.0

        def on_progress(child: Child, message: Mapping[str, Any]) -> None:
            counts[child] = message.get("records", counts[child])
            if started_at:
                self._show(plan, started_at, producers, consumers, counts)

        self._progress.show(plan.name, 0, self._options.records, "starting six processes")
        self._children.wait("ready", everyone, on_progress)
        started_at = time.time()
        for producer in producers:
            producer.say("go")
        sent = self._children.wait("done", producers, on_progress)
        for consumer in consumers:
            consumer.say("drain")
        received = self._children.wait("done", consumers, on_progress)
        self._progress.clear()
        self._children.end(everyone)
        objects = {key: size for key, size in stage.objects().items() if key not in before}
        return self._judge(plan, expectation, started_at, objects, sent, received)

    def _show(
        self,
        plan: _Plan,
        started_at: float,
        producers: Sequence[Child],
        consumers: Sequence[Child],
        counts: Mapping[Child, int],
    ) -> None:
        sent = sum(counts[child] for child in producers)
        received = sum(counts[child] for child in consumers)
        seconds = time.time() - started_at
        self._progress.show(
            plan.name,
            received,
            self._options.records,
            f"sent {sent:,}  received {received:,}  {seconds:.0f} s",
        )

    def _start_producer(self, stage: Stage, plan: _Plan, zone: str) -> Child:
        return self._start(
            f"producer-{zone}",
            Job(
                role="produce",
                client=plan.client,
                conf={
                    **_client_conf(stage, plan, zone),
                    # What BlobProducer does always, so that both sides promise the same.
                    "acks": "all",
                    "enable.idempotence": True,
                },
                topic=plan.topic,
                path=str(self._records(zone)),
                rate=plan.rate,
            ),
        )

    def _start_consumer(self, stage: Stage, plan: _Plan, zone: str) -> Child:
        zones = stage.partition_zones[plan.topic]
        return self._start(
            f"consumer-{zone}",
            Job(
                role="consume",
                client=plan.client,
                conf={
                    **_client_conf(stage, plan, zone),
                    "group.id": plan.topic,
                    "auto.offset.reset": "earliest",
                },
                topic=plan.topic,
                path=str(self._arrivals(zone)),
                partitions=[number for number, reader in enumerate(zones) if reader == zone],
            ),
        )

    def _start(self, name: str, job: Job) -> Child:
        child = self._children.start(name, _WORKER)
        child.say(job.to_json())
        return child

    def _arrivals(self, zone: str) -> Path:
        return self._folder / f"arrivals-{zone}"

    def _judge(
        self,
        plan: _Plan,
        expectation: Expectation,
        started_at: float,
        objects: Mapping[str, int],
        sent: Mapping[str, Mapping[str, Any]],
        received: Mapping[str, Mapping[str, Any]],
    ) -> RunFigures:
        arrivals = [Arrivals.load(self._arrivals(zone)) for zone in ZONES]
        checks = figures.checks_of(
            expectation.judge(arrivals),
            expected=len(expectation),
            keyless=expectation.keyless,
            partition_count=PARTITIONS,
            producers=list(sent.values()),
            consumers=list(received.values()),
        )
        producers, consumers = sent.values(), received.values()
        zones = tuple(_zone(zone, sent, received) for zone in ZONES)
        puts, gets = sum(zone.puts for zone in zones), sum(zone.gets for zone in zones)
        batches = _sum(producers, "batches")
        tx_bytes = sum(message["tx_bytes"] for message in producers)
        if plan.client == "blobmsg":
            put_bytes = sum(zone.put_bytes for zone in zones)
            checks.append(
                figures.check_of_store(objects=objects, batches=batches, put_bytes=put_bytes)
            )
            bill = figures.bill_of_blob(
                puts=puts,
                gets=gets,
                kafka_tx_bytes=tx_bytes,
                gib_hours=figures.stored_gib_hours(objects, int(started_at * 1000)),
                prices=self._options.prices,
            )
        else:
            bill = figures.bill_of_plain(
                payload_bytes=expectation.payload_bytes,
                records=len(expectation),
                retention_ms=RETENTION_MS,
                prices=self._options.prices,
                tx_bytes=tx_bytes,
            )
        return RunFigures(
            client=plan.client,
            rate=plan.rate * len(ZONES),
            records=len(expectation),
            payload_bytes=expectation.payload_bytes,
            send_s=max(message["sent_at"] for message in producers) - started_at,
            produce_s=max(message["finished_at"] for message in producers) - started_at,
            consume_s=max(message["finished_at"] for message in consumers) - started_at,
            latency=Latency.of(arrivals),
            zones=zones,
            batches=batches,
            # The producers' counter has inline segments in it, too.
            notifications=_sum(producers, "notifications"),
            inline_segments=_sum(producers, "inline_segments"),
            plain_records=_sum(producers, "plain_records"),
            producer_tx_bytes=tx_bytes,
            consumer_rx_bytes=sum(message["rx_bytes"] for message in consumers),
            producer_cpu_s=sum(message["cpu_s"] for message in producers),
            consumer_cpu_s=sum(message["cpu_s"] for message in consumers),
            retries=_sum([*producers, *consumers], "retries"),
            checks=tuple(checks),
            bill=bill,
        )


def _client_conf(stage: Stage, plan: _Plan, zone: str) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "bootstrap.servers": stage.bootstrap_servers,
        "client.rack": zone,
        "client.id": f"demo-{zone}",
    }
    return {**conf, **stage.conf} if plan.client == "blobmsg" else conf


def _shown_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    settings, _ = parse_settings(conf, {})
    return {
        "blobmsg.route": settings.route,
        "blobmsg.destination": conf["blobmsg.destination"],
        "blobmsg.batch.size.bytes": settings.batch_size_bytes,
        "blobmsg.batch.interval.ms": settings.batch_interval_ms,
        "blobmsg.compression.type": settings.compression_type,
        "retention.ms": RETENTION_MS,
    }


def _zone(
    zone: str,
    sent: Mapping[str, Mapping[str, Any]],
    received: Mapping[str, Mapping[str, Any]],
) -> ZoneFigures:
    producer, consumer = sent[f"producer-{zone}"], received[f"consumer-{zone}"]
    return ZoneFigures(
        zone=zone,
        sent=producer["records"],
        puts=_sum([producer], "puts"),
        put_bytes=_sum([producer], "put_bytes"),
        received=consumer["records"],
        gets=_sum([consumer], "gets"),
        get_bytes=_sum([consumer], "get_bytes"),
    )


def _sum(messages: Any, counter: str) -> int:
    return sum(message["counters"].get(counter, 0) for message in messages)
