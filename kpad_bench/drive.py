"""The load generator: a closed loop at a fixed concurrency, and what arrived when.

During a pass only bytes and arrival times are kept; ``stream`` reads them when the pass is over, and
garbage collection waits until then too. The process that runs this loads neither torch nor vLLM.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from kpad_bench.config import Load
from kpad_bench.endpoint import HEADERS, Target, post_json, refusal_text, request_body, session
from kpad_bench.prompt import Prompt
from kpad_bench.stream import PassTrace, RawStream, Stop, read_trace

__all__ = ["Limits", "Progress", "Target", "post_json", "run", "run_pass"]

T = TypeVar("T")

#: The monitor's period: samples of loop lag, checks for stalls.
TICK_S = 0.02
TICKS_PER_PROGRESS = 25
#: A pass goes on after fewer failures than this: at concurrency 1 the first prompt may be the only bad one.
LEAST_FAILURES = 8
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(frozen=True, slots=True)
class Limits:
    """How long silence may last: of one request (it fails), of all of them (the pass ends)."""

    idle_timeout_s: float = 120.0
    stalled_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a pass stands. ``n_pieces``: reads that brought bytes, a little below the chunks so far.

    ``output_tokens``: as the usage in the newest bytes of each request says, so for people's eyes only.
    """

    n_done: int
    n_open: int
    n_pieces: int
    output_tokens: int
    elapsed_s: float

    @property
    def output_tok_per_s(self) -> float | None:
        """Mean speed since the start of the pass; None while no token has come."""
        return self.output_tokens / self.elapsed_s if self.output_tokens and self.elapsed_s > 0 else None


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, on uvloop where it is installed. Ctrl-C cancels and raises KeyboardInterrupt."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 optional
    except ImportError:
        new_event_loop = None  # type: ignore[assignment] # asyncio's own
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)


async def run_pass(
    target: Target,
    prompts: Sequence[Prompt],
    load: Load,
    limits: Limits,
    on_progress: Callable[[Progress], None] | None = None,
) -> PassTrace:
    """Send every prompt once, in order, ``load.concurrency`` at a time, and trace the answers.

    A failed request is in its trace. The pass ends early (``stopped_early``) when the server no longer
    takes connections (``server_died``), when nothing arrives for ``stalled_s`` (``stalled``), and when
    the first requests all get the same HTTP error (``all_requests_refused``, ``all_requests_failed``).
    A request that lost its connection before any byte of the answer is sent once more (``n_retries``).
    Cancelling closes all connections.
    """
    bodies = [request_body(target, prompt, load) for prompt in prompts]
    async with session(target) as http:
        with _collector_at_rest():
            driver = _Pass(http, target, limits, load.concurrency, on_progress)
            cpu_s = time.process_time()
            await driver.drive(list(zip(prompts, bodies, strict=True)))
            cpu_s = time.process_time() - cpu_s
    return PassTrace(
        requests=[read_trace(raw) for raw in driver.raws],
        n_prompts=len(prompts),
        concurrency=load.concurrency,
        endpoint=target.endpoint,
        start_ns=driver.start_ns,
        end_ns=driver.end_ns,
        client_cpu_s=cpu_s,
        loop_lag_ns=driver.loop_lag_ns,
        reissue_gaps_ns=driver.reissue_gaps_ns,
        n_retries=driver.n_retries,
        stopped_early=driver.stop,
    )


def newest_usage(pieces: Sequence[bytes]) -> int | None:
    """Output tokens that the last few pieces of a stream tell of; the newest may be half an event."""
    counts = (_USAGE.findall(piece) for piece in pieces[:-4:-1])
    return next((int(found[-1]) for found in counts if found), None)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """No garbage collection inside: what exists is frozen, what the pass makes is looked at after it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class _Flight:
    """One open request: its raw stream, and the way to end it from outside."""

    __slots__ = ("deadline", "has_reply", "output_tokens", "raw", "replied_ns")

    def __init__(self, raw: RawStream) -> None:
        self.raw = raw
        self.has_reply = False
        self.replied_ns = 0
        self.output_tokens = 0
        self.deadline = asyncio.timeout(None)

    def brought_ns(self) -> int:
        """When the last bytes of the stream came; 0 before the first."""
        return self.raw.arrivals_ns[-1] if self.raw.arrivals_ns else 0

    def heard_ns(self) -> int:
        """When the server was last heard of, headers included; 0 when it was not."""
        return self.brought_ns() or self.replied_ns

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


class _Pass:
    """The state of one pass: slots that pull from one queue, and a monitor beside them."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        target: Target,
        limits: Limits,
        concurrency: int,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.http = http
        self.url = target.base_url.rstrip("/") + target.endpoint
        self.limits = limits
        self.concurrency = self.n_first = concurrency
        self.on_progress = on_progress
        self.raws: list[RawStream] = []
        self.open: set[_Flight] = set()
        self.loop_lag_ns: list[int] = []
        self.reissue_gaps_ns: list[int] = []
        self.first_kinds: list[str | None] = []
        self.stop: Stop | None = None
        self.n_retries = self.n_done = self.n_pieces_closed = self.output_tokens_closed = 0
        self.start_ns = self.end_ns = self.heard_ns = 0

    async def drive(self, work: Sequence[tuple[Prompt, bytes]]) -> None:
        """Run all slots to the end of the queue, or to a stop."""
        queue = iter(work)
        self.n_first = min(max(self.concurrency, LEAST_FAILURES), len(work))
        self.start_ns = self.heard_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as tasks:
            monitor = tasks.create_task(self._monitor())
            n_slots = min(self.concurrency, len(work))
            for slot in [tasks.create_task(self._slot(queue)) for _ in range(n_slots)]:
                await slot
            self.end_ns = time.monotonic_ns()
            monitor.cancel()

    async def _slot(self, queue: Iterator[tuple[Prompt, bytes]]) -> None:
        """One place of the closed loop: the next request goes out when the last one has ended."""
        ended_ns: int | None = None
        while self.stop is None and (item := next(queue, None)) is not None:
            prompt, body = item
            raw = RawStream(len(self.raws), prompt.prompt_id, prompt.sha256, time.monotonic_ns())
            if ended_ns is not None:
                self.reissue_gaps_ns.append(raw.start_ns - ended_ns)
            self.raws.append(raw)
            await self._fly(_Flight(raw), body)
            ended_ns = raw.arrivals_ns[-1] if raw.arrivals_ns else raw.closed_ns

    async def _fly(self, flight: _Flight, body: bytes) -> None:
        """One request to its end, good or bad. Only cancellation gets out of here."""
        self.open.add(flight)
        try:
            async with flight.deadline:
                await self._send(flight, body)
        except TimeoutError:
            flight.fail("stalled", "")  # expire() has said why
        except aiohttp.ClientConnectorError as error:
            flight.fail("connection", str(error))
            self.stop = self.stop or Stop("server_died", f"no connection to the server: {error}")
        except (aiohttp.ClientError, OSError) as error:
            flight.fail("cut" if flight.has_reply else "connection", f"{type(error).__name__}: {error}")
        finally:
            flight.raw.closed_ns = time.monotonic_ns()
            self.open.discard(flight)
        self._closed(flight)

    async def _send(self, flight: _Flight, body: bytes) -> None:
        """Send it, once more if the connection broke before anything came back.

        A kept connection that the server has just closed looks like that (aiohttp itself retries only
        idempotent methods).
        """
        try:
            await self._exchange(flight, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if flight.has_reply:
                raise
            self.n_retries += 1
            await self._exchange(flight, body)

    async def _exchange(self, flight: _Flight, body: bytes) -> None:
        raw = flight.raw
        async with self.http.post(self.url, data=body, headers=HEADERS, allow_redirects=False) as response:
            flight.has_reply, flight.replied_ns = True, time.monotonic_ns()
            if response.status != 200:
                flight.fail(f"http_{response.status}", await refusal_text(response))
                return
            readany, clock = response.content.readany, time.monotonic_ns
            while piece := await readany():
                raw.arrivals_ns.append(clock())
                raw.pieces.append(piece)

    def _closed(self, flight: _Flight) -> None:
        """Count it, and stop the pass when the first ``n_first`` all got the same HTTP error."""
        kind = flight.raw.error_kind
        self.n_done += 1
        self.n_pieces_closed += len(flight.raw.pieces)
        self.output_tokens_closed += flight.count_tokens()
        self.heard_ns = max(self.heard_ns, flight.brought_ns())
        if len(self.first_kinds) == self.n_first:
            return
        self.first_kinds.append(kind)
        if len(self.first_kinds) < self.n_first or set(self.first_kinds) != {kind}:
            return
        if kind is not None and kind.startswith("http_"):
            reason = "all_requests_refused" if kind.startswith("http_4") else "all_requests_failed"
            text = f"the first {self.n_first} requests got {kind}: {flight.raw.error_message}"
            self.stop = self.stop or Stop(reason, text)

    async def _monitor(self) -> None:
        """Sample the loop's lateness, end what is silent for too long, tell of progress."""
        n_ticks = 0
        while True:
            due_ns = time.monotonic_ns() + round(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            self.loop_lag_ns.append(max(0, now_ns - due_ns))
            self._end_the_silent(now_ns)
            n_ticks += 1
            if self.on_progress is not None and n_ticks % TICKS_PER_PROGRESS == 0:
                self.on_progress(self._progress(now_ns))

    def _end_the_silent(self, now_ns: int) -> None:
        idle_s, stalled_s = self.limits.idle_timeout_s, self.limits.stalled_s
        n_silent = 0
        for flight in self.open:
            self.heard_ns = max(self.heard_ns, flight.brought_ns())
            if now_ns - max(flight.heard_ns(), flight.raw.start_ns) > idle_s * 1e9:
                flight.expire("stalled", f"no byte for {idle_s:g} s")
                n_silent += 1
        still_open = [flight for flight in self.open if flight.raw.error_kind is None]
        # A hung engine fails all slots in one tick, or lets new requests have headers and no more.
        is_stalled = still_open and now_ns - self.heard_ns > stalled_s * 1e9
        if is_stalled or n_silent == self.concurrency:
            self.stop = self.stop or Stop("stalled", f"no byte on any request for {stalled_s:g} s")
            for flight in still_open:
                flight.expire("stalled", f"no byte on any request for {stalled_s:g} s")

    def _progress(self, now_ns: int) -> Progress:
        n_pieces = self.n_pieces_closed + sum(len(flight.raw.pieces) for flight in self.open)
        n_tokens = self.output_tokens_closed + sum(flight.count_tokens() for flight in self.open)
        return Progress(self.n_done, len(self.open), n_pieces, n_tokens, (now_ns - self.start_ns) / 1e9)
