"""What can go wrong with the lab, as one would act on it.

Not Kafka or store errors: those belong to `blobmsg.errors`. Nothing in the data path raises these.
"""

from __future__ import annotations


class LabError(RuntimeError):
    """The local stack could not do what was asked; the text says which part and shows its log."""


class PartsMissing(LabError):
    """A tool this machine needs for the stack is not there; the text names it."""
