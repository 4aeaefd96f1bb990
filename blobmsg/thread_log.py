"""Logging from threads of our own, through handlers that are the user's.

A handler may raise. In the user's thread that is the user's own affair; in ours it would end the
thread, and with it the client. Nothing is swallowed: what a handler raised comes out of the next
`poll` or `flush`, as with stock, which calls its `logger` in there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ThreadLog"]


class ThreadLog:
    """Stands for a logger; never raises. Threads: any.

    Args:
        logger: Gets the lines: a `logging.Logger`, or anything with its `log`.
        failed: Told what it raised.
    """

    __slots__ = ("_failed", "_logger")

    def __init__(self, logger: Any, failed: Callable[[Exception], object]) -> None:
        self._logger = logger
        self._failed = failed

    def log(self, level: int, text: str, *values: object, **options: Any) -> None:
        """As `logging.Logger.log`; also what the inner client calls."""
        try:
            self._logger.log(level, text, *values, **options)
        except Exception as error:  # noqa: BLE001  (a user's handler may raise anything)
            self._failed(error)

    def info(self, text: str, *values: object) -> None:
        """As `logging.Logger.info`."""
        self.log(logging.INFO, text, *values)

    def warning(self, text: str, *values: object) -> None:
        """As `logging.Logger.warning`."""
        self.log(logging.WARNING, text, *values)

    def error(self, text: str, *values: object) -> None:
        """As `logging.Logger.error`."""
        self.log(logging.ERROR, text, *values)

    def critical(self, text: str, *values: object) -> None:
        """As `logging.Logger.critical`, with the exception that is being handled."""
        self.log(logging.CRITICAL, text, *values, exc_info=True)
