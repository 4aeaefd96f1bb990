"""`-X KEY=VALUE`: a client's settings on a command line, beside those of the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from blobmsg.cli.command import UserMistake
from blobmsg.config import parse_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from blobmsg.config import Settings

__all__ = ["add_settings_argument", "read_settings", "with_brokers"]

# A store that does not answer is not worth a client's patience here.
_REQUEST_TIMEOUT_MS = 10_000


def add_settings_argument(parser: argparse.ArgumentParser) -> None:
    """Let a command take settings; they are in `settings` of its arguments."""
    parser.add_argument(
        "-X",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, as for a BlobConsumer; may be repeated",
    )


def read_settings(texts: list[str]) -> tuple[Settings, dict[str, Any]]:
    """Ours and librdkafka's settings.

    Raises:
        UserMistake: Not of the form KEY=VALUE.
        ConfigError: Unknown or wrong.
    """
    conf: dict[str, Any] = {"blobmsg.route": "plain"}  # the one that needs no store
    if "BLOBMSG_REQUEST_TIMEOUT_MS" not in os.environ:
        conf["blobmsg.request.timeout.ms"] = _REQUEST_TIMEOUT_MS
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise UserMistake(f"-X wants KEY=VALUE, not {text!r}")
        conf[key] = value
    return parse_settings(conf, os.environ)


def with_brokers(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for librdkafka, with the brokers of `blobmsg dev env` where none are named.

    Raises:
        UserMistake: There are none.
    """
    found = dict(conf)
    bootstrap = os.environ.get("BLOBMSG_DEV_BOOTSTRAP")
    if bootstrap:
        found.setdefault("bootstrap.servers", bootstrap)
    if "bootstrap.servers" not in found:
        raise UserMistake("no brokers: -X bootstrap.servers=HOST:PORT, or blobmsg dev env")
    return found
