#!/usr/bin/env python3
"""What the plugin costs a step: the padded proposer against vLLM's own, and the counting hooks alone,
in the worker and in the API process.

    python scripts/bench_plugin.py [--requests 32] [--k 12] [--steps 2000]

Needs vLLM and arctic-inference. Both proposers run on equal batches in alternating blocks of one
process, so that what disturbs the machine disturbs both; reported are medians per step, microseconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

from kpad_bench.padding.pads import PadToken
from kpad_bench.padding.patch import counted_dispatch, marked_execute, padded_propose
from kpad_bench.padding.tally import FrontTally, Tally

BLOCK = 100
PROMPT_TOKENS, ROOM_TOKENS, VOCABULARY = 200, 100_000, 400


def proposer(k: int) -> Any:
    """vLLM's suffix proposer with its default settings, without a configuration object."""
    found = SuffixDecodingProposer.__new__(SuffixDecodingProposer)
    found.num_speculative_tokens, found.max_tree_depth = k, 24
    found.max_spec_factor, found.min_token_prob, found.max_model_len = 1.0, 0.1, ROOM_TOKENS
    found.suffix_cache = SuffixDecodingCache(max_tree_depth=24, max_cached_requests=10000)
    return found


class Batch:
    """The part of vLLM's input batch that a proposer reads; every step appends one token per request."""

    def __init__(self, n_requests: int, n_steps: int, seed: int) -> None:
        source = random.Random(seed)  # noqa: S311 text for a benchmark
        words = [source.randrange(VOCABULARY) for _ in range(64)]
        width = PROMPT_TOKENS + n_steps + 1
        self.req_ids = [f"r{i}" for i in range(n_requests)]
        self.req_id_to_index = {name: i for i, name in enumerate(self.req_ids)}
        self.num_prompt_tokens = np.full(n_requests, PROMPT_TOKENS)
        self.num_tokens_no_spec = np.full(n_requests, PROMPT_TOKENS + 1)
        start = [source.randrange(64) for _ in range(n_requests)]
        rows = [
            [words[(s + i) % 64] if i % 7 else source.randrange(VOCABULARY) for i in range(width)]
            for s in start
        ]
        self.token_ids_cpu = np.array(rows, dtype=np.int32)

    def sampled(self) -> list[list[int]]:
        """The newest token of every request."""
        return [[int(row[n - 1])] for row, n in zip(self.token_ids_cpu, self.num_tokens_no_spec, strict=True)]


def propose_us(propose: Any, found: Any, batch: Batch, n_steps: int, k: int) -> list[float]:
    """Microseconds of each of ``n_steps`` proposals."""
    times = []
    for _ in range(n_steps):
        sampled = batch.sampled()
        start = time.perf_counter_ns()
        propose(found, k, batch, sampled, None)
        times.append((time.perf_counter_ns() - start) / 1e3)
        batch.num_tokens_no_spec += 1
    return times


class Mode:
    """Stands for vLLM's graph mode."""

    name = "FULL"


class Runner:
    """A model runner that only dispatches."""

    def __init__(self, n_requests: int, k: int) -> None:
        self.uniform_decode_query_len = 1 + k
        lengths = np.full(n_requests, 300)
        self.input_batch = SimpleNamespace(
            num_reqs=n_requests, num_computed_tokens_cpu=lengths, num_prompt_tokens=lengths - 100
        )
        self.result = (Mode(), SimpleNamespace(num_tokens=n_requests * (1 + k)))

    def dispatch(self, *_: Any) -> Any:
        """What vLLM decides, without deciding."""
        return self.result

    def execute(self, scheduler_output: Any) -> None:
        """A step that does nothing but dispatch."""
        self.dispatch()


def hooks_us(n_requests: int, k: int, n_steps: int) -> tuple[float, float]:
    """Median microseconds of a bare step, and of one with the counting hooks around it."""
    names = [f"r{i}" for i in range(n_requests)]
    output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1 + k), total_num_scheduled_tokens=n_requests * (1 + k),
        scheduled_spec_decode_tokens={name: [7] * k for name in names}, finished_req_ids=set(),
    )  # fmt: skip
    tally = Tally()
    tally.drafted(names, [[7] * 3] * n_requests)
    hooks = {
        "dispatch": counted_dispatch(Runner.dispatch, tally),
        "execute": marked_execute(Runner.execute, tally),
    }
    hooked = type("Hooked", (Runner,), hooks)
    times: dict[type, list[float]] = {Runner: [], hooked: []}
    for _ in range(n_steps // BLOCK):
        for kind, found in times.items():
            runner = kind(n_requests, k)
            for _ in range(BLOCK):
                start = time.perf_counter_ns()
                runner.execute(output)
                found.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times[Runner]), statistics.median(times[hooked])


def front_end_us(n_requests: int, n_steps: int) -> float:
    """Median microseconds of counting one decode-only step in the API process."""
    tally, gaps_s, times = FrontTally(), [0.0025] * n_requests, []
    for _ in range(n_steps):
        start = time.perf_counter_ns()
        tally.step(0, gaps_s, "FULL")
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--k", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    own = SuffixDecodingProposer.propose
    padded = padded_propose(own, Tally(), PadToken(None, "last"))
    batches = [Batch(given.requests, given.steps, seed=1) for _ in range(2)]
    founds: list[Any] = [proposer(given.k) for _ in range(2)]
    times: list[list[float]] = [[], []]
    for _ in range(given.steps // BLOCK):
        for side, propose in enumerate((own, padded)):
            times[side] += propose_us(propose, founds[side], batches[side], BLOCK, given.k)
    unpadded_us, padded_us = (statistics.median(found) for found in times)
    bare_us, hooked_us = hooks_us(given.requests, given.k, given.steps)
    print(f"{given.requests} requests, K={given.k}, {given.steps} steps, median per step")
    print(f"vLLM's proposer              {unpadded_us:8.1f} us")
    added_us, ratio = padded_us - unpadded_us, padded_us / unpadded_us
    print(f"padded and counted           {padded_us:8.1f} us   {added_us:+.1f} us, {ratio:.3f} times")
    print(f"counting hooks of a step     {hooked_us - bare_us:8.1f} us")
    print(f"stat logger of a step        {front_end_us(given.requests, given.steps):8.1f} us")


if __name__ == "__main__":
    main()
