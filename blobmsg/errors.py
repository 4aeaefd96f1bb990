"""Typed errors of blobmsg: one class for each thing a caller would do differently.

Every class is a `confluent_kafka.KafkaException` whose `args[0]` is a `KafkaError`, so code
written for the stock client catches and inspects them unchanged.
"""

from __future__ import annotations

from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException

__all__ = [
    "BlobmsgError",
    "ConfigError",
    "CorruptSegment",
    "ObjectExpired",
    "ObjectMissing",
    "StoreDenied",
    "StoreTimeout",
    "StoreUnavailable",
    "UnsupportedFormat",
]


class BlobmsgError(KafkaException):
    """Base of all errors that blobmsg raises or reports.

    Args:
        message: What happened, where, and what to do about it.
        code: A `KafkaError` code; the class's own by default.
        **details: Facts for programs (`topic`, `partition`, `kafka_offset`, `key` …); readable
            as attributes.

    Attributes:
        details: The facts given, by name.
    """

    default_code: ClassVar[int] = KafkaError._FAIL
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, code: int | None = None, **details: object) -> None:
        error = KafkaError(
            self.default_code if code is None else code, message, retriable=self.retriable
        )
        super().__init__(error)
        self.message = message
        self.details = details

    @property
    def kafka_error(self) -> KafkaError:
        """The `KafkaError` that callbacks and `Message.error()` carry."""
        error: KafkaError = self.args[0]
        return error

    def __getattr__(self, name: str) -> object:
        details: dict[str, object] = self.__dict__.get("details", {})
        try:
            return details[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}") from None

    def __str__(self) -> str:
        return self.message

    # KafkaException does not pickle (KafkaError's state is lost); ours cross processes.
    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.kafka_error.code(), self.details))


def _rebuild(
    cls: type[BlobmsgError], message: str, code: int, details: dict[str, object]
) -> BlobmsgError:
    return cls(message, code=code, **details)


class ConfigError(BlobmsgError):
    """A setting is unknown, out of range or contradicts another: fix the setting."""

    default_code: ClassVar[int] = KafkaError._INVALID_ARG


class StoreUnavailable(BlobmsgError):
    """The store can't be reached or answers with errors: wait or retry."""

    default_code: ClassVar[int] = KafkaError._TRANSPORT
    retriable: ClassVar[bool] = True


class StoreTimeout(BlobmsgError):
    """The store did not answer in time: wait or retry."""

    default_code: ClassVar[int] = KafkaError._TIMED_OUT
    retriable: ClassVar[bool] = True


class StoreDenied(BlobmsgError):
    """The store refused our identity: fix the credentials, the policy or the clock."""

    default_code: ClassVar[int] = KafkaError._AUTHENTICATION


class ObjectMissing(BlobmsgError):
    """An object is gone before its expiry hour; `blobmsg.on.missing` decides what follows."""

    default_code: ClassVar[int] = KafkaError._NOENT


class ObjectExpired(BlobmsgError):
    """An object is gone after its expiry hour; `auto.offset.reset` decides what follows."""

    default_code: ClassVar[int] = KafkaError._AUTO_OFFSET_RESET


class CorruptSegment(BlobmsgError):
    """Bytes do not match their checksum or format: fix the data."""

    default_code: ClassVar[int] = KafkaError._BAD_MSG


class UnsupportedFormat(BlobmsgError):
    """A format version or critical field that this version does not know: upgrade."""

    default_code: ClassVar[int] = KafkaError._UNSUPPORTED_FEATURE
