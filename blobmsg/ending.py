"""The end of librdkafka's clients: who waits for it, and what a producer says behind it."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final, NoReturn

__all__ = ["CLOSED", "Closed", "end_elsewhere"]

#: As stock says it.
CLOSED: Final = "Producer has been closed"


class Closed:
    """In the place of an inner producer that is gone."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(CLOSED)


def end_elsewhere(last: list[Any]) -> threading.Event:
    """Have a thread of its own drop the last references to clients.

    A client's last reference waits for its threads, and one of these may wait for a name server
    that hangs.

    Args:
        last: The references; the list is emptied. None: nothing.

    Returns:
        Set when they are gone, and the clients with them unless somebody else has them.

    Threads: any; a finalizer too.
    """
    gone = threading.Event()

    def end() -> None:
        last.clear()
        gone.set()

    # A thread that is started while the interpreter ends may never run.
    if all(client is None for client in last) or sys.is_finalizing():
        end()
        return gone
    thread = threading.Thread(target=end, name="blobmsg-ending", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there is none to be had: whoever asks waits
        end()
    return gone
