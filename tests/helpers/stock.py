"""The stock clients under names of their own, as context managers where they are none yet.

Versions before 2.13 have neither `with` nor a producer's `close`; tests use both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import confluent_kafka

__all__ = ["StockConsumer", "StockProducer"]

if TYPE_CHECKING or hasattr(confluent_kafka.Producer, "__enter__"):
    StockProducer = confluent_kafka.Producer
    StockConsumer = confluent_kafka.Consumer
else:

    class StockProducer(confluent_kafka.Producer):
        """Flushes when it is closed."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def close(self) -> None:
            self.flush()

    class StockConsumer(confluent_kafka.Consumer):
        """Closes at the end of its block."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()
