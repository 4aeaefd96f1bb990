from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from blobmsg.ending import end_elsewhere
from tests.helpers.records import wait_until

if TYPE_CHECKING:
    import pytest


class _Client:
    def __init__(self, ended_by: list[threading.Thread]) -> None:
        self._ended_by = ended_by

    def __del__(self) -> None:
        self._ended_by.append(threading.current_thread())


def test_another_thread_ends_a_client() -> None:
    ended_by: list[threading.Thread] = []
    last = [_Client(ended_by)]

    gone = end_elsewhere(last)

    assert gone.wait(30)
    assert last == []
    assert threading.current_thread() not in ended_by
    wait_until(lambda: not ended_by[0].is_alive(), "that thread has ended")


def test_who_ends_none_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _fail)

    assert end_elsewhere([None]).is_set()


def test_where_no_thread_can_be_started_who_asks_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _fail)

    _see_it_end_here()


def test_so_does_who_asks_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)

    _see_it_end_here()


def _see_it_end_here() -> None:
    ended_by: list[threading.Thread] = []

    assert end_elsewhere([_Client(ended_by)]).is_set()

    assert ended_by == [threading.current_thread()]


def _fail(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
