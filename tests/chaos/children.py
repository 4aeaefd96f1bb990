"""Child processes, and how far they are: what the conductor knows while a run goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.journal import JournalTail

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPOSITORY = Path(__file__).parents[2]
_END_S = 150.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a slot's processes do.

    Attributes:
        name: Of the slot, for example `writer-0`.
        role: `writer`, `reader` or `transformer`; the module that is run.
        plan: For the child, without `instance` and `journal`.
        limits_bytes: What its settings allow it to hold.
        lane: Which topic it belongs to: `ours` or `stock`.
    """

    name: str
    role: str
    plan: Mapping[str, Any]
    limits_bytes: int
    lane: str


class ChildProcess:
    """One process of a slot.

    Args:
        job: What it does.
        incarnation: Which of the slot's processes it is, from 1.
        folder: For its journal and its log.
    """

    def __init__(self, job: Job, incarnation: int, folder: Path) -> None:
        self.job = job
        self.instance = f"{job.name}.{incarnation}"
        self.journal = folder / f"{self.instance}.jsonl"
        self.log = folder / f"{self.instance}.log"
        self.tail = JournalTail(self.journal)
        self.is_expected_to_end = False
        self.is_paused = False
        self.constructed_rss = 0
        self.events: Counter[str] = Counter()
        plan = {**job.plan, "instance": self.instance, "journal": str(self.journal)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.chaos.{job.role}", json.dumps(plan)],
                cwd=_REPOSITORY,
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=log,
                stderr=log,
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.is_expected_to_end = True
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Let go of its standard input, which ends it if it has not ended."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """SIGTERM: close, then end."""
        self.is_expected_to_end = True
        self.process.send_signal(signal.SIGTERM)

    def tell_stacks(self) -> None:
        """Let it write all threads' stacks to its log."""
        if self.is_alive:
            self.process.send_signal(signal.SIGUSR1)

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def rss_bytes(self) -> int:
        """What it has in memory now; 0 when it has ended."""
        try:
            fields = Path(f"/proc/{self.process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        for line in fields.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0


Key = tuple[str, int]  # instance, partition


@dataclass(slots=True)
class Progress:
    """How far one topic's writers and readers are, from their journals.

    Attributes:
        asked: The highest number that each writer may have produced, by partition.
        reported: The highest that it was told of.
        delivered: The highest that was delivered.
        received: The highest that a reader got.
        copied: The highest in a transaction that was committed.
        unsure: By partition, what is in transactions that nobody knows the end of yet: a place in
            the log, and a writer's number there. A transformer that is killed while it commits
            tells no more.
    """

    asked: dict[Key, int] = field(default_factory=dict)
    reported: dict[Key, int] = field(default_factory=dict)
    delivered: dict[Key, int] = field(default_factory=dict)
    received: dict[Key, int] = field(default_factory=dict)
    copied: dict[Key, int] = field(default_factory=dict)
    unsure: dict[str, list[tuple[int, str, int]]] = field(default_factory=dict)

    def take(self, child: ChildProcess, event: Mapping[str, Any]) -> None:
        """One line of a journal."""
        match event["event"]:
            case "asking":
                self.asked[child.instance, event["p"]] = event["last"]
            case "refused":
                self.asked[child.instance, event["p"]] = event["first"] - 1
            case "reported":
                for partition, _, last, code, _ in event["runs"]:
                    _raise(self.reported, (child.instance, partition), last)
                    if code == 0:
                        _raise(self.delivered, (child.instance, partition), last)
            case "received":
                _raise_all(self.received, event["runs"])
            case "committing" if "runs" in event:
                for partition, runs in event["runs"].items():
                    self.unsure.setdefault(partition, []).extend(
                        (offset, instance, last) for _, instance, _, last, offset in runs
                    )
            case "committed" if "runs" in event:
                _raise_all(self.copied, event["runs"])
                for partition, runs in event["runs"].items():
                    self._settle(partition, max(run[-1] for run in runs))
            case _:
                pass

    def _settle(self, partition: str, committed_offset: int) -> None:
        """Transactions follow each other in the log: what lies before a committed one is copied."""
        unsure = self.unsure.get(partition, [])
        for offset, instance, last in unsure:
            if offset <= committed_offset:
                _raise(self.copied, (instance, int(partition)), last)
        self.unsure[partition] = [one for one in unsure if one[0] > committed_offset]


def _raise_all(levels: dict[Key, int], runs: Mapping[str, list[list[Any]]]) -> None:
    for text, of_partition in runs.items():
        for _, instance, _, last, _ in of_partition:
            _raise(levels, (instance, int(text)), last)


def _raise(levels: dict[Key, int], key: Key, level: int) -> None:
    levels[key] = max(level, levels.get(key, -1))


def behind(levels: Mapping[Key, int], goal: Mapping[Key, int]) -> list[str]:
    """Who has not reached a goal yet."""
    return [
        f"{instance} [{partition}]: {levels.get((instance, partition), -1)} of {wanted}"
        for (instance, partition), wanted in goal.items()
        if levels.get((instance, partition), -1) < wanted
    ]


def wait_ended(child: ChildProcess) -> bool:
    """Whether a child that was told to end has ended, within minutes."""
    deadline = time.monotonic() + _END_S
    try:
        child.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
