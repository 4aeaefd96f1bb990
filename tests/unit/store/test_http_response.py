from __future__ import annotations

import io
from contextlib import suppress
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg.store.http_response import MAX_ERROR_BODY_BYTES, Response


def response(data: bytes, method: str = "GET") -> Response:
    return Response(io.BufferedReader(io.BytesIO(data)), method)  # type: ignore[arg-type,type-var,unused-ignore]  # BytesIO is raw enough


def test_a_body_of_known_length_is_read_and_the_connection_stays_usable() -> None:
    found = response(
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nX-A: b:c \r\n\r\nabcNEXT"
    )
    assert (found.status, found.reason, found.length) == (206, "Partial Content", 3)
    assert found.headers == {"content-length": "3", "x-a": "b:c"}
    assert not found.is_reusable()
    assert found.read_exactly(3) == b"abc"
    assert found.is_reusable()


def test_a_body_that_ends_early_is_incomplete() -> None:
    found = response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")
    with pytest.raises(IncompleteRead) as caught:
        found.read_exactly(5)
    assert (caught.value.partial, caught.value.expected) == (b"abc", 2)
    assert not found.is_reusable()


def test_a_body_shorter_than_wanted_is_incomplete() -> None:
    with pytest.raises(IncompleteRead):
        response(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcNEXT").read_exactly(5)


def test_a_body_longer_than_wanted_is_refused_before_reading() -> None:
    with pytest.raises(HTTPException, match="4 bytes answered, 3 wanted"):
        response(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd").read_exactly(3)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"]
)
def test_a_connection_that_the_peer_closes_is_not_used_again(head: bytes) -> None:
    found = response(head + b"Content-Length: 1\r\n\r\na")
    assert found.read_exactly(1) == b"a"
    assert not found.is_reusable()


def test_without_a_length_the_body_ends_with_the_connection() -> None:
    found = response(b"HTTP/1.1 500 Oops\r\n\r\nall of this")
    assert found.read_error() == b"all of this"
    assert not found.is_reusable()


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", b"200 OK"), ("PUT", b"204 No Content"), ("GET", b"304 Same")]
)
def test_answers_without_a_body_leave_the_connection_usable(method: str, status: bytes) -> None:
    found = response(b"HTTP/1.1 " + status + b"\r\nContent-Length: 7\r\n\r\n", method)
    assert found.headers["content-length"] == "7"
    assert found.is_reusable()


def test_interim_answers_are_skipped() -> None:
    found = response(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    )
    assert (found.status, found.headers) == (200, {"content-length": "0"})


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_chunks_are_joined_and_trailers_skipped() -> None:
    found = response(CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\nNEXT")
    assert found.read_exactly(5) == b"abcde"
    assert found.is_reusable()


def test_chunks_of_an_error_are_read() -> None:
    assert response(CHUNKED + b"3\r\nabc\r\n0\r\n\r\n").read_error() == b"abc"


@pytest.mark.parametrize(
    "body", [b"6\r\nabcdef\r\n0\r\n\r\n", b"ffffffffff\r\n", b"-1\r\n", b"zz\r\n", b"\r\n"]
)
def test_chunks_that_are_too_large_or_senseless_are_refused(body: bytes) -> None:
    with pytest.raises(HTTPException, match="chunk"):
        response(CHUNKED + body).read_exactly(5)


def test_chunks_that_end_early_are_incomplete() -> None:
    with pytest.raises(HTTPException):
        response(CHUNKED + b"5\r\nabc").read_exactly(5)
    with pytest.raises(HTTPException):
        response(CHUNKED + b"3\r\nabc\r\n").read_exactly(5)


def test_of_an_errors_body_only_the_beginning_is_taken() -> None:
    found = response(b"HTTP/1.1 500 Oops\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 9_999_999)
    assert len(found.read_error()) == MAX_ERROR_BODY_BYTES
    assert not found.is_reusable()


def test_an_end_before_or_within_the_head_is_a_disconnection() -> None:
    for data in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-"):
        with pytest.raises(RemoteDisconnected):
            response(data)


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"HTTP/1.1 2x0 OK\r\n", b"HTTP/2 200\r\n\r\n", b"\r\n\r\n"]
)
def test_other_protocols_are_refused(data: bytes) -> None:
    with pytest.raises(BadStatusLine):
        response(data)


def test_endless_heads_are_refused() -> None:
    with pytest.raises(HTTPException, match="header of more than"):
        response(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000)
    with pytest.raises(HTTPException, match="more than 200 headers"):
        response(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300)


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_bytes_give_an_answer_or_an_http_error(head: bytes, tail: bytes) -> None:
    for data in (head, b"HTTP/1.1 200 OK\r\n" + head, CHUNKED + tail):
        with suppress(HTTPException):
            assert len(response(data).read_exactly(10)) == 10


LENGTH_5 = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
NO_LENGTH = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    "data", [LENGTH_5 + b"abcdeNEXT", CHUNKED + b"5\r\nabcde\r\n0\r\n\r\n", NO_LENGTH + b"abcde"]
)
def test_a_body_fills_its_targets(data: bytes) -> None:
    targets = [bytearray(2), bytearray(0), bytearray(3)]
    response(data).read_into([memoryview(target) for target in targets])
    assert b"".join(targets) == b"abcde"


def test_a_connection_whose_body_was_read_into_targets_is_usable_again() -> None:
    found = response(LENGTH_5 + b"abcdeNEXT")
    assert not found.is_reusable()
    found.read_into([memoryview(bytearray(5))])
    assert found.is_reusable()


@pytest.mark.parametrize(
    "data",
    [LENGTH_5 + b"abcd", LENGTH_5, NO_LENGTH + b"abcd", CHUNKED + b"6\r\nabcdef\r\n0\r\n\r\n"],
)
def test_a_body_that_does_not_fit_its_targets_is_an_error(data: bytes) -> None:
    with pytest.raises(HTTPException):
        response(data).read_into([memoryview(bytearray(2)), memoryview(bytearray(3))])
    with pytest.raises(HTTPException):
        response(LENGTH_5 + b"abcde").read_into([memoryview(bytearray(4))])
