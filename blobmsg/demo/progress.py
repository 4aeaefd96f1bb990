"""Shows how far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["Progress"]

_BAR_CELLS: Final = 28
_MAX_COLUMNS: Final = 100
_REDRAW_EVERY_S: Final = 0.1
# Where lines stay (a file, CI), one every so often.
_LINE_EVERY_S: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[K"


class Progress:
    """One phase after the other.

    Args:
        stream: Standard error, usually: standard output is for the report.

    Threads: one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._label = ""
        self._next_show = 0.0
        self._is_bar_shown = False

    def note(self, text: str) -> None:
        """Say something that stays."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, label: str, done: int, total: int, remark: str = "") -> None:
        """Show how much of a phase is done; not more often than is of use."""
        now = time.monotonic()
        is_new = label != self._label
        self._label = label
        if now < self._next_show and not is_new:
            return
        share = done / total if total else 1.0
        if not self._is_terminal:
            self._next_show = now + _LINE_EVERY_S
            if not is_new:  # a short phase needs no line
                self._stream.write(f"{label}: {share:.0%}  {remark}".rstrip() + "\n")
                self._stream.flush()
            return
        self._next_show = now + _REDRAW_EVERY_S
        cells = int(share * _BAR_CELLS)
        bar = "━" * cells + "╺" * (cells < _BAR_CELLS) + " " * (_BAR_CELLS - cells - 1)
        if not _can_encode(self._stream, bar):
            bar = "#" * cells + "-" * (_BAR_CELLS - cells)
        columns = min(_MAX_COLUMNS, shutil.get_terminal_size().columns - 1)
        line = f"{label:<22} {bar} {share:>4.0%}  {remark}"
        self._stream.write(_CLEAR_LINE + line[:columns])
        self._stream.flush()
        self._is_bar_shown = True

    def clear(self) -> None:
        """Take the bar away; what is written next begins a line."""
        if self._is_bar_shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._is_bar_shown = False
        self._label = ""


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
