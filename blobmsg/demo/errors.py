"""Why a demo could not be run to its end."""

from __future__ import annotations

__all__ = ["DemoError", "DemoPartMissing"]


class DemoError(Exception):
    """Something broke on the way; the text says what, without a traceback."""


class DemoPartMissing(DemoError):
    """Something is not installed; the text says how to get it."""
