"""A line that tells how far the exchanges are, as Spark's own console progress does for stages.

Decides what the line says and when it is drawn. On a terminal it is drawn over and over in its
place and wiped away in the end; elsewhere there is a line of its own now and then, as in a log.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark import StatusTracker

    from blobmsg_spark.usage import ExchangeUsage, StageUsage

    Usages = Mapping[str, ExchangeUsage]

__all__ = ["Progress", "StageProgress", "progress_line"]

logger = logging.getLogger("blobmsg.spark")

# Spark's own draws five times a second; each look asks the JVM, though only while a stage runs.
_LOOK_EVERY_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0
_MIB: Final = 1 << 20
_LEAST_BAR: Final = 5


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage is.

    Attributes:
        name: Of the exchange, with its side.
        done: Tasks that have ended.
        running: Tasks that run.
        tasks: All.
        moved_bytes: What went to or came from the store, of tasks that have ended.
    """

    name: str
    done: int
    running: int
    tasks: int
    moved_bytes: int

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it is left."""
        return self.done >= self.tasks

    def text(self, width: int) -> str:
        """It in at most so many characters, as long as these are not very few."""
        before = f"[{self.name}:"
        after = (
            f"({self.done} + {self.running}) / {self.tasks}, {self.moved_bytes / _MIB:,.0f} MiB]"
        )
        room = max(width - len(before) - len(after), _LEAST_BAR)
        filled = room * self.done // max(self.tasks, 1)
        bar = "=" * filled + ">" if filled < room else "=" * room
        return f"{before}{bar.ljust(room)}{after}"


def progress_line(stages: Sequence[StageProgress], width: int) -> str:
    """All stages beside each other."""
    if not stages:
        return ""
    return "".join(stage.text(width // len(stages)) for stage in stages)


class Progress:
    """Draws until it is stopped.

    Args:
        usages: Gives the usage of every exchange, by its name.
        tracker: Knows how many tasks a stage has.
        stream: Where to.

    Threads: any; a thread of its own draws.
    """

    def __init__(
        self, usages: Callable[[], Usages], tracker: StatusTracker, stream: TextIO
    ) -> None:
        self._usages = usages
        self._tracker = tracker
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._finished: set[int] = set()
        self._drawn = ""
        self._line_s = time.monotonic()
        self._stopped = threading.Event()
        # A daemon: it must not keep Python from ending.
        self._thread = threading.Thread(target=self._run, name="blobmsg-progress", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Wipe the line away and end; returns when it has. A second call does nothing."""
        self._stopped.set()
        self._thread.join()

    def look(self) -> None:
        """Draw once. Threads: the own one; tests without it."""
        running, finished = self._stages()
        if self._is_terminal:
            self._draw(progress_line(running, shutil.get_terminal_size().columns - 1))
            return
        now_s = time.monotonic()
        is_due = now_s - self._line_s >= _LINE_EVERY_S
        if is_due:
            self._line_s = now_s
        for stage in [*finished, *(running if is_due else ())]:
            self._stream.write(f"{stage.text(72)}\n")
        self._stream.flush()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_LOOK_EVERY_S):
                self.look()
            if not self._is_terminal:
                self.look()  # a short job has ended between two looks
        except (Py4JError, OSError, ValueError) as error:
            # The session has ended, or somebody has closed the stream: nobody looks any more.
            logger.debug("no further progress is shown: %s", error)
        with contextlib.suppress(OSError, ValueError):  # the stream is closed: nothing to wipe
            self._draw("")

    def _stages(self) -> tuple[list[StageProgress], list[StageProgress]]:
        """Those that run and those that have ended since the last look."""
        running: list[StageProgress] = []
        finished: list[StageProgress] = []
        for name, usage in self._usages().items():
            for side, ids, done in (
                ("map", usage.map_stages, usage.map),
                ("reduce", usage.reduce_stages, usage.reduce),
            ):
                # Only the newest: another action runs the stage again, under another number.
                number = max(ids, default=None)
                if number is None or number in self._finished:
                    continue
                stage = self._ask(f"{name} {side}", number, done)
                if stage is None or stage.is_finished:
                    self._finished.add(number)
                if stage is not None:
                    (finished if stage.is_finished else running).append(stage)
        return running, finished

    def _ask(self, name: str, number: int, usage: StageUsage) -> StageProgress | None:
        """None when Spark has forgotten the stage."""
        info = self._tracker.getStageInfo(number)
        if info is None:
            return None
        moved_bytes = usage.put_bytes + usage.get_bytes
        return StageProgress(
            name, info.numCompletedTasks, info.numActiveTasks, info.numTasks, moved_bytes
        )

    def _draw(self, line: str) -> None:
        if line == self._drawn or not self._is_terminal:
            return
        # Blanks over what was longer, as Spark does; not every terminal knows how to erase.
        self._stream.write(f"\r{line.ljust(len(self._drawn))}")
        if not line:
            self._stream.write("\r")
        self._stream.flush()
        self._drawn = line
