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
def write_segment(
    target: memoryview,
    place: int,
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
) -> tuple[int, int, int] | None: ...
