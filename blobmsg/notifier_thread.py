"""The notifier thread of a BlobProducer: the one that drives the inner producer.

A shell: each round lets `ProducerCore` look at the time, hands over what has its turn (`Outbox`),
and gives the inner producer time for its answers; between rounds come purges and the calls of
`Transactions`, one at a time. Decides nothing about records; only that an inner producer which has
met a fatal error gets nothing more.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.ending import CLOSED, Closed
from blobmsg.reentrant import Wakeup, wait_done, wait_without
from blobmsg.time_limit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from blobmsg.clock import Clock
    from blobmsg.core.events import ProducerAction
    from blobmsg.core.producer_core import ProducerCore
    from blobmsg.outbox import Outbox
    from blobmsg.producer_topics import ProducerTopics
    from blobmsg.reentrant import CoreLock, Waiting
    from blobmsg.store_watch import StoreWatch
    from blobmsg.uploader import Uploader

__all__ = ["InnerCall", "NotifierThread"]

# How long the thread gives itself to Kafka before it looks for new work; it is a delay only for
# what becomes ready while something else is in flight. It flushes and does not poll, for nothing
# leaves otherwise: see `inner_config`.
_FLUSH_SLICE_S: Final = 0.005
# Longest sleep when idle: errors of the inner client wait so long; statistics half of their
# interval, if that is less.
_IDLE_S: Final = 0.2
_LEAST_IDLE_S: Final = 0.01
# What the inner producer has at the end to answer that all is purged.
_FORGET_S: Final = 1.0


class InnerCall:
    """A call of the inner producer that the notifier thread makes for `Transactions`.

    Args:
        name: Stock's name of it.
        make: Makes it.

    Attributes:
        is_over: Whether it has ended.
        failure: What it has raised.
        is_heard: Whether whoever made it knows that.
    """

    __slots__ = ("failure", "is_heard", "is_over", "make", "name")

    def __init__(self, name: str, make: Callable[[], object]) -> None:
        self.name = name
        self.make = make
        self.is_over = False
        self.failure: Exception | None = None
        self.is_heard = False


class NotifierThread:
    """What the notifier thread does, and what others may ask of it.

    Args:
        inner: The stock producer; anything with its `produce`, `poll`, `flush`, `purge`, `len`.
        core: Decides.
        topics: Of the producer.
        outbox: The queue before the inner producer's own.
        store_watch: Looks at the store once per round.
        uploader: Has threads that may hang when all is purged.
        clock: Time.
        waiting: The pipeline's.
        core_lock: Enters the core.
        statistics_interval_ms: Of the inner producer; 0: none.
        dispatch: Does the core's actions; called under the lock.
        run: Runs the thread's loop and reports its defects.
        raise_defect: Raises what has ended a thread of this producer, if anything has.
        raise_later: Has the user's next `poll` or `flush` raise something.
        name: For the thread's name.

    Attributes:
        inner: Once the thread has ended, something that says that it is closed.
        inner_call: The last that `make` was given.
        fatal: What the inner producer will never recover from; None: nothing.

    Threads: `start`, `stop`, `join`, `purge`, `make`, `wait_for`, looking at attributes, and on
    `inner` what asks no broker: any; all else this one.
    """

    def __init__(
        self,
        inner: Any,
        core: ProducerCore,
        topics: ProducerTopics,
        outbox: Outbox,
        store_watch: StoreWatch,
        uploader: Uploader,
        *,
        clock: Clock,
        waiting: Waiting,
        core_lock: CoreLock,
        statistics_interval_ms: int,
        dispatch: Callable[[list[ProducerAction]], None],
        run: Callable[[Callable[[], None]], None],
        raise_defect: Callable[[], None],
        raise_later: Callable[[Exception], None],
        name: str,
    ) -> None:
        self.inner: Any = inner
        self._core = core
        self._topics = topics
        self._outbox = outbox
        self._store_watch = store_watch
        self._uploader = uploader
        self._clock = clock
        self._wake = waiting.wake
        self._news = waiting.news
        self._monotonic_s = waiting.monotonic_s
        self._core_lock = core_lock
        self._idle_s = _IDLE_S
        if statistics_interval_ms:
            half_s = statistics_interval_ms / 2000
            self._idle_s = min(_IDLE_S, max(_LEAST_IDLE_S, half_s))
        self._dispatch = dispatch
        self._raise_defect = raise_defect
        self._raise_later = raise_later
        self._is_stopping = False
        self._purges: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.inner_call: InnerCall | None = None
        self.fatal: KafkaError | None = None
        self._thread = threading.Thread(
            target=run, args=(self._loop,), name=f"{name}-notifier", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let it end after its round."""
        self._is_stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for it to end."""
        self._thread.join(timeout_s)

    # --- rounds -------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._is_stopping:
                wait_s = self.do_round()
                if wait_s is not None:
                    self._wake.wait(wait_s)
                    self._serve_inner(0)
        finally:  # not by whoever joins: that one's patience may end before a call of Kafka does
            try:
                self._outbox.forget(_FORGET_S)
            finally:
                self.inner = self._outbox.inner = Closed()
                self.inner_call = None  # its arguments, or a traceback

    def do_round(self) -> float | None:
        """One round.

        Returns:
            For how many seconds there is nothing to do; None: the inner producer has something.
        """
        while not self._purges.empty():  # nobody else takes them
            self._purges.get()()
        self._make_inner_call()
        with self._core_lock:
            now_ms = self._clock.now_ms()
            is_more_overdue = self._topics.time_out_waiting(now_ms)
            self._dispatch(self._core.tick(now_ms, self._clock.timestamp_ms()))
            due_ms = self._core.next_tick_ms(now_ms)
        self._store_watch.look(now_ms)
        if not self._outbox.send():
            self._serve_inner(_FLUSH_SLICE_S)
        wait_s = self._idle_s if due_ms is None else (due_ms - self._clock.now_ms()) / 1000
        if self._outbox.in_flight:
            self._serve_inner(max(0.001, min(_FLUSH_SLICE_S, wait_s)))
        elif self._outbox.is_empty and self._purges.empty():
            return 0.0 if is_more_overdue else min(self._idle_s, wait_s)
        return None

    def await_answers(self, timeout_s: float) -> None:
        """Let Kafka answer what it was sent, at most so long; negative: no limit."""
        limit = TimeLimit(timeout_s, self._monotonic_s)
        while self._outbox.in_flight and not limit.is_over:
            self._serve_inner(_FLUSH_SLICE_S)

    def _serve_inner(self, timeout_s: float) -> None:
        """Let the inner producer flush for so long; 0: only poll it.

        It is in no variable here: the traceback of a fatal failure keeps them, and may outlast
        `close` unread.
        """
        try:
            if timeout_s:
                self.inner.flush(timeout_s)
            else:
                self.inner.poll(0)
        except KafkaException as failure:
            if not self._note_if_fatal(failure):
                raise

    def _note_if_fatal(self, failure: Exception) -> bool:
        """Have nothing more sent where the inner producer is done for, fenced for example.

        Returns:
            Whether it is.
        """
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        if not isinstance(error, KafkaError) or not error.fatal():
            return False
        if self.fatal is None:
            self.fatal = error
            with self._core_lock.lock:
                self._topics.shut()
            self._purge(in_queue=True, in_flight=True)
            self._raise_later(failure)  # once, as stock; the other calls raise it from here on
        return True

    # --- purges -------------------------------------------------------------------------------

    def purge(self, *, in_queue: bool, in_flight: bool, waits: bool) -> None:
        """Drop records; their reports come as always.

        Args:
            in_queue: Those that no broker was sent; an object under way is not called back.
            in_flight: Those that a broker was sent and that it has not answered.
            waits: Until it is done, so not on a thread of the producer's; the reports have to be
                served all the same.
        """
        self._raise_defect()
        done = Wakeup()

        def purge() -> None:
            self._purge(in_queue=in_queue, in_flight=in_flight)
            done.set()

        self._purges.put(purge)
        self._wake.set()
        if waits:
            wait_without(self._core_lock.lock, partial(wait_done, done, self._thread))

    def _purge(self, *, in_queue: bool, in_flight: bool) -> None:
        """Nothing is handed over meanwhile."""
        if in_queue:
            self.purge_queued()
        # Not where nothing is there: librdkafka's threads purge after this call returns, and would
        # drop what is handed over next.
        if len(self.inner):
            self.inner.purge(in_queue=in_queue, in_flight=in_flight)

    def purge_queued(self) -> None:
        """Fail what the inner producer was not given."""
        error = KafkaError(KafkaError._PURGE_QUEUE)
        with self._core_lock:
            self._topics.purge(error)
            now_ms, wall_ms = self._clock.now_ms(), self._clock.timestamp_ms()
            self._dispatch(self._core.purge(error, now_ms, wall_ms))
            self._news.tell()
        self._outbox.purge(error)
        self._uploader.replace_hanging_threads()

    # --- calls --------------------------------------------------------------------------------

    def make(self, call: InnerCall) -> None:
        """Have the thread make a call; the one before it is over."""
        self.inner_call = call  # in one step, whatever interrupts: the thread looks by itself
        self._wake.set()

    def _make_inner_call(self) -> None:
        call = self.inner_call
        if call is None or call.is_over:
            return
        try:
            call.make()
        except Exception as failure:  # noqa: BLE001  (whoever waits raises it)
            self._note_if_fatal(failure)
            call.failure = failure
        call.is_over = True
        self._news.tell()

    def wait_for(
        self, call: InnerCall, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> bool:
        """Wait until a call is over; whether it is.

        Args:
            call: The last one.
            timeout_s: At most so long; negative: no limit.
            meanwhile: Called whenever something has changed.

        Raises:
            RuntimeError: Nobody makes it any more, for the producer has been closed.
        """
        limit = TimeLimit(timeout_s, self._monotonic_s)
        with self._news.listening() as news:
            while not call.is_over:
                if limit.is_over:
                    return False
                if self._has_ended() and not call.is_over:
                    self._raise_defect()
                    raise RuntimeError(CLOSED)
                meanwhile()
                if not call.is_over:
                    look_s = limit.slice_s(_IDLE_S)
                    wait_without(self._core_lock.lock, partial(news.wait, look_s))
        return True

    def _has_ended(self) -> bool:
        # Never begun in a simulation, where rounds are events.
        return self._thread.ident is not None and not self._thread.is_alive()
