"""The two errors of the pure layers: damaged bytes, and bytes of a version we do not know.

Shells turn them into `blobmsg.errors.CorruptSegment` and `UnsupportedFormat`.
"""

from __future__ import annotations

__all__ = ["FormatError", "UnsupportedFormatError"]


class FormatError(ValueError):
    """Bytes or values do not follow the format: damaged, hostile, or over a limit."""


class UnsupportedFormatError(FormatError):
    """A version, codec or critical field that this version does not know; the text names it."""
