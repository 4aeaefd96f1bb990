"""The histories of the topics that one run writes: where they end, and what is added to them.

Decides which topic a history may belong to, and the order of commits; how one is committed stands
in `history_log`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from blobmsg.errors import BlobmsgError
from blobmsg_spark.history_log import HistoryLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from blobmsg_spark.history_manifest import HistoryFile
    from blobmsg_spark.history_store import HistoryPlace
    from blobmsg_spark.offset_ranges import Key, Offsets
    from blobmsg_spark.topic_log import TopicLog

__all__ = ["Addition", "Histories"]


@dataclass(frozen=True, slots=True)
class Addition:
    """What one run added to the history of a topic.

    Attributes:
        topic: Which.
        manifest: The number of its manifest.
        files: How many; 0 where all that was new are aborted records.
        records: In them.
        size_bytes: Of them.
    """

    topic: str
    manifest: int
    files: int
    records: int
    size_bytes: int


class Histories:
    """Histories of some topics in one store.

    Args:
        place: The store.

    Threads: one.
    """

    def __init__(self, place: HistoryPlace) -> None:
        self._opened = place.open()
        self._logs: dict[str, HistoryLog] = {}
        self._topic_ids: dict[str, str] = {}

    def look(self, log: TopicLog, keys: Collection[Key]) -> dict[Key, int]:
        """Where the histories of these partitions end now; those without one are left out.

        Raises:
            BlobmsgError: A topic is another one than its history's, a manifest is damaged, or
                Kafka or the store refuses or does not answer.
        """
        topics = {topic for topic, _ in keys}
        if topics:  # each time: a topic may be made anew while a query runs
            self._topic_ids |= log.topic_ids(topics)
        ends: dict[Key, int] = {}
        for topic in sorted(topics):
            history = self._logs.setdefault(topic, HistoryLog(self._opened, topic))
            history.refresh()
            self._check_id(history)
            ends |= {
                (topic, partition): end
                for partition, end in history.ends.items()
                if (topic, partition) in keys
            }
        return ends

    def last_run(self, topic: str) -> str | None:
        """Who has written the newest manifest that was seen of a topic."""
        history = self._logs.get(topic)
        return None if history is None or history.newest is None else history.newest.run

    def commit(
        self, run: str, files: Mapping[str, list[HistoryFile]], ends: Offsets
    ) -> list[Addition]:
        """Make files visible, topic by topic.

        A run that ends between two topics has written the ones before: the next one goes on from
        there.

        Args:
            run: Who wrote them.
            files: By topic.
            ends: Where the histories end with them.

        Raises:
            BlobmsgError: Another run has committed meanwhile; what was added before, it says.
        """
        done: list[Addition] = []
        for topic in sorted({topic for topic, _ in ends}):
            own = {partition: end for (name, partition), end in ends.items() if name == topic}
            new = files.get(topic, [])
            try:
                manifest = self._logs[topic].commit(run, self._topic_ids[topic], own, new)
            except BlobmsgError as error:
                if done:
                    names = ", ".join(addition.topic for addition in done)
                    error.add_note(f"what is new of {names} is written; the rest is not")
                raise
            done.append(
                Addition(
                    topic=topic,
                    manifest=manifest.number,
                    files=len(new),
                    records=sum(file.records for file in new),
                    size_bytes=sum(file.size_bytes for file in new),
                )
            )
        return done

    def _check_id(self, history: HistoryLog) -> None:
        newest = history.newest
        topic_id = self._topic_ids[history.topic]
        if newest is not None and newest.topic_id != topic_id:
            raise BlobmsgError(
                f"the history of {history.topic} in {self._opened.store.describe()} is of a topic "
                f"with the id {newest.topic_id}, Kafka's has {topic_id}: the topic was deleted and "
                "made anew, or is of another cluster, so its offsets mean other records; write it "
                "to another place (to=…), or delete the old history if nobody needs it",
                code=KafkaError._CONFLICT,
                topic=history.topic,
            )
