"""The program `blobmsg`: reads the command line, runs a command, turns errors into exit codes.

Exit codes: 0 fine, 1 something was found or failed, 2 a mistake in what was asked, 130 Ctrl-C.
Only a bug shows a traceback.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING

import confluent_kafka

from blobmsg.cli import demo, dev, gc, inspect, lag
from blobmsg.cli.command import FINDING, MISTAKE, Command, Finding, UserMistake
from blobmsg.errors import ConfigError
from blobmsg.lab.errors import LabError, PartsMissing
from blobmsg.native import native

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    dev.COMMAND,
    gc.COMMAND,
    inspect.COMMAND,
    lag.COMMAND,
)

_INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments without the program's name; `sys.argv`'s if not given.
    """
    arguments = build_parser().parse_args(argv)
    command: Command = arguments.command
    try:
        code = command.run(arguments)
        sys.stdout.flush()  # here, where a closed pipe is still caught
    except (UserMistake, PartsMissing, ConfigError) as error:
        return _complain(error, MISTAKE)
    except (Finding, LabError, confluent_kafka.KafkaException) as error:
        return _complain(error, FINDING)
    except KeyboardInterrupt:
        return _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has left (`blobmsg … | head`). Python would complain again when
        # it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINDING
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="blobmsg",
        description="Kafka without the cost of crossing zones: tools beside the library.",
        epilog="Exit codes: 0 fine, 1 something was found or failed, 2 a mistake in the request.",
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.configure(subparser)
        subparser.set_defaults(command=command)
    return parser


def _version() -> str:
    librdkafka, _ = confluent_kafka.libversion()
    return (
        f"blobmsg {importlib.metadata.version('blobmsg')} "
        f"(confluent-kafka {importlib.metadata.version('confluent-kafka')}, "
        f"librdkafka {librdkafka}, {'with' if native else 'without'} native code)"
    )


def _complain(problem: object, code: int) -> int:
    print(f"blobmsg: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
