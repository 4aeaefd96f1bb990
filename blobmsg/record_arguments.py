"""What `produce` accepts: arguments checked and normalized as the stock client does."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.format.notification import HEADER_NAME
from blobmsg.record_step import unusual_messages

if TYPE_CHECKING:
    from blobmsg.format.segment import Headers

__all__ = ["bytes_of", "check_messages", "checked_numbers", "normalized_headers", "too_large"]

_PAIR: Final = 2


def bytes_of(content: object, what: str) -> bytes:
    """A key or value as bytes: str becomes UTF-8.

    Raises:
        TypeError: Anything that is neither, or that may still change.
    """
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes):
        return bytes(content)
    if isinstance(content, (bytearray, memoryview)):
        name = type(content).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(
            f"{what} must be read-only bytes-like object, not {name}: the record "
            "is sent later, when its buffer may have changed; pass bytes(...)"
        )
    raise TypeError(f"{what}: a bytes-like object is required, not {_type_name(content)!r}")


def normalized_headers(headers: Any) -> Headers:
    """A user's headers as a list of (name, bytes or None), checked as the stock client does.

    Raises:
        TypeError: Not a dict or list of pairs, or a value of a wrong type.
        KafkaException: `_INVALID_ARG` for the name that blobmsg uses itself.
    """
    pairs: list[Any]
    if isinstance(headers, dict):
        pairs = list(_untyped(headers).items())
    elif isinstance(headers, (list, tuple)):
        pairs = list(_untyped(headers))
    else:
        raise TypeError(
            f"expected headers to be dict or list of (key, value) tuples, not {_type_name(headers)}"
        )
    normalized: Headers = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(_untyped(pair)) != _PAIR:
            raise TypeError("Headers are expected to be a list of (key, value) tuples")
        name, value = _untyped(pair)
        if isinstance(name, bytes):
            name = name.decode()
        if not isinstance(name, str):
            raise TypeError(f"expected header key to be str, not {_type_name(name)}")
        if isinstance(value, str):
            value = value.encode()
        elif value is not None and not isinstance(value, bytes):
            raise TypeError(
                "expected header value to be None, binary, or unicode string, "
                f"not {_type_name(value)}"
            )
        if name == HEADER_NAME:
            raise KafkaException(
                KafkaError(
                    KafkaError._INVALID_ARG,
                    f"the header name {HEADER_NAME!r} marks notifications of blobmsg: use another",
                )
            )
        normalized.append((name, value))
    return normalized


def checked_numbers(partition: Any, timestamp: Any) -> tuple[int, int]:
    """A partition and a timestamp, checked as the stock client does.

    Raises:
        TypeError: One is no int.
        OverflowError: A partition over 32 bits, or a timestamp over 64.
        KafkaException: `_UNKNOWN_PARTITION` below -1.
    """
    partition, timestamp = _integers(partition, timestamp)
    if partition < -1:
        raise KafkaException(
            KafkaError(
                KafkaError._UNKNOWN_PARTITION,
                "Unable to produce message: Local: Unknown partition",
            )
        )
    return partition, timestamp


def _integers(partition: Any, timestamp: Any) -> tuple[int, int]:
    partition, timestamp = index(partition), index(timestamp)
    if not -(1 << 31) <= partition < 1 << 31:
        if not -(1 << 63) <= partition < 1 << 63:
            raise OverflowError("Python int too large to convert to C long")
        bound = "greater than maximum" if partition > 0 else "less than minimum"
        raise OverflowError(f"signed integer is {bound}")
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise OverflowError("int too big to convert")
    return partition, timestamp


def too_large(payload_bytes: int, limit_bytes: int) -> KafkaException:
    """The error of a record over the limit."""
    return KafkaException(
        KafkaError(
            KafkaError.MSG_SIZE_TOO_LARGE,
            f"Unable to produce message: a record of {payload_bytes} bytes is larger than "
            f"blobmsg.record.max.bytes ({limit_bytes})",
        )
    )


def check_messages(messages: Any) -> None:
    """Check what `produce_batch` was given, before the first is queued, as stock does.

    Raises:
        TypeError: Not a list of dicts, or a field of one has a wrong type.
        ValueError: Headers are malformed.
        OverflowError: A number is too large.
    """
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    unusual = unusual_messages(_untyped(messages))
    if not all(isinstance(message, dict) for message in unusual):
        raise TypeError("messages must be a list of dicts")
    for message in unusual:
        check_fields(message)


def check_fields(message: dict[str, Any]) -> None:
    """Check the fields of one message of a batch as `produce` does.

    Raises:
        TypeError: One has a wrong type.
        ValueError: Headers are malformed.
        OverflowError: A number is too large.
    """
    for name in ("value", "key"):
        if message.get(name) is not None:
            bytes_of(message[name], name)
    if message.get("headers") is not None:
        normalized_headers(message["headers"])
    _integers(message.get("partition", -1), message.get("timestamp", 0))


def _type_name(value: Any) -> str:
    return type(value).__name__


def _untyped(value: Any) -> Any:
    """After an isinstance check: what is inside is checked one by one."""
    return value
