"""The facts of an inspection, laid out for people; decides nothing about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blobmsg.cli.inspection import Facts

_PART_HEAD = ["start", "stored", "codec", "raw", "records", "from", "to", "crc-32", "state"]


def explain(facts: Facts) -> str:
    """Return the facts of an inspection as text for people."""
    lines = [f"{facts['kind']}, {facts['size_bytes']:,} bytes"]
    if "place" in facts:
        lines.append(f"  at        {facts['place']}")
    lines += _explain_key(facts)
    if facts["kind"] == "batch object":
        lines += _explain_object(facts)
    elif facts["kind"] == "plain record":
        lines.append(f"  value     {facts['value']!r}")
        lines += [f"  header    {name}: {content!r}" for name, content in facts["headers"]]
        lines.append(f"  note      {facts['note']}")
    elif "parts" in facts:
        lines += _explain_notification(facts)
    if facts["findings"]:
        lines += ["", "DAMAGED", *(f"  {finding}" for finding in facts["findings"])]
    return "\n".join(lines)


def _explain_key(facts: Facts) -> list[str]:
    key = facts.get("key")
    if key is None:
        return []
    passed = " (passed: it may be deleted)" if key["has_expired"] else ""
    return [
        f"  key       {key['text']}",
        f"  isolation {key['isolation']}, shard {key['shard']}",
        f"  written   in zone {key['zone']} by {key['writer_id']}, its object {key['number']}",
        f"  expires   {key['expires']}{passed}",
    ]


def _explain_object(facts: Facts) -> list[str]:
    segments = facts["segments"]
    if not segments:
        return []
    records = sum(segment["records"] for segment in segments)
    index_bytes = facts["index_bytes"]
    held = f"{len(segments)} segments, {records:,} records, an index of {index_bytes:,} bytes"
    lines = [f"  holds     {held}", ""]
    rows = [
        [f"{s['topic']} [{s['partition']}]", s["destination_zone"] or "-", *_part_row(s)]
        for s in segments
    ]
    return lines + _table(["partition", "zone", *_PART_HEAD], rows) + _previews(segments)


def _explain_notification(facts: Facts) -> list[str]:
    if facts["object"] is None:
        lines = [f"  payload   inline, {facts['inline_bytes']:,} bytes"]
    else:
        store = f"store {facts['store']!r}" if facts["store"] else "the default store"
        lines = [f"  payload   in that object of {store}"]
    lines += [
        f"  sequence  {facts['sequence']} of producer {facts['producer_id']}",
        f"  stands for {facts['records']:,} records",
        "",
    ]
    rows = [_part_row(part) for part in facts["parts"]]
    return lines + _table(_PART_HEAD, rows) + _previews(facts["parts"])


def _part_row(part: Facts) -> list[str]:
    state = "DAMAGED" if part["problem"] else "sound" if part["is_checked"] else "not read"
    return [
        f"{part['start']:,}",
        f"{part['stored_bytes']:,}",
        part["codec"],
        f"{part['uncompressed_bytes']:,}",
        f"{part['records']:,}",
        part["first_timestamp"],
        part["last_timestamp"],
        part["checksum"],
        state,
    ]


def _previews(parts: list[Facts]) -> list[str]:
    lines: list[str] = []
    for number, part in enumerate(parts):
        for record in part.get("preview", []):
            headers = "".join(f" {name}={content!r}" for name, content in record["headers"])
            lines.append(
                f"  {number}/{record['record_index']} {record['timestamp']} "
                f"key {record['key']!r} value {record['value']!r}{headers}"
            )
    return ["", "records (segment/index)", *lines] if lines else []


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
