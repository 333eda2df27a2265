"""One place of the closed loop, and one request from its issue to its end, good or bad."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

from kpad_bench.endpoint import Connection, Lost, Reply, Target, connect, refusal_text
from kpad_bench.stream import RawStream

_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
#: A delta with text in it. A role, a comment or a ping has none.
_TEXT = re.compile(rb'"(?:content|text|reasoning|reasoning_content)":\s*"[^"]')
#: Between two looks at the streams for tokens, at most.
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long no token may come: of one request (it fails), of all of them (the pass ends).

    ``ends_ns``: when the pass has to be over, on the monotonic clock.
    """

    idle_timeout_s: float = 120.0
    stalled_s: float = 120.0
    ends_ns: int | None = None

    @property
    def look_s(self) -> float:
        """How often the streams are searched for tokens: a tenth of the shorter patience, at most."""
        return min(LOOK_S, self.idle_timeout_s / 10, self.stalled_s / 10)


class NoServer(Exception):
    """The server takes no connections."""


class Flight:
    """One open request: its raw stream, and the way to end it from outside."""

    __slots__ = (
        *("_has_usage", "_n_seen", "_token_ns", "output_tokens"),
        *("deadline", "is_filler", "n_retries", "raw", "reply"),
    )

    def __init__(self, raw: RawStream, *, is_filler: bool = False) -> None:
        self.raw, self.is_filler = raw, is_filler
        self.reply = Reply(raw.arrivals_ns, raw.pieces)
        self.n_retries = self.output_tokens = self._n_seen = self._token_ns = 0
        self._has_usage = False
        self.deadline = asyncio.timeout(None)

    def look(self) -> None:
        """Find the newest tokens in what has come since the last look. Bytes without tokens are no news."""
        n_new = len(self.raw.arrivals_ns) - self._n_seen
        if n_new <= 0:
            return
        self._n_seen += n_new
        for back, piece in enumerate(reversed(self.raw.pieces[-n_new:]), start=1):
            if self._is_news(piece):
                self._token_ns = self.raw.arrivals_ns[-back]
                return

    def _is_news(self, piece: bytes) -> bool:
        counts = _USAGE.findall(piece)
        if not counts:
            return not self._has_usage and _TEXT.search(piece) is not None
        self._has_usage = True
        before, self.output_tokens = self.output_tokens, max(self.output_tokens, int(counts[-1]))
        return self.output_tokens > before

    def news_ns(self) -> int:
        """When its newest token came, as of the last look, or its answer was over; 0 before both."""
        is_over = self.raw.closed_ns and self.raw.error_kind not in ("stalled", "cut", "connection")
        return self.raw.closed_ns if is_over else self._token_ns

    def waits_since_ns(self) -> int:
        """When its newest token came, as of the last look, or the request was sent."""
        return max(self._token_ns, self.raw.start_ns)

    def count_tokens(self) -> int:
        """Tokens so far, as the newest usage says."""
        self.look()
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
