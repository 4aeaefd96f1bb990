from typing import Any

def encode_segment(
    records: int,
    step: int,
    keys: list[Any],
    key_start: int,
    values: list[Any],
    value_start: int,
    timestamps_ms: list[Any],
    timestamp_start: int,
    headers: bytes,
    max_bytes: int,
    /,
) -> tuple[bytes, int, int] | None: ...
def write_segments(
    target: memoryview, place: int, segments: list[tuple[Any, ...]], crc32_address: int, /
) -> list[tuple[int, int, int, int | None]]: ...
