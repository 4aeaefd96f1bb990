from __future__ import annotations

import io

import pytest

from blobmsg.demo import progress as progress_module
from blobmsg.demo.progress import Progress


class Terminal(io.StringIO):
    """A terminal of some encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


@pytest.mark.usefixtures("clock")
def test_a_terminal_gets_a_bar_in_one_line() -> None:
    stream = Terminal()

    Progress(stream).show("sending", 50, 100, "50 of 100")

    assert stream.getvalue().startswith("\r\x1b[K")
    assert "━╺" in stream.getvalue()
    assert "50%  50 of 100" in stream.getvalue()
    assert "\n" not in stream.getvalue()


def test_a_terminal_is_not_redrawn_all_the_time(clock: _Clock) -> None:
    stream = Terminal()
    progress = Progress(stream)

    for done in range(100):
        clock.now += 0.001
        progress.show("sending", done, 100)

    assert stream.getvalue().count("\r") == 1


@pytest.mark.usefixtures("clock")
def test_a_terminal_without_unicode_gets_ascii() -> None:
    stream = Terminal("ascii")

    Progress(stream).show("sending", 1, 2)

    stream.getvalue().encode("ascii")
    assert "#-" in stream.getvalue()


@pytest.mark.usefixtures("clock")
def test_the_bar_goes_before_something_else_is_said() -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.show("sending", 1, 2)

    progress.note("note")

    assert stream.getvalue().endswith("\r\x1b[Knote\n")


def test_a_file_gets_a_line_now_and_then(clock: _Clock) -> None:
    stream = io.StringIO()
    progress = Progress(stream)

    for done in range(12):
        progress.show("sending", done, 24)
        clock.now += 1

    assert stream.getvalue() == "sending: 21%\nsending: 42%\n"
