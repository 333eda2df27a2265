"""Metrics on a scripted clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import T0, S, four, passed, request

from kpad_bench import metrics
from kpad_bench.counters import Deltas
from kpad_bench.schema import REQUESTS, TRIALS, names
from kpad_bench.steps import StepDeltas


def test_throughput_is_tokens_of_ok_requests_over_the_wall():
    """7 + 6 + 12 + 21 tokens in 10 s."""
    assert metrics.output_tok_per_s(four()) == pytest.approx(4.6)
    assert metrics.request_per_s(four()) == pytest.approx(0.4)


def test_tokens_of_failed_requests_do_not_count():
    """A request that failed half-way keeps its tokens to itself."""
    trace = passed(request(0, {1: 5}), request(0, {1: 5}, error="server_error: engine stopped"))
    assert metrics.output_tok_per_s(trace) == pytest.approx(0.5)
    assert metrics.trial_columns(trace, None, None, None)["n_failed"] == 1


def test_steady_window_is_between_the_ramp_and_the_tail():
    """From 2 s, when both first requests have a token, to 8 s, when a completion finds nothing to issue."""
    trace = four()
    assert metrics.steady_window_ns(trace) == (T0 + 2 * S, T0 + 8 * S)
    assert metrics.steady_share(trace) == pytest.approx(0.6)
    assert metrics.tail_share(trace) == pytest.approx(0.2)
    # after 2 s and up to 8 s: 4 tokens of the first request, 5, 12 and 1 of the others
    assert metrics.steady_output_tok_per_s(trace) == pytest.approx(22 / 6)


def test_steady_window_under_a_third_of_the_wall_says_nothing():
    """One long request makes most of a pass its tail; the share is still told."""
    trace = four()
    trace.requests[3].closed_ns = trace.end_ns = T0 + 21 * S
    assert metrics.steady_share(trace) == pytest.approx(6 / 21)
    assert metrics.steady_output_tok_per_s(trace) is None
    assert metrics.tail_share(trace) == pytest.approx(13 / 21)


def test_fewer_prompts_than_slots_is_all_tail():
    """With a slot empty from the start there is no steady window worth the name."""
    trace = passed(request(0, {1: 1, 10: 9}), concurrency=2)
    assert metrics.tail_share(trace) == 1.0
    trace = passed(request(0, {3: 1}), request(0, {4: 1, 10: 9}), concurrency=2)
    assert metrics.steady_share(trace) == 0.0
    assert metrics.steady_output_tok_per_s(trace) is None


def test_a_pass_that_stopped_early_has_no_tail():
    """There was something left to issue to the end."""
    trace = passed(request(0, {1: 1, 9: 9}), request(0, {1: 1, 9: 9}), n_prompts=9)
    assert metrics.steady_share(trace) is None
    assert metrics.tail_share(trace) is None


def test_usage_at_the_end_only_gives_no_steady_number():
    """Which tokens came inside the window is not known then."""
    trace = four()
    for one in trace.requests:
        one.token_counts = []
    assert metrics.steady_output_tok_per_s(trace) is None
    assert metrics.output_tok_per_s(trace) == pytest.approx(4.6)


def test_latencies_of_one_request():
    """TTFT to the first chunk, E2E to the last, TPOT by tokens, ITL by chunks (sizes 1, 1, 3, 1, 4)."""
    one = request(1, {2: 1, 3: 2, 5: 5, 6: 6, 11: 10})
    assert metrics.ttft_s(one) == 1.0
    assert metrics.e2e_s(one) == 10.0
    assert metrics.tpot_s(one) == 1.0
    assert metrics.itl_s(one) == [1.0, 2.0, 1.0, 5.0]


def test_one_token_has_no_tpot():
    """TPOT is null below two tokens, and nothing at all without any."""
    assert metrics.tpot_s(request(0, {1: 1})) is None
    assert metrics.e2e_s(request(0, {})) is None
    assert metrics.itl_s(request(0, {1: 1})) == []


def test_quantiles_are_linear_between_neighbours():
    """As numpy.quantile does; of nothing there is none."""
    assert metrics.quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert metrics.quantile([1.0, 2.0, 3.0, 4.0], 0.9) == pytest.approx(3.7)
    assert metrics.quantile([7.0], 0.99) == 7.0
    assert metrics.quantile([], 0.5) is None


def test_latency_columns_are_over_ok_requests():
    """A failed request's times are left out."""
    trace = passed(request(0, {2: 1, 4: 2}), request(0, {100: 1}, error="cut: reset"))
    columns = metrics.latency_columns(trace)
    assert (columns["ttft_p50_s"], columns["ttft_p99_s"], columns["e2e_p90_s"]) == (2.0, 2.0, 4.0)


DELTAS = Deltas(generation_tokens=46, first_tokens=4, decode_events=21, n_drafts=20, draft_tokens=80)


def test_acceptance_length_is_tokens_per_request_and_decode_step():
    """(46 - 4) / 21; of no decode event there is none, never NaN."""
    assert metrics.acceptance_length(DELTAS) == 2.0
    assert metrics.acceptance_length(Deltas(0, 0, 0)) is None
    assert metrics.acceptance_length(Deltas(46, None, 21)) is None


def test_chunk_merge_share_counts_chunks_after_the_first():
    """10 token-bearing chunks, 4 of them first ones: 6 of 21 decode events came as chunks of their own."""
    assert metrics.chunk_merge_share(four(), DELTAS) == pytest.approx(1 - 6 / 21)
    assert metrics.chunk_merge_share(four(), Deltas()) is None


def test_tokens_are_reconciled_with_the_servers_counter():
    """True when equal, false when not, null when it cannot be known."""
    assert metrics.tokens_reconciled(four(), DELTAS) is True
    assert metrics.tokens_reconciled(four(), Deltas(generation_tokens=47)) is False
    assert metrics.tokens_reconciled(four(), Deltas()) is None
    cut = passed(request(0, {1: 5}), request(0, {1: 5}, error="cut: reset"))
    assert metrics.tokens_reconciled(cut, Deltas(generation_tokens=10)) is None
    assert metrics.tokens_reconciled(passed(request(0, {1: 5}), n_retries=1), Deltas(5)) is None


STEPS = StepDeltas(
    steps=20,
    decode_steps=14,
    uniform_decode_steps=7,
    decode_requests=21,
    mode_full=10,
    mode_piecewise=5,
    mode_none=5,
    full_decode_steps=7,
    graph_padding_tokens=3,
    pad_tokens=9,
)


def test_graph_shares_are_of_all_steps_and_of_decode_steps():
    """Ten of 20 steps were FULL, seven of 14 decode-only ones."""
    columns = metrics.trial_columns(four(), DELTAS, STEPS, has_graphs=True)
    assert (columns["full_share"], columns["full_share_decode"], columns["piecewise_share"]) == (
        0.5,
        0.5,
        0.25,
    )
    assert (columns["full_share_reason"], columns["uniform_share_decode"]) == (None, 0.5)
    assert (columns["mean_batch"], columns["n_steps"], columns["pad_tokens"]) == (1.5, 20, 9)


@pytest.mark.parametrize(
    ("steps", "has_graphs", "reason"),
    [(STEPS, False, "no_graphs"), (None, True, "not_counted"), (None, None, "not_counted")],
)
def test_missing_graph_shares_say_why(steps, has_graphs, reason):
    """Null with a reason, never 0; uniform_share_decode shows padding even without graphs."""
    columns = metrics.trial_columns(four(), DELTAS, steps, has_graphs)
    assert (columns["full_share"], columns["full_share_decode"], columns["none_share"]) == (None, None, None)
    assert columns["full_share_reason"] == reason
    assert columns["uniform_share_decode"] == (0.5 if steps else None)


def test_client_columns():
    """CPU seconds over the wall; lag and gaps in milliseconds; nothing of nothing."""
    trace = passed(
        request(0, {1: 1}),
        client_cpu_s=2.5,
        loop_lag_ns=[1_000_000] * 100,
        reissue_gaps_ns=[200_000, 400_000],
    )
    columns = metrics.client_columns(trace, Deltas())
    assert columns["client_cpu_share"] == 0.25
    assert columns["loop_lag_p99_ms"] == 1.0
    assert columns["reissue_gap_p50_ms"] == pytest.approx(0.3)
    assert metrics.client_columns(passed(), Deltas())["loop_lag_p99_ms"] is None


def test_an_all_failed_pass_has_no_numbers():
    """No throughput, no latency, no tokens: null and not 0, which a best K could pick or drop."""
    trace = passed(*(request(0, {}, error="http_400: no") for _ in range(3)))
    columns = metrics.trial_columns(trace, Deltas(), StepDeltas(), None)
    assert (columns["n_ok"], columns["n_failed"]) == (0, 3)
    measured = {"output_tok_per_s", "request_per_s", "steady_output_tok_per_s", "output_tokens", "ttft_p50_s"}
    assert {columns[name] for name in measured} == {None}


def test_no_drafts_give_nulls_and_throughput_stays():
    """Counters all zero: acceptance is null, the pass is as good as ever."""
    zero = Deltas(generation_tokens=0, first_tokens=0, decode_events=0, n_drafts=0, accepted_tokens=0)
    columns = metrics.trial_columns(four(), zero, StepDeltas(decode_steps=0, steps=0), True)
    assert (columns["acceptance_length"], columns["chunk_merge_share"], columns["n_drafts"]) == (
        None,
        None,
        0,
    )
    assert columns["output_tok_per_s"] == pytest.approx(4.6)


def test_columns_are_those_of_the_schema():
    """Every column that is filled is declared."""
    assert set(metrics.trial_columns(four(), DELTAS, STEPS, True)) <= set(names(TRIALS))
    assert set(metrics.request_rows(four())[0]) <= set(names(REQUESTS))


counts = st.one_of(st.none(), st.integers(0, 3))
requests_ = st.builds(
    request,
    st.integers(0, 3),
    st.dictionaries(st.integers(3, 9), st.just(1), max_size=3),
    error=st.sampled_from([None, None, "cut: reset", "http_400: no"]),
)


@given(st.lists(requests_, max_size=4), st.integers(0, 5), counts, counts, counts, st.integers(0, 10))
def test_no_number_is_ever_nan(requests, n_more, g, f, p, wall):
    """Whatever the pass looks like, a column is a finite number or null."""
    trace = passed(*requests, wall=wall, n_prompts=len(requests) + n_more)
    columns = metrics.trial_columns(
        trace, Deltas(g, f, p), StepDeltas(steps=g, decode_steps=f, mode_full=p), True
    )
    numbers = [value for value in columns.values() if isinstance(value, float)]
    assert all(math.isfinite(value) for value in numbers)


def test_request_rows():
    """One row per request, times relative to the pass; text only when asked for, hash always."""
    trace = passed(request(1, {2: 1, 4: 5}, finish="length"), request(2, {}, error="http_400: too long"))
    trace.requests[0].text = "ab\ud83d"
    good, bad = metrics.request_rows(trace)
    assert (good["start_ns"], good["ttft_s"], good["tpot_s"], good["e2e_s"]) == (S, 1.0, 0.5, 3.0)
    assert (good["status"], good["error"], good["finish_reason"], good["output_text"]) == (
        "ok",
        None,
        "length",
        None,
    )
    assert len(good["output_sha256"]) == 64
    assert (bad["status"], bad["error"], bad["output_sha256"]) == ("failed", "http_400: too long", None)
    assert metrics.request_rows(trace, save_text=True)[0]["output_text"] == "ab?"
