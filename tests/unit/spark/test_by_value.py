"""What executors get to load: it must load where this package is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructField, StructType

from blobmsg_spark.batch_source import BatchSource
from blobmsg_spark.by_value import by_value, reduce_by_value
from blobmsg_spark.sink import BatchSink, StreamSink
from blobmsg_spark.sink_options import parse_sink_options
from blobmsg_spark.source import BlobmsgSource
from blobmsg_spark.source_options import parse_source_options
from blobmsg_spark.stream_source import StreamSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SOURCE = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}
_SINK = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t", "blobmsg.store.url": "file:///x"}
_VALUES = StructType([StructField("value", BinaryType())])

_LOAD_OBJECT = """
import pickle, sys
sys.modules["blobmsg_spark"] = None  # as if it were not installed
with open(sys.argv[1], "rb") as file:
    try:
        pickle.load(file)
    except ModuleNotFoundError as error:
        print(error)
"""
_LOAD = """
import pickle, sys
sys.modules["blobmsg_spark"] = None  # as if it were not installed
with open(sys.argv[1], "rb") as file:
    run = pickle.load(file)
try:
    list(run(iter([1])))
except ModuleNotFoundError as error:
    print(error)
"""


def _doubled(batches: Iterator[int]) -> Iterator[int]:
    return (2 * batch for batch in batches)


def test_a_task_runs_as_it_would_by_itself() -> None:
    assert list(by_value(_doubled)(iter([1, 2]))) == [2, 4]


@pytest.mark.slow
def test_an_executor_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    pickled = tmp_path / "task"
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    pickled.write_bytes(serializer.dumps(by_value(_doubled)))

    done = subprocess.run(
        [sys.executable, "-c", _LOAD, pickled], capture_output=True, text=True, check=True
    )

    _check_remedy(done.stdout)


def _sources_and_sinks() -> list[Any]:
    sink = parse_sink_options(_SINK)
    return [
        BlobmsgSource(_SOURCE),
        BatchSource(parse_source_options(_SOURCE)),
        StreamSource(parse_source_options(_SOURCE, is_streaming=True)),
        BatchSink(sink, _VALUES, overwrite=False),
        StreamSink(sink, _VALUES),
    ]


def test_an_executor_with_an_older_package_says_so_too() -> None:
    load, (pickled,) = reduce_by_value(_doubled, iter([1]))
    # As if this module had come after that version.
    older = pickled.replace(_doubled.__module__.encode(), b"blobmsg_spark.unknown".ljust(
        len(_doubled.__module__), b"x"))  # fmt: skip
    assert older != pickled

    with pytest.raises(ModuleNotFoundError, match="a version that is not the driver's"):
        load(older)


def test_a_class_of_the_users_program_may_be_a_source(tmp_path: Path) -> None:
    class Mine(BlobmsgSource):
        @classmethod
        def name(cls) -> str:
            return "mine"

    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]

    again = serializer.loads(serializer.dumps(Mine(_SOURCE)))

    assert again.name() == "mine"
    assert again.options == _SOURCE


@pytest.mark.slow
@pytest.mark.parametrize("one", _sources_and_sinks(), ids=lambda one: type(one).__name__)
def test_a_source_and_a_sink_say_it_as_well(tmp_path: Path, one: Any) -> None:
    pickled = tmp_path / "object"
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    pickled.write_bytes(serializer.dumps(one))

    done = subprocess.run(
        [sys.executable, "-c", _LOAD_OBJECT, pickled], capture_output=True, text=True, check=True
    )

    _check_remedy(done.stdout)
    again = serializer.loads(pickled.read_bytes())
    assert type(again) is type(one)
    kept = {name for name in vars(one) if name in ("_options", "options", "_name")}
    assert kept
    assert all(getattr(again, name) == getattr(one, name) for name in kept)


def _check_remedy(printed: str) -> None:
    assert "no module 'blobmsg_spark'" in printed
    assert "Install the driver's version of 'blobmsg[spark,s3]'" in printed
    assert sys.executable in printed
