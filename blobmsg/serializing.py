"""Stock's serializing producer and deserializing consumer, standing on our clients.

Their code is stock's own, of the version that is installed; only what it calls its base class and
itself is another. Stock derives both classes from its C clients, so deriving from them would bring
those along.
"""

from __future__ import annotations

import sys
from types import CellType, FunctionType, GenericAlias
from typing import TYPE_CHECKING, Any, Final, TypeVar

# Bound at import: an application may replace them by ours.
from confluent_kafka import DeserializingConsumer as StockDeserializingConsumer
from confluent_kafka import SerializingProducer as StockSerializingProducer

from blobmsg.consumer import BlobConsumer
from blobmsg.producer import BlobProducer

__all__ = ["DeserializingBlobConsumer", "SerializingBlobProducer"]

_KEEP: Final = ("__doc__", "__annotations__")


def _standing_on(base: type, stock: type, name: str) -> Any:
    """A class as `stock`, derived from `base` instead of from its own base class.

    Args:
        base: One of our clients.
        stock: A class in Python, derived from a stock client.
        name: Of the new class.
    """
    # The functions look their own class up here, for `super()`.
    names = dict(vars(sys.modules[stock.__module__]))
    own_class = CellType()
    members: dict[str, Any] = {
        key: _moved(value, names, own_class) if isinstance(value, FunctionType) else value
        for key, value in vars(stock).items()
        if isinstance(value, FunctionType) or key in _KEEP
    }

    def class_of(_self: object) -> type:
        return stock

    members |= {
        "__class__": property(class_of),  # `isinstance` checks of frameworks hold
        "__class_getitem__": classmethod(GenericAlias),  # newer ones are generic to type checkers
        "__module__": __name__,
        "__qualname__": name,
    }
    made = type(base)(name, (base,), members)
    names[stock.__name__] = made
    own_class.cell_contents = made
    return made


def _moved(function: FunctionType, names: dict[str, Any], own_class: CellType) -> FunctionType:
    """The same function with other global names; `super()` without arguments finds `own_class`."""
    cells = tuple(
        own_class if variable == "__class__" else cell
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
    )
    moved = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    moved.__kwdefaults__ = function.__kwdefaults__
    moved.__annotations__ = function.__annotations__
    moved.__doc__ = function.__doc__
    return moved


_K = TypeVar("_K")
_V = TypeVar("_V")

# To type checkers ours are stock's, so that annotated code stays as it is.
if TYPE_CHECKING:

    class SerializingBlobProducer(StockSerializingProducer[_K, _V]):
        """`confluent_kafka.SerializingProducer` on a `BlobProducer`."""

    class DeserializingBlobConsumer(StockDeserializingConsumer[_K, _V]):
        """`confluent_kafka.DeserializingConsumer` on a `BlobConsumer`."""

else:
    SerializingBlobProducer = _standing_on(
        BlobProducer, StockSerializingProducer, "SerializingBlobProducer"
    )
    DeserializingBlobConsumer = _standing_on(
        BlobConsumer, StockDeserializingConsumer, "DeserializingBlobConsumer"
    )
