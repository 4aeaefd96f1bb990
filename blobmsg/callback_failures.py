"""What the user's callbacks raise inside of the inner client, kept until it can be raised."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["CallbackFailures"]

logger = logging.getLogger("blobmsg.consumer")


class CallbackFailures:
    """Exceptions, in order.

    Threads: any.
    """

    def __init__(self) -> None:
        self._failures: deque[BaseException] = deque()

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Around all that runs inside the inner client, which must not see it raise.

        The inner client would drop the messages that it has at hand; the exception surfaces from
        `poll`, `consume` or `close` once they are safe.
        """
        try:
            yield
        except BaseException as error:  # noqa: BLE001  (Ctrl-C too; `raise_first`)
            self._failures.append(error)

    def raise_first(self) -> None:
        """Raise what was kept since the last time: Ctrl-C, else the first."""
        if not self._failures:
            return
        failures = list(self._failures)
        self._failures.clear()
        failures.sort(key=lambda error: isinstance(error, Exception))
        if len(failures) > 1:
            logger.error("callbacks failed also with %r", failures[1:])
        try:
            raise failures[0]
        finally:
            failures.clear()  # each has this frame, which must not have it, too: else it is garbage
