"""One HTTP/1.1 exchange as bytes: what a request looks like, where its response ends.

Sans-IO: never touches a socket, a clock or an event loop. Responses are parsed by ``httptools`` (llhttp),
made for streams of many small chunks.
"""

from __future__ import annotations

import base64
from urllib.parse import unquote, urlsplit

import httptools

#: Longest head of a response, bytes. Against an endless one.
MAX_HEAD = 65536
_INTERIM = 200  # below it another head follows


def post_request(base_url: str, path: str, body: bytes) -> bytes:
    """A POST of JSON, ready to be sent. A login in the URL becomes basic authentication."""
    url = urlsplit(base_url)
    lines = [
        f"POST {url.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2] or 'localhost'}",
        "Content-Type: application/json",
        "Accept-Encoding: identity",
        f"Content-Length: {len(body)}",
    ]
    if url.username is not None:
        login = f"{unquote(url.username)}:{unquote(url.password or '')}"
        lines.append(f"Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class ResponseReader:
    """One response out of bytes split anywhere.

    ``status`` is 0 until the head is whole. When ``is_done``, ``keeps_open`` says whether the connection
    may be used again.
    """

    __slots__ = ("_body", "_head_left", "_parser", "_until_close", "is_done", "keeps_open", "status")

    def __init__(self) -> None:
        self.status = 0
        self.is_done = False
        self.keeps_open = True
        self._head_left = MAX_HEAD
        self._until_close = True
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """The body in these bytes. Raises ValueError on what is no HTTP/1.1."""
        body = self._body
        body.clear()
        if self.is_done:  # what follows belongs to nothing that was asked
            self.keeps_open = self.keeps_open and not data
            return b""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.is_done:
                raise ValueError(f"no HTTP/1.1 response: {error} in {data[:60]!r}") from None
        if not self.status:
            self._head_left -= len(data)
            if self._head_left < 0:
                raise ValueError(f"no HTTP/1.1 response: {MAX_HEAD} bytes and no end of its head")
        return body[0] if len(body) == 1 else b"".join(body)

    def feed_eof(self) -> None:
        """The connection has ended; ``is_done`` when that ends the body."""
        self.is_done = self.is_done or (self.status > 0 and self._until_close)
        self.keeps_open = False

    def on_message_begin(self) -> None:
        """The parser's: a head begins. Behind the end it is that of another response."""
        self.keeps_open = self.keeps_open and not self.is_done

    def on_header(self, name: bytes, _: bytes) -> None:
        """The parser's: one field of the head."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_close = False

    def on_headers_complete(self) -> None:
        """The parser's: the head is whole."""
        if not self.is_done and (status := self._parser.get_status_code()) >= _INTERIM:
            self.status = status

    def on_body(self, body: bytes) -> None:
        """The parser's: a part of the body."""
        if not self.is_done:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The parser's: the response is over; an interim one is not the response."""
        if self.status and not self.is_done:
            self.is_done = True
            self.keeps_open = self.keeps_open and bool(self._parser.should_keep_alive())
