"""What travels to executors: it loads where this package is not installed, to say so there.

cloudpickle sends a nested function whole, while it sends only the name of a module's.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["by_value", "reduce_by_value", "reduce_state_by_value"]


def by_value(task: Any) -> Any:
    """A task as a function that loads the task when it is called.

    Args:
        task: Called with an iterator of record batches, gives one; pickles.
    """
    load, pickled = _loader(), pickle.dumps(task)

    def run(batches: Any) -> Any:
        yield from load(pickled)(batches)

    return run


def reduce_by_value(make: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """What `__reduce__` gives for an object that `make(*arguments)` makes again.

    Only cloudpickle, which Spark takes for sources and sinks, can pickle the outcome.

    Args:
        make: Of a module; pickles, as its arguments do.
        *arguments: Its own.
    """
    # A class of the user's own program goes by value as well, as Spark would send it.
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    return _loader(), (serializer.dumps(_Call(make, arguments)),)


def reduce_state_by_value(one: object) -> tuple[Any, ...]:
    """What `__reduce__` gives for an object that is its class and its attributes."""
    return reduce_by_value(_with_state, type(one), vars(one))


def _with_state(kind: type, state: dict[str, Any]) -> object:
    made: object = object.__new__(kind)
    vars(made).update(state)
    return made


class _Call:
    """Pickled, it is loaded as what the call gives."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._reduced = (make, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _loader() -> Callable[[bytes], Any]:
    def load(pickled: bytes) -> Any:
        import os as _os
        import pickle as _pickle
        import sys as _sys

        try:
            import blobmsg
            import blobmsg_spark

            del blobmsg, blobmsg_spark
            return _pickle.loads(pickled)  # noqa: S301  (pickled by this job's driver)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("blobmsg", "blobmsg_spark"):
                raise
            raise ModuleNotFoundError(
                f"the Spark executor on {_os.uname().nodename} can't run blobmsg_spark: its Python "
                f"({_sys.executable}) has no module {error.name!r}, or a version that is not the "
                "driver's. Install the driver's version of 'blobmsg[spark,s3]' there, or send an "
                "environment that has it with --archives and spark.pyspark.python",
                name=error.name,
            ) from error

    return load
