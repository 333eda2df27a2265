"""A server that only streams, as fast as Python can: prebuilt chunks, one timer, one thread.

For measuring clients: its truth is known. Every ``step_ns`` each open stream gets one chunk of one or more
tokens, by one system call. A prompt says how long its answer is: ``request 17: answer 300 tokens``. Chunks
have the keys and the HTTP framing of vLLM 0.32.

``python fast.py [--cpu N]`` prints one JSON line: ``{"port": n}``. ``POST /step`` with
``{"step_ns": n}`` sets the step and forgets what was; ``GET /truth`` tells of every request since, and of how
late the steps were.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import select
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__" and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from fake_vllm.engine import WORDS, Request
from fake_vllm.stream import Answer, event

#: Tokens of the chunks, cycled.
SIZES = (1, 2, 5, 3, 1, 4)
MODEL = "fast"
#: Between so many sends it looks for new requests, so that their arrival is dated well.
SENDS_PER_LOOK = 2
#: It does not sleep so long before a step, nor so long after one, when slots are issued anew: what a sleeping
#: process needs to wake up (0.1 ms and more on a virtual machine) would look like the client's.
AWAKE_BEFORE_NS, AWAKE_AFTER_NS = 300_000, 1_000_000
_ASKED = re.compile(r"request (\d+): answer (\d+) tokens")
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


def framed(data: bytes) -> bytes:
    """One chunk of HTTP's chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def sizes(n_tokens: int) -> list[int]:
    """Tokens of each chunk of an answer."""
    found: list[int] = []
    left = n_tokens
    while left > 0:
        found.append(min(SIZES[len(found) % len(SIZES)], left))
        left -= found[-1]
    return found


@functools.cache
def pieces(n_tokens: int, has_usage: bool) -> list[bytes]:
    """What is written of one answer: the role with the first token, a piece per step, and the end."""
    request = Request("", 7, n_tokens + 1, n_tokens, seed=0)
    answer = Answer(request, MODEL, True, has_usage=True, has_continuous_usage=has_usage, answer_id="0" * 16)
    n_sent, written = 0, []
    for size in sizes(n_tokens):
        text = "".join(f" {WORDS[i % len(WORDS)]}" for i in range(n_sent, n_sent + size))
        n_sent += size
        written.append(framed(event(answer.token_chunk(text, n_sent))))
    written[0] = framed(event(answer.role_chunk())) + written[0]
    end = framed(event(answer.usage_chunk())) + framed(b"data: [DONE]\n\n")
    return [*written, end + b"0\r\n\r\n"]


@dataclass(slots=True)
class Stream:
    """One answer being written. Times are ns of the monotonic clock, which all processes share."""

    link: socket.socket
    number: int
    n_tokens: int
    pieces: list[bytes]
    arrived_ns: int
    n_sent: int = 0
    first_ns: int = 0
    last_ns: int = 0
    end_ns: int = 0

    def truth(self) -> dict[str, int]:
        """What a perfect client would find."""
        names = ("number", "n_tokens", "arrived_ns", "first_ns", "last_ns", "end_ns")
        return {name: getattr(self, name) for name in names} | {"n_chunks": len(self.pieces) - 1}


class Fast:
    """The server: waits for requests until a step is due, then writes to every stream."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.links: dict[int, socket.socket] = {}
        self.buffers: dict[socket.socket, bytes] = {}
        self.epoll = select.epoll()
        self.epoll.register(listener, select.EPOLLIN)
        self.streams: list[Stream] = []
        self.set_step(2_500_000)

    def set_step(self, step_ns: int) -> None:
        """Start anew."""
        self.step_ns, self.done, self.late_ns, self.due_ns = step_ns, [], [], 0

    def run(self) -> None:
        """Serve until killed."""
        rested_ns = 0
        while True:
            now_ns = time.monotonic_ns()
            if not self.streams:
                self.rest(None)
            elif now_ns >= self.due_ns:
                self.late_ns.append(now_ns - self.due_ns)
                self.step()
                # A step that was missed is not made up for.
                self.due_ns = max(self.due_ns + self.step_ns, time.monotonic_ns())
                rested_ns = time.monotonic_ns() + AWAKE_AFTER_NS
            elif rested_ns < now_ns < self.due_ns - AWAKE_BEFORE_NS:
                self.rest((self.due_ns - AWAKE_BEFORE_NS - now_ns) / 1e9)
            self.take()

    def step(self) -> None:
        """One piece for every stream that was there when it began."""
        for n, stream in enumerate(list(self.streams)):
            if n % SENDS_PER_LOOK == 0:
                self.take()
            self.write(stream)
        self.streams = [stream for stream in self.streams if not stream.end_ns]

    def write(self, stream: Stream) -> None:
        """Its next piece; after the last token also the end, as a write of its own."""
        now_ns = time.monotonic_ns()
        try:
            stream.link.sendall(stream.pieces[stream.n_sent])
            stream.n_sent += 1
            stream.first_ns = stream.first_ns or now_ns
            stream.last_ns = now_ns
            if stream.n_sent == len(stream.pieces) - 1:
                stream.end_ns = time.monotonic_ns()
                stream.link.sendall(stream.pieces[-1])
                self.done.append(stream.truth())
        except OSError:
            stream.end_ns = now_ns
            self.close(stream.link)

    def rest(self, timeout_s: float | None) -> None:
        """Sleep until something arrives. ``epoll`` alone would do so in whole milliseconds."""
        select.select([self.epoll], [], [], timeout_s)

    def take(self) -> None:
        """What has arrived by now."""
        for number, _ in self.epoll.poll(0):
            if number == self.listener.fileno():
                self.accept()
            else:
                self.receive(self.links[number])

    def accept(self) -> None:
        """A new connection."""
        link = self.listener.accept()[0]
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.links[link.fileno()], self.buffers[link] = link, b""
        self.epoll.register(link, select.EPOLLIN)

    def receive(self, link: socket.socket) -> None:
        """More of a request, or the end of a connection."""
        try:
            data = link.recv(2**20)
        except OSError:
            data = b""
        now_ns = time.monotonic_ns()
        if not data:
            self.close(link)
            return
        head, found, body = (self.buffers[link] + data).partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not found or len(body) < int(length[1] if length else 0):
            self.buffers[link] += data
            return
        self.buffers[link] = b""
        self.answer(link, head.split()[1].decode(), body, now_ns)

    def answer(self, link: socket.socket, path: str, body: bytes, now_ns: int) -> None:
        """Begin a stream, or answer at once."""
        if path.endswith("completions"):
            asked = json.loads(body)
            found = _ASKED.search(json.dumps(asked["messages"]))
            assert found is not None, "no prompt of the benchmark"
            has_usage = bool(asked["stream_options"].get("continuous_usage_stats"))
            n_tokens = int(found[2])
            if not self.streams:
                self.due_ns = now_ns + self.step_ns
            link.sendall(HEAD)
            self.streams.append(Stream(link, int(found[1]), n_tokens, pieces(n_tokens, has_usage), now_ns))
        elif path == "/step":
            self.set_step(json.loads(body)["step_ns"])
            self.whole(link, 200, {})
        elif path == "/truth":
            self.whole(link, 200, {"requests": self.done, "late_ns": self.late_ns})
        else:
            self.whole(link, 404, {"detail": "Not Found"})

    def whole(self, link: socket.socket, status: int, answer: dict[str, Any]) -> None:
        """An answer in one piece."""
        body = json.dumps(answer).encode()
        link.sendall(b"HTTP/1.1 %d -\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)

    def close(self, link: socket.socket) -> None:
        """Forget a connection and what was being written to it."""
        if self.buffers.pop(link, None) is not None:
            del self.links[link.fileno()]
            self.streams = [stream for stream in self.streams if stream.link is not link]
            link.close()


def main() -> None:
    """Listen, say where, serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", type=int)
    given = parser.parse_args()
    if given.cpu is not None:
        os.sched_setaffinity(0, {given.cpu})
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    Fast(listener).run()


if __name__ == "__main__":
    main()
