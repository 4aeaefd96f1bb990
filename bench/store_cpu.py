r"""What S3 requests cost the client's processor: ours, boto3's and the bare socket's.

    python bench/store_cpu.py --endpoint-url http://127.0.0.1:9000 --bucket b --access-key-id … \
        --secret-access-key …

Behind `blobmsg.store.s3`'s own connections and `blobmsg.store.crc32_combine`: CPU seconds (user
and system, of this process alone) per GiB for 16 MiB objects, and milliseconds per request for
small ranges. Variants alternate; the table has medians.
"""

from __future__ import annotations

import argparse
import http.client
import random
import resource
import statistics
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.format.ranges import ByteRange
from blobmsg.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECT_BYTES = 16 << 20
SMALL_BYTES = 1024
DEADLINE_MS = 1 << 60


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(call: Callable[[], object], times: int) -> float:
    call()
    before = cpu_s()
    for _ in range(times):
        call()
    return (cpu_s() - before) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--endpoint-url", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--access-key-id", required=True)
    parser.add_argument("--secret-access-key", required=True)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()

    settings, _ = parse_settings(
        {
            "blobmsg.store.url": f"s3://{arguments.bucket}/bench",
            "blobmsg.s3.endpoint.url": arguments.endpoint_url,
            "blobmsg.s3.region": "us-east-1",
            "blobmsg.s3.access.key.id": arguments.access_key_id,
            "blobmsg.s3.secret.access.key": arguments.secret_access_key,
        },
        {},
    )
    store = open_store(f"s3://{arguments.bucket}/bench", settings, clock=SystemClock())
    session: Any = boto3.session.Session(
        aws_access_key_id=arguments.access_key_id,
        aws_secret_access_key=arguments.secret_access_key,
        region_name="us-east-1",
    )

    def client(**config: object) -> Any:
        return session.client("s3", endpoint_url=arguments.endpoint_url, config=Config(**config))  # type: ignore[arg-type]

    stock = client()
    tuned = client(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False},
    )
    place = {"Bucket": arguments.bucket, "Key": "bench/k"}
    host = urlsplit(arguments.endpoint_url)
    connection = http.client.HTTPConnection(host.hostname or "", host.port)
    put_target, get_target = (
        tuned.generate_presigned_url(method, Params=place)[len(arguments.endpoint_url) :]
        for method in ("put_object", "get_object")
    )
    data = random.Random(1).randbytes(OBJECT_BYTES)
    checksum = zlib.crc32(data)
    whole, small = ByteRange(0, OBJECT_BYTES), ByteRange(1 << 20, SMALL_BYTES)
    small_header = f"bytes={small.start}-{small.end - 1}"

    def bare(method: str, target: str, body: bytes | None, length: int) -> None:
        connection.request(method, target, body=body)
        response = connection.getresponse()
        if response.status != 200 or len(response.read(length)) != length:
            raise SystemExit(f"{method} answered {response.status}")
        response.read()

    def put_ours(crc32: int | None) -> None:
        store.put("k", data, deadline_ms=DEADLINE_MS, crc32=crc32)

    puts: dict[str, Callable[[], object]] = {
        "PUT bare http.client, no checksum": lambda: bare("PUT", put_target, data, 0),
        "PUT ours, CRC32 known": lambda: put_ours(checksum),
        "PUT ours, CRC32 computed": lambda: put_ours(None),
        "PUT boto3 tuned, no checksum": lambda: tuned.put_object(**place, Body=data),
        "PUT boto3 as it comes": lambda: stock.put_object(**place, Body=data),
        "GET bare http.client": lambda: bare("GET", get_target, None, OBJECT_BYTES),
        "GET ours": lambda: store.get_range("k", whole, deadline_ms=DEADLINE_MS),
        "GET boto3 tuned": lambda: tuned.get_object(**place)["Body"].read(),
        "GET boto3 as it comes": lambda: stock.get_object(**place)["Body"].read(),
    }
    smalls: dict[str, Callable[[], object]] = {
        "GET 1 KiB ours": lambda: store.get_range("k", small, deadline_ms=DEADLINE_MS),
        "GET 1 KiB boto3 tuned": lambda: tuned.get_object(**place, Range=small_header)[
            "Body"
        ].read(),
    }
    found: dict[str, list[float]] = {name: [] for name in (*puts, *smalls)}
    for _ in range(arguments.repeat):
        for name, call in puts.items():
            found[name].append(measure(call, 16) * (1 << 30) / OBJECT_BYTES)
        for name, call in smalls.items():
            found[name].append(measure(call, 300) * 1000)
    store.delete(["k"])
    store.close()
    for name, values in found.items():
        unit = "ms/request" if name in smalls else "s/GiB"
        print(f"{name:36} {statistics.median(values):6.3f} {unit}   {min(values):.3f} best")


if __name__ == "__main__":
    main()
