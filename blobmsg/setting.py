"""One row of the settings table: how what a user gave becomes a value, or a refusal.

Refuses in librdkafka's words where it has some. Never knows which settings there are
(`blobmsg.settings_table`) or how a kind of text is parsed (`blobmsg.setting_values`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ANY", "PREFIX", "Kind", "Setting", "text_of"]

PREFIX: Final = "blobmsg."
#: `not_yet` of a setting that this version takes no value for but its default.
ANY: Final = ("",)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of setting.

    Args:
        label: Its name in the docs.
        parse: Text to value; raises ValueError saying what was expected.
        takes_empty: An empty text means "not set"; librdkafka refuses it for numbers and booleans.
        is_secret: Its text must not be shown.
    """

    label: str
    parse: Callable[[str], object]
    takes_empty: bool = True
    is_secret: bool = False


def text_of(value: object) -> str:
    """The text that a value in a settings dict stands for; empty for None.

    Raises:
        ValueError: The value is neither text, a number, a boolean nor a path.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # librdkafka reads the integer part of "16e6", too
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, PurePath):
        return str(value)
    raise ValueError(f"expected text, a number or a boolean, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Args:
        key: Name in the settings dict.
        kind: How its text becomes a value.
        default: Its value when not set; None: off, or decided elsewhere (`default_text`).
        meaning: One sentence for the docs.
        unit: Unit of a number.
        minimum: Smallest value allowed.
        maximum: Largest value allowed.
        choices: The words allowed, for a choice.
        default_text: How the docs show the default, where the value does not say it.
        is_live: Can be changed while a client runs.
        not_yet: Beginnings of values that this version refuses; `ANY`: all but the default.
    """

    key: str
    kind: Kind
    default: object
    meaning: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    default_text: str = ""
    is_live: bool = False
    not_yet: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Name in `Settings`."""
        return self.key.removeprefix(PREFIX).replace(".", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return self.key.upper().replace(".", "_")

    @property
    def range_text(self) -> str:
        """The values allowed, for the docs and error texts; empty: whatever the kind takes."""
        if self.choices:
            return ", ".join(self.choices)
        if self.minimum is None or self.maximum is None:
            return ""
        return f"{_plain(self.minimum)}..{_plain(self.maximum)}"

    def read(self, given: object) -> object:
        """Turn what a user gave into the setting's value.

        Nothing (None or an empty text) and, for a setting that is off by default, `off` give the
        default, except for numbers and booleans, which librdkafka doesn't let be empty either.

        Raises:
            ValueError: It is refused; the text says why, as librdkafka would say it.
        """
        try:
            text = text_of(given)
        except ValueError as error:
            raise ValueError(self._refusal("", str(error))) from None
        if not text:
            if not self.kind.takes_empty:
                raise ValueError(
                    f'{self.kind.label.capitalize()} configuration property "{self.key}" cannot '
                    "be set to empty value"
                )
            return self.default
        if self.default is None and text.strip().lower() == "off":
            return None
        try:
            value = self.kind.parse(text)
        except ValueError as error:
            raise ValueError(self._refusal(text, str(error))) from None
        self._check_range(text, value)
        if self.not_yet and value != self.default and text.strip().startswith(self.not_yet):
            shown = "" if self.kind.is_secret else f"={text.strip()}"
            instead = "leave it out" if self.not_yet == ANY else f"use {self._supported_text}"
            raise ValueError(
                f'"{self.key}{shown}" is not supported by this version of blobmsg yet; {instead}'
            )
        return value

    def _check_range(self, text: str, value: object) -> None:
        if self.choices and value not in self.choices:
            raise ValueError(self._refusal(text, f"expected one of {self.range_text}"))
        if (
            self.minimum is not None
            and self.maximum is not None
            and isinstance(value, (int, float))
            and not self.minimum <= value <= self.maximum
        ):
            raise ValueError(
                f'Configuration property "{self.key}" value {text.strip()} is outside allowed '
                f"range {self.range_text}"
            )

    def _refusal(self, text: str, why: str) -> str:
        shown = "" if self.kind.is_secret or not text else f' "{text}"'
        return f'Invalid value{shown} for configuration property "{self.key}": {why}'

    @property
    def _supported_text(self) -> str:
        if self.choices:
            return " or ".join(c for c in self.choices if not c.startswith(self.not_yet))
        return "another value"


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
