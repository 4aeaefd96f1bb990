"""docs/statistics.md names what `stats()` has, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg import BlobConsumer, BlobProducer
from tests.helpers.nobody import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "statistics.md").read_text("utf-8")


def keys_under(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("heading", "make"),
    [
        ("Producer", lambda: BlobProducer(NOBODY)),
        ("Consumer", lambda: BlobConsumer({**NOBODY, "group.id": "statistics"})),
    ],
)
def test_the_page_has_every_key(heading: str, make: Callable[[], Any]) -> None:
    client = make()
    keys = set(client.stats())
    client.close()

    assert keys_under(heading) | keys_under("Both") == keys
