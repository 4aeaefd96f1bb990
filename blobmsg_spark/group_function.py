"""A user's function of groups, in any of the forms that `applyInArrow` takes."""

from __future__ import annotations

import collections.abc
import inspect
from typing import TYPE_CHECKING, Any, get_args, get_origin

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["GroupFunction"]

_FORMS = (
    "the rows of a group, or its keys and its rows: (pyarrow.Table) or (tuple, pyarrow.Table), or "
    "with type hints an Iterator[pyarrow.RecordBatch] in place of the table"
)


class GroupFunction:
    """Calls a function as its signature wants it.

    Made on the driver: what cloudpickle takes to executors has no globals that only hints name.

    Args:
        func: Of one argument, the rows, or of two, the keys and the rows. Rows are a
            `pyarrow.Table`; where the hint says so, an iterator of `pyarrow.RecordBatch`.

    Raises:
        TypeError: It can't be called with one nor with two arguments.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        positional = _positional(func)
        if not 1 <= len(positional) <= 2:
            raise TypeError(
                f"the function of grouped() takes {len(positional)} arguments: expected {_FORMS}"
            )
        self._func = func
        self._takes_keys = len(positional) == 2
        hint = positional[-1].annotation
        self._takes_batches = get_origin(hint) is collections.abc.Iterator and get_args(hint) == (
            pa.RecordBatch,
        )

    def __call__(self, keys: pa.Table, rows: pa.Table) -> Iterator[pa.Table]:
        """What the function gives for a group.

        Args:
            keys: The group's, in every row the same.
            rows: All of its rows.

        Raises:
            TypeError: It gave something else than its form asks for.
        """
        given = iter(rows.to_batches()) if self._takes_batches else rows
        if self._takes_keys:
            found = self._func(tuple(cells[0] for cells in keys.columns), given)
        else:
            found = self._func(given)
        if not self._takes_batches:
            yield _checked(found, pa.Table, "it must give a pyarrow.Table")
            return
        batches: Iterable[object] = _checked(
            found, collections.abc.Iterator, "it must give an iterator of pyarrow.RecordBatch"
        )
        for batch in batches:
            checked = _checked(batch, pa.RecordBatch, "it must yield pyarrow.RecordBatch")
            yield pa.Table.from_batches([checked])


def _positional(func: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that are given by position, with their hints evaluated where they can be."""
    try:
        signature = inspect.signature(func, eval_str=True)
    except NameError:  # hints that exist for type checkers only
        signature = inspect.signature(func)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one for one in signature.parameters.values() if one.kind in kinds]


def _checked(found: Any, kind: type[Any], demand: str) -> Any:
    if not isinstance(found, kind):
        raise TypeError(
            f"the function of grouped() gave a {type(found).__name__}: {demand} of the schema that "
            "was named"
        )
    return found
