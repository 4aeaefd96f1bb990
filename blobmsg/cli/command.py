"""What a subcommand is: a module with a name, its arguments, and a function that runs it.

`main` lists the modules; a new command is a new module in that list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse

OK = 0
FINDING = 1
"""The command worked and found something wrong, or what it asked for did not come about."""
MISTAKE = 2
"""The user asked for something that cannot be; argparse uses the same code."""


class UserMistake(Exception):
    """What the user asked for cannot be done as asked; the text says why, without a traceback."""


class Finding(Exception):
    """The command found something wrong; the text says what."""


class Command(Protocol):
    """A subcommand; modules of this package have this form."""

    NAME: str
    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments and description."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it and return the exit code.

        Raises:
            UserMistake: It cannot be done as asked.
            Finding: It was done, and something is wrong.
        """
