"""The callbacks in a client's settings, run in the event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["in_loop"]

_NAMES = ("error_cb", "stats_cb", "throttle_cb", "on_commit")


def in_loop(conf: Any, run: Callable[..., Any]) -> Any:
    """The same settings, with callbacks that may be coroutine functions.

    What is wrong with them is left for the client to refuse.

    Args:
        conf: The user's.
        run: Called with a callback and its arguments.
    """
    if not isinstance(conf, dict):
        return conf
    settings: dict[Any, Any] = {**conf}
    for name in _NAMES:
        if callable(settings.get(name)):
            settings[name] = partial(run, settings[name])
    return settings
