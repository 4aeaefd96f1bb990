"""What `docs/format.md` publishes is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from blobmsg.format import (
    MAX_COMMIT_METADATA_BYTES,
    MAX_INDEX_BYTES,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_RECORDS,
    OBJECT_KEY_PATTERN,
    Columns,
    Limits,
    encode_segment,
)
from blobmsg.format.fields import MAX_FIELD_NAME_BYTES, MAX_FIELDS
from blobmsg.format.object_key import MAX_OBJECT_KEY_BYTES
from blobmsg.format.ranges import MAX_OBJECT_BYTES

PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")


def test_published_key_grammar_is_the_one_that_is_matched() -> None:
    published = next(line for line in PAGE.splitlines() if line.startswith("[A-Za-z0-9]["))
    without_names = re.sub(r"\?P<\w+>", "", OBJECT_KEY_PATTERN)
    only_alternatives = re.sub(r"\(([^()|]*)\)", r"\1", without_names)

    assert published == only_alternatives


def test_published_limits_are_the_ones_that_are_checked() -> None:
    rows = dict(
        [cell.strip() for cell in line.split("|")[1:3]]
        for line in PAGE[PAGE.index("## Limits") :].splitlines()
        if line.count("|") == 4
    )
    limits = Limits()

    assert rows["records of a segment, and of a notification"].startswith(
        f"1 to {MAX_SEGMENT_RECORDS:,}"
    )
    assert rows["segment, uncompressed"].startswith(f"{MAX_SEGMENT_BYTES:,} bytes")
    assert rows["end of a byte range"] == f"{MAX_OBJECT_BYTES >> 40} TiB"
    assert rows["fields of a map; bytes of a field name"] == f"{MAX_FIELDS}; {MAX_FIELD_NAME_BYTES}"
    assert rows["object key"] == f"{MAX_OBJECT_KEY_BYTES} bytes"
    assert rows["index"] == f"{MAX_INDEX_BYTES >> 20} MiB"
    assert rows["committed metadata"] == f"{MAX_COMMIT_METADATA_BYTES:,} bytes"
    assert rows["segment as stored, uncompressed"] == f"{limits.max_segment_bytes >> 20} MiB each"
    assert limits.max_segment_bytes == limits.max_uncompressed_bytes
    assert rows["parts of a notification"] == f"{limits.max_parts:,}"


def test_published_example_is_what_the_encoder_writes() -> None:
    example = PAGE[PAGE.index("Example: keys") :].split("```")[1]
    shown = re.findall(r"\b[0-9a-f]{2}\b(?= |$|\n)", re.sub(r"   +\D.*", "", example))

    assert bytes.fromhex("".join(shown)) == encode_segment(
        Columns([b"a", None, b""], [None] * 3, [1, -1, 2])
    )
