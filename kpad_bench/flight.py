"""One place of the closed loop, and one request from its issue to its end, good or bad."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence

from kpad_bench.endpoint import Connection, Lost, Reply, Target, connect, refusal_text
from kpad_bench.stream import RawStream

_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


class NoServer(Exception):
    """The server takes no connections."""


def newest_usage(pieces: Sequence[bytes]) -> int | None:
    """Output tokens that the last few pieces of a stream tell of; the newest may be half an event."""
    counts = (_USAGE.findall(piece) for piece in pieces[:-4:-1])
    return next((int(found[-1]) for found in counts if found), None)


class Flight:
    """One open request: its raw stream, and the way to end it from outside."""

    __slots__ = ("deadline", "is_filler", "n_retries", "output_tokens", "raw", "reply")

    def __init__(self, raw: RawStream, *, is_filler: bool = False) -> None:
        self.raw, self.is_filler = raw, is_filler
        self.reply = Reply(raw.arrivals_ns, raw.pieces)
        self.n_retries = self.output_tokens = 0
        self.deadline = asyncio.timeout(None)

    def brought_ns(self) -> int:
        """When the last bytes of the stream came; 0 before the first."""
        return self.raw.arrivals_ns[-1] if self.raw.arrivals_ns else 0

    def heard_ns(self) -> int:
        """When the server was last heard of, or the request was sent."""
        return max(self.reply.heard_ns, self.raw.start_ns)

    def count_tokens(self) -> int:
        """Tokens so far; as last known where the newest pieces do not say."""
        self.output_tokens = newest_usage(self.raw.pieces) or self.output_tokens
        return self.output_tokens

    def fail(self, kind: str, message: str) -> None:
        """Note why it failed; the first cause stands."""
        if self.raw.error_kind is None:
            self.raw.error_kind, self.raw.error_message = kind, message

    def expire(self, kind: str, message: str) -> None:
        """End it now, from another task."""
        if self.raw.error_kind is None:
            self.fail(kind, message)
            self.deadline.reschedule(asyncio.get_running_loop().time())

    def try_again(self) -> None:
        """Nothing has come yet: begin once more."""
        self.n_retries += 1
        self.reply = Reply(self.raw.arrivals_ns, self.raw.pieces)


class Slot:
    """A place of the closed loop with its kept connection. A context: the connection is closed at its end."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection: Connection | None = None

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    async def fly(self, flight: Flight, request: bytes) -> None:
        """One request to its end; how it went is in its raw stream. Raises NoServer, and is cancelled."""
        try:
            async with flight.deadline:
                await self._send(flight, request)
        except TimeoutError:
            flight.fail("stalled", "")  # expire() has said why
        except Lost as error:
            flight.fail("cut" if flight.reply.reader.status else "connection", str(error))
        except NoServer as error:
            flight.fail("connection", str(error))
            raise
        finally:
            flight.raw.closed_ns = time.monotonic_ns()

    async def _send(self, flight: Flight, request: bytes) -> None:
        """Send it, once more if the connection broke before anything came back.

        A kept connection that the server has just closed looks like that.
        """
        try:
            await self._exchange(flight, request)
        except Lost:
            if flight.reply.heard_ns:
                raise
            flight.try_again()
            await self._exchange(flight, request)
        status = flight.reply.reader.status
        if status != 200:
            flight.fail(f"http_{status}", refusal_text(b"".join(flight.raw.pieces)))
            flight.raw.pieces.clear()
            del flight.raw.arrivals_ns[:]

    async def _exchange(self, flight: Flight, request: bytes) -> None:
        if self._connection is None or not self._connection.is_open:
            try:
                self._connection = await connect(self._target)
            except OSError as error:
                raise NoServer(f"{type(error).__name__}: {error}") from error
        if not flight.n_retries:
            flight.raw.start_ns = time.monotonic_ns()
        await self._connection.exchange(request, flight.reply)
