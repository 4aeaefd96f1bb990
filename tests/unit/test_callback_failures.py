from __future__ import annotations

import gc
import weakref

import pytest

from blobmsg.callback_failures import CallbackFailures


def _fail(error: BaseException) -> None:
    raise error


def test_ctrl_c_comes_before_what_failed_earlier() -> None:
    failures = CallbackFailures()
    for error in (ValueError("first"), KeyboardInterrupt()):
        with failures.keeping():
            _fail(error)

    with pytest.raises(KeyboardInterrupt):
        failures.raise_first()

    failures.raise_first()  # nothing is left


def test_what_was_raised_and_caught_keeps_nothing_alive() -> None:
    class Consumer:
        def __init__(self) -> None:
            self.failures = CallbackFailures()

        def poll(self) -> None:
            with self.failures.keeping():
                int("of a callback")
            self.failures.raise_first()

    consumer = Consumer()
    is_alive = weakref.ref(consumer)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="of a callback"):
            consumer.poll()
        del consumer
        assert is_alive() is None
    finally:
        gc.enable()
