"""What a worker is told and what it tells, as JSON lines over its standard input and output.

In: the job, then `go`, then (to a consumer, when all is sent) `drain`. End of input means that
whoever started it is gone, and the worker ends at once.
Out: `ready`, `progress` now and then, and `done` with figures, or `failed` with the reason.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UNREADABLE", "Arrivals", "Job"]

#: Stands for the id of a value that has none.
UNREADABLE: Final = 0


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to do.

    Attributes:
        role: Send records or receive them.
        client: `blobmsg` for the drop-in, `plain` for the stock class.
        conf: Settings of the client.
        topic: Where to.
        path: A producer's records; where a consumer leaves what arrived.
        rate: Records per second that a producer sends; 0: as many as it can.
        partitions: What a consumer reads.
    """

    role: Literal["produce", "consume"]
    client: Literal["blobmsg", "plain"]
    conf: dict[str, Any] = field(repr=False)  # has the store's secret
    topic: str
    path: str
    rate: float = 0.0
    partitions: list[int] = field(default_factory=list[int])

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Job:
        """Read what `to_json` wrote."""
        return cls(**json.loads(line))


@dataclass(slots=True)
class Arrivals:
    """What a consumer received, in columns, in the order of its arrival.

    Attributes:
        numbers: `id` of the document, or `UNREADABLE`.
        partitions: Where it came from.
        digests: `oracle.digest_of` key and value.
        latencies_ms: From `produce` (the record's timestamp) to the return of `poll`.
    """

    numbers: array[int] = field(default_factory=lambda: array("q"))
    partitions: array[int] = field(default_factory=lambda: array("q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    latencies_ms: array[int] = field(default_factory=lambda: array("q"))

    def columns(self) -> tuple[array[int], ...]:
        """All of them, in the order of the file."""
        return (self.numbers, self.partitions, self.digests, self.latencies_ms)

    def save(self, path: Path) -> None:
        """Write them one after the other."""
        with path.open("wb") as file:
            for column in self.columns():
                column.tofile(file)

    @classmethod
    def load(cls, path: Path) -> Arrivals:
        """Read what `save` wrote."""
        arrivals = cls()
        with path.open("rb") as file:
            columns = arrivals.columns()
            count = path.stat().st_size // sum(column.itemsize for column in columns)
            for column in columns:
                column.fromfile(file, count)
        return arrivals
