"""Ctrl-C held back and let through, by signals that this process sends itself."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from blobmsg import interrupts
from blobmsg.interrupts import ctrl_c_comes_through, ctrl_c_waits


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    reached: list[str] = []

    def whole() -> None:
        with ctrl_c_waits():
            ctrl_c()
            with ctrl_c_waits():
                reached.append("inner")
            reached.append("outer")
        reached.append("behind")

    with pytest.raises(KeyboardInterrupt):
        whole()

    assert reached == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_comes_at_once_where_it_may() -> None:
    reached: list[str] = []

    def whole() -> None:
        with ctrl_c_waits():
            with pytest.raises(KeyboardInterrupt), ctrl_c_comes_through():
                ctrl_c()
            ctrl_c()
            with ctrl_c_comes_through():
                reached.append("what came before goes on waiting")

    with pytest.raises(KeyboardInterrupt):
        whole()

    assert reached == ["what came before goes on waiting"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_just_as_a_callback_ends_leaves_the_rest_of_the_block_protected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached: list[str] = []
    real = interrupts._signals

    class Signals:
        """Python runs what has come before it sets another handler."""

        is_late = False
        getsignal = staticmethod(real.getsignal)

        @classmethod
        def signal(cls, number: int, handler: Any) -> Any:
            if cls.is_late:
                cls.is_late = False
                ctrl_c()
            return real.signal(number, handler)

    monkeypatch.setattr(interrupts, "_signals", Signals)

    def whole() -> None:
        with ctrl_c_waits():
            with pytest.raises(KeyboardInterrupt), ctrl_c_comes_through():
                Signals.is_late = True
            ctrl_c()
            reached.append("the second one waits")

    with pytest.raises(KeyboardInterrupt):
        whole()

    assert reached == ["the second one waits"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_ctrl_c_nothing_happens() -> None:
    with ctrl_c_waits(), ctrl_c_comes_through():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ctrl_c_comes_through():
        pass

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_set_in_a_callback_stays() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    try:
        with ctrl_c_waits():
            with ctrl_c_comes_through():
                signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
            ctrl_c()
            assert heard == []
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_and_ignored_signals_are_left_alone() -> None:
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with ctrl_c_waits(), ctrl_c_comes_through():
                pass
        except BaseException as error:  # noqa: BLE001  (whatever it is fails the test)
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ctrl_c_waits():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

    assert failures == []
