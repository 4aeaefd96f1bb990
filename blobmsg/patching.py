"""`patch`: code that imports confluent_kafka gets the drop-ins.

Decides nothing: names are replaced, settings come from the environment (`BLOBMSG_*`) where the code
does not give them.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

import confluent_kafka

# Bound before anybody can have replaced them.
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import Producer as StockProducer
from confluent_kafka import deserializing_consumer, serializing_producer

from blobmsg.aio import AIOBlobConsumer, AIOBlobProducer
from blobmsg.consumer import BlobConsumer
from blobmsg.producer import BlobProducer
from blobmsg.serializing import DeserializingBlobConsumer, SerializingBlobProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["patch"]

logger = logging.getLogger("blobmsg.patch")

# By module and name.
_REPLACEMENTS: Final = {
    (confluent_kafka, "Producer"): BlobProducer,
    (confluent_kafka, "Consumer"): BlobConsumer,
    (confluent_kafka, "SerializingProducer"): SerializingBlobProducer,
    (confluent_kafka, "DeserializingConsumer"): DeserializingBlobConsumer,
    (serializing_producer, "SerializingProducer"): SerializingBlobProducer,
    (deserializing_consumer, "DeserializingConsumer"): DeserializingBlobConsumer,
}


def patch() -> None:
    """Let `confluent_kafka.Producer` and `Consumer` be `BlobProducer` and `BlobConsumer`.

    So become `SerializingProducer`, `DeserializingConsumer` and those of `confluent_kafka.aio`. Its
    asynchronous serializing clients derive from stock's: they wrap the drop-ins, and their
    callbacks must not call the consumer.

    Call it before the code that imports them: a name that a module has imported already, or a
    class derived from one, keeps the stock class, and a warning in the log says where. A second
    call does nothing. `python -m blobmsg.run app.py` does it before an application.

    Processes that are started anew (multiprocessing by `spawn` or `forkserver`) call it themselves.

    Threads: one, before others use confluent_kafka.
    """
    for (module, name), ours in _REPLACEMENTS.items():
        setattr(module, name, ours)
    with suppress(ImportError):  # older versions have no such module
        stock_aio = import_module("confluent_kafka.aio")
        stock_aio.AIOProducer, stock_aio.AIOConsumer = AIOBlobProducer, AIOBlobConsumer  # type: ignore[attr-defined]
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
