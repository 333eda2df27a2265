"""Passes on a scripted clock, for tests of what is made of them."""

from __future__ import annotations

from kpad_bench.stream import PassTrace, RequestTrace

S = 1_000_000_000
T0 = 1000 * S


def request(start, tokens, *, finish="stop", error=None, index=0):
    """A request from ``start`` s with ``tokens``: {second: cumulative count}; it closes with the last."""
    times = [T0 + round(at * S) for at in tokens]
    closed_ns = max([*times, T0 + round(start * S)])
    trace = RequestTrace(index, f"p{index}", "00", T0 + round(start * S), closed_ns)
    trace.token_ns, trace.token_counts = times, list(tokens.values())
    trace.completion_tokens = max([*trace.token_counts, 0])
    trace.prompt_tokens, trace.finish_reason = 10, finish
    if error:
        trace.error_kind, _, trace.error_message = error.partition(": ")
    return trace


def passed(*requests, wall=10.0, concurrency=2, n_prompts=None, **more):
    """A pass of these requests that took ``wall`` seconds."""
    for index, one in enumerate(requests):
        one.index = index
    n_prompts = len(requests) if n_prompts is None else n_prompts
    end_ns = T0 + round(wall * S)
    return PassTrace(list(requests), n_prompts, concurrency, "/v1/chat/completions", T0, end_ns, **more)


def four():
    """Two slots, four requests: first tokens at 1 and 2 s, a slot runs dry at 8 s, all is over at 10 s."""
    return passed(
        request(0, {1: 1, 2: 3, 4: 7}),
        request(0, {2: 1, 3: 4, 5: 6}, finish="length"),
        request(4, {5: 2, 8: 12}),
        request(5, {6: 1, 10: 21}),
    )
