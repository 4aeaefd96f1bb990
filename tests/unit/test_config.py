from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from confluent_kafka import KafkaError, KafkaException

from blobmsg import config
from blobmsg.config import S3Settings, Settings, parse_settings
from blobmsg.core.cost import BUILT_IN_PRICES
from blobmsg.errors import ConfigError
from blobmsg.setting import ANY
from blobmsg.setting_values import Destination
from blobmsg.settings_page import settings_page
from blobmsg.settings_table import SETTINGS

STORE = {"blobmsg.store.url": "memory://test"}
ROOT = Path(__file__).parents[2]


def parse(conf: dict[str, Any] | None = None, **environ: str) -> Settings:
    return parse_settings({**STORE, **(conf or {})}, environ)[0]


def refusal(conf: dict[str, Any], **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(conf, **environ)
    return str(caught.value)


# -- the table ---------------------------------------------------------------------------------


def test_the_table_and_the_typed_settings_have_the_same_fields() -> None:
    of_s3 = {f"s3_{field.name}" for field in dataclasses.fields(S3Settings)}
    of_settings = {field.name for field in dataclasses.fields(Settings)} - {"s3", "stores"}

    assert {setting.field for setting in SETTINGS} == of_s3 | of_settings


def test_every_key_and_variable_is_there_once() -> None:
    assert len({setting.key for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)


def has_type(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is UnionType:
        return any(has_type(value, part) for part in get_args(hint))
    return type(value) is (get_origin(hint) or hint)


def test_every_default_has_the_type_of_its_field() -> None:
    settings = parse()

    for owner in (settings, settings.s3):
        hints = get_type_hints(type(owner), {**vars(config), "Mapping": dict})
        for name, hint in hints.items():
            assert has_type(getattr(owner, name), hint), name


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_both_ends_of_every_range_are_taken_and_one_more_is_refused(setting: Any) -> None:
    if setting.minimum is None:
        assert setting.maximum is None
        return
    free = dataclasses.replace(setting, not_yet=())
    step = 1 if isinstance(setting.default, int) or setting.unit == "ms" else 0.5

    assert free.read(str(setting.minimum)) == setting.minimum
    assert free.read(str(setting.maximum)) == setting.maximum
    for outside in (setting.minimum - step, setting.maximum + step):
        with pytest.raises(ValueError, match="is outside allowed range"):
            free.read(str(outside))


def test_the_settings_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

    assert page == settings_page(), "run: python -m blobmsg.settings_page > docs/settings.md"


def test_the_settings_page_is_what_the_module_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "blobmsg.settings_page"], cwd=ROOT, capture_output=True, check=True
    )

    assert printed.stdout.decode() == settings_page()
    assert printed.stderr == b""


def test_the_settings_page_names_every_key_and_what_is_not_there_yet() -> None:
    page, later = settings_page().split("## Not in this version yet")

    assert all(f"| `{setting.key}` |" in page for setting in SETTINGS)
    assert all((f"- `{s.key}`" in later) == bool(s.not_yet) for s in SETTINGS)


# -- splitting ---------------------------------------------------------------------------------


def test_ours_are_parsed_and_the_rest_goes_down_in_a_copy() -> None:
    conf: Any = {**STORE, "blobmsg.upload.threads": "5", "linger.ms": 7, "blobmsgx": 1, 5: 6}

    settings, rest = parse_settings(conf, {})

    assert settings.upload_threads == 5
    expected: Any = {"linger.ms": 7, "blobmsgx": 1, 5: 6}
    assert rest == expected
    rest.clear()
    assert len(conf) == 5


def test_defaults_are_the_designs() -> None:
    settings = parse()

    assert settings.batch_size_bytes == 16_777_216
    assert settings.batch_interval_ms == 1000
    assert settings.record_max_bytes == 67_108_864
    assert settings.route == "auto"
    assert settings.destination == Destination("auto")
    assert settings.isolation == "shared"
    assert settings.upload_threads == settings.fetch_threads == 8
    assert settings.prefetch_max_bytes == 67_108_864
    assert settings.cache_memory_bytes == 134_217_728
    assert settings.on_missing == "fail"
    assert settings.on_store_failure == "inline"
    assert settings.fallback_after_ms == 5000
    assert settings.inline_max_bytes_per_second == 5_242_880
    assert settings.request_timeout_ms == 30_000
    assert settings.compression_type == "none"
    assert settings.cost_groups == 1
    assert settings.retention_ms is None
    assert settings.offset_check is True
    assert settings.zone is None
    assert settings.price_table is BUILT_IN_PRICES


def test_settings_are_frozen_picklable_comparable_and_hashable() -> None:
    settings = parse({"blobmsg.store.archive.url": "file:///tmp/a", "blobmsg.zone.aliases": "a=b"})

    again = pickle.loads(pickle.dumps(settings))  # noqa: S301  (our own bytes)

    assert again == settings
    assert hash(again) == hash(settings)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.route = "plain"  # type: ignore[misc]


def test_one_clients_aliases_are_not_anothers() -> None:
    assert parse().zone_aliases is not parse().zone_aliases


def test_secrets_are_not_shown() -> None:
    settings = parse({"blobmsg.s3.access.key.id": "id", "blobmsg.s3.secret.access.key": "hidden!"})

    assert settings.s3.secret_access_key == "hidden!"  # noqa: S105  (a test's)
    assert "hidden!" not in repr(settings)
    assert "hidden!" not in refusal({"blobmsg.zone.secret": "hidden!"})


# -- unknown keys ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("blobmsg.btach.size.bytes", "blobmsg.batch.size.bytes"),
        ("blobmsg.upload.thread", "blobmsg.upload.threads"),
        ("blobmsg.s3.endpoint", "blobmsg.s3.endpoint.url"),
        ("blobmsg.Route", "blobmsg.route"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, nearest: str) -> None:
    text = refusal({key: 1})

    assert text == f'No such configuration property: "{key}". Did you mean "{nearest}"?'


@pytest.mark.parametrize("key", ["blobmsg.", "blobmsg.q", "blobmsg.blobmsg.blobmsg"])
def test_the_shared_prefix_suggests_nothing(key: str) -> None:
    assert refusal({key: 1}) == f'No such configuration property: "{key}"'


def test_a_bad_setting_is_a_stock_exception_with_the_stock_code() -> None:
    with pytest.raises(KafkaException) as caught:
        parse({"blobmsg.upload.threads": 0})

    assert caught.value.args[0].code() == KafkaError._INVALID_ARG
    assert caught.value.setting == "blobmsg.upload.threads"  # type: ignore[attr-defined]


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [5, "5", " 5 ", "+5", "0x5", 5.0, "05"], ids=repr)
def test_whole_numbers_are_taken_as_librdkafka_takes_them(value: object) -> None:
    assert parse({"blobmsg.upload.threads": value}).upload_threads == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", 'Invalid value "abc" for configuration property "blobmsg.upload.threads": '),
        ("16MiB", "expected a whole number without a unit"),
        ("5.5", "expected a whole number"),
        (5.5, "expected a whole number"),
        (True, "expected a whole number"),
        ("08", "expected a whole number"),
        (b"5", "expected text, a number or a boolean, not bytes"),
        ([5], "not list"),
        (None, 'Integer configuration property "blobmsg.upload.threads" cannot be set to empty'),
        ("", "cannot be set to empty value"),
        (0, 'property "blobmsg.upload.threads" value 0 is outside allowed range 1..256'),
        (257, "value 257 is outside allowed range 1..256"),
        ("-1", "value -1 is outside allowed range 1..256"),
    ],
    ids=repr,
)
def test_what_is_no_whole_number_in_range_is_refused(value: object, text: str) -> None:
    assert text in refusal({"blobmsg.upload.threads": value})


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("T", True), (1, True), (True, True), ("False", False), ("0", False)],
    ids=repr,
)
def test_booleans_are_taken_as_librdkafka_takes_them(value: object, expected: bool) -> None:
    assert parse({"blobmsg.offset.check": value}).offset_check is expected


@pytest.mark.parametrize("value", ["yes", 2, "on", None], ids=repr)
def test_what_is_no_boolean_is_refused(value: object) -> None:
    assert '"blobmsg.offset.check"' in refusal({"blobmsg.offset.check": value})


BAD = [
    ("store.url", "nowhere", "begins with one of s3://"),
    ("store.url", "http://bucket", "begins with one of s3://"),
    ("store.url", "s3:bucket", "begins with one of s3://"),
    ("store.url", "s3:///prefix", "expected a name after s3://"),
    ("store.url", "s3://key:secret@bucket", "without credentials"),
    ("store.url", "s3://bucket?region=x", "without credentials"),
    ("store.url", "file://host/dir", "file:///an/absolute/directory"),
    ("store.url", "file:///", "file:///an/absolute/directory"),
    ("store.url", "memory://", "expected a name after memory://"),
    ("s3.endpoint.url", "localhost:9000", "expected http://"),
    ("s3.endpoint.url", "http://u:p@host", "without a user name"),
    ("topics", "(", "regular expression"),
    ("isolation", "a/b", "letters, digits"),
    ("isolation", "..", "letters, digits"),
    ("isolation", "history", "reserved"),
    ("isolation", "x" * 64, "63 at most"),
    ("zone", "us east", "letters, digits"),
    ("zone", "none", "not none"),
    ("zone.aliases", "a", "alias=zone"),
    ("zone.aliases", "a=", "alias=zone"),
    ("zone.aliases", "a=b,a=c", "a stands for two zones"),
    ("zone.aliases", "a=b,b=a", "stands for itself"),
    ("zone.aliases", "a=a", "stands for itself"),
    ("destination", "az1", "expected auto, leader, none"),
    ("destination", "static:", "static:zone"),
    ("destination", "static:a,,b", "static:zone"),
    ("destination", "none:x", "expected auto, leader, none"),
    ("destination", "group:", "expected auto, leader, none"),
    ("on.missing", "ignore", "expected fail, skip or dlq:topic"),
    ("on.missing", "dlq:", "expected fail, skip or dlq:topic"),
    ("on.missing", "dlq:a b", "expected fail, skip or dlq:topic"),
    ("route", "fastest", "expected one of auto, blob, inline, plain"),
    ("compression.type", "gzip", "expected one of none, lz4, zstd"),
    ("retention.ms", -2, "outside allowed range -1.."),
    ("cache.url", "http://x", "expected valkey://"),
    ("hedge.percentile", "most", "expected a number"),
    ("hedge.percentile", 100, "outside allowed range 50..99.99"),
    ("cache.disk.reserve.ratio", "nan", "expected a number"),
]


@pytest.mark.parametrize(("name", "value", "text"), BAD, ids=[f"{b[0]}={b[1]}" for b in BAD])
def test_a_bad_value_is_refused_with_key_and_reason(name: str, value: object, text: str) -> None:
    message = refusal({f"blobmsg.{name}": value})

    assert f'"blobmsg.{name}"' in message
    assert text in message


def test_good_values_of_every_shape() -> None:
    settings = parse(
        {
            "blobmsg.store.url": " s3://bucket/a/b ",
            "blobmsg.store.archive2.url": "file:///var/blobs",
            "blobmsg.s3.endpoint.url": "http://127.0.0.1:9000",
            "blobmsg.topics": "orders|payments",
            "blobmsg.isolation": "team-a",
            "blobmsg.retention.ms": -1,
            "blobmsg.route": "BLOB",
            "blobmsg.destination": "static:az1, az2",
            "blobmsg.zone": "az1",
            "blobmsg.on.missing": "skip",
            "blobmsg.compression.type": "none",
            "blobmsg.cache.disk.path": "off",
            "blobmsg.s3.region": None,
        }
    )

    assert settings.store_url == "s3://bucket/a/b"
    assert settings.stores == {"archive2": "file:///var/blobs"}
    assert settings.s3.endpoint_url == "http://127.0.0.1:9000"
    assert settings.s3.region is None
    assert settings.isolation == "team-a"
    assert settings.retention_ms == -1
    assert settings.route == "blob"
    assert settings.destination == Destination("static", zones=("az1", "az2"))
    assert settings.on_missing == "skip"
    assert settings.cache_disk_path is None


def test_a_topic_uses_the_store_when_its_whole_name_matches() -> None:
    settings = parse({"blobmsg.topics": "orders|pay.*"})

    assert settings.uses_store("orders")
    assert settings.uses_store("payments")
    assert not settings.uses_store("orders-v2")
    assert parse().uses_store("anything")


def test_auto_destination_needs_a_zone_tier_to_be_leader() -> None:
    assert Destination("auto").resolve(has_zone_tier=False) == Destination("none")
    assert Destination("auto").resolve(has_zone_tier=True) == Destination("leader")
    static = Destination("static", zones=("a",))
    assert static.resolve(has_zone_tier=True) is static


@pytest.mark.parametrize("text", ["auto", "leader", "none", "static:a,b"])
def test_a_destination_prints_as_it_is_written(text: str) -> None:
    assert str(parse({"blobmsg.destination": text}).destination) == text


# -- later work --------------------------------------------------------------------------------

LATER = {
    "store.url": "gs://bucket",
    "store.engine": "obstore",
    "cache.url": "valkey://host:6379",
    "cache.disk.path": "/var/cache/blobmsg",
    "cache.disk.bytes": 1,
    "cache.disk.reserve.ratio": 0.1,
    "zone.members": "a:1,b:1",
    "zone.listen": "0.0.0.0:1",
    "zone.advertised": "host:1",
    "zone.secret": "secret",
    "zone.tls.ca.location": "/ca",
    "zone.tls.certificate.location": "/cert",
    "zone.tls.key.location": "/key",
    "zone.append": True,
    "cache.on.write": False,
    "on.missing": "dlq:lost",
    "hedge.percentile": 99,
    "hedge.budget": 0.1,
    "spill.path": "/var/spool/blobmsg",
    "target.p95.ms": 500,
    "target.usd.per.hour": 1.5,
    "destination": "group:g",
}


def test_the_list_of_later_settings_is_complete() -> None:
    assert {f"blobmsg.{name}" for name in LATER} == {s.key for s in SETTINGS if s.not_yet}


@pytest.mark.parametrize("name", LATER)
def test_a_later_setting_is_known_and_refused_plainly(name: str) -> None:
    message = refusal({f"blobmsg.{name}": LATER[name]})

    assert f'"blobmsg.{name}' in message
    assert "is not supported by this version of blobmsg yet" in message


@pytest.mark.parametrize("url", ["gs://bucket/p", "az://container"])
def test_later_stores_are_refused_by_any_name(url: str) -> None:
    assert "not supported" in refusal({"blobmsg.store.url": url})
    assert '"blobmsg.store.old.url=' in refusal({"blobmsg.store.old.url": url})


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if s.not_yet == ANY], ids=lambda setting: setting.key
)
def test_a_later_setting_may_be_given_its_default(setting: Any) -> None:
    given = "off" if setting.default is None else setting.default

    parse({setting.key: given})


# -- the environment ---------------------------------------------------------------------------


def test_the_environment_fills_what_the_dict_leaves_out() -> None:
    settings, _ = parse_settings(
        {"blobmsg.upload.threads": 3},
        {
            "BLOBMSG_STORE_URL": "memory://env",
            "BLOBMSG_UPLOAD_THREADS": "7",
            "BLOBMSG_FETCH_THREADS": "9",
            "BLOBMSG_STORE_ARCHIVE_URL": "s3://archive",
            "BLOBMSG_S3_SECRET_ACCESS_KEY": "s",
            "BLOBMSG_S3_ACCESS_KEY_ID": "i",
            "HOME": "/root",
        },
    )

    assert settings.store_url == "memory://env"
    assert settings.upload_threads == 3
    assert settings.fetch_threads == 9
    assert settings.stores == {"archive": "s3://archive"}
    assert settings.s3.secret_access_key == "s"  # noqa: S105  (a test's)


def test_the_dict_wins_for_named_stores_too() -> None:
    settings = parse({"blobmsg.store.a.url": "s3://dict"}, BLOBMSG_STORE_A_URL="s3://env")

    assert settings.stores == {"a": "s3://dict"}


def test_an_empty_variable_counts_as_not_set() -> None:
    assert parse({}, BLOBMSG_UPLOAD_THREADS="", BLOBMSG_STORE_URL="").upload_threads == 8


def test_a_bad_variable_is_refused_by_its_own_name() -> None:
    message = refusal({}, BLOBMSG_UPLOAD_THREADS="many")

    assert '"blobmsg.upload.threads"' in message
    assert "(from BLOBMSG_UPLOAD_THREADS in the environment)" in message


def test_an_unknown_variable_is_one_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    config._warn_of_unknown_variable.cache_clear()

    for _ in range(3):
        parse({}, BLOBMSG_BTACH_SIZE_BYTES="1", BLOBMSG_TEST_X="1", BLOBMSG_DEV_PORT="1")

    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "BLOBMSG_BTACH_SIZE_BYTES" in warning.getMessage()
    assert "Did you mean BLOBMSG_BATCH_SIZE_BYTES?" in warning.getMessage()


def test_a_bad_store_name_says_what_names_are() -> None:
    assert "lower-case letters and digits" in refusal({"blobmsg.store.My-Store.url": "s3://a"})


# -- zone --------------------------------------------------------------------------------------


def test_the_zone_is_ours_then_the_rack_then_the_topologys() -> None:
    rack = {"client.rack": "rack1"}

    assert parse({"blobmsg.zone": "z", **rack}, TOPOLOGY_ZONE="t").zone == "z"
    assert parse(rack, TOPOLOGY_ZONE="t", BLOBMSG_ZONE="env").zone == "env"
    assert parse(rack, TOPOLOGY_ZONE="t").zone == "rack1"
    assert parse({}, TOPOLOGY_ZONE="t").zone == "t"
    assert parse({}, TOPOLOGY_ZONE="").zone is None


def test_aliases_stand_for_one_zone_everywhere() -> None:
    aliases = {"blobmsg.zone.aliases": "use1-az1=us-east-1a, a=b, b=c"}

    settings = parse({**aliases, "client.rack": "use1-az1", "blobmsg.destination": "static:a,b,d"})

    assert settings.zone == "us-east-1a"
    assert settings.destination.zones == ("c", "c", "d")
    assert settings.canonical_zone("a") == "c"
    assert settings.canonical_zone("other") == "other"


@pytest.mark.parametrize("rack", ["dc1:rack2", "/a/b", "none"])
def test_a_rack_that_can_not_name_a_zone_is_a_warning(
    rack: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert parse({"client.rack": rack}).zone is None
    assert "can't name a zone" in caplog.text


# -- rules between settings --------------------------------------------------------------------


def test_the_store_is_required_unless_everything_goes_plain() -> None:
    with pytest.raises(ConfigError, match=r'"blobmsg.store.url" must be set'):
        parse_settings({}, {})

    assert parse_settings({"blobmsg.route": "plain"}, {})[0].store_url is None


def test_a_record_larger_than_the_queue_is_refused_when_asked_for() -> None:
    conf = {"blobmsg.record.max.bytes": 2_000_000, "queue.buffering.max.kbytes": 1000}

    assert '"queue.buffering.max.kbytes" * 1024 (1024000)' in refusal(conf)


def test_the_default_record_limit_follows_a_small_queue() -> None:
    assert parse({"queue.buffering.max.kbytes": 1000}).record_max_bytes == 1_024_000


def test_a_segment_must_fit_its_int32_offsets() -> None:
    conf = {"blobmsg.batch.size.bytes": 1 << 30, "blobmsg.record.max.bytes": 1 << 30}

    assert "must be <= 2147483647" in refusal(conf)
    assert parse({**conf, "blobmsg.record.max.bytes": (1 << 30) - 1}).batch_size_bytes == 1 << 30


@pytest.mark.parametrize("name", ["access.key.id", "secret.access.key"])
def test_half_a_key_pair_is_refused(name: str) -> None:
    assert "must be set together" in refusal({f"blobmsg.s3.{name}": "x"})


def test_a_kms_key_needs_server_side_encryption() -> None:
    assert 'needs "blobmsg.s3.sse"' in refusal({"blobmsg.s3.sse.kms.key.id": "k"})
    assert (
        parse({"blobmsg.s3.sse.kms.key.id": "k", "blobmsg.s3.sse": "aws:kms"}).s3.sse == "aws:kms"
    )


# -- compression -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "lines"),
    [
        ("none", "none", 0),
        ("lz4", "lz4", 0),
        ("zstd", "zstd", 0),
        ("gzip", "zstd", 1),
        ("snappy", "lz4", 1),
    ],
)
def test_segments_are_compressed_as_the_user_wished_for_kafka(
    theirs: str, ours: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    assert parse({"compression.codec": theirs}).compression_type == ours
    assert len(caplog.records) == lines


def test_our_own_compression_setting_wins(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    settings = parse({"compression.type": "gzip", "blobmsg.compression.type": "lz4"})

    assert settings.compression_type == "lz4"
    assert caplog.records == []


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_codec_that_is_not_installed_names_the_extra(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    assert f'pip install "blobmsg[{codec}]"' in refusal({"blobmsg.compression.type": codec})
    assert parse().compression_type == "none"


# -- prices ------------------------------------------------------------------------------------


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"as_of": "2026-01-31", "source": "x", "put_usd": 1.0}))

    assert parse({"blobmsg.price.table": path}).price_table.put_usd == 1.0


@pytest.mark.parametrize("content", [None, "{", "{}"], ids=repr)
def test_a_bad_price_file_is_refused_by_name(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    if content is not None:
        path.write_text(content)

    message = refusal({"blobmsg.price.table": str(path)})

    assert f'"blobmsg.price.table" {path}' in message
