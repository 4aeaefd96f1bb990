"""Whether a partition's position is really gone, when Kafka's client begins elsewhere.

librdkafka resets a position by `auto.offset.reset` as soon as one broker answers that it does not
exist. A broker that has stood still and does not know yet that another one leads the partition says
so of all that was written meanwhile, and to believe it reads everything again, or skips what is
unread. So the inner client begins at the log's start (`inner_offset_reset`), which shows: what it
brings lies before the position. That is dropped, and the client sent back, until the position is
there after all. If brokers have gone on to say otherwise for `_PATIENCE_MS`, the user's
`auto.offset.reset` decides. Silence says nothing: the partition may be paused, or have no leader.

Decides that, by offsets of Kafka's log; never seeks itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.core.flow import Flow, FlowKey

__all__ = ["EARLIEST", "LATEST", "Resets", "Restart", "inner_offset_reset"]

# Longer than a broker needs that goes on, to hear who leads.
_PATIENCE_MS: Final = 5000
_AGAIN_MS: Final = 250

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def inner_offset_reset(policy: str) -> str:
    """The inner client's `auto.offset.reset` for the user's: one that shows."""
    return EARLIEST if policy == LATEST else policy


class Restart(NamedTuple):
    """Where the inner client is to go on.

    Attributes:
        flow: Which partition.
        kafka_offset: The position that it was sent to before; None: it does not exist, the user's
            `auto.offset.reset` says where.
    """

    flow: Flow
    kafka_offset: int | None


class _Doubt:
    """Of a flow whose client has begun elsewhere."""

    __slots__ = (
        "again_ms",
        "generation",
        "heard_ms",
        "is_gone",
        "is_sent_back",
        "is_told",
        "since_ms",
    )

    def __init__(self, flow: Flow) -> None:
        self.generation = flow.generation
        self.is_gone = False  # Kafka has deleted the position: no need to try again
        self.is_told = False  # something came since `due` asked last
        self.is_sent_back = False  # since something came
        self.since_ms = 0
        self.heard_ms = -_PATIENCE_MS  # so the first time is behind a long silence
        self.again_ms = 0

    def hear(self, now_ms: int) -> None:
        """Note that something came; behind a long silence this is the first time."""
        self.is_told = self.is_sent_back = False
        if now_ms - self.heard_ms >= _PATIENCE_MS:
            self.since_ms = now_ms
        self.heard_ms = now_ms

    @property
    def is_believed(self) -> bool:
        """Whether it was heard of for long enough."""
        return self.is_gone or self.heard_ms - self.since_ms >= _PATIENCE_MS


class Resets:
    """The flows whose client has begun elsewhere.

    Args:
        policy: The user's `auto.offset.reset`: `earliest`, `latest` or `error`.
        log_start: The first offset that Kafka still has of a partition, negative: not known. Asked
            for behind gaps alone.

    Attributes:
        policy: As above.

    Threads: under the consumer's lock.
    """

    def __init__(self, policy: str, log_start: Callable[[FlowKey], int]) -> None:
        self.policy = policy
        self._log_start = log_start
        self._doubts: dict[Flow, _Doubt] = {}

    def is_in_place(self, flow: Flow, kafka_offset: int) -> bool:
        """Whether a message that came, or the partition's end, follows what came before.

        Args:
            flow: Its partition; `next_offset` is set by whoever has taken the message.
            kafka_offset: Where it lies; of an end, that of the next record.

        Returns:
            False: it is to be dropped.
        """
        expected = flow.next_offset
        if expected is not None and kafka_offset != expected:
            if kafka_offset < expected:
                self._doubt(flow, is_gone=False)
                return False
            # A gap: markers of transactions, what was compacted; or Kafka has deleted the position.
            if self.policy == LATEST and expected < self._log_start(flow.key) <= kafka_offset:
                self._doubt(flow, is_gone=True)
                return False
        if self._doubts:
            self._doubts.pop(flow, None)
        return True

    def _doubt(self, flow: Flow, *, is_gone: bool) -> None:
        doubt = self._doubts.get(flow)
        if doubt is None or doubt.generation != flow.generation:
            doubt = self._doubts[flow] = _Doubt(flow)
        doubt.is_gone |= is_gone
        doubt.is_told = True

    def due(self, now_ms: int) -> list[Restart]:
        """Where the inner client is to be sent now; `restarted` follows when it was."""
        due: list[Restart] = []
        for flow, doubt in list(self._doubts.items()):
            if doubt.generation != flow.generation:  # given up, or sent elsewhere by the user
                del self._doubts[flow]
                continue
            if doubt.is_told:
                doubt.hear(now_ms)
            if doubt.is_sent_back:
                continue
            if doubt.is_believed:
                due.append(Restart(flow, None))
            elif now_ms >= doubt.again_ms:
                doubt.again_ms = now_ms + _AGAIN_MS
                due.append(Restart(flow, flow.next_offset))
        return due

    def restarted(self, restart: Restart) -> None:
        """The inner client was sent there."""
        flow = restart.flow
        if restart.kafka_offset is None:
            self._doubts.pop(flow, None)
            flow.next_offset = flow.needed_position = None
        else:
            self._doubts[flow].is_sent_back = True
