"""What the store itself takes: ready buffers of the batch size, put in parallel.

Twice: through the store class that the producer uses, and through plain boto3. Keys, connections
and checksums are made before the clock starts.
"""

from __future__ import annotations

import os
import threading
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench._clock import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    Put = Callable[[str], None]

__all__ = ["PARALLEL_PUTS", "measure"]

PARALLEL_PUTS = (1, 4, 8, 16)
_WARM_UP_BYTES = 1 << 20


def measure(
    *, engine: str, conf: dict[str, Any], parallel: int, objects: int, object_bytes: int
) -> dict[str, Any]:
    """Put so many objects with so many threads.

    Args:
        engine: `store` (ours) or `boto3`.
        conf: Settings of a `BlobProducer`.
        parallel: Threads.
        objects: How many in all.
        object_bytes: Length of each.
    """
    data = os.urandom(object_bytes)
    warm_up, put = _store(conf, data) if engine == "store" else _boto3(conf, data, parallel)
    numbers = iter(range(objects))
    lock = threading.Lock()
    failures: list[BaseException] = []
    ready = threading.Barrier(parallel + 1)

    def work(thread: int) -> None:
        try:
            warm_up(f"warm-{parallel}-{thread}")
            ready.wait()
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                put(f"put-{parallel}-{number}")
        except BaseException as error:  # noqa: BLE001  (told below, by the main thread)
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(parallel)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
    except threading.BrokenBarrierError:
        raise SystemExit(f"PUT failed: {failures}") from None
    watch = Stopwatch()
    for thread in threads:
        thread.join()
    figures: dict[str, Any] = watch.read()
    if failures:
        raise SystemExit(f"PUT failed: {failures}")
    return figures


def _store(conf: dict[str, Any], data: bytes) -> tuple[Put, Put]:
    from blobmsg.clock import SystemClock
    from blobmsg.config import parse_settings
    from blobmsg.store.open import open_store

    settings, _ = parse_settings(conf, {})
    if settings.store_url is None:
        raise SystemExit("no store")
    store = open_store(settings.store_url, settings)
    clock = SystemClock()
    checksum = zlib.crc32(data)

    def put(key: str) -> None:
        store.put(f"store/{key}", data, deadline_ms=clock.now_ms() + 60_000, crc32=checksum)

    def warm_up(key: str) -> None:
        store.put(f"store/{key}", data[:_WARM_UP_BYTES], deadline_ms=clock.now_ms() + 60_000)

    return warm_up, put


def _boto3(conf: dict[str, Any], data: bytes, parallel: int) -> tuple[Put, Put]:
    import boto3
    from botocore.config import Config

    url = urlsplit(conf["blobmsg.store.url"])
    client = boto3.client(
        "s3",
        endpoint_url=conf["blobmsg.s3.endpoint.url"],
        region_name=conf["blobmsg.s3.region"],
        aws_access_key_id=conf["blobmsg.s3.access.key.id"],
        aws_secret_access_key=conf["blobmsg.s3.secret.access.key"],
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=parallel),
    )
    bucket, prefix = url.netloc, url.path.strip("/")

    def put(key: str) -> None:
        client.put_object(Bucket=bucket, Key=f"{prefix}/boto3/{key}", Body=data)

    def warm_up(key: str) -> None:
        client.put_object(Bucket=bucket, Key=f"{prefix}/boto3/{key}", Body=data[:_WARM_UP_BYTES])

    return warm_up, put
