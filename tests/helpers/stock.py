"""The stock clients under names of their own, as context managers where they are none yet.

Versions before 2.13 have neither `with` nor a producer's `close`; tests use both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

__all__ = [
    "StockConsumer",
    "StockDeserializingConsumer",
    "StockProducer",
    "StockSerializingProducer",
    "needs_consistent",
]

StockSerializingProducer = confluent_kafka.SerializingProducer
StockDeserializingConsumer = confluent_kafka.DeserializingConsumer

if TYPE_CHECKING or hasattr(confluent_kafka.Producer, "__enter__"):
    StockProducer = confluent_kafka.Producer
    StockConsumer = confluent_kafka.Consumer
else:

    class _Closing:
        """Closes at the end of its block."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

    class StockProducer(_Closing, confluent_kafka.Producer):
        """Flushes when it is closed."""

        def close(self) -> None:
            self.flush()

    class StockConsumer(_Closing, confluent_kafka.Consumer):
        """As the newer one."""


needs_consistent = pytest.mark.skipif(
    not hasattr(confluent_kafka, "consistent"), reason="older versions do not show their hash"
)
