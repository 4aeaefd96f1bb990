"""How the text of a setting becomes a value: one function for each kind of setting.

Each takes text and returns the value, or raises ValueError saying what was expected (never the
text itself: it may be a secret). Ranges, names and defaults are the table's business
(`blobmsg.settings_table`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from blobmsg.format.object_key import NAME_PATTERN, NO_ZONE, RESERVED_ISOLATIONS
from blobmsg.kafka_settings import parse_librdkafka_bool, parse_librdkafka_int
from blobmsg.setting import Kind

__all__ = ["Destination", "is_zone_name"]

_INTEGER: Final = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)\s*")
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_NAME: Final = re.compile(NAME_PATTERN)
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_STORE_SCHEMES: Final = ("s3", "file", "memory")
_LATER_STORE_SCHEMES: Final = ("gs", "az")  # refused by what needs the store, in words of its own
# Of `blobmsg.testing.FaultStore`; not told, for it means nothing without one.
_TESTING_STORE_SCHEMES: Final = ("faults",)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a partition is going to be read, as `blobmsg.destination` says it.

    Args:
        kind: `auto`, `leader`, `group`, `static` or `none`.
        zones: The zones of `static`; partition modulo their number.
        group: The consumer group of `group`.
    """

    kind: Literal["auto", "leader", "group", "static", "none"]
    zones: tuple[str, ...] = ()
    group: str = ""

    def resolve(self, *, has_zone_tier: bool) -> Destination:
        """What `auto` stands for: `leader` with a zone tier; else `none`, which fills faster."""
        if self.kind != "auto":
            return self
        return Destination("leader" if has_zone_tier else "none")

    def __str__(self) -> str:
        if self.kind == "static":
            return "static:" + ",".join(self.zones)
        return f"group:{self.group}" if self.kind == "group" else self.kind


def _integer(text: str) -> int:
    # librdkafka stops at the first character that is no digit, so "16MiB" is 16 to it. A batch of
    # 16 bytes is nobody's wish: ours wants the whole text to be a number.
    number = parse_librdkafka_int(text) if _INTEGER.fullmatch(text) else None
    if number is None:
        raise ValueError("expected a whole number without a unit")
    return number


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("expected a number")
    return float(text)


def _boolean(text: str) -> bool:
    value = parse_librdkafka_bool(text.strip())
    if value is None:
        raise ValueError("expected true or false")
    return value


def _word(text: str) -> str:
    return text.strip().lower()


def _text(text: str) -> str:
    return text.strip()


def _secret(text: str) -> str:
    return text


def _url(text: str) -> str:
    url = text.strip()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://host[:port] or https://host[:port]")
    if parts.username is not None or parts.password is not None:
        raise ValueError("expected a URL without a user name or password")
    return url


def _store_url(text: str) -> str:
    url = text.strip()
    parts = urlsplit(url)
    known = (*_STORE_SCHEMES, *_LATER_STORE_SCHEMES, *_TESTING_STORE_SCHEMES)
    if parts.scheme not in known or "://" not in url:
        schemes = ", ".join(f"{scheme}://" for scheme in _STORE_SCHEMES)
        raise ValueError(f"expected a URL that begins with one of {schemes}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("expected a URL without credentials, ? or #; those are settings")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
            raise ValueError("expected file:///an/absolute/directory")
    elif not parts.netloc:
        raise ValueError(f"expected a name after {parts.scheme}://")
    return url


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"expected a regular expression ({error})") from None


def is_zone_name(text: str) -> bool:
    """The text can name a zone: it can stand in an object key, and `none` means no zone."""
    return _NAME.fullmatch(text) is not None and text != NO_ZONE


def _zone(text: str) -> str:
    zone = text.strip()
    if not is_zone_name(zone):
        raise ValueError("expected letters, digits, '.', '_' and '-', 63 at most; not none")
    return zone


def _isolation(text: str) -> str:
    name = text.strip()
    if _NAME.fullmatch(name) is None:
        raise ValueError("expected letters, digits, '.', '_' and '-', 63 at most")
    if name in RESERVED_ISOLATIONS:
        raise ValueError("expected another name, this one is reserved")
    return name


def _zone_aliases(text: str) -> dict[str, str]:
    """`a=b,c=b`: a and c are other names of b."""
    aliases: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        alias, separator, zone = (part.strip() for part in pair.partition("="))
        if not separator or not is_zone_name(alias) or not is_zone_name(zone):
            raise ValueError("expected alias=zone pairs, separated by commas")
        if aliases.setdefault(alias, zone) != zone:
            raise ValueError(f"{alias} stands for two zones")
    for alias in aliases:
        zone = alias
        for _ in aliases:
            zone = aliases.get(zone, zone)
        if zone in aliases:
            raise ValueError(f"{alias} stands for itself")
        aliases[alias] = zone
    return aliases


def _destination(text: str) -> Destination:
    kind, separator, rest = text.strip().partition(":")
    if kind == "group" and rest:
        return Destination("group", group=rest)
    if kind == "static":
        zones = tuple(zone.strip() for zone in rest.split(","))
        if all(is_zone_name(zone) for zone in zones):
            return Destination("static", zones=zones)
        raise ValueError("expected static:zone,zone,… with at least one zone")
    if not separator and kind in ("auto", "leader", "none"):
        return Destination(kind)  # type: ignore[arg-type]  # the `in` narrows it, mypy can't
    raise ValueError("expected auto, leader, none, static:zone,zone,… or group:id")


def _on_missing(text: str) -> str:
    kind, _, topic = text.strip().partition(":")
    if kind == "dlq" and _TOPIC.fullmatch(topic):
        return f"dlq:{topic}"
    if text.strip() in ("fail", "skip"):
        return text.strip()
    raise ValueError("expected fail, skip or dlq:topic")


def _cache_url(text: str) -> str:
    url = text.strip()
    parts = urlsplit(url)
    if parts.scheme not in ("valkey", "redis") or not parts.hostname:
        raise ValueError("expected valkey://host[:port]")
    return url


INTEGER: Final = Kind("integer", _integer, takes_empty=False)
NUMBER: Final = Kind("number", _number, takes_empty=False)
BOOLEAN: Final = Kind("boolean", _boolean, takes_empty=False)
CHOICE: Final = Kind("choice", _word)
TEXT: Final = Kind("text", _text)
PATH: Final = Kind("path", _text)
SECRET: Final = Kind("secret", _secret, is_secret=True)
URL: Final = Kind("URL", _url)
STORE_URL: Final = Kind("store URL", _store_url)
CACHE_URL: Final = Kind("cache URL", _cache_url)
REGEX: Final = Kind("regular expression", _pattern)
ZONE: Final = Kind("zone", _zone)
ZONE_ALIASES: Final = Kind("alias=zone, …", _zone_aliases)
ISOLATION: Final = Kind("name", _isolation)
DESTINATION: Final = Kind("destination", _destination)
ON_MISSING: Final = Kind("action", _on_missing)
