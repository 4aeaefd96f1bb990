"""`blobmsg demo`: real events through the drop-in, each of them checked, and the bill.

A shell over `blobmsg.demo`, which decides everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobmsg.cli.command import FINDING, OK, Command, Finding, UserMistake
from blobmsg.config import parse_settings
from blobmsg.demo.errors import DemoError, DemoPartMissing
from blobmsg.demo.flights import FLIGHTS
from blobmsg.demo.progress import Progress
from blobmsg.demo.report import report_json, report_text
from blobmsg.demo.session import DEFAULT_RATE, Options, run_demo

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator

_EPILOG = f"""examples:
  blobmsg demo                        {FLIGHTS:,} flights, on Python packages alone
  blobmsg demo --stack real           the same on three brokers and MinIO, beside plain Kafka
  blobmsg demo --records 20000        a short one
  blobmsg demo --keep                 leave the objects there, for blobmsg inspect
  blobmsg demo --json demo.json       all figures, for programs

The report goes to standard output, progress to standard error. Exit code 0 if every check holds.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "--stack",
        choices=("mock", "real"),
        default="mock",
        help="mock: librdkafka's mock cluster and a local folder (default); real: three brokers "
        "and MinIO, those of `blobmsg dev up` if they run",
    )
    parser.add_argument(
        "--records",
        type=int,
        default=FLIGHTS,
        metavar="N",
        help="how many flights, from the first of January on (default: all %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=DEFAULT_RATE,
        metavar="N",
        help="records per second that each zone's producer sends (default: %(default)g)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the store's folder there (--stack mock)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures there, too, as JSON"
    )


def _run(arguments: argparse.Namespace) -> int:
    options = _options(arguments)
    progress = Progress(sys.stderr)
    with _one_interrupt():
        try:
            outcome = run_demo(options, progress)
        except DemoPartMissing as error:
            raise UserMistake(str(error)) from error
        except DemoError as error:
            raise Finding(str(error)) from error
        except OSError as error:  # no room for the records, usually
            raise Finding(f"the demo can't write its files: {error}") from error
        finally:
            progress.clear()
        if arguments.json is not None:
            text = json.dumps(report_json(outcome), indent=2)
            try:
                arguments.json.write_text(f"{text}\n")
            except OSError as error:
                raise Finding(f"--json: {error}") from error
        print(report_text(outcome))
    return OK if outcome.holds else FINDING


def _options(arguments: argparse.Namespace) -> Options:
    if not 1 <= arguments.records <= FLIGHTS:
        raise UserMistake(f"--records: there are 1 to {FLIGHTS:,}, not {arguments.records:,}")
    if not 1 <= arguments.rate <= 1_000_000:
        raise UserMistake(f"--rate: 1 to 1000000 records per second, not {arguments.rate:g}")
    if arguments.keep and arguments.stack == "real":
        raise UserMistake("--keep is for --stack mock: MinIO's data goes with the stack")
    if arguments.json is not None and not arguments.json.resolve().parent.is_dir():
        raise UserMistake(f"--json: there is no folder {arguments.json.resolve().parent}")
    settings, _ = parse_settings({"blobmsg.route": "plain"}, _price_table(os.environ))
    return Options(
        stack=arguments.stack,
        records=arguments.records,
        rate=arguments.rate,
        is_kept=arguments.keep,
        prices=settings.price_table,
    )


def _price_table(environ: Any) -> dict[str, str]:
    # Of the user's settings only the prices concern the demo.
    name = "BLOBMSG_PRICE_TABLE"
    return {name: environ[name]} if name in environ else {}


@contextlib.contextmanager
def _one_interrupt() -> Generator[None]:
    """Let Ctrl-C, and a request to end, interrupt once: cleaning up is short and is finished.

    After an interrupt both stay ignored, for the process ends.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(_number: int, _frame: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


COMMAND = Command(
    name="demo",
    help="send real events through the drop-in in three zones, check each, show the bill",
    configure=_configure,
    run=_run,
)
