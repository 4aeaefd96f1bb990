"""What a consumer hands out next: records of the core's runs, made into messages, and events.

Decides nothing about order: takes what the debatcher says comes next.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

from blobmsg.core.debatcher import Debatcher, Entry, Run
from blobmsg.interrupts import ctrl_c_waits
from blobmsg.message import Message, make_messages
from blobmsg.undelivered import Gathering, Undelivered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import KafkaError

    from blobmsg.core.debatcher import FlowKey

__all__ = ["Handout"]

# So many messages `poll` makes at a time, most.
_AHEAD_RECORDS: Final = 64


class Handout:
    """The run at hand, and what was taken out of runs and is not the user's yet.

    Args:
        core: Says what comes next.

    Attributes:
        undelivered: What was taken; `poll` takes its first message without a lock.

    Threads: under the consumer's lock, but for `take_ahead`.
    """

    def __init__(self, core: Debatcher) -> None:
        self._core = core
        self.undelivered = Undelivered()  # does not count in positions and commits
        self._run: Run | None = None
        self._loose: deque[Message] = deque()  # errors that belong to no assigned partition
        self._taken = 0  # records, out of runs

    @property
    def has_ready(self) -> bool:
        """Whether there is a record or an event."""
        run = self._run
        return (
            bool(self.undelivered.messages)
            or bool(self._loose)
            or self._core.has_ready
            or (run is not None and run.index < run.end)
        )

    @property
    def records(self) -> int:
        """How many records the user has got since the start."""
        return self._taken - self.undelivered.records()

    def add_errors(self, errors: Iterable[Message]) -> None:
        """Hand these out, too; they belong to no assigned partition, or come before its records."""
        self._loose.extend(errors)

    # --- taking -------------------------------------------------------------------------------

    def read_ahead(self) -> None:
        """If nothing is undelivered, take the next few records of one run, or an event.

        Of one run, so that what they hold in memory stays charged.
        """
        if not self.undelivered.messages:
            self.undelivered.forget_positions()
        while not self.undelivered.messages:
            run = self._run
            if run is not None and run.index < run.end:
                self._take(run, self.undelivered, _AHEAD_RECORDS)
            elif not self._take_next(self.undelivered):
                return

    def fill(self, count: int) -> bool:
        """Take what is ready until so many are undelivered; whether they are."""
        self.undelivered.forget_positions()
        self._take_ready(self.undelivered, max(count, _AHEAD_RECORDS))
        return len(self.undelivered.messages) >= count

    def take_ahead(self, count: int, at_least: int) -> list[Message]:
        """What is there, if it is so much; never waits. Threads: any."""
        messages: list[Message] = []
        if len(self.undelivered.messages) < at_least:
            return messages
        with contextlib.suppress(IndexError):
            while len(messages) < count:
                for message in self.undelivered.pop_each:
                    messages.append(message)
                    break
        return messages

    def gather(self, gathering: Gathering, count: int) -> bool:
        """Gather what is ready, up to so many messages; whether anything was."""
        before = len(gathering.messages)
        with contextlib.suppress(IndexError):
            while len(gathering.messages) < count:
                for message in self.undelivered.pop_each:
                    gathering.messages += (message,)
                    break
        self._take_ready(gathering, count)
        return len(gathering.messages) > before

    def _take_ready(self, target: Gathering | Undelivered, count: int) -> None:
        """Take what the runs have until there are so many messages."""
        while len(target.messages) < count:
            run = self._run
            if run is not None and run.index < run.end:
                self._take(run, target, count - len(target.messages))
            elif not self._take_next(target):
                return

    def _take(self, run: Run, target: Gathering | Undelivered, most: int) -> None:
        """Take the run's next records."""
        start, source = run.index, run.source
        end = min(run.end, start + most)
        flow = run.entry.flow
        place, position = (flow.key, run.position()), flow.position()
        made = make_messages(source.message_class, source, start, end)
        # All or nothing: signal handlers come behind calls, never between the next lines. One may
        # have sought or polled before.
        if self._run is run and run.index == start and end <= run.end:
            target.position_before[place] = position
            target.messages += made
            run.index = end
            self._taken += end - start

    def _take_next(self, target: Gathering | Undelivered) -> bool:
        """Set `_run` to what comes next, or take an event's message; whether there was any."""
        with ctrl_c_waits():
            self._run = None
            if self._loose:
                target.messages.append(self._loose.popleft())
                return True
            upcoming = self._core.next_run()
            if isinstance(upcoming, Run):
                self._run = upcoming
            elif upcoming is not None:
                target.messages.append(self._message_of(upcoming))
            return upcoming is not None

    def _message_of(self, entry: Entry) -> Message:
        if entry.event is not None:
            message: Message = entry.event
            return message
        topic, partition = entry.flow.key
        failure = entry.failure
        if failure is None:
            raise AssertionError("an entry without records, event or failure was handed out")
        error: KafkaError = failure.error
        return Message(
            topic, partition, entry.first_offset(), value=str(error.str()).encode(), error=error
        )

    # --- partitions ---------------------------------------------------------------------------

    def pause(self, key: FlowKey) -> None:
        """Hand out nothing of a partition until `resume`."""
        self.undelivered.pause(key)
        if self._run is not None and self._run.entry.flow.key == key:
            self._run = None

    def resume(self, key: FlowKey) -> None:
        """Hand out what was kept of a partition, before everything else."""
        self.undelivered.resume(key)

    def drop(self, key: FlowKey) -> None:
        """Drop what was taken of a partition, as if nobody had taken it; `seek` ends its runs."""
        before = self.undelivered.positions()
        if key in before:
            self._core.taken_back(key, before[key])
        self._taken -= self.undelivered.drop(key)

    def forget(self, key: FlowKey) -> None:
        """Drop all of a partition that is taken away."""
        self._taken -= self.undelivered.forget(key)
        if self._run is not None and self._run.entry.flow.key == key:
            self._run = None

    def positions(self, keys: Iterable[FlowKey]) -> dict[FlowKey, int | None]:
        """Of those that are assigned, the virtual offset behind the last record the user has got.

        None is that of a partition of which the user has nothing yet.
        """
        before = self.undelivered.positions()
        flows = ((key, self._core.flows.get(key)) for key in keys)
        return {key: before.get(key, flow.position()) for key, flow in flows if flow is not None}
