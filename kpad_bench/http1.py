"""One HTTP/1.1 exchange as bytes (RFC 9112): what a request looks like, where its response ends.

Sans-IO: never touches a socket, a clock or an event loop. Made for streams of many small chunks, each
read as it arrives: a chunk that comes whole, as servers write an event, costs two searches and a slice.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote, urlsplit

#: Longest head of a response, and longest line of its chunked framing, in bytes. Against endless ones.
MAX_HEAD, MAX_LINE = 65536, 8192
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: |\r|$)")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;|$)")
_LENGTH = re.compile(rb"\d{1,15}")


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

    __slots__ = (
        "_at_size",
        "_is_chunked",
        "_left",
        "_tail",
        "_until_close",
        "is_done",
        "keeps_open",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.is_done = False
        self.keeps_open = True
        self._tail = b""
        self._left = 0  # bytes of the body, or of the chunk, that are still to come
        self._is_chunked = self._until_close = False
        self._at_size = False  # the next byte begins the line with a chunk's size

    def feed(self, data: bytes) -> bytes:
        """The body in these bytes. Raises ValueError on what is no HTTP/1.1."""
        if self._at_size:
            line_end = data.find(b"\r\n")
            try:
                size = int(data[:line_end], 16)
            except ValueError:  # split within the line, or it has an extension
                size = 0
            if 0 < size == len(data) - line_end - 4 and data.endswith(b"\r\n"):
                return data[line_end + 2 : -2]
        return self._feed(data)

    def feed_eof(self) -> None:
        """The connection has ended; ``is_done`` when that ends the body."""
        self.is_done = self.is_done or self._until_close
        self.keeps_open = False

    def _feed(self, data: bytes) -> bytes:
        data = self._tail + data
        self._tail, self._at_size = b"", False
        if not self.status:
            data = self._head(data)
            if not self.status:
                return b""
        if self._is_chunked:
            return self._chunks(data)
        if self._until_close:
            return data
        body, rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        if not self._left:
            self._end(rest)
        return body

    def _end(self, rest: bytes) -> None:
        """The response is over; what follows it belongs to nothing that was asked."""
        self.is_done = True
        self.keeps_open = self.keeps_open and not rest

    def _head(self, data: bytes) -> bytes:
        """Take the head, of interim responses too; what follows it."""
        while True:
            head, found, rest = data.partition(b"\r\n\r\n")
            status = _STATUS.match(head)
            if len(head) > MAX_HEAD or (status is None and (found or len(head) > 16)):
                raise ValueError(f"no HTTP/1.1 response: {head[:60]!r}")
            if not found or status is None:
                self._tail = data
                return b""
            if not status[2].startswith(b"1"):
                self._take_head(status, head)
                return rest
            data = rest

    def _take_head(self, status: re.Match[bytes], head: bytes) -> None:
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        fields = {name.lower(): value.strip() for name, _, value in lines}
        self.status = int(status[2])
        connection = fields.get(b"connection", b"").lower()
        self.keeps_open = connection != b"close" if status[1] == b"1" else connection == b"keep-alive"
        length = fields.get(b"content-length")
        if self.status in (204, 304):
            return
        if fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self._is_chunked = self._at_size = True
        elif length is None:
            self._until_close = True
        elif _LENGTH.fullmatch(length):
            self._left = int(length)
        else:
            raise ValueError(f"content-length {length[:60]!r}")

    def _chunks(self, data: bytes) -> bytes:
        """The payload of all chunks in the data, whole or not."""
        found, at = [], 0
        while not self.is_done:
            if self._left > 0:
                found.append(data[at : at + self._left])
                at += len(found[-1])
                self._left -= len(found[-1])
                if self._left:
                    return b"".join(found)
                self._left = -1  # its line end
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            line, at = data[at:line_end], line_end + 2
            self._line(line)
        self._tail = b"" if self.is_done else data[at:]
        if len(self._tail) > MAX_LINE:
            raise ValueError(f"a chunk that begins with {self._tail[:60]!r}")
        if self.is_done:
            self._end(data[at:])
        self._at_size = self._left == 0 and not self._tail
        return b"".join(found)

    def _line(self, line: bytes) -> None:
        """One line of the framing. ``_left``: -1 behind a chunk, 0 before one, -2 in the trailer."""
        if self._left == -2:
            self.is_done = not line
        elif self._left == -1:
            if line:
                raise ValueError(f"a chunk that is followed by {line[:60]!r}")
            self._left = 0
        elif size := _SIZE.match(line):
            self._left = int(size[1], 16) or -2
        else:
            raise ValueError(f"a chunk of size {line[:60]!r}")
