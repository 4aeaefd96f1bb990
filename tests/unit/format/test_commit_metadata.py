"""Committed metadata: ours, the user's, and nobody's."""

from __future__ import annotations

import pytest

from blobmsg.format import (
    MAX_COMMIT_METADATA_BYTES,
    FormatError,
    UnsupportedFormatError,
    decode_commit_metadata,
    encode_commit_metadata,
)

MOST = (1 << 20) - 1


@pytest.mark.parametrize(
    ("remaining", "user", "fields", "text"),
    [
        (None, None, {}, None),
        (None, "", {}, ""),
        (None, "theirs", {}, "theirs"),
        (7, None, {}, "blobmsg1:7"),
        (MOST, None, {}, "blobmsg1:1048575"),
        (7, "", {}, "blobmsg1:7;"),
        (7, "a;b,c=d\n", {}, "blobmsg1:7;a;b,c=d\n"),
        (7, "größe", {}, "blobmsg1:7;größe"),
        (7, None, {"n": "x"}, "blobmsg1:7,n=x"),
        (7, "u", {"n": "x=y", "m.o-p_1": ""}, "blobmsg1:7,n=x=y,m.o-p_1=;u"),
        (None, "u", {"n": "x"}, "blobmsg1:0,n=x;u"),
        # what the user wrote must not be taken for ours
        (None, "blobmsg1:5", {}, "blobmsg1:0;blobmsg1:5"),
        (None, "blobmsg2:5", {}, "blobmsg1:0;blobmsg2:5"),
    ],
)
def test_metadata_is_written_and_read(
    remaining: int | None, user: str | None, fields: dict[str, str], text: str | None
) -> None:
    assert encode_commit_metadata(remaining, user, fields) == text
    assert decode_commit_metadata(text) == (remaining, user, fields)


@pytest.mark.parametrize(
    "text",
    [
        "theirs",
        "blobmsg",
        "blobmsg:5",
        "blobmsg1",
        "blobmsg1:",
        "blobmsg1:x",
        "blobmsg1:-5",
        "blobmsg1:05",
        "blobmsg1:1048576",
        "blobmsg1:99999999",
        "blobmsg1:٥",  # noqa: RUF001  (a digit, but not ASCII)
        "blobmsg1:5 ",
        "blobmsg1:5,",
        "blobmsg1:5,novalue",
        "blobmsg1:5,N=x",
        " blobmsg1:5",
        "Blobmsg1:5",
    ],
)
def test_foreign_or_malformed_text_is_the_users(text: str) -> None:
    assert decode_commit_metadata(text) == (None, text, {})


def test_unknown_optional_field_is_ignored_and_critical_refused_by_name() -> None:
    assert decode_commit_metadata("blobmsg1:5,later=1")[0] == 5
    with pytest.raises(UnsupportedFormatError, match="'!later'"):
        decode_commit_metadata("blobmsg1:5,!later=1")
    known = frozenset({"!later"})
    assert decode_commit_metadata("blobmsg1:5,!later=1", known) == (5, None, {"!later": "1"})


def test_later_version_is_refused_by_number() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2 "):
        decode_commit_metadata("blobmsg2:whatever")


@pytest.mark.parametrize("remaining", [0, -1, 1 << 20])
def test_impossible_counts_are_refused(remaining: int) -> None:
    with pytest.raises(FormatError):
        encode_commit_metadata(remaining, None)


@pytest.mark.parametrize(
    "fields", [{"": "x"}, {"N": "x"}, {"n": "a,b"}, {"n": "a;b"}, {"n": "ü"}, {"a=b": "x"}]
)
def test_fields_outside_the_grammar_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(FormatError):
        encode_commit_metadata(5, None, fields)


def test_limit_is_kafkas_and_counts_bytes() -> None:
    ours = len("blobmsg1:5;")
    fits = "ü" * ((MAX_COMMIT_METADATA_BYTES - ours) // 2)

    assert encode_commit_metadata(5, fits) is not None
    with pytest.raises(FormatError, match="4096"):
        encode_commit_metadata(5, fits + "üü")


def test_users_own_text_alone_is_left_to_the_broker() -> None:
    assert encode_commit_metadata(None, "x" * 5000) == "x" * 5000
