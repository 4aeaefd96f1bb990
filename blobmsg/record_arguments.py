"""What `produce` accepts: arguments checked and normalized as the stock client does."""

from __future__ import annotations

from operator import index
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from blobmsg.format.notification import HEADER_NAME
from blobmsg.record_step import unusual_places

if TYPE_CHECKING:
    from blobmsg.format.segment import Headers

__all__ = [
    "bytes_of",
    "check_fields",
    "check_messages",
    "check_name",
    "checked_numbers",
    "exact_str",
    "normalized_headers",
    "of_batch",
    "refuse_own_header",
    "too_large",
]

_PAIR: Final = 2
_UNABLE: Final = "Unable to produce message: "


def exact_str(topic: object) -> str:
    """A topic's name, which may be of a class below str (an Enum's, say), as stock takes it.

    Raises:
        TypeError: It is no str.
    """
    if not isinstance(topic, str):
        name = None if topic is None else _type_name(topic)
        raise TypeError(f"argument 1 must be str, not {name}")
    return str.__str__(topic)


def check_name(topic: str) -> None:
    """Refuse a topic's name that Kafka's client can't be asked about.

    Raises:
        ValueError: It holds a null character.
        UnicodeEncodeError: It is no UTF-8.
    """
    if b"\0" in topic.encode():
        raise ValueError("embedded null character")


def bytes_of(content: object, place: int) -> bytes:
    """A key or value as bytes: str becomes UTF-8.

    Args:
        content: The key or value.
        place: Of the argument, as `produce` counts.

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
            f"argument {place} must be read-only bytes-like object, not {name}: the record "
            "is sent later, when its buffer may have changed; pass bytes(...)"
        )
    raise TypeError(f"a bytes-like object is required, not {_type_name(content)!r}")


def normalized_headers(headers: Any) -> Headers:
    """A user's headers as a list of (name, bytes or None), checked as the stock client does.

    Raises:
        TypeError: Not a dict or list of pairs, or a value of a wrong type.
    """
    pairs: list[Any]
    if isinstance(headers, dict):
        pairs = list(_untyped(headers).items())
    elif isinstance(headers, list):
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
        name = str(name)  # of whatever it is, as stock
        if isinstance(value, str):
            value = value.encode()
        elif value is not None and not isinstance(value, bytes):
            raise TypeError(
                "expected header value to be None, binary, or unicode string, "
                f"not {_type_name(value)}"
            )
        normalized.append((name, value))
    return normalized


def refuse_own_header(headers: Headers) -> None:
    """Refuse the header's name that blobmsg uses itself.

    Raises:
        KafkaException: `_INVALID_ARG`.
    """
    if any(name == HEADER_NAME for name, _ in headers):
        text = f"the header name {HEADER_NAME!r} marks notifications of blobmsg: use another"
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))


def checked_numbers(partition: Any, timestamp: Any) -> tuple[int, int]:
    """A partition and a timestamp, checked as the stock client does.

    Raises:
        TypeError: One is no int.
        OverflowError: A partition over 32 bits, or a timestamp over 64.
    """
    partition, timestamp = index(partition), index(timestamp)
    if not -(1 << 31) <= partition < 1 << 31:
        if not -(1 << 63) <= partition < 1 << 63:
            raise OverflowError("Python int too large to convert to C long")
        bound = "greater than maximum" if partition > 0 else "less than minimum"
        raise OverflowError(f"signed integer is {bound}")
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise OverflowError("int too big to convert")
    return partition, timestamp


def of_batch(error: KafkaError) -> KafkaError:
    """An error of `produce` as `produce_batch` puts it into the message."""
    text = error.str().removeprefix(_UNABLE)
    return KafkaError(error.code(), f"Message failed: {text}")


def too_large(payload_bytes: int, limit_bytes: int) -> KafkaException:
    """The error of a record over the limit."""
    return KafkaException(
        KafkaError(
            KafkaError.MSG_SIZE_TOO_LARGE,
            f"{_UNABLE}Broker: Message size too large: "
            f"a record of {payload_bytes} bytes is larger than "
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
    listed: list[Any] = _untyped(messages)
    places = unusual_places(listed)
    for place in places:
        if not isinstance(listed[place], dict):
            raise TypeError(f"Message at index {place} must be a dict")
    for place in places:
        check_fields(listed[place], place)


def check_fields(message: dict[str, Any], place: int) -> None:
    """Check the fields of one message of a batch, with the texts of stock's `produce_batch`.

    Args:
        message: The message.
        place: Where it is in the batch.

    Raises:
        TypeError: One has a wrong type.
        ValueError: Headers are malformed.
        OverflowError: A number is too large.
    """
    for name in ("value", "key"):
        if not isinstance(message.get(name), (bytes, str, NoneType)):
            raise TypeError(f"Message {name} at index {place} must be bytes or str")
    if message.get("headers") is not None:
        try:
            normalized_headers(message["headers"])
        except (TypeError, UnicodeError) as error:
            raise ValueError(f"Invalid headers at index {place}") from error
    partition = message.get("partition")
    if not isinstance(partition, (int, NoneType)):
        raise TypeError(f"Message partition at index {place} must be int")
    checked_numbers(-1 if partition is None else partition, message.get("timestamp", 0))


def _type_name(value: Any) -> str:
    return type(value).__name__


def _untyped(value: Any) -> Any:
    """After an isinstance check: what is inside is checked one by one."""
    return value
