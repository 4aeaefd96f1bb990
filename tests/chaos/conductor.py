"""Runs a schedule of faults against real parts, and says what came of it.

It owns a stack of its own (it kills brokers), a proxy before the store, and the children. After
each step it heals all and waits until everybody has caught up; at the end it lets everybody finish,
reads the log and asks the checker. It waits for what the journals say, with deadlines of minutes,
never for a time; only how long a fault lasts is a time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from blobmsg import lab
from tests.chaos.checker import Violation, check_copies, check_group, check_log
from tests.chaos.child import FATAL
from tests.chaos.children import ChildProcess, Job, Progress, behind, wait_ended
from tests.chaos.history import GroupHistory, WriterHistory, late_calls, transactions_of
from tests.chaos.journal import Journal, read_journal
from tests.chaos.log_reader import read_log
from tests.chaos.recovery import Recovery, check_recoveries
from tests.chaos.store_faults import store_rule
from tests.chaos.watch import Watch
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.stack import heal, restart_in_turn, topic_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.chaos.history import Log
    from tests.chaos.schedule import ChildFault, Step

_MIB: Final = 1 << 20
_PARTITIONS: Final = 6
# librdkafka's shortest session in practice; kills of one group's members are further apart.
_SESSION_MS: Final = 6000
_MESSAGE_TIMEOUT_MS: Final = 60_000
_BUFFER_KIB: Final = 16_384
_PREFETCH_BYTES: Final = 16 * _MIB
_CACHE_BYTES: Final = 16 * _MIB
_QUEUED_KIB: Final = 8192
# A paused broker's connections end after librdkafka's socket.timeout.ms (60 s), and a leader that
# hangs is replaced after its session; then what waited is sent.
_CAUGHT_UP_S: Final = 360.0
_LOOK_EVERY_S: Final = 0.1
_PAUSE_S: Final = 9.0
_CRASHES_AT_MOST: Final = 10
_OURS, _STOCK = "ours", "stock"


class Stuck(Exception):
    """Something that must happen did not."""


@dataclass(slots=True)
class Outcome:
    """What a run came to; see `report`."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    # Of the stock client beside ours, by the same rules: told, and not held against us.
    stock_violations: list[Violation] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    store_faults: Counter[str] = field(default_factory=Counter)
    rss: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    seconds: float = 0.0


class Conductor:
    """One run.

    Args:
        seed: Of chance.
        steps: Of a schedule.
        folder: For journals and logs; empty.
        seconds: No step begins after so long; None: all of them.
        rate: Records a second of each writer.
        say: Told what is done.
    """

    def __init__(
        self,
        seed: int,
        steps: Iterable[Step],
        folder: Path,
        *,
        seconds: float | None = None,
        rate: float = 600.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._rng = random.Random(seed)
        self._steps = steps
        self._folder = folder
        self._seconds = seconds
        self._rate = rate
        self._tell = say
        self._journal = Journal(folder / "conductor.jsonl")
        self._began = time.monotonic()
        self._outcome = Outcome(seed)
        self._watch = Watch()
        self._progress = {_OURS: Progress(), _STOCK: Progress()}
        self._jobs: list[Job] = []
        self._current: dict[str, ChildProcess] = {}
        self._all: list[ChildProcess] = []
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._resume_at: dict[str, float] = {}
        self._healed = threading.Event()
        self._beside = ThreadPoolExecutor(1)
        self._restart: Future[None] | None = None
        self._done: set[str] = set()  # slots that nobody takes any more
        self._crashes = 0
        # Which assignor a group has is chance, too: whole rebalances or cooperative ones.
        self._assignor = self._rng.choice(["range", "cooperative-sticky"])

    def run(self) -> Outcome:
        """Do it all; the servers and children are gone when this returns."""
        with (
            lab.start_stack(f"chaos-{os.getpid()}") as stack,
            FaultProxy(stack.minio.host, stack.minio.port) as proxy,
        ):
            self._stack, self._proxy = stack, proxy
            self._watch.start()
            try:
                self._prepare()
                self._play()
                self._finish()
            except Stuck as stuck:
                self._violation("stuck", str(stuck))
                self._tell_stacks()
            finally:
                self._healed.set()
                self._await_restart()
                for child in self._all:
                    if child.is_alive:
                        child.kill()
                    child.close()
                self._watch.end()
            heal(self._stack)
            self._proxy.rule = None
            self._check()
            self._outcome.store_faults = proxy.faults
        self._outcome.seconds = time.monotonic() - self._began
        return self._outcome

    # --- the play

    def _prepare(self) -> None:
        make_topic = topic_factory({"bootstrap.servers": self._stack.bootstrap_servers})
        self._topics = {
            name: make_topic(_PARTITIONS, name=name) for name in (_OURS, _STOCK, "copies")
        }
        self._jobs = self._all_jobs()
        for job in self._jobs:
            self._start(job)
        self._say(f"assignor: {self._assignor}")
        self._catch_up(Recovery(-1, "start"), need_traffic=True)

    def _play(self) -> None:
        for step in self._steps:
            if self._seconds is not None and time.monotonic() - self._began > self._seconds:
                return
            self._say(str(step))
            self._hurt(step)
            self._heal()
            recovery = Recovery(step.number, str(step))
            self._catch_up(recovery)
            self._outcome.recoveries.append(recovery)
            self._say(
                f"caught up: ours {recovery.ours_s:.1f} s, stock {recovery.stock_s:.1f} s, "
                f"copies {recovery.copied_s:.1f} s"
            )
            if step.zombie is not None:
                self._zombie(step.zombie)

    def _hurt(self, step: Step) -> None:
        begin = time.monotonic()
        self._healed.clear()
        if step.store:
            rng = random.Random(self._rng.random())
            self._proxy.rule = store_rule(step.store, step.probability, rng, self._healed)
            self._count(f"store {step.store} at {step.probability}")
        if step.kafka:
            self._hurt_kafka(step)
        for fault in step.children:
            self._watch_until(begin + fault.at_s)
            self._hurt_child(fault)
        self._watch_until(begin + step.seconds)

    def _hurt_kafka(self, step: Step) -> None:
        action, _, how_many = step.kafka.partition(" ")
        brokers = self._stack.brokers if how_many == "all" else [self._stack.brokers[step.broker]]
        for broker in brokers:
            self._count(f"{action} broker")
            if action == "kill":
                broker.kill()
            elif action == "pause":
                broker.pause()
        if action == "restart":
            self._restart = self._beside.submit(restart_in_turn, brokers)

    def _await_restart(self) -> None:
        restart, self._restart = self._restart, None
        if restart is not None:
            restart.result()

    def _hurt_child(self, fault: ChildFault) -> None:
        # The stock client beside ours gets the same.
        names = [f"{fault.role}-{fault.slot}"]
        if fault.role != "transformer":
            names.append(f"stock-{fault.role}-{fault.slot}")
        for name in names:
            child = self._current.get(name)
            if child is None or child.is_paused or child.is_expected_to_end:
                continue
            self._count(f"{fault.action} {_whose(child)}{fault.role}")
            self._say(f"{fault.action} {child.instance}", quiet=True)
            if fault.action == "kill":
                child.kill()
                self._start(child.job)
            elif fault.action == "pause":
                self._pause(child)
                self._resume_at[child.instance] = time.monotonic() + _PAUSE_S
            else:
                child.end()

    def _pause(self, child: ChildProcess) -> None:
        # Before the signal: this process may stand still between the two, too.
        self._pauses.setdefault(child.instance, []).append((time.monotonic(), 0.0))
        child.pause()

    def _resume(self, child: ChildProcess) -> None:
        child.resume()
        self._resume_at.pop(child.instance, None)
        pauses = self._pauses[child.instance]
        pauses[-1] = (pauses[-1][0], time.monotonic())

    def _heal(self) -> None:
        for child in self._all:
            if child.is_paused:
                self._resume(child)
        self._proxy.rule = None
        self._healed.set()
        self._await_restart()
        heal(self._stack)
        self._say("healed", quiet=True)

    def _zombie(self, slot: int) -> None:
        """A transformer stands still, another takes its place, and then it goes on."""
        old = self._current[f"transformer-{slot}"]
        # Before its first transaction it is no zombie: it would fence the one in its place.
        self._wait(
            lambda: [] if old.events["committed"] or not old.is_alive else ["no commit"],
            f"{old.instance}, a zombie to be, commits",
        )
        if not old.is_alive:
            return
        self._say(f"zombie: {old.instance}")
        old.is_expected_to_end = True
        self._pause(old)
        new = self._start(old.job)
        self._wait(
            lambda: [] if new.events["committed"] else ["no commit"],
            f"{new.instance}, in the place of {old.instance}, commits",
        )
        self._resume(old)
        self._wait(lambda: [] if not old.is_alive else ["alive"], f"{old.instance} is fenced")
        self._observe()  # its last words
        if old.events["fatal"]:
            self._count("zombie")
        elif old.events["gave_up"]:  # a call had hung before, so it never met Kafka again
            self._say_it_made_way(old)
        else:
            self._violation("crashed", f"{old.instance} was no zombie: {old.last_words()}")

    def _finish(self) -> None:
        """Writers end first; when the rest has caught up with what they wrote it ends, too."""
        self._say("finishing")
        self._end([child for child in self._current.values() if child.job.role == "writer"])
        for lane, progress in self._progress.items():
            goal = dict(progress.delivered)
            self._wait(partial(behind, progress.received, goal), f"all is read: {lane}")
        goal = dict(self._progress[_OURS].delivered)
        self._wait(lambda: behind(self._progress[_OURS].copied, goal), "all is copied")
        self._end([child for child in self._current.values() if child.job.role != "writer"])

    def _end(self, children: list[ChildProcess]) -> None:
        self._done |= {child.job.name for child in children}
        for child in children:
            child.end()
        for child in children:
            if not wait_ended(child):
                raise Stuck(f"{child.instance} does not end")
            is_in_order = child.process.returncode == 0 or _has_made_way(child)
            if not is_in_order and not _was_deaf(child):
                self._violation("crashed", f"{child.instance}: {child.last_words()}")
        self._observe()

    # --- waiting

    def _catch_up(self, recovery: Recovery, *, need_traffic: bool = False) -> None:
        began = time.monotonic()
        self._observe()
        goals = {lane: self._asked(lane) for lane in (_OURS, _STOCK)}
        stages = dict.fromkeys((_OURS, _STOCK), 0)
        read_goals: dict[str, dict[Any, int]] = {}

        def late() -> list[str]:
            found: list[str] = []
            for lane, progress in self._progress.items():
                if need_traffic and not progress.received:
                    found.append(f"{lane}: nothing read yet")
                    continue
                if stages[lane] == 0:
                    alive = {k: v for k, v in goals[lane].items() if self._is_current(k[0])}
                    missing = behind(progress.reported, alive)
                    found += missing
                    if not missing:
                        stages[lane] = 1
                        read_goals[lane] = dict(progress.delivered)
                if stages[lane] == 1:
                    missing = behind(progress.received, read_goals[lane])
                    found += missing
                    if not missing:
                        stages[lane] = 2
                        took = time.monotonic() - began
                        setattr(recovery, f"{lane}_s", took)
            return found

        self._wait(late, "caught up")
        copy_goal = read_goals[_OURS]
        self._wait(lambda: behind(self._progress[_OURS].copied, copy_goal), "copies caught up")
        recovery.copied_s = time.monotonic() - began

    def _asked(self, lane: str) -> dict[Any, int]:
        asked = self._progress[lane].asked
        return {key: last for key, last in asked.items() if self._is_current(key[0])}

    def _is_current(self, instance: str) -> bool:
        child = self._current.get(instance.rpartition(".")[0])
        return child is not None and child.instance == instance and child.is_alive

    def _wait(self, late: Callable[[], list[str]], what: str) -> None:
        deadline = time.monotonic() + _CAUGHT_UP_S
        while True:
            self._observe()
            missing = late()
            if not missing:
                return
            if time.monotonic() > deadline:
                raise Stuck(f"not within {_CAUGHT_UP_S:.0f} s: {what}: {missing[:6]}")
            self._tick()

    def _watch_until(self, moment: float) -> None:
        while time.monotonic() < moment:
            self._observe()
            self._tick()

    def _tick(self) -> None:
        # The journals are files of others: there is no event to wait for.
        threading.Event().wait(_LOOK_EVERY_S)

    def _observe(self) -> None:
        """Take in what children have told; begin anew those that have ended."""
        for child in self._all:
            for event in child.tail.more():
                child.events[event["event"]] += 1
                if event["event"] == "constructed":
                    child.constructed_rss = event["rss"]
                self._progress[child.job.lane].take(child, event)
        now = time.monotonic()
        for child in list(self._current.values()):
            if child.is_paused and now > self._resume_at.get(child.instance, now + 1):
                self._resume(child)
            if child.is_alive or child.job.name in self._done:
                continue
            self._judge_end(child)
            self._start(child.job)

    def _judge_end(self, child: ChildProcess) -> None:
        code = child.process.returncode
        if _has_made_way(child):
            self._say_it_made_way(child)
        elif _was_deaf(child):
            self._say(f"{child.instance} was told to end before it could listen")
        elif code != 0 or not child.is_expected_to_end:
            self._violation("crashed", f"{child.instance} ended with {code}: {child.last_words()}")
            self._crashes += 1
            if self._crashes > _CRASHES_AT_MOST:
                raise Stuck("one crash after the other")

    def _say_it_made_way(self, child: ChildProcess) -> None:
        self._count(f"{_whose(child)}{child.job.role}s that made way for another")
        self._say(f"{child.instance} made way for another")

    # --- the children

    def _start(self, job: Job) -> ChildProcess:
        incarnation = sum(child.job.name == job.name for child in self._all) + 1
        child = ChildProcess(job, incarnation, self._folder)
        self._all.append(child)
        self._current[job.name] = child
        self._watch.children = tuple(self._current.values())
        return child

    def _all_jobs(self) -> list[Job]:
        through_proxy = {
            **self._stack.conf("chaos"),
            "blobmsg.s3.endpoint.url": self._proxy.url,
            "blobmsg.batch.interval.ms": 300,
        }
        kafka = {"bootstrap.servers": self._stack.bootstrap_servers}
        writer = {
            "message.timeout.ms": _MESSAGE_TIMEOUT_MS,
            "queue.buffering.max.kbytes": _BUFFER_KIB,
            "enable.idempotence": True,
        }
        member = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": _SESSION_MS,
            "partition.assignment.strategy": self._assignor,
            "queued.max.messages.kbytes": _QUEUED_KIB,
        }
        ours = {
            **through_proxy,
            **member,
            "blobmsg.prefetch.max.bytes": _PREFETCH_BYTES,
        }
        reads = _PREFETCH_BYTES + _QUEUED_KIB * 1024
        writes = _BUFFER_KIB * 1024
        jobs: list[Job] = []
        for slot in range(2):
            # One by cost, which leaves much with Kafka, and one always by way of the store; one
            # that reads everything from the store, and one with a cache.
            route = {"blobmsg.route": "auto" if slot else "blob"}
            cache = _CACHE_BYTES if slot else 0
            write = {"topic": self._topics[_OURS], "partitions": _PARTITIONS, "rate": self._rate}
            conf = {**through_proxy, **writer, **route}
            jobs.append(
                Job(
                    f"writer-{slot}",
                    "writer",
                    {**write, "conf": conf, "stock": False},
                    writes,
                    _OURS,
                )
            )
            conf = {**ours, "group.id": "readers", "blobmsg.cache.memory.bytes": cache}
            read = {"topic": self._topics[_OURS], "conf": conf, "stock": False}
            jobs.append(Job(f"reader-{slot}", "reader", read, reads + cache, _OURS))
            conf = {**ours, "group.id": "copiers", "blobmsg.cache.memory.bytes": cache}
            transactional = {
                **through_proxy,
                **route,
                "transactional.id": f"copier-{slot}",
                "queue.buffering.max.kbytes": _BUFFER_KIB,
                "transaction.timeout.ms": _MESSAGE_TIMEOUT_MS,
            }
            copy = {
                "topic": self._topics[_OURS],
                "to": self._topics["copies"],
                "conf": conf,
                "producer_conf": transactional,
                "stock": False,
            }
            jobs.append(
                Job(f"transformer-{slot}", "transformer", copy, reads + cache + writes, _OURS)
            )
            # As many of stock's, or a kill would mean another thing for them.
            write = {"topic": self._topics[_STOCK], "partitions": _PARTITIONS}
            conf = {**kafka, **writer}
            plan = {**write, "rate": self._rate / 8, "conf": conf, "stock": True}
            jobs.append(Job(f"stock-writer-{slot}", "writer", plan, writes, _STOCK))
            conf = {**kafka, **member, "group.id": "stock-readers"}
            read = {"topic": self._topics[_STOCK], "conf": conf, "stock": True}
            jobs.append(Job(f"stock-reader-{slot}", "reader", read, _QUEUED_KIB * 1024, _STOCK))
        return jobs

    # --- the judgement

    def _check(self) -> None:
        self._say("reading the log")
        journals = {child.instance: read_journal(child.journal) for child in self._all}
        conf = self._stack.conf("chaos")
        kafka = {"bootstrap.servers": self._stack.bootstrap_servers}
        originals = self._read(conf, _OURS, is_stock=False)
        stock = self._read(kafka, _STOCK, is_stock=True)
        copies = self._read(conf, "copies", is_stock=False)
        everything = self._read(conf, "copies", is_stock=False, isolation="read_uncommitted")
        found = self._check_lane(_OURS, originals, journals)
        self._outcome.stock_violations += self._check_lane(_STOCK, stock, journals)
        transactions = [
            transaction
            for child in self._all
            if child.job.role == "transformer"
            for transaction in transactions_of(journals[child.instance])
        ]
        found += check_copies("copies", transactions, originals, copies)
        found += [Violation("corrupt", f"copies, uncommitted: {at}") for at in everything.corrupt]
        if everything.count < copies.count:
            text = f"copies: {copies.count} committed of {everything.count} records"
            found.append(Violation("phantom", text))
        found += self._check_memory()
        for child in self._all:
            # Waiting for the machine is not the client's; nor is standing still by SIGSTOP.
            excused = [*self._pauses.get(child.instance, []), *self._watch.stalls]
            late = late_calls(child.instance, journals[child.instance], excused)
            is_ours = child.job.lane == _OURS
            to = found if is_ours else self._outcome.stock_violations
            to += [Violation("late", text) for text in late]
        found += check_recoveries(self._outcome.recoveries)
        self._outcome.violations += found
        counts = self._outcome.counts
        counts["records in the log"] = originals.count
        counts["records of stock"] = stock.count
        counts["records copied exactly once"] = copies.count
        counts["copies that were not committed"] = everything.count - copies.count
        for transaction in transactions:
            counts[f"transactions {transaction.outcome}"] += 1
        counts["stalls of the machine"] = len(self._watch.stalls)
        for child in self._all:
            lane = _whose(child)
            for event in journals[child.instance]:
                if event["event"] == "reported":
                    for _, first, last, code, _ in event["runs"]:
                        outcome = f"failed ({code})" if code else "delivered"
                        counts[f"{lane}records {outcome}"] += last - first + 1
                elif event["event"] == "error":
                    counts[f"{lane}errors to readers: {event['name']}"] += 1

    def _read(
        self, conf: dict[str, Any], name: str, *, is_stock: bool, isolation: str = "read_committed"
    ) -> Log:
        topic = self._topics[name]
        return read_log(conf, topic, _PARTITIONS, is_stock=is_stock, isolation=isolation)

    def _check_lane(
        self, lane: str, log: Log, journals: dict[str, list[dict[str, Any]]]
    ) -> list[Violation]:
        children = [child for child in self._all if child.job.lane == lane]
        writers = [
            WriterHistory.of(child.instance, journals[child.instance])
            for child in children
            if child.job.role == "writer"
        ]
        group = GroupHistory()
        for child in children:
            if child.job.role == "reader":
                group.add(child.instance, journals[child.instance])
        return [*check_log(lane, writers, log), *check_group(lane, group, log)]

    def _check_memory(self) -> list[Violation]:
        found: list[Violation] = []
        for child in self._all:
            most = self._watch.rss_bytes.get(child.instance, 0)
            if not child.constructed_rss or not most:
                continue
            allowed = child.constructed_rss + child.job.limits_bytes + 50 * _MIB
            self._outcome.rss[child.instance] = (most, child.constructed_rss, allowed)
            if most > allowed and child.job.lane == _OURS:
                text = f"{child.instance}: {most // _MIB} of {allowed // _MIB} MiB"
                found.append(Violation("memory", text))
        return found

    # --- telling

    def _say(self, text: str, *, quiet: bool = False) -> None:
        self._journal.write("conductor", text=text)
        if not quiet:
            self._tell(f"{time.monotonic() - self._began:7.1f} s  {text}")

    def _count(self, what: str) -> None:
        self._outcome.counts[what] += 1

    def _violation(self, kind: str, text: str) -> None:
        self._say(f"{kind}: {text}")
        self._outcome.violations.append(Violation(kind, text))

    def _tell_stacks(self) -> None:
        for child in self._current.values():
            child.tell_stacks()
        # Nothing tells when they have been written.
        threading.Event().wait(2.0)


def _whose(child: ChildProcess) -> str:
    """What counts of stock's children begin with."""
    return "stock " if child.job.lane == _STOCK else ""


def _has_made_way(child: ChildProcess) -> bool:
    """Whether it ended by a fatal error, as a transformer may; those of stock are stock's."""
    may = child.job.role == "transformer" or child.job.lane == _STOCK
    return may and child.process.returncode == FATAL


def _was_deaf(child: ChildProcess) -> bool:
    """Whether it was told to end before it could listen."""
    return child.process.returncode == -signal.SIGTERM and not child.events["constructed"]
