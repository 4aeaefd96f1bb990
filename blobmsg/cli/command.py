"""What a subcommand is: a name, its arguments, and a function that runs it.

A new command is a new module with a `COMMAND`, and a line in `main`'s list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

OK = 0
FINDING = 1
"""The command worked and found something wrong, or what it asked for did not come about."""
MISTAKE = 2
"""The user asked for something that cannot be; argparse uses the same code."""


class UserMistake(Exception):
    """What the user asked for cannot be done as asked; the text says why, without a traceback."""


class Finding(Exception):
    """The command found something wrong; the text says what."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand; a module of this package has one.

    Attributes:
        name: What the user writes.
        help: One line, for the list of commands and as the start of its own help.
        configure: Adds its arguments and examples.
        run: Does it and returns the exit code; raises `UserMistake` or `Finding`.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
