"""`python -m blobmsg_spark`, also for spark-submit: histories written and cleaned from a shell.

Decides what the arguments mean, and which exit code an outcome has. What is done stands in
`reconcile_job`, `reconcile_stream` and `history`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blobmsg.errors import BlobmsgError, ConfigError
from blobmsg_spark.history import clean_history
from blobmsg_spark.history_writer import COMPRESSIONS
from blobmsg_spark.options import read_size
from blobmsg_spark.reconcile_job import DEFAULT_FILE_BYTES, plan_reconcile, reconcile
from blobmsg_spark.reconcile_stream import reconcile_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg_spark.histories import Addition

__all__ = ["main"]

_OK, _FAILED, _MISTAKE = 0, 1, 2
_CAUSE: Final = "blobmsg.errors."

_RECONCILE: Final = """examples:
  python -m blobmsg_spark reconcile --topics orders,payments --to s3://lake/kafka \\
      --conf kafka.bootstrap.servers=broker:9092 --conf blobmsg.store.url=s3://bucket/prefix
  spark-submit --master yarn …/blobmsg_spark/__main__.py reconcile --topics orders
  … reconcile --topics orders --checkpoint s3a://lake/checkpoints/orders --every "5 minutes"

Writes what is new in each topic as Parquet sorted by offset, and makes all of it visible at once,
with a manifest. Each partition goes on where its history ends. Run it again after any failure:
nothing is lost or written twice. With --checkpoint it is a streaming query: until what is there
now is written, or, with --every, until it is stopped.

--conf takes options of the source and settings of blobmsg (docs/spark_source.md); settings may
also stand in the environment (BLOBMSG_STORE_URL …), Spark's own go to spark-submit.
Exit codes: 0 done, also when nothing was new; 1 Kafka, the store or Spark refused or failed, or
another run came first: nothing of this one is visible but what it says; 2 a mistake in the request.
"""
_CLEAN: Final = """Deletes files that no manifest names and none will: of failed, killed and beaten
runs. Safe at any time; needs no Spark. Exit codes as of reconcile.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    Args:
        arguments: Of the command line; None: this process'.
    """
    given = _parser().parse_args(arguments)
    try:
        conf = dict(map(_key_and_value, given.conf))
        outcome: int = given.run(given, conf)
    except (ConfigError, ValueError) as error:
        return _complain(error, _MISTAKE)
    except BlobmsgError as error:
        return _complain("\n".join([str(error), *getattr(error, "__notes__", ())]), _FAILED)
    except PySparkException as error:
        return _complain(_cause(str(error)), _FAILED)
    return outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m blobmsg_spark", description="Histories of topics: Parquet for analytics."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    written = _command(commands, "reconcile", "write what is new in topics to their histories")
    written.epilog = _RECONCILE
    chosen = written.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--topics", metavar="A,B", help="which")
    chosen.add_argument("--topics-pattern", metavar="REGEX", help="those with such names")
    written.add_argument(
        "--to", metavar="URL", help="the histories' store; blobmsg.store.url by default"
    )
    written.add_argument(
        "--file-bytes",
        type=_size,
        default=DEFAULT_FILE_BYTES,
        metavar="SIZE",
        help="of a file, 64m or so; a task holds it in memory (128m)",
    )
    written.add_argument("--compression", choices=COMPRESSIONS, default="zstd", help="(zstd)")
    written.add_argument(
        "--checkpoint", metavar="PATH", help="as a streaming query, whose offsets are kept here"
    )
    written.add_argument("--every", metavar="INTERVAL", help='of a query: "5 minutes"; never ends')
    written.set_defaults(run=_reconcile)
    cleaned = _command(commands, "clean", "delete files that do not count")
    cleaned.epilog = _CLEAN
    cleaned.add_argument("--topics", metavar="A,B", required=True, help="which")
    cleaned.add_argument(
        "--to", metavar="URL", help="the histories' store; blobmsg.store.url by default"
    )
    cleaned.add_argument("--dry-run", action="store_true", help="only say which")
    cleaned.set_defaults(run=_clean)
    return parser


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the source or a setting of blobmsg; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def _reconcile(given: argparse.Namespace, conf: dict[str, str]) -> int:
    if given.every is not None and given.checkpoint is None:
        raise ConfigError("--every is of a streaming query, which needs --checkpoint")
    options = dict(conf)
    if given.topics is None:
        options["subscribePattern"] = given.topics_pattern
    else:
        options["subscribe"] = given.topics
    how = {"to": given.to, "file_bytes": given.file_bytes, "compression": given.compression}
    # A mistake shows before Spark is started, which takes seconds, on a cluster minutes.
    plan_reconcile(options, is_streaming=given.checkpoint is not None, **how)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("blobmsg reconcile").getOrCreate()
    try:
        if given.checkpoint is None:
            _tell(reconcile(spark, options, **how), as_json=given.json)
        else:
            trigger = (
                {"availableNow": True} if given.every is None else {"processingTime": given.every}
            )
            query = reconcile_stream(
                spark, options, checkpoint=given.checkpoint, trigger=trigger, **how
            )
            query.awaitTermination()
    finally:
        spark.stop()
    return _OK


def _clean(given: argparse.Namespace, conf: dict[str, str]) -> int:
    settings = {**conf, **({} if given.to is None else {"blobmsg.store.url": given.to})}
    found = clean_history(settings, *given.topics.split(","), delete=not given.dry_run)
    if given.json:
        _say(json.dumps(found, indent=2))
    else:
        _say(
            "\n".join([*found, f"{len(found)} files {'would go' if given.dry_run else 'deleted'}"])
        )
    return _OK


def _tell(added: list[Addition], *, as_json: bool) -> None:
    if as_json:
        _say(json.dumps([asdict(found) for found in added], indent=2))
        return
    for found in added:
        _say(
            f"{found.topic}: manifest {found.manifest}, {found.files} files, {found.records:,} "
            f"records, {found.size_bytes / (1 << 20):,.1f} MiB"
        )
    if not added:
        _say("nothing is new")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(problem: object, code: int) -> int:
    sys.stderr.write(f"blobmsg_spark: {problem}\n")
    return code


def _cause(text: str) -> str:
    """Of a failed job what failed its task, if that was ours: Spark puts 100 lines around it."""
    own = [line.strip() for line in text.splitlines() if line.strip().startswith(_CAUSE)]
    return own[-1].removeprefix(_CAUSE) if own else text


def _key_and_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ConfigError(f"--conf wants KEY=VALUE, not {text!r}")
    return key, value


def _size(text: str) -> int:
    try:
        return read_size("--file-bytes", text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
