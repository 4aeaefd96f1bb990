"""The page of settings in the docs, written from the table.

`python -m blobmsg.settings_page > docs/settings.md` brings it up to date; a test checks that it
is. A module of its own, because running one that the package imports makes runpy warn.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from blobmsg.setting import ANY, text_of
from blobmsg.settings_table import SETTINGS

if TYPE_CHECKING:
    from blobmsg.setting import Setting

__all__ = ["settings_page"]

_PAGE_HEAD: Final = """\
# Settings

<!-- Written by `python -m blobmsg.settings_page > docs/settings.md`. -->

One flat dict, as for confluent-kafka: what begins with `blobmsg.` is ours, everything else goes to
librdkafka. Numbers and booleans may be given as text (`"5"`, `"true"`). What the dict leaves out is
taken from the environment, under the same name in upper case with dots as underscores
(`BLOBMSG_STORE_URL`); an empty variable counts as not set. Durations are in ms, sizes in bytes. An
unknown key, a wrong type or a value out of range raises `ConfigError`, a `KafkaException` with
code `_INVALID_ARG`. None of them can be changed while a client runs, unless its row says so.

Further stores that a reader may need are named: `blobmsg.store.<name>.url`
(`BLOBMSG_STORE_<NAME>_URL`), with names of lower-case letters and digits.

| key | type | default | allowed | meaning |
|---|---|---|---|---|
"""
_PAGE_TAIL: Final = """
## Not in this version yet

These are known and checked, and refused with a plain message when set:

"""


def settings_page() -> str:
    """The text of `docs/settings.md`."""
    rows = "".join(map(_page_row, SETTINGS))
    later = "".join(_page_later(setting) for setting in SETTINGS if setting.not_yet)
    return _PAGE_HEAD + rows + _PAGE_TAIL + later


def _page_row(setting: Setting) -> str:
    kind = setting.kind.label + (f", {setting.unit}" if setting.unit else "")
    allowed = setting.range_text
    meaning = setting.meaning + (" Can be changed while running." if setting.is_live else "")
    return f"| `{setting.key}` | {kind} | {_default_text(setting)} | {allowed} | {meaning} |\n"


def _default_text(setting: Setting) -> str:
    if setting.default_text:
        return setting.default_text
    if setting.default is None:
        return "off"
    return f"`{text_of(setting.default)}`"


def _page_later(setting: Setting) -> str:
    if setting.not_yet == ANY:
        return f"- `{setting.key}`\n"
    values = ", ".join(f"`{beginning}`" for beginning in setting.not_yet)
    return f"- `{setting.key}` = {values}\n"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
