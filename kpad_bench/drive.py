"""The load generator: a closed loop at a fixed concurrency, and what arrived when.

During a pass bytes are dated and kept, and nothing is read: ``stream`` reads them when it is over, and
garbage collection waits until then too. So that a long pass does not fill the memory, what has come is
moved to a file meanwhile, in small writes with pauses between them (``spool``). One process, one thread;
it loads neither torch nor vLLM.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kpad_bench.config import Load
from kpad_bench.endpoint import NO_TEMPLATE, Target, post_json, request_body, with_endpoint
from kpad_bench.flight import Flight, Limits, NoServer, Slot
from kpad_bench.http1 import post_request
from kpad_bench.prompt import Prompt
from kpad_bench.spool import Spool
from kpad_bench.stream import PassTrace, RawStream, RequestTrace, Stop, read_trace

__all__ = ["Limits", "Progress", "Target", "post_json", "run", "run_pass", "with_endpoint"]

T = TypeVar("T")

#: The monitor's period: samples of loop lag, checks for stalls.
TICK_S = 0.02
TICKS_PER_PROGRESS = 25
#: An open request's pieces leave the memory by so many; the newest stay, for the progress line.
SPOOLED_PIECES, KEPT_PIECES = 256, 4
#: Between two writes, of 0.2 ms each (256 events, ext4, two-core virtual machine, 2026-12-01).
WRITE_PAUSE_S = 0.002
#: A pass goes on after fewer failures than this: at concurrency 1 the first prompt may be the only bad one.
LEAST_FAILURES = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a pass stands. ``output_tokens``: as the newest usage of each request says, for people's eyes."""

    n_done: int
    n_failed: int
    n_open: int
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
    fillers: Sequence[Prompt] = (),
) -> PassTrace:
    """Send every prompt once, in order, ``load.concurrency`` at a time, and trace the answers.

    A failed request is in its trace. The pass ends early (``stopped_early``) when the server no longer
    takes connections (``server_died``), when no token arrives for ``stalled_s`` (``stalled``), when its time
    is over (``deadline``), and when the first requests all get the same HTTP error
    (``all_requests_refused``, ``all_requests_failed``).
    A request that lost its connection before any byte of the answer is sent once more (``n_retries``).
    ``fillers`` are sent after the last prompt, for as long as one of the prompts is open; the fillers that
    are open then are cancelled. Cancelling closes all connections.
    """
    url, path = target.base_url, target.endpoint
    every = (*prompts, *fillers)
    work = [Work(one, post_request(url, path, request_body(target, one, load))) for one in every]
    with Spool() as spool:
        with _collector_at_rest():
            driver = _Pass(target, limits, load.concurrency, spool, on_progress)
            cpu_s = time.process_time()
            await driver.drive(work, len(prompts))
            cpu_s = time.process_time() - cpu_s
        requests, unmeasured = _read(driver.raws, spool), _read(driver.filler_raws, spool)
    return PassTrace(
        requests=requests,
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
        max_tokens=load.max_tokens,
        fillers=unmeasured,
        ran_out_of_fillers=driver.ran_out_of_fillers,
    )


class Work(NamedTuple):
    """A request to be issued, ready to be sent."""

    prompt: Prompt
    request: bytes


def _read(raws: Sequence[RawStream], spool: Spool) -> list[RequestTrace]:
    """The traces; bytes are in memory for one answer at a time."""
    traces = []
    for raw in raws:
        spool.restore(raw)
        traces.append(read_trace(raw))
        raw.pieces = []
    return traces


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


class _Pass:
    """The state of one pass: slots that pull from one queue, and a monitor beside them."""

    def __init__(
        self,
        target: Target,
        limits: Limits,
        concurrency: int,
        spool: Spool,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.target, self.limits, self.spool = target, limits, spool
        self.concurrency = self.n_first = concurrency
        self.on_progress = on_progress
        self.raws: list[RawStream] = []
        self.filler_raws: list[RawStream] = []
        self.open: set[Flight] = set()
        self.closed: deque[RawStream] = deque()
        self.loop_lag_ns: list[int] = []
        self.reissue_gaps_ns: list[int] = []
        self.first_kinds: list[str | None] = []
        self.stop: Stop | None = None
        self.ran_out_of_fillers = False
        self.n_retries = self.n_done = self.n_failed = self.output_tokens_closed = 0
        self.n_prompts = self.start_ns = self.end_ns = self.news_ns = self.looked_ns = 0

    async def drive(self, work: Sequence[Work], n_prompts: int) -> None:
        """Run all slots to the end of the prompts, or to a stop."""
        queue = iter(work)
        self.n_prompts = n_prompts
        self.n_first = min(max(self.concurrency, LEAST_FAILURES), n_prompts)
        self.start_ns = self.news_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._monitor()), tasks.create_task(self._save_memory())]
            n_slots = min(self.concurrency, len(work)) if n_prompts else 0
            for slot in [tasks.create_task(self._slot(queue)) for _ in range(n_slots)]:
                await slot
            self.end_ns = self.end_ns or time.monotonic_ns()
            for task in beside:
                task.cancel()

    def _next(self, queue: Iterator[Work]) -> Work | None:
        """What to issue now; None at the end."""
        if self.stop is not None or self.end_ns:
            return None
        work = next(queue, None)
        self.ran_out_of_fillers |= work is None and bool(self.filler_raws)
        return work

    async def _slot(self, queue: Iterator[Work]) -> None:
        """One place: the next request goes out when the last one has ended."""
        ended_ns: int | None = None
        with Slot(self.target) as slot:
            while (work := self._next(queue)) is not None:
                is_filler = len(self.raws) == self.n_prompts
                raws = self.filler_raws if is_filler else self.raws
                raw = RawStream(len(raws), work.prompt.prompt_id, work.prompt.sha256, time.monotonic_ns())
                raws.append(raw)
                await self._fly(slot, Flight(raw, is_filler=is_filler), work.request)
                if ended_ns is not None:
                    self.reissue_gaps_ns.append(raw.start_ns - ended_ns)
                ended_ns = raw.arrivals_ns[-1] if raw.arrivals_ns else raw.closed_ns

    async def _fly(self, slot: Slot, flight: Flight, request: bytes) -> None:
        """One request to its end, good or bad. Only cancellation gets out of here."""
        self.open.add(flight)
        try:
            await slot.fly(flight, request)
        except NoServer as error:
            self.stop = self.stop or Stop("server_died", f"no connection to the server: {error}")
        finally:
            self.open.discard(flight)
        self.closed.append(flight.raw)
        self.n_retries += flight.n_retries
        flight.look()
        self.news_ns = max(self.news_ns, flight.news_ns())
        if not flight.is_filler:
            self._closed(flight)

    def _closed(self, flight: Flight) -> None:
        """Count it, and end the pass with the last one."""
        self.n_done += 1
        self.n_failed += flight.raw.error_kind is not None
        self.output_tokens_closed += flight.count_tokens()
        self._judge_first(flight.raw)
        if self.n_done == self.n_prompts:
            self.end_ns = flight.raw.closed_ns
            for filler in self.open:
                filler.expire("cancelled", "the last measured request has ended")

    def _judge_first(self, raw: RawStream) -> None:
        """Stop the pass when the first ``n_first`` all got the same HTTP error."""
        kind = raw.error_kind
        if len(self.first_kinds) == self.n_first:
            return
        self.first_kinds.append(kind)
        if len(self.first_kinds) < self.n_first or set(self.first_kinds) != {kind}:
            return
        if kind is not None and kind.startswith("http_"):
            reason = "all_requests_refused" if kind.startswith("http_4") else "all_requests_failed"
            text = f"the first {self.n_first} requests got {kind}: {raw.error_message}"
            if NO_TEMPLATE in text.lower():
                text += " (for a model without one: load.endpoint: completions, or auto)"
            self.stop = self.stop or Stop(reason, text)

    async def _monitor(self) -> None:
        """Sample the loop's lateness, end what is silent for too long, tell of progress."""
        n_ticks = 0
        while True:
            due_ns = time.monotonic_ns() + round(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            self.loop_lag_ns.append(max(0, now_ns - due_ns))
            self._end_the_late(now_ns)
            n_ticks += 1
            if self.on_progress is not None and n_ticks % TICKS_PER_PROGRESS == 0:
                self.on_progress(self._progress(now_ns))

    def _end_the_late(self, now_ns: int) -> None:
        """End the pass when its time is over, and what waits for a token for too long."""
        limits = self.limits
        if limits.ends_ns is not None and now_ns > limits.ends_ns:
            where = f"{self.n_done} of {self.n_prompts} requests answered"
            self._end_all("deadline", f"time is over, {where}; raise thresholds.trial_deadline_s")
        if now_ns - self.looked_ns < limits.look_s * 1e9:
            return
        self.looked_ns, n_silent = now_ns, 0
        for flight in self.open:
            flight.look()
            self.news_ns = max(self.news_ns, flight.news_ns())
            if now_ns - flight.waits_since_ns() > limits.idle_timeout_s * 1e9:
                flight.expire("stalled", f"no token for {limits.idle_timeout_s:g} s")
                n_silent += 1
        # A hung engine fails all slots in one look, or lets new requests have headers and no more.
        still_open = [flight for flight in self.open if flight.raw.error_kind is None]
        is_stalled = still_open and now_ns - self.news_ns > limits.stalled_s * 1e9
        if is_stalled or n_silent == self.concurrency:
            self._end_all("stalled", f"no token on any request for {limits.stalled_s:g} s")

    def _end_all(self, reason: str, detail: str) -> None:
        self.stop = self.stop or Stop(reason, detail)
        for flight in self.open:
            flight.expire(reason, detail)

    async def _save_memory(self) -> None:
        """Move bytes out, of long open answers first."""
        while True:
            raws, n_kept = [flight.raw for flight in self.open], KEPT_PIECES
            raw = next((raw for raw in raws if len(raw.pieces) > SPOOLED_PIECES + n_kept), None)
            if raw is None and self.closed:
                raw, n_kept = self.closed.popleft(), 0
            if raw is not None:
                self.spool.put(raw, n_kept)
            await asyncio.sleep(TICK_S if raw is None else WRITE_PAUSE_S)

    def _progress(self, now_ns: int) -> Progress:
        n_tokens = sum(flight.count_tokens() for flight in self.open if not flight.is_filler)
        n_tokens += self.output_tokens_closed
        elapsed_s = (now_ns - self.start_ns) / 1e9
        return Progress(self.n_done, self.n_failed, len(self.open), n_tokens, elapsed_s)
