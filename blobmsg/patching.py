"""`patch`: code that imports confluent_kafka gets the drop-ins.

Decides nothing: names are replaced, settings come from the environment (`BLOBMSG_*`) where the code
does not give them.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

import confluent_kafka

# Bound before anybody can have replaced them.
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import Producer as StockProducer

from blobmsg.consumer import BlobConsumer
from blobmsg.producer import BlobProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["patch"]

logger = logging.getLogger("blobmsg.patch")

_REPLACEMENTS: Final = {"Producer": BlobProducer, "Consumer": BlobConsumer}


def patch() -> None:
    """Let `confluent_kafka.Producer` and `Consumer` be `BlobProducer` and `BlobConsumer`.

    Call it before the code that imports them: a name that a module has imported already, or a
    class derived from one, keeps the stock class, and a warning in the log says where. A second
    call does nothing. `python -m blobmsg.run app.py` does it before an application.

    Processes that are started anew (multiprocessing by `spawn` or `forkserver`) call it themselves.
    Serializing and deserializing clients are not replaced; the asyncio ones, which take what
    `confluent_kafka` holds when they are made, wrap the drop-ins.

    Threads: one, before others use confluent_kafka.
    """
    for name, ours in _REPLACEMENTS.items():
        setattr(confluent_kafka, name, ours)
    for place in list(_left_stock()):
        logger.warning(
            "%s was imported before blobmsg.patch() and stays the stock class: patch first", place
        )


def _left_stock() -> Iterator[str]:
    """Names in modules of others that still mean a stock class, or one derived from it."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in ("confluent_kafka", "blobmsg"):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, type) and issubclass(value, (StockProducer, StockConsumer)):
                yield f"{module_name}.{name}"
