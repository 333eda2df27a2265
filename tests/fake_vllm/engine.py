"""A lockstep engine with invented tokens: deterministic lengths, drafts and counters. Knows no HTTP.

A step serves every running request once: its first step is the prefill and emits one token, each later
one is a decode step and emits 1 + accepted tokens. The text depends on the prompt alone, so that all
arms of a greedy comparison answer the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle, islice

BLOCK_SIZE = 128
NUM_BLOCKS = 211
MOST_ACCEPTED = 3
WORDS = ("ada", "bel", "cor", "dun", "eli", "fen", "gor", "hal", "ivo", "jun", "kel", "lum", "mar", "nok")


class EngineError(Exception):
    """The engine is dead, or a request failed in it. vLLM's status is 500."""


DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(eq=False)
class Request:
    """One request in the engine. ``outputs`` gets the new tokens of each step, None when the engine dies."""

    prompt: str
    n_prompt_tokens: int
    max_tokens: int
    n_tokens: int
    seed: int
    loop_words: int | None = None
    n_emitted: int = 0
    n_decode_steps: int = 0
    arrived_s: float = field(default_factory=time.monotonic)
    last_s: float = 0.0
    outputs: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)

    @property
    def finish_reason(self) -> str:
        """``length`` when the answer fills max_tokens."""
        return "length" if self.n_tokens == self.max_tokens else "stop"

    def words(self) -> list[str]:
        """The text, one word per token; with ``loop_words`` the first so many again and again."""
        first = random.Random(self.seed).choices(
            WORDS, k=min(self.loop_words or self.n_tokens, self.n_tokens)
        )
        return [f" {word}" for word in islice(cycle(first), self.n_tokens)]


def make_request(prompt: str, n_prompt_tokens: int, max_tokens: int, n_tokens: int | None) -> Request:
    """``n_tokens`` None: between half of max_tokens and all of it, by the prompt's hash."""
    seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big")
    if n_tokens is None:
        n_tokens = max_tokens - seed % (max_tokens // 2 + 1)
    return Request(prompt, n_prompt_tokens, max_tokens, max(1, min(n_tokens, max_tokens)), seed)


@dataclass(frozen=True)
class Draft:
    """Draft of one decode step: proposed by the tree, pads behind it, and how many were accepted."""

    n_real: int
    n_pad: int
    n_accepted: int


def draft(request: Request, k: int, pads: bool) -> Draft:
    """The tree never fills a K of 2 and more by itself: only pads make a batch uniform."""
    turn = request.seed + 7 * request.n_decode_steps
    accepted = turn % (min(k, MOST_ACCEPTED) + 1)
    real = min(max(accepted, turn % k), k)
    if real == k and k > 1:
        real = accepted = k - 1
    return Draft(real, k - real if pads else 0, accepted)


class Engine:
    """The counters are public: vLLM's, the plugin's, and the sums behind its histograms."""

    def __init__(self, k: int | None, pads: bool, max_num_seqs: int, step_s: float) -> None:
        self.k, self.pads, self.max_num_seqs, self.step_s = k, pads, max_num_seqs, step_s
        self.is_dead = False
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.count: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.accepted_at: Counter[int] = Counter()
        self.step_sizes: list[int] = []
        self.ttft_s: list[float] = []
        self.itl_s: list[float] = []
        self.prefix_cache: set[str] = set()
        self.n_cached = 0
        self._wake = asyncio.Event()

    def add(self, request: Request) -> None:
        """Queue a request; raises EngineError on a dead engine."""
        if self.is_dead:
            raise EngineError(DEAD)
        self.waiting.append(request)
        self._wake.set()

    def abort(self, request: Request) -> None:
        """Forget a request whose client went away; nothing happens to a finished one."""
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
                self.finished["abort"] += 1

    def die(self) -> None:
        """Fail all requests, now and from now on."""
        self.is_dead = True
        for request in self.running + self.waiting:
            request.outputs.put_nowait(None)
        self.running, self.waiting = [], []

    async def run(self) -> None:
        """Step for ever, idle without requests."""
        while True:
            if not self.waiting and not self.running:
                self._wake.clear()
                await self._wake.wait()
            n_free = self.max_num_seqs - len(self.running)
            self.running += self.waiting[:n_free]
            del self.waiting[:n_free]
            await asyncio.sleep(self.step_s)
            self.step()

    def step(self) -> None:
        """Serve every running request once."""
        batch = list(self.running)
        if not batch:
            return
        decoding = [request for request in batch if request.n_emitted > 0]
        drafts = [self._decode(request) for request in decoding]
        for request in batch:
            if request.n_emitted == 0:
                self._prefill(request)
        self.count["steps"] += 1
        if len(decoding) == len(batch):
            self.count["decode_steps"] += 1
            self.count["decode_requests"] += len(batch)
            self.count["uniform_decode_steps"] += all(n_drafted == (self.k or 0) for n_drafted in drafts)
        self.step_sizes.append(self.count.pop("this_step"))
        for request in batch:
            if request.n_emitted == request.n_tokens:
                self._finish(request)

    def _prefill(self, request: Request) -> None:
        self.count["prompt_tokens"] += request.n_prompt_tokens
        if request.prompt in self.prefix_cache:
            self.count["prefix_hits"] += (request.n_prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
        self.prefix_cache.add(request.prompt)
        self.count["this_step"] += request.n_prompt_tokens
        self._emit(request, 1)
        self.ttft_s.append(request.last_s - request.arrived_s)

    def _decode(self, request: Request) -> int:
        """One decode step of one request; how many tokens its draft had."""
        made = draft(request, self.k, self.pads) if self.k else Draft(0, 0, 0)
        n_drafted = made.n_real + made.n_pad
        # vLLM counts what was accepted before it cuts the answer at max_tokens, and no empty drafts.
        self.count["drafts"] += n_drafted > 0
        self.count["draft_tokens"] += n_drafted
        self.count["accepted_tokens"] += made.n_accepted
        self.accepted_at.update(range(made.n_accepted))
        self.count["real_draft_tokens"] += made.n_real
        self.count["pad_tokens"] += made.n_pad
        request.n_decode_steps += 1
        previous_s = request.last_s
        self._emit(request, min(1 + made.n_accepted, request.n_tokens - request.n_emitted))
        self.itl_s.append(request.last_s - previous_s)
        return n_drafted

    def _emit(self, request: Request, n_new: int) -> None:
        request.n_emitted += n_new
        request.last_s = time.monotonic()
        self.count["generation_tokens"] += n_new
        self.count["this_step"] += n_new
        request.outputs.put_nowait(n_new)

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self.finished[request.finish_reason] += 1
        self.n_cached += self.k is not None
