"""Where a response ends, whatever the network cut it into, and what is no response."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.http1 import MAX_HEAD, ResponseReader, post_request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
#: name -> (bytes, status, body, whether the connection may be used again)
RESPONSES = {
    "chunks": (CHUNKED + b"5\r\nhello\r\nB\r\n to you all\r\n0\r\n\r\n", 200, b"hello to you all", True),
    "extensions and trailers": (
        CHUNKED + b'5;a="0"\r\nhello\r\n00a\r\n to you al\r\n000;x\r\nX-Sum: 1\r\nY: 2\r\n\r\n',
        200,
        b"hello to you al",
        True,
    ),
    "line ends in the payload": (
        CHUNKED + b"9\r\n\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n",
        200,
        b"\r\n0\r\n\r\n\r\n",
        True,
    ),
    "a length": (HEAD + b"content-length: 5\r\n\r\nhello", 200, b"hello", True),
    "a length of nothing": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 400, b"", True),
    "nothing by status": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "no reason": (b"HTTP/1.1 500\r\ncontent-length:2\r\n\r\nno", 500, b"no", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + CHUNKED + b"0\r\n\r\n",
        200,
        b"",
        True,
    ),
    "told to close": (HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    "old and kept": (
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "something behind it": (CHUNKED + b"2\r\nhi\r\n0\r\n\r\nHTTP/1.1 408 -\r\n\r\n", 200, b"hi", False),
}


def split(data, cuts):
    """The bytes cut at these places."""
    places = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def read(pieces):
    """Status, body and whether the connection is left open, of a response that has to end."""
    reader = ResponseReader()
    body = b"".join(reader.feed(piece) for piece in pieces)
    assert reader.is_done
    return reader.status, body, reader.keeps_open


@pytest.mark.parametrize("name", RESPONSES)
@given(data=st.data())
def test_any_split_of_the_bytes_gives_the_same_response(name, data):
    """Where the network cuts the bytes is irrelevant, in every framing."""
    stream, *expected = RESPONSES[name]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert read(split(stream, cuts)) == tuple(expected)


@pytest.mark.parametrize("name", RESPONSES)
def test_one_byte_at_a_time(name):
    """The extreme of splitting."""
    stream, *expected = RESPONSES[name]
    assert read(split(stream, range(1, len(stream)))) == tuple(expected)


@pytest.mark.parametrize("name", RESPONSES)
def test_it_ends_with_its_last_byte(name):
    """Not before: a response that lacks one byte is not over."""
    stream = RESPONSES[name][0].removesuffix(b"HTTP/1.1 408 -\r\n\r\n")
    reader = ResponseReader()
    reader.feed(stream[:-1])
    assert not reader.is_done
    reader.feed(stream[-1:])
    assert reader.is_done


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8))
def test_a_chunk_at_a_time_is_a_payload_at_a_time(payloads):
    """Chunks that arrive whole come out whole, one by one, whatever is in them."""
    reader = ResponseReader()
    assert reader.feed(CHUNKED) == b""
    assert [reader.feed(b"%x\r\n%s\r\n" % (len(one), one)) for one in payloads] == payloads
    reader.feed(b"0\r\n\r\n")
    assert reader.is_done


def test_without_a_length_the_end_of_the_connection_is_the_end():
    """Then and only then; a response cut in any other framing is not over."""
    reader = ResponseReader()
    assert reader.feed(HEAD + b"\r\nhel") + reader.feed(b"lo") == b"hello"
    assert not reader.is_done
    reader.feed_eof()
    assert (reader.is_done, reader.keeps_open) == (True, False)
    for stream in (b"", HEAD, CHUNKED + b"5\r\nhe", HEAD + b"content-length: 5\r\n\r\nhe"):
        reader = ResponseReader()
        reader.feed(stream)
        reader.feed_eof()
        assert not reader.is_done


@pytest.mark.parametrize(
    "stream",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00\x00\x00",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD,
        HEAD + b"content-length: -5\r\n\r\nhello",
        CHUNKED + b"five\r\nhello\r\n",
        CHUNKED + b"-5\r\nhello\r\n",
        CHUNKED + b"\r\nhello\r\n",
        CHUNKED + b"5\r\nhelloo\r\n",
        CHUNKED + b"5\r\nhello" + b"x" * 9 + b"\r\n",
        CHUNKED + b"f" * 17,
    ],
)
def test_what_is_no_response_is_refused(stream):
    """Another protocol, a wrong length, framing that does not add up, a line without an end."""
    with pytest.raises(ValueError, match=r"no HTTP/1\.1 response"):
        ResponseReader().feed(stream)


def test_a_request_as_it_is_sent():
    """Path and host from the URL, length from the body."""
    assert post_request("http://127.0.0.1:8000/api/", "/v1/x", b"{}") == (
        b"POST /api/v1/x HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Type: application/json\r\n"
        b"Accept-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}"
    )


def test_a_login_in_the_url_becomes_a_header():
    """Decoded, and no part of the host."""
    sent = post_request("https://me:a%3Ab@host/", "/x", b"")
    assert b"\r\nHost: host\r\n" in sent
    assert b"\r\nAuthorization: Basic bWU6YTpi\r\n" in sent
