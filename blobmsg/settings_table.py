"""The table of our settings: parser, `Settings`, docs and tests are all made from it.

A key belongs to later work when `not_yet` is not empty: it is known and checked, and refused with
a plain sentence when it is set to one of those values. To lift a refusal, delete its `not_yet`.
"""

from __future__ import annotations

import re
from typing import Final

from blobmsg import setting_values as kinds
from blobmsg.setting import ANY, Setting
from blobmsg.setting_values import Destination

__all__ = ["SETTINGS"]

_INT32_MAX: Final = (1 << 31) - 1
_YEAR_MS: Final = 365 * 24 * 3_600_000


def _later_zone_tls(name: str, meaning: str) -> Setting:
    return Setting(f"blobmsg.zone.tls.{name}", kinds.PATH, None, meaning, not_yet=ANY)


SETTINGS: Final[tuple[Setting, ...]] = (
    # -- where the payload goes
    Setting(
        "blobmsg.store.url",
        kinds.STORE_URL,
        None,
        "The store: `s3://bucket/prefix`, `file:///dir` or `memory://name`.",
        default_text="none; required unless `blobmsg.route=plain`",
        not_yet=("gs:", "az:"),
    ),
    Setting(
        "blobmsg.store.engine",
        kinds.CHOICE,
        "boto3",
        "The library that talks to the store.",
        choices=("boto3", "obstore"),
        not_yet=("obstore",),
    ),
    Setting(
        "blobmsg.s3.endpoint.url",
        kinds.URL,
        None,
        "Where S3 is, if not at AWS (MinIO, Ceph …).",
        default_text="the SDK's own chain",
    ),
    Setting(
        "blobmsg.s3.region",
        kinds.TEXT,
        None,
        "Region of the bucket.",
        default_text="the SDK's own chain",
    ),
    Setting(
        "blobmsg.s3.access.key.id",
        kinds.TEXT,
        None,
        "Access key; better left to the SDK's own chain (roles, profiles).",
        default_text="the SDK's own chain",
    ),
    Setting(
        "blobmsg.s3.secret.access.key",
        kinds.SECRET,
        None,
        "Secret of that access key.",
        default_text="the SDK's own chain",
    ),
    Setting(
        "blobmsg.s3.sse",
        kinds.TEXT,
        None,
        "Server-side encryption asked for with every PUT, e.g. `aws:kms`.",
        default_text="the bucket's",
    ),
    Setting(
        "blobmsg.s3.sse.kms.key.id",
        kinds.TEXT,
        None,
        "KMS key for `aws:kms`.",
        default_text="the bucket's",
    ),
    Setting(
        "blobmsg.s3.read.endpoint.url",
        kinds.URL,
        None,
        "Another endpoint for reads, e.g. a caching proxy.",
        default_text="`blobmsg.s3.endpoint.url`",
    ),
    # -- which records, and how they are grouped
    Setting(
        "blobmsg.zone",
        kinds.ZONE,
        None,
        "Availability zone of this process.",
        default_text="`client.rack`, else `TOPOLOGY_ZONE` in the environment",
    ),
    Setting(
        "blobmsg.zone.aliases",
        kinds.ZONE_ALIASES,
        {},
        "Names that mean the same zone, e.g. `use1-az1=us-east-1a`.",
        default_text="none",
    ),
    Setting(
        "blobmsg.topics",
        kinds.REGEX,
        re.compile(".*"),
        "Topics that use the store (the whole name must match); all else passes untouched.",
        default_text="`.*`",
    ),
    Setting(
        "blobmsg.isolation",
        kinds.ISOLATION,
        "shared",
        "First element of every object's path; access policies separate readers by it.",
    ),
    Setting(
        "blobmsg.retention.ms",
        kinds.INTEGER,
        None,
        "Retention for the objects' expiry hour where the topic's can't be read; -1: forever.",
        unit="ms",
        minimum=-1,
        maximum=1000 * _YEAR_MS,
        default_text="the topic's; 7 d when unknown",
    ),
    Setting(
        "blobmsg.route",
        kinds.CHOICE,
        "auto",
        "How records travel: by cost, or always one way.",
        choices=("auto", "blob", "inline", "plain"),
    ),
    Setting(
        "blobmsg.cost.groups",
        kinds.INTEGER,
        1,
        "Consumer groups that read what is written; enters the router's cost.",
        minimum=0,
        maximum=1000,
    ),
    Setting(
        "blobmsg.destination",
        kinds.DESTINATION,
        Destination("auto"),
        "Zone in which a partition is read, so that a batch is for one zone: `auto` (today `none`; "
        "`leader` once there are zone caches), `leader` (its leader's rack), `static:az1,az2` "
        "(partition modulo the list), `none` (any: a batch has all partitions), `group:<id>`.",
        default_text="`auto`",
        not_yet=("group:",),
    ),
    Setting(
        "blobmsg.batch.size.bytes",
        kinds.INTEGER,
        16 << 20,
        "A batch is sealed at this size.",
        unit="bytes",
        minimum=1,
        maximum=1 << 30,
    ),
    Setting(
        "blobmsg.batch.interval.ms",
        kinds.INTEGER,
        1000,
        "A batch is sealed at this age, or at an eighth of `message.timeout.ms` if that is less.",
        unit="ms",
        minimum=0,
        maximum=900_000,
    ),
    Setting(
        "blobmsg.record.max.bytes",
        kinds.INTEGER,
        64 << 20,
        "Largest record; the default is lowered to a smaller `queue.buffering.max.kbytes`.",
        unit="bytes",
        minimum=1,
        maximum=1 << 30,
    ),
    Setting(
        "blobmsg.compression.type",
        kinds.CHOICE,
        None,
        "Compression of segments.",
        choices=("none", "lz4", "zstd"),
        default_text="`compression.type`, with `gzip` read as `zstd` and `snappy` as `lz4`",
    ),
    # -- resources
    Setting("blobmsg.upload.threads", kinds.INTEGER, 8, "Uploads at once.", minimum=1, maximum=256),
    Setting("blobmsg.fetch.threads", kinds.INTEGER, 8, "Fetches at once.", minimum=1, maximum=256),
    Setting(
        "blobmsg.prefetch.max.bytes",
        kinds.INTEGER,
        64 << 20,
        "Decoded and in-flight bytes that a consumer holds (one segment is always let in); up to "
        "half as much again, at most 32 MiB, is kept for the next fetches.",
        unit="bytes",
        minimum=1,
        maximum=1 << 40,
    ),
    Setting(
        "blobmsg.cache.memory.bytes",
        kinds.INTEGER,
        128 << 20,
        "Least recently used segments kept in memory; 0: none.",
        unit="bytes",
        minimum=0,
        maximum=1 << 40,
    ),
    Setting(
        "blobmsg.cache.disk.path",
        kinds.PATH,
        None,
        "Directory of the local disk tier.",
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.cache.disk.bytes",
        kinds.INTEGER,
        0,
        "Size of the local disk tier.",
        unit="bytes",
        minimum=0,
        maximum=1 << 50,
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.cache.disk.reserve.ratio",
        kinds.NUMBER,
        0.05,
        "Share of the disk that the disk tier leaves free.",
        minimum=0,
        maximum=1,
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.cache.on.write",
        kinds.BOOLEAN,
        True,
        "What is uploaded stays in the cache of the member that owns it.",
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.cache.url",
        kinds.CACHE_URL,
        None,
        "An existing engine as the zone tier, `valkey://host:port`.",
        not_yet=ANY,
    ),
    # -- zone members
    Setting(
        "blobmsg.zone.members",
        kinds.TEXT,
        None,
        "Members of this zone: a list, or `dns:name:port`.",
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.zone.listen", kinds.TEXT, None, "Address that a member listens on.", not_yet=ANY
    ),
    Setting(
        "blobmsg.zone.advertised",
        kinds.TEXT,
        None,
        "Address under which others reach the member.",
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.zone.secret",
        kinds.SECRET,
        None,
        "Secret that the members of a zone share.",
        not_yet=ANY,
    ),
    _later_zone_tls("ca.location", "CA certificates of the members."),
    _later_zone_tls("certificate.location", "Certificate of this member."),
    _later_zone_tls("key.location", "Private key of that certificate."),
    Setting(
        "blobmsg.zone.append",
        kinds.BOOLEAN,
        False,
        "Members merge the segments of a zone's producers.",
        not_yet=ANY,
    ),
    # -- failures and time
    Setting(
        "blobmsg.on.missing",
        kinds.ON_MISSING,
        "fail",
        "What follows when an object is gone before its time: `fail`, `skip`, `dlq:<topic>`.",
        not_yet=("dlq:",),
    ),
    Setting(
        "blobmsg.on.store.failure",
        kinds.CHOICE,
        "inline",
        "What follows when the store fails: segments go inline, through Kafka, or they wait.",
        choices=("inline", "wait"),
    ),
    Setting(
        "blobmsg.inline.max.bytes.per.second",
        kinds.INTEGER,
        5 << 20,
        "Payload rate that the inline fallback may put on the brokers.",
        unit="bytes/s",
        minimum=1,
        maximum=1 << 40,
    ),
    Setting(
        "blobmsg.fallback.after.ms",
        kinds.INTEGER,
        5000,
        "How long an object may fail before the inline fallback takes it.",
        unit="ms",
        minimum=0,
        maximum=_INT32_MAX,
    ),
    Setting(
        "blobmsg.request.timeout.ms",
        kinds.INTEGER,
        30_000,
        "Longest single request to the store.",
        unit="ms",
        minimum=10,
        maximum=900_000,
    ),
    Setting(
        "blobmsg.hedge.percentile",
        kinds.NUMBER,
        None,
        "A request slower than this percentile is sent again.",
        minimum=50,
        maximum=99.99,
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.hedge.budget",
        kinds.NUMBER,
        0.02,
        "Largest share of requests sent again.",
        minimum=0,
        maximum=1,
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.spill.path",
        kinds.PATH,
        None,
        "Directory where sealed segments may wait while the store is down.",
        not_yet=ANY,
    ),
    # -- cost
    Setting(
        "blobmsg.price.table",
        kinds.PATH,
        None,
        "JSON file with prices for the router and the meter.",
        default_text="built in, dated",
    ),
    Setting(
        "blobmsg.target.p95.ms",
        kinds.INTEGER,
        None,
        "Latency within which the controller sets batch size and interval.",
        unit="ms",
        minimum=1,
        maximum=900_000,
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.target.usd.per.hour",
        kinds.NUMBER,
        None,
        "Cost within which the controller sets batch size and interval.",
        unit="USD/h",
        minimum=0,
        maximum=1e9,
        not_yet=ANY,
    ),
    Setting(
        "blobmsg.offset.check",
        kinds.BOOLEAN,
        True,
        "Refuse raw Kafka offsets where virtual ones are expected.",
    ),
)
