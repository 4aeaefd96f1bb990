"""The stock producer of topics that do not use the store, unless there are transactions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from blobmsg.ending import CLOSED, end_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    import confluent_kafka

__all__ = ["Passthrough"]


class Passthrough:
    """A stock producer with the user's own settings, made when the first record needs it.

    Args:
        make: Makes it.

    Attributes:
        producer: None: nobody has needed it, or this is closed.
        undelivered: What `len` of stock's says; behind `close`, what it said then.

    Threads: any.
    """

    def __init__(self, make: Callable[[], confluent_kafka.Producer]) -> None:
        self._make = make
        # Held while one is made, or told; reentrant for the sake of signal handlers.
        self._lock = threading.RLock()
        self._credentials: tuple[str, str] | None = None
        self._is_closed = False
        self._lost = 0
        self.producer: confluent_kafka.Producer | None = None

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: Callable[..., Any] | None,
        timestamp: int,
        headers: Any,
    ) -> None:
        """As stock's.

        Raises:
            RuntimeError: This is closed.
        """
        arguments: dict[str, Any] = {"partition": partition, "timestamp": timestamp}
        if callback is not None:
            arguments["on_delivery"] = callback
        if headers is not None:
            arguments["headers"] = headers
        self._made().produce(topic, value, key, **arguments)

    def _made(self) -> confluent_kafka.Producer:
        with self._lock:
            if self.producer is None:
                self._make_it()
            producer = self.producer
            # Looked at last: `close`, which waits for nobody, says so before it lets go.
            if producer is not None and not self._is_closed:
                return producer
            producer = None  # nor does the traceback keep one
            self.close()
            raise RuntimeError(CLOSED)

    def _make_it(self) -> None:
        made = self._make()
        if self._credentials is not None:
            made.set_sasl_credentials(*self._credentials)
        if self.producer is None:  # nor has a signal handler made one
            self.producer = made

    # A callback's exception lives on: stock never frees it, nor what its traceback refers to.

    def poll(self) -> int:
        """As stock's, without waiting; 0 where there is none."""
        producer = self.producer
        try:
            return 0 if producer is None else producer.poll(0)
        finally:
            del producer

    def flush(self, timeout_s: float) -> int:
        """As stock's; 0 where there is none."""
        producer = self.producer
        try:
            return 0 if producer is None else producer.flush(timeout_s)
        finally:
            del producer

    @property
    def undelivered(self) -> int:  # noqa: D102
        producer = self.producer
        return self._lost + (0 if producer is None else len(producer))

    def close(self) -> threading.Event:
        """Let go of it, and make none any more; see `end_elsewhere`."""
        self._is_closed = True
        last, self.producer = [self.producer], None
        self._lost += sum(len(producer) for producer in last if producer is not None)
        return end_elsewhere(last)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """New credentials, also for a producer that is made later."""
        with self._lock:
            self._credentials = (username, password)
            producer = self.producer
            if producer is not None:
                producer.set_sasl_credentials(username, password)
