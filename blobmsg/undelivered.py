"""Messages that were taken out of a consumer's runs and that the user does not have yet.

Decides which of them come next and which wait or go when their partition is paused or taken away;
says from where on a partition's position must stay. Never makes a message.

Ctrl-C and thread switches come behind calls of functions and at the end of loops, nowhere else. So
what leaves here does so within a `for` over `pop_each`, whose step is no call: it is either still
here or the caller has it, without a lock, which would cost a third of a `poll`.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, repeat, starmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from blobmsg.core.flow import FlowKey
    from blobmsg.message import Message

__all__ = ["Gathering", "Undelivered"]


class Gathering:
    """What one `consume` has gathered; not the user's before it returns.

    Attributes:
        messages: In order; added to by `+=`.
        position_before: Of each message that begins a run of consecutive ones, by partition and
            virtual offset: the partition's position when the user has none of them.
    """

    __slots__ = ("messages", "position_before")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.position_before: dict[tuple[FlowKey, int], int | None] = {}


class Undelivered:
    """What `poll` and `consume` hand out first.

    Attributes:
        messages: In order; added to by `+=`, taken from by `pop_each`.
        position_before: As in a Gathering.
        pop_each: Its step gives the first message, which is not here any more; IndexError when
            there is none.

    Threads: `pop_each` any; everything else under the consumer's lock.
    """

    def __init__(self) -> None:
        self.messages: deque[Message]
        self.position_before: dict[tuple[FlowKey, int], int | None] = {}
        # Of all paused partitions, by `_key_of`.
        self._of_paused: dict[tuple[str | None, int | None], list[Message]] = {}
        self._gatherings: list[Gathering] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.messages = deque()
        self.pop_each: Iterator[Message] = starmap(self.messages.popleft, repeat(()))

    def gather(self, gathering: Gathering) -> None:
        """What is in it is not the user's before `gathered`."""
        self._gatherings.append(gathering)

    def gathered(self, gathering: Gathering) -> None:
        """Its messages are the user's, unless `put_back` follows."""
        self._gatherings.remove(gathering)

    def put_back(self, gathering: Gathering) -> None:
        """Its messages come first again, those of paused partitions at their resume."""
        if gathering in self._gatherings:
            self._gatherings.remove(gathering)
        self.position_before.update(gathering.position_before)
        for message in reversed(gathering.messages):
            paused = self._of_paused.get(_key_of(message))
            if paused is None:
                self.messages.appendleft(message)
            else:
                paused.insert(0, message)

    def forget_positions(self) -> None:
        """Drop what nobody asks for any more, when nothing is left to hand out."""
        if self.position_before and not self.messages:
            waiting = {key for key, messages in self._of_paused.items() if messages}
            self._keep_positions(lambda key: key in waiting)

    def _keep_positions(self, is_kept: Callable[[FlowKey], bool]) -> None:
        self.position_before = {
            place: position for place, position in self.position_before.items() if is_kept(place[0])
        }

    def pause(self, key: FlowKey) -> None:
        """Keep a partition's messages until `resume`."""
        self._of_paused.setdefault(key, []).extend(self._take_out(key))

    def resume(self, key: FlowKey) -> None:
        """Hand out what was kept, before everything else."""
        self.messages.extendleft(reversed(self._of_paused.pop(key, [])))

    def drop(self, key: FlowKey) -> int:
        """Drop a partition's messages, those in gatherings included; how many records it were."""
        dropped = self._take_out(key)
        if key in self._of_paused:
            dropped += self._of_paused[key]
            self._of_paused[key] = []
        for gathering in self._gatherings:
            dropped += [message for message in gathering.messages if _key_of(message) == key]
            gathering.messages = deque(m for m in gathering.messages if _key_of(m) != key)
        self._keep_positions(key.__ne__)
        return sum(message.error() is None for message in dropped)

    def forget(self, key: FlowKey) -> int:
        """As `drop`, of a partition that is taken away; it is not paused any more."""
        dropped = self.drop(key)
        self._of_paused.pop(key, None)
        return dropped

    def _take_out(self, key: FlowKey) -> list[Message]:
        if not any(_key_of(message) == key for message in list(self.messages)):
            return []
        old = self.messages
        self._begin_anew()  # from here on nobody takes from the old ones
        self.messages += [message for message in old if _key_of(message) != key]
        return [message for message in old if _key_of(message) == key]

    def positions(self) -> dict[FlowKey, int | None]:
        """Of each partition that has records here, its position: before the first of them.

        None is that of a partition of which the user has nothing yet.
        """
        first: dict[FlowKey, int] = {}
        for message in self._all():
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is None or partition is None or offset is None or message.error() is not None:
                continue  # an event
            key = (topic, partition)
            first[key] = min(offset, first.get(key, offset))
        befores = [*(g.position_before for g in self._gatherings), self.position_before]
        return {
            key: next((b[key, offset] for b in befores if (key, offset) in b), offset)
            for key, offset in first.items()
        }

    def records(self) -> int:
        """How many records are here."""
        return sum(message.error() is None for message in self._all())

    def _all(self) -> Iterable[Message]:
        # Copies, made in one call each: other threads take meanwhile.
        return chain(
            list(self.messages),
            *map(list, self._of_paused.values()),
            *(list(gathering.messages) for gathering in self._gatherings),
        )


def _key_of(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()
