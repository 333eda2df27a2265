"""From a pass to the numbers of its row: pure functions, each named after its metric.

Traces and counter differences in, plain numbers out. None means "not measured"; no function returns
NaN, and a pass without a good request has no throughput (not zero). Seconds are float, ns integers.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence

from kpad_bench.counters import Deltas
from kpad_bench.schema import FAILED, OK
from kpad_bench.steps import StepDeltas, graph_columns, ratio, step_columns
from kpad_bench.stream import PassTrace, RequestTrace, pass_doubts

QUANTILES = (50, 90, 99)
#: A steady window shorter than this share of the wall says nothing.
MIN_STEADY_SHARE = 0.3


def quantile(sorted_values: Sequence[float], q: float) -> float | None:
    """The q-quantile of sorted values, linear between neighbours (numpy's default); None of nothing."""
    if not sorted_values:
        return None
    place = q * (len(sorted_values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (sorted_values[high] - sorted_values[low]) * (place - low)


def ok_requests(trace: PassTrace) -> list[RequestTrace]:
    """The requests that ended well; only their tokens count as throughput."""
    return [request for request in trace.requests if request.is_ok]


def duration_s(trace: PassTrace) -> float:
    """Wall time of the pass: first request out to last answer in."""
    return (trace.end_ns - trace.start_ns) / 1e9


def input_tokens(trace: PassTrace) -> int | None:
    """Prompt tokens of ok requests, by usage; None when there is none, or usage lacks one's."""
    counts = [request.prompt_tokens for request in ok_requests(trace)]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def output_tokens(trace: PassTrace) -> int:
    """Output tokens of ok requests, by usage."""
    return sum(request.completion_tokens or 0 for request in ok_requests(trace))


def output_tok_per_s(trace: PassTrace) -> float | None:
    """Output tokens of ok requests over the wall time of the pass: the published definition."""
    return ratio(output_tokens(trace) or None, duration_s(trace))


def request_per_s(trace: PassTrace) -> float | None:
    """Ok requests over the wall time of the pass."""
    return ratio(len(ok_requests(trace)) or None, duration_s(trace))


def sent_requests(trace: PassTrace) -> list[RequestTrace]:
    """All that were issued, in order: the measured ones, then the fillers that kept the slots full."""
    return [*trace.requests, *trace.fillers]


def tail_start_ns(trace: PassTrace) -> int | None:
    """The first completion that finds nothing left to issue; None when the pass did not get there.

    With N requests in C slots every completion but the last C is followed by a new request. With fewer
    than C a slot is empty from the start. Fillers move it to the end of the pass.
    """
    if not trace.requests or len(trace.requests) < trace.n_prompts:
        return None
    closings = sorted(request.closed_ns for request in sent_requests(trace))
    if len(closings) < trace.concurrency:
        return trace.start_ns
    return min(closings[-trace.concurrency], trace.end_ns)


def tail_share(trace: PassTrace) -> float | None:
    """Share of the wall with a slot empty and nothing left to issue."""
    start_ns = tail_start_ns(trace)
    return None if start_ns is None else ratio(trace.end_ns - start_ns, trace.end_ns - trace.start_ns)


def steady_window_ns(trace: PassTrace) -> tuple[int, int] | None:
    """From the last first-token of the first C requests to the start of the tail; None when empty."""
    end_ns = tail_start_ns(trace)
    first_tokens = [request.first_token_ns for request in sent_requests(trace)[: trace.concurrency]]
    known = [ns for ns in first_tokens if ns is not None]
    if end_ns is None or not known or max(known) >= end_ns:
        return None
    return max(known), end_ns


def steady_share(trace: PassTrace) -> float | None:
    """Length of the steady window over the wall; 0 when there is none in a whole pass."""
    if tail_start_ns(trace) is None:
        return None
    start_ns, end_ns = steady_window_ns(trace) or (0, 0)
    return ratio(end_ns - start_ns, trace.end_ns - trace.start_ns)


def steady_output_tok_per_s(trace: PassTrace) -> float | None:
    """Output tokens of ok requests and of fillers that arrived in the steady window, over its length.

    By the rise of usage at each chunk. None when the window is under 30 % of the wall, or when usage
    did not come with the chunks.
    """
    window, share = steady_window_ns(trace), steady_share(trace)
    requests = [request for request in [*ok_requests(trace), *trace.fillers] if request.token_ns]
    is_counted = all(request.token_counts for request in requests)
    if window is None or share is None or share < MIN_STEADY_SHARE or not is_counted:
        return None
    tokens = sum(_tokens_between(request, *window) for request in requests)
    return tokens / ((window[1] - window[0]) / 1e9)


def _tokens_between(request: RequestTrace, start_ns: int, end_ns: int) -> int:
    """Tokens that arrived after start_ns and not after end_ns."""
    counts = [0, *request.token_counts]
    return sum(counts[i + 1] - counts[i] for i, ns in enumerate(request.token_ns) if start_ns < ns <= end_ns)


def ttft_s(request: RequestTrace) -> float | None:
    """Issue to first token-bearing chunk."""
    first_ns = request.first_token_ns
    return None if first_ns is None else (first_ns - request.start_ns) / 1e9


def e2e_s(request: RequestTrace) -> float | None:
    """Issue to last token-bearing chunk."""
    return None if request.end_ns is None else (request.end_ns - request.start_ns) / 1e9


def tpot_s(request: RequestTrace) -> float | None:
    """(E2E - TTFT) / (output tokens - 1); None below two tokens, 0 when all came in one chunk."""
    first, last, tokens = request.first_token_ns, request.end_ns, request.completion_tokens
    if first is None or last is None or tokens is None or tokens < 2:
        return None
    return (last - first) / (tokens - 1) / 1e9


def itl_s(request: RequestTrace) -> list[float]:
    """Gaps between token-bearing chunks, each of one or more tokens."""
    times = request.token_ns
    return [(after - before) / 1e9 for before, after in itertools.pairwise(times)]


def latency_columns(trace: PassTrace) -> dict[str, object]:
    """ttft, tpot, itl and e2e at p50, p90 and p99 over ok requests, seconds."""
    requests = ok_requests(trace)
    values: dict[str, list[float | None]] = {
        "ttft": [ttft_s(request) for request in requests],
        "tpot": [tpot_s(request) for request in requests],
        "itl": [gap for request in requests for gap in itl_s(request)],
        "e2e": [e2e_s(request) for request in requests],
    }
    columns: dict[str, object] = {}
    for name, found in values.items():
        known = sorted(value for value in found if value is not None)
        columns |= {f"{name}_p{q}_s": quantile(known, q / 100) for q in QUANTILES}
    return columns


def acceptance_length(deltas: Deltas) -> float | None:
    """(G - F) / P: output tokens per request and decode step, 1 without speculation."""
    if deltas.generation_tokens is None or deltas.first_tokens is None:
        return None
    return ratio(deltas.generation_tokens - deltas.first_tokens, deltas.decode_events)


def chunk_merge_share(trace: PassTrace, deltas: Deltas) -> float | None:
    """1 - (token-bearing chunks after each request's first) / P: how much the front end merged."""
    chunks = sum(max(0, request.n_chunks - 1) for request in sent_requests(trace))
    share = ratio(chunks, deltas.decode_events)
    return None if share is None else 1 - share


def tokens_reconciled(trace: PassTrace, deltas: Deltas) -> bool | None:
    """The server's counter rose by the sum of usage over all requests of the pass, fillers included.

    None when a request failed, was sent twice, was never sent or (a filler) was cancelled: the server may
    have counted tokens of it that never arrived.
    """
    sent = sent_requests(trace)
    is_whole = len(trace.requests) == trace.n_prompts and all(request.is_ok for request in sent)
    if deltas.generation_tokens is None or not is_whole or trace.n_retries:
        return None
    return deltas.generation_tokens == sum(request.completion_tokens or 0 for request in sent)


def outcome_columns(trace: PassTrace, deltas: Deltas) -> dict[str, object]:
    """How many requests and tokens came out, and the doubts about them. n_failed counts issued ones."""
    requests = ok_requests(trace)
    return {
        "duration_s": duration_s(trace),
        "n_ok": len(requests),
        "n_failed": len(trace.requests) - len(requests),
        "n_length_finish": sum(request.finish_reason == "length" for request in requests),
        "n_filler": len(trace.fillers),
        "input_tokens": input_tokens(trace),
        "output_tokens": output_tokens(trace) if requests else None,
        "tokens_source": "usage" if requests else None,
        "tokens_reconciled": tokens_reconciled(trace, deltas),
        "endpoint": trace.endpoint,
        "warnings": pass_doubts(trace),
    }


def speed_columns(trace: PassTrace) -> dict[str, object]:
    """Throughput and latency."""
    rates = (output_tok_per_s, steady_output_tok_per_s, steady_share, tail_share, request_per_s)
    return {metric.__name__: metric(trace) for metric in rates} | latency_columns(trace)


def counter_columns(deltas: Deltas) -> dict[str, object]:
    """What follows from vLLM's own counters."""
    return {
        "acceptance_length": acceptance_length(deltas),
        "n_drafts": deltas.n_drafts,
        "draft_tokens": deltas.draft_tokens,
        "accepted_tokens": deltas.accepted_tokens,
        "accepted_per_position": deltas.accepted_per_position,
        "num_gpu_blocks": deltas.num_gpu_blocks,
        "preemptions": deltas.preemptions,
        "prefix_hits": deltas.prefix_hits,
    }


def client_columns(trace: PassTrace, deltas: Deltas) -> dict[str, object]:
    """What the client says about itself and about the server's front end."""
    gaps_ms = sorted(gap / 1e6 for gap in trace.reissue_gaps_ns)
    return {
        "client_cpu_share": ratio(trace.client_cpu_s, duration_s(trace)),
        "chunk_merge_share": chunk_merge_share(trace, deltas),
        "loop_lag_p99_ms": quantile(sorted(lag / 1e6 for lag in trace.loop_lag_ns), 0.99),
        "reissue_gap_p50_ms": quantile(gaps_ms, 0.5),
        "reissue_gap_p99_ms": quantile(gaps_ms, 0.99),
    }


def trial_columns(
    trace: PassTrace, deltas: Deltas | None, steps: StepDeltas | None, has_graphs: bool | None
) -> dict[str, object]:
    """The columns of a trial that follow from its pass. ``has_graphs``: None when not known."""
    known, counted = deltas or Deltas(), steps or StepDeltas()
    return {
        **outcome_columns(trace, known),
        **speed_columns(trace),
        **step_columns(counted),
        **graph_columns(counted, has_graphs),
        **counter_columns(known),
        **client_columns(trace, known),
    }


def request_rows(trace: PassTrace, *, save_text: bool = False) -> list[dict[str, object]]:
    """One row per issued request, without the ids of the run and the trial."""
    return [_request_row(request, trace.start_ns, save_text) for request in trace.requests]


def _request_row(request: RequestTrace, pass_start_ns: int, save_text: bool) -> dict[str, object]:
    text = request.text.encode("utf-8", "replace")
    return {
        "request_index": request.index,
        "prompt_id": request.prompt_id,
        "prompt_sha256": request.prompt_sha256,
        "input_tokens": request.prompt_tokens,
        "output_tokens": request.completion_tokens,
        "finish_reason": request.finish_reason,
        "status": OK if request.is_ok else FAILED,
        "error": request.error,
        "start_ns": request.start_ns - pass_start_ns,
        "ttft_s": ttft_s(request),
        "tpot_s": tpot_s(request),
        "e2e_s": e2e_s(request),
        "n_chunks": request.n_chunks,
        "reasoning_chars": request.reasoning_chars,
        "output_sha256": hashlib.sha256(text).hexdigest() if request.is_ok else None,
        "output_text": text.decode() if save_text else None,
    }
