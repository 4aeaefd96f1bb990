from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from blobmsg.demo.job import UNREADABLE, Arrivals, Job
from blobmsg.demo.worker import _number_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_survives_its_line() -> None:
    job = Job("consume", "plain", {"bootstrap.servers": "a:1"}, "t", "/x", 1.5, [0, 3])

    line = job.to_json()

    assert "\n" not in line
    assert Job.from_json(line) == job


def test_a_job_hides_its_settings() -> None:
    assert "s3cret" not in repr(Job("produce", "blobmsg", {"key": "s3cret"}, "t", "/x"))


@pytest.mark.parametrize("count", [0, 3])
def test_arrivals_survive_their_file(tmp_path: Path, count: int) -> None:
    arrivals = Arrivals()
    for number in range(count):
        arrivals.numbers.append(number)
        arrivals.partitions.append(number * 2)
        arrivals.digests.append(2**64 - 1 - number)
        arrivals.latencies_ms.append(-number)

    arrivals.save(tmp_path / "arrivals")

    assert Arrivals.load(tmp_path / "arrivals") == arrivals


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b'{"id":17,"year":2013}', 17),
        (b'{"id":336776,"a":1}', 336776),
        (b'{"id":-1,"a":1}', UNREADABLE),
        (b'{"id":17}', UNREADABLE),
        (b'{"id":,"a":1}', UNREADABLE),
        (b'{"id":99999999999999999999999,"a":1}', UNREADABLE),
        (b"", UNREADABLE),
    ],
)
def test_a_number_is_read_where_it_has_to_be(value: bytes, number: int) -> None:
    assert _number_of(value) == number
