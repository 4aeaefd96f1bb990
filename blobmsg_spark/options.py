"""Options of `format("blobmsg")`, as reading and writing share them: whose each is, and its value.

What begins with `kafka.` is a setting of librdkafka, `blobmsg.*` one of ours, all else an option of
Spark's users. Spark hands options over in lower case, so they are looked up that way; all settings
are lower case anyway. Decides nothing about what an option means.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from blobmsg.errors import ConfigError
from blobmsg.kafka_settings import canonical_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "GivenOptions",
    "Reader",
    "read_count",
    "read_flag",
    "read_size",
    "read_text",
    "read_whole",
    "split_options",
]

#: (name of the option, its text) -> its value.
Reader: TypeAlias = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """What a user gave.

    Attributes:
        values: Of options, by their names in the usual spelling.
        conf: Settings, ours and librdkafka's.
    """

    values: Mapping[str, Any]
    conf: dict[str, str] = field(repr=False)


def split_options(
    options: Mapping[str, str],
    known: Mapping[str, Reader],
    *,
    refused: Mapping[str, str],
    refused_kafka: Mapping[str, str],
) -> GivenOptions:
    """Read what a user gave.

    Args:
        options: As Spark gives them.
        known: Every option, with what reads its text.
        refused: Options that somebody may try all the same, and what to say of each.
        refused_kafka: Settings of librdkafka that are not the user's, likewise.

    Raises:
        ConfigError: One is unknown, refused or wrong, or there are no brokers.
    """
    names = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    conf: dict[str, str] = {}
    for key, value in {key.lower(): str(value) for key, value in options.items()}.items():
        if key.startswith("kafka."):
            conf[_kafka_name(key, refused_kafka)] = value
        elif key.startswith("blobmsg."):
            conf[key] = value
        elif key in names:
            given[names[key]] = value
        else:
            raise _unknown(key, known, refused)
    if canonical_name("bootstrap.servers") not in map(canonical_name, conf):
        raise ConfigError(
            "option kafka.bootstrap.servers is missing: name the brokers, host:port,host:port",
            setting="kafka.bootstrap.servers",
        )
    return GivenOptions({name: known[name](name, text) for name, text in given.items()}, conf)


def _kafka_name(key: str, refused: Mapping[str, str]) -> str:
    name = key.removeprefix("kafka.")
    reason = refused.get(canonical_name(name))
    if reason is not None:
        raise ConfigError(f"option {key} can't be set: {reason}", setting=key)
    return name


def _unknown(key: str, known: Mapping[str, Reader], refused: Mapping[str, str]) -> ConfigError:
    for name, reason in refused.items():
        if name.lower() == key:
            return ConfigError(f"option {name} {reason}", setting=key)
    names = {name.lower(): name for name in known}
    settings = ("kafka.bootstrap.servers", "blobmsg.store.url")
    nearest = difflib.get_close_matches(key, [*names, *settings], n=1, cutoff=0.6)
    hint = f'. Did you mean "{names.get(nearest[0], nearest[0])}"?' if nearest else (
        f": known are {', '.join(known)}, and settings as kafka.* and blobmsg.*"
    )  # fmt: skip
    return ConfigError(f'No such option of format("blobmsg"): "{key}"{hint}', setting=key)


# --- values ---------------------------------------------------------------------------------------


def read_whole(option: str, text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"option {option} must be a whole number, not {text!r}", setting=option
        ) from None


def read_count(option: str, text: str) -> int:
    """A whole number of at least 1."""
    number = read_whole(option, text)
    if number < 1:
        raise ConfigError(f"option {option} must be at least 1, not {text}", setting=option)
    return number


_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*([bkmgt]?)b?\s*", re.IGNORECASE)


def read_size(option: str, text: str) -> int:
    """A size in bytes of at least 1; `64m` is understood."""
    found = _SIZE.fullmatch(text)
    size_bytes = 0 if found is None else int(found.group(1)) * _UNITS[found.group(2).lower()]
    if size_bytes < 1:
        raise ConfigError(
            f"option {option} must be a number of bytes, at least 1, like 67108864 or 64m, not "
            f"{text}",
            setting=option,
        )
    return size_bytes


def read_flag(option: str, text: str) -> bool:
    """True or false."""
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"option {option} must be true or false, not {text!r}", setting=option)
    return text.strip().lower() == "true"


def read_text(option: str, text: str) -> str:
    """Any text that is not empty."""
    if not text.strip():
        raise ConfigError(f"option {option} is empty", setting=option)
    return text
