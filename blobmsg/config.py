"""Settings: a user's flat dict and the environment, parsed once into a frozen, typed object.

Decides which keys are ours, what the environment fills in, and which settings contradict each
other (`validate`). Never keeps or changes the user's dict, and never judges a librdkafka setting:
those go down untouched. The table of our settings is `blobmsg.settings_table`,
their page in the docs `blobmsg.settings_page`.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import logging
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from blobmsg.core.cost import BUILT_IN_PRICES, PriceTable
from blobmsg.errors import ConfigError
from blobmsg.kafka_settings import KafkaView
from blobmsg.setting import PREFIX, Setting
from blobmsg.setting_values import Destination, is_zone_name
from blobmsg.settings_table import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["S3Settings", "Settings", "parse_settings", "validate"]

logger = logging.getLogger("blobmsg.config")

_BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
_BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
_NAMED_STORE: Final = re.compile(r"blobmsg\.store\.([a-z0-9]{1,32})\.url")
_NAMED_STORE_VARIABLE: Final = re.compile(r"BLOBMSG_STORE_([A-Z0-9]{1,32})_URL")
_STORE_URL: Final = _BY_KEY["blobmsg.store.url"]
_VARIABLE_PREFIX: Final = "BLOBMSG_"
_OUR_OWN_VARIABLES: Final = ("BLOBMSG_TEST_", "BLOBMSG_DEV_", "BLOBMSG_PURE_PYTHON")
_CODEC_MODULES: Final = {"lz4": "lz4", "zstd": "zstandard"}
# A codec that segments don't have, and the one of ours that serves the same wish.
_NEAREST_CODEC: Final = {"gzip": "zstd", "snappy": "lz4"}
# A segment's columns have int32 offsets (Arrow's binary layout), and one record may join a batch
# that is just under its size.
_SEGMENT_MAX_BYTES: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Where S3 is and who we are there; None: the SDK's own chain decides."""

    endpoint_url: str | None
    region: str | None
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    sse: str | None
    sse_kms_key_id: str | None
    read_endpoint_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All `blobmsg.` settings, parsed and checked; `blobmsg.a.b` is the field `a_b`.

    `zone` is the canonical name (aliases resolved), None when no zone is known. `stores` are the
    named ones; the default store is `store_url`, None only with `route` plain.

    Threads: any (frozen).
    """

    store_url: str | None
    store_engine: str
    stores: Mapping[str, str] = field(hash=False)
    s3: S3Settings
    zone: str | None
    zone_aliases: Mapping[str, str] = field(hash=False)
    topics: re.Pattern[str]
    isolation: str
    retention_ms: int | None
    route: Literal["auto", "blob", "inline", "plain"]
    cost_groups: int
    destination: Destination
    batch_size_bytes: int
    batch_interval_ms: int
    record_max_bytes: int
    compression_type: Literal["none", "lz4", "zstd"]
    upload_threads: int
    fetch_threads: int
    prefetch_max_bytes: int
    cache_memory_bytes: int
    cache_disk_path: str | None
    cache_disk_bytes: int
    cache_disk_reserve_ratio: float
    cache_on_write: bool
    cache_url: str | None
    zone_members: str | None
    zone_listen: str | None
    zone_advertised: str | None
    zone_secret: str | None = field(repr=False)
    zone_tls_ca_location: str | None
    zone_tls_certificate_location: str | None
    zone_tls_key_location: str | None
    zone_append: bool
    on_missing: str
    on_store_failure: Literal["inline", "wait"]
    inline_max_bytes_per_second: int
    fallback_after_ms: int
    request_timeout_ms: int
    hedge_percentile: float | None
    hedge_budget: float
    spill_path: str | None
    price_table: PriceTable
    target_p95_ms: int | None
    target_usd_per_hour: float | None
    offset_check: bool

    def uses_store(self, topic: str) -> bool:
        """Records of this topic may go through the store: its whole name matches `topics`."""
        return self.topics.fullmatch(topic) is not None

    def canonical_zone(self, name: str) -> str:
        """The zone that a name stands for; a name without alias stands for itself."""
        return self.zone_aliases.get(name, name)


def parse_settings(
    conf: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Settings, dict[str, Any]]:
    """Split a user's settings into ours and librdkafka's.

    Args:
        conf: What `collect_config` returned; not changed.
        environ: The environment (`os.environ`); fills what the dict leaves out.

    Returns:
        Our settings and a new dict with all other keys.

    Raises:
        ConfigError: A setting of ours is unknown, out of range, not supported yet or contradicts
            another one.
    """
    ours = {key: value for key, value in conf.items() if _is_ours(key)}
    rest = {key: value for key, value in conf.items() if key not in ours}
    view = KafkaView.parse(rest)
    for key in ours:
        if key not in _BY_KEY and _NAMED_STORE.fullmatch(key) is None:
            raise ConfigError(_unknown_key_text(key), setting=key)
    given = {**_from_environment(environ), **{key: (value, "") for key, value in ours.items()}}
    values: dict[str, Any] = {
        setting.field: _read(setting, *given[setting.key])
        if setting.key in given
        else setting.default
        for setting in SETTINGS
    }
    values["stores"] = _named_stores(given)
    values["price_table"] = _load_prices(values["price_table"])
    values["compression_type"] = _choose_codec(values["compression_type"], view)
    aliases = values["zone_aliases"] = dict(values["zone_aliases"])
    destination: Destination = values["destination"]
    values["destination"] = replace(
        destination, zones=tuple(aliases.get(zone, zone) for zone in destination.zones)
    )
    values["zone"] = _choose_zone(values["zone"], aliases, view, environ)
    if "blobmsg.record.max.bytes" not in given:
        # A user of the stock client who keeps little in memory never heard of our limit.
        values["record_max_bytes"] = min(values["record_max_bytes"], view.queue_buffering_max_bytes)
    s3 = {name: values.pop(f"s3_{name}") for name in S3Settings.__dataclass_fields__}
    settings = Settings(**values, s3=S3Settings(**s3))
    validate(settings, view)
    return settings, rest


def validate(settings: Settings, view: KafkaView) -> None:
    """Check the rules between settings; those within one setting are in the table.

    Raises:
        ConfigError: The first rule that does not hold, naming the settings it is about.
    """
    if settings.store_url is None and settings.route != "plain":
        raise ConfigError(
            '"blobmsg.store.url" must be set (s3://bucket/prefix, file:///dir or memory://name), '
            'unless "blobmsg.route" is "plain"',
            setting="blobmsg.store.url",
        )
    if settings.record_max_bytes > view.queue_buffering_max_bytes:
        raise ConfigError(
            f'"blobmsg.record.max.bytes" ({settings.record_max_bytes}) must be <= '
            f'"queue.buffering.max.kbytes" * 1024 ({view.queue_buffering_max_bytes}): '
            "a larger record would never find room in the queue",
            setting="blobmsg.record.max.bytes",
        )
    if settings.batch_size_bytes + settings.record_max_bytes > _SEGMENT_MAX_BYTES:
        raise ConfigError(
            f'"blobmsg.batch.size.bytes" ({settings.batch_size_bytes}) + '
            f'"blobmsg.record.max.bytes" ({settings.record_max_bytes}) must be <= '
            f"{_SEGMENT_MAX_BYTES}, the largest segment",
            setting="blobmsg.batch.size.bytes",
        )
    if (settings.s3.access_key_id is None) != (settings.s3.secret_access_key is None):
        raise ConfigError(
            '"blobmsg.s3.access.key.id" and "blobmsg.s3.secret.access.key" must be set together '
            "or left to the SDK together",
            setting="blobmsg.s3.access.key.id",
        )
    if settings.s3.sse_kms_key_id is not None and settings.s3.sse is None:
        raise ConfigError(
            '"blobmsg.s3.sse.kms.key.id" needs "blobmsg.s3.sse" (e.g. aws:kms)',
            setting="blobmsg.s3.sse.kms.key.id",
        )
    codec = settings.compression_type
    if codec != "none" and importlib.util.find_spec(_CODEC_MODULES[codec]) is None:
        raise ConfigError(
            f'compression "{codec}" needs a package that is not installed: '
            f'pip install "blobmsg[{codec}]", or set "blobmsg.compression.type" to another codec',
            setting="blobmsg.compression.type",
        )


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX)


def _unknown_key_text(key: str) -> str:
    text = f'No such configuration property: "{key}"'
    if key.startswith("blobmsg.store.") and key.endswith(".url"):
        return f"{text}. Names of stores are lower-case letters and digits, 32 at most"
    # Without the shared prefix, which would make everything look alike.
    names = [known.removeprefix(PREFIX) for known in _BY_KEY]
    nearest = difflib.get_close_matches(key.removeprefix(PREFIX), names, n=1, cutoff=0.6)
    return f'{text}. Did you mean "{PREFIX}{nearest[0]}"?' if nearest else text


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Settings in the environment: key -> (text, variable)."""
    found: dict[str, tuple[object, str]] = {}
    for variable, text in environ.items():
        if not variable.startswith(_VARIABLE_PREFIX) or variable.startswith(_OUR_OWN_VARIABLES):
            continue
        store = _NAMED_STORE_VARIABLE.fullmatch(variable)
        if variable in _BY_VARIABLE:
            key = _BY_VARIABLE[variable].key
        elif store is not None:
            key = f"blobmsg.store.{store.group(1).lower()}.url"
        else:
            _warn_of_unknown_variable(variable)
            continue
        # Compose files and charts pass variables on that are not set as empty ones.
        if text:
            found[key] = (text, variable)
    return found


@functools.cache
def _warn_of_unknown_variable(variable: str) -> None:
    """Once per process and name: every client of a process sees the same environment."""
    nearest = difflib.get_close_matches(
        variable.removeprefix(_VARIABLE_PREFIX),
        [known.removeprefix(_VARIABLE_PREFIX) for known in _BY_VARIABLE],
        n=1,
        cutoff=0.6,
    )
    hint = f" Did you mean {_VARIABLE_PREFIX}{nearest[0]}?" if nearest else ""
    logger.warning(
        "Environment variable %s is not a setting of blobmsg: ignored.%s", variable, hint
    )


def _read(setting: Setting, value: object, variable: str) -> Any:
    try:
        return setting.read(value)
    except ValueError as error:
        source = f" (from {variable} in the environment)" if variable else ""
        raise ConfigError(f"{error}{source}", setting=setting.key) from None


def _named_stores(given: Mapping[str, tuple[object, str]]) -> dict[str, str]:
    stores: dict[str, str] = {}
    for key, (value, variable) in given.items():
        name = _NAMED_STORE.fullmatch(key)
        if name is not None:
            row = Setting(key, _STORE_URL.kind, None, "", not_yet=_STORE_URL.not_yet)
            url = _read(row, value, variable)
            if url is not None:
                stores[name.group(1)] = url
    return stores


def _load_prices(path: str | None) -> PriceTable:
    if path is None:
        return BUILT_IN_PRICES
    try:
        return PriceTable.from_json(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f'"blobmsg.price.table" {path}: {error}', setting="blobmsg.price.table"
        ) from error


def _choose_codec(ours: str | None, view: KafkaView) -> str:
    if ours is not None:
        return ours
    theirs = view.compression_type
    codec = _NEAREST_CODEC.get(theirs, theirs)
    if codec != theirs:
        logger.info(
            "compression.type=%s: blobmsg compresses payload with %s; "
            "set blobmsg.compression.type to choose",
            theirs,
            codec,
        )
    # Anything else is a value that librdkafka refuses when the client is built.
    return codec if codec in _CODEC_MODULES else "none"


def _choose_zone(
    ours: str | None, aliases: Mapping[str, str], view: KafkaView, environ: Mapping[str, str]
) -> str | None:
    name = ours or view.client_rack or environ.get("TOPOLOGY_ZONE")
    if not name:
        return None
    zone = aliases.get(name, name)
    if is_zone_name(zone):
        return zone
    # A rack may be called anything; an element of an object's path may not.
    logger.warning(
        "%r can't name a zone (letters, digits, '.', '_' and '-'): no zone is known for this "
        "process; set blobmsg.zone or blobmsg.zone.aliases",
        name,
    )
    return None
