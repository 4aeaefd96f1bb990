"""A limit for what goes to the store, as a machine's network has one: Linux's htb on loopback.

On one machine raw PUTs take as much CPU as there is, and a producer, which has more to do than
they, gets less of it. Behind a network both wait for the same link.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LinkFailed", "limited", "why_not_limited"]

_BURST: Final = "1mb"  # loopback hands over packets of 64 KiB
_LOOPBACK: Final = ("dev", "lo")


class LinkFailed(Exception):
    """The kernel refused the limit."""


def why_not_limited() -> str | None:
    """What stands in the way of `limited` here, if anything: it takes Linux, root and `tc`."""
    try:
        with limited(1, 1):
            return None
    except LinkFailed as error:
        return str(error)


@contextlib.contextmanager
def limited(port: int, gbit_per_s: int) -> Iterator[None]:
    """Limit what loopback carries to a port, for the length of the block.

    Args:
        port: Of TCP over IPv4; the way back from it stays as it is.
        gbit_per_s: In 10^9 bits per second, headers included.

    Raises:
        LinkFailed: `tc` is missing or refuses, or loopback has a queue already.
    """
    rate = ("rate", f"{gbit_per_s}gbit", "burst", _BURST, "cburst", _BURST)
    match = ("match", "ip", "dport", str(port), "0xffff")
    # Class 1:2 is not there: what has no class of its own goes straight on.
    _tc("qdisc", "add", *_LOOPBACK, "root", "handle", "1:", "htb", "default", "2", "r2q", "1000")
    try:
        _tc("class", "add", *_LOOPBACK, "parent", "1:", "classid", "1:1", "htb", *rate)
        _tc("filter", "add", *_LOOPBACK, "protocol", "ip", "u32", *match, "flowid", "1:1")
        yield
    finally:
        _tc("qdisc", "del", *_LOOPBACK, "root")


def _tc(*words: str) -> None:
    try:
        subprocess.run(["tc", *words], capture_output=True, text=True, check=True)
    except OSError as error:
        raise LinkFailed(f"tc can't be run: {error}") from error
    except subprocess.CalledProcessError as error:
        raise LinkFailed(f"tc {' '.join(words)}: {error.stderr.strip()}") from error
