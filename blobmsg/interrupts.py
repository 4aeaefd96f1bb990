"""Ctrl-C at a time of our choosing.

Python runs SIGINT's handler between any two calls of the main thread, and what it raises would
leave a notification half queued, or a fetch planned and never begun. So it waits while a client
changes its state; callbacks of the user get it at once.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

__all__ = ["ctrl_c_comes_through", "ctrl_c_waits"]


def _module_of_signals() -> Any:
    """The one behind `signal`, which makes enums of all handlers.

    That took ten times as long as all else here, for every notification that is read.
    """
    try:
        return importlib.import_module("_signal")
    except ImportError:  # another Python
        return signal


_signals: Final = _module_of_signals()


class _Waiting:
    """Of the main thread, which alone runs signal handlers."""

    handler: Any = None  # the application's
    has_come = False


_waiting: Final = _Waiting()
_nothing: Final = contextlib.nullcontext()


def _wait(_number: int, _frame: object) -> None:
    _waiting.has_come = True


def ctrl_c_waits() -> AbstractContextManager[None]:
    """Until the block ends, SIGINT's handler waits; it runs then. May be nested.

    The block must be short: what of it can take long belongs into `ctrl_c_comes_through`.

    Threads: any; no handler runs in others than the main thread.
    """
    handler = _current_handler()
    # Most blocks lie within another one, and a generator costs more than all else here.
    return _waits(handler) if callable(handler) and handler is not _wait else _nothing


@contextlib.contextmanager
def _waits(handler: Any) -> Generator[None]:
    _waiting.handler = handler
    try:
        _signals.signal(signal.SIGINT, _wait)
        yield
    finally:
        has_come, _waiting.has_come = _waiting.has_come, False
        if _current_handler() is _wait:  # else the application has set another one meanwhile
            _signals.signal(signal.SIGINT, _waiting.handler)
            if has_come:
                _waiting.handler(signal.SIGINT, None)


def ctrl_c_comes_through() -> AbstractContextManager[None]:
    """Inside of `ctrl_c_waits`: what comes in this block does not wait.

    What came before goes on waiting: raised here it would be instead of the block.
    """
    return _comes_through() if _current_handler() is _wait else _nothing


@contextlib.contextmanager
def _comes_through() -> Generator[None]:
    try:
        _signals.signal(signal.SIGINT, _waiting.handler)
        yield
    finally:
        # No call of Python's between, nor a question before: the handler could run there, and what
        # it raises would leave the rest of the block around without protection.
        try:
            before = _signals.signal(signal.SIGINT, _wait)
        except BaseException:
            # It runs what has come by then before it sets another handler.
            _signals.signal(signal.SIGINT, _wait)
            raise
        if not callable(before):
            _signals.signal(signal.SIGINT, before)  # the application wants none
        elif before is not _wait:
            _waiting.handler = before  # the application may have set another one


def _current_handler() -> Any:
    if threading.current_thread() is not threading.main_thread():
        return None
    return _signals.getsignal(signal.SIGINT)
