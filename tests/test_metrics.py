"""Metrics on a scripted clock."""

from __future__ import annotations

import itertools
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
    """With a slot empty from the start there is no steady window at all."""
    trace = passed(request(0, {1: 1, 10: 9}), concurrency=2)
    assert (metrics.tail_share(trace), metrics.steady_share(trace)) == (1.0, 0.0)
    assert metrics.steady_output_tok_per_s(trace) is None
    trace = passed(request(0, {3: 1}), request(0, {4: 1, 10: 9}), concurrency=2)
    assert metrics.steady_share(trace) == 0.0
    assert metrics.steady_output_tok_per_s(trace) is None


def test_a_pass_that_stopped_early_has_no_tail():
    """There was something left to issue to the end."""
    trace = passed(request(0, {1: 1, 9: 9}), request(0, {1: 1, 9: 9}), n_prompts=9)
    assert metrics.steady_share(trace) is None
    assert metrics.tail_share(trace) is None


def test_fillers_move_the_tail_to_the_end():
    """A filler keeps the slot full from 8 s on: no tail, and its tokens count as the engine's speed alone."""
    trace = four()
    filler = request(8, {9: 1, 10: 4, 11: 9}, error="cancelled: the pass is over")
    trace.fillers = [filler]
    assert metrics.tail_share(trace) == 0.0
    assert metrics.steady_window_ns(trace) == (T0 + 2 * S, T0 + 10 * S)
    # 22 tokens up to 8 s, 20 of the last request and 4 of the filler by 10 s
    assert metrics.steady_output_tok_per_s(trace) == pytest.approx((22 + 20 + 4) / 8)
    assert metrics.output_tok_per_s(trace) == pytest.approx(4.6)
    assert metrics.tokens_reconciled(trace, Deltas(generation_tokens=46)) is None
    assert metrics.chunk_merge_share(trace, Deltas(decode_events=8)) == 0.0
    assert metrics.trial_columns(trace, None, None, None)["n_ok"] == 4


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


def test_many_tokens_in_one_chunk():
    """All time to the first token is all time: TPOT is 0 by its definition, and there is no gap to tell."""
    one = request(1, {3: 12})
    assert (metrics.ttft_s(one), metrics.e2e_s(one), metrics.tpot_s(one)) == (2.0, 2.0, 0.0)
    assert metrics.itl_s(one) == []
    columns = metrics.latency_columns(passed(one))
    assert (columns["tpot_p50_s"], columns["itl_p50_s"], columns["itl_p99_s"]) == (0.0, None, None)


def test_latencies_of_nothing_are_null():
    """No ok request: every percentile is null."""
    for trace in (passed(), passed(request(0, {1: 5}, error="cut: reset"))):
        assert set(metrics.latency_columns(trace).values()) == {None}


def test_prompt_tokens_that_usage_lacks_are_not_zero():
    """One ok request without them makes the sum unknown; a failed one does not matter."""
    trace = four()
    assert metrics.input_tokens(trace) == 40
    trace.requests[0].prompt_tokens = None
    assert metrics.input_tokens(trace) is None
    trace.requests[0].error_kind = "cut"
    assert metrics.input_tokens(trace) == 30
    assert metrics.input_tokens(passed()) is None


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


@st.composite
def whole_passes(draw):
    """A closed loop as it runs: C slots, each taking the next prompt as soon as its last answer has ended."""
    concurrency = draw(st.integers(1, 4))
    n_prompts = draw(st.integers(1, 9))
    n_fillers = draw(st.sampled_from([0, 0, 9]))
    free_at = [0.0] * concurrency
    done = []
    for _ in range(n_prompts + n_fillers):
        start = min(free_at)
        gaps = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
        sizes = draw(st.lists(st.integers(1, 4), min_size=len(gaps), max_size=len(gaps)))
        times = itertools.accumulate(gaps, initial=start)
        tokens = dict(zip(list(times)[1:], itertools.accumulate(sizes), strict=True))
        error = draw(st.sampled_from([None, None, None, "cut: reset"]))
        done.append(request(start, tokens, error=error))
        free_at[free_at.index(start)] = max([*tokens, start])
    measured, fillers = done[:n_prompts], done[n_prompts:]
    end_ns = max(one.closed_ns for one in measured)
    trace = passed(*measured, wall=(end_ns - T0) / S, concurrency=concurrency)
    trace.fillers = [one for one in fillers if one.start_ns < end_ns]
    return trace


@given(whole_passes())
def test_the_steady_window_is_inside_the_pass(trace):
    """Shares are within 0 and 1 and leave room for each other; tokens inside are no more than there were."""
    steady, tail = metrics.steady_share(trace), metrics.tail_share(trace)
    if trace.end_ns == trace.start_ns:
        assert (steady, tail) == (None, None)
        return
    assert 0 <= steady <= 1
    assert 0 <= tail <= 1
    assert steady + tail <= 1 + 1e-9
    rate, window = metrics.steady_output_tok_per_s(trace), metrics.steady_window_ns(trace)
    assert (rate is None) == (steady < 0.3)
    if rate is not None:
        sent = [one for one in metrics.sent_requests(trace) if one.is_ok or one in trace.fillers]
        in_window = rate * (window[1] - window[0]) / S
        assert -1e-6 <= in_window <= sum(one.completion_tokens for one in sent) + 1e-6
        assert trace.start_ns <= window[0] < window[1] <= trace.end_ns


@given(whole_passes())
def test_a_slot_is_empty_in_the_tail_alone(trace):
    """Before the tail every slot holds a request at any moment; at its start one is empty for good."""
    start_ns = metrics.tail_start_ns(trace)
    sent = metrics.sent_requests(trace)
    moments = {one.start_ns for one in sent} | {one.closed_ns for one in sent}

    def n_open(ns):
        return sum(one.start_ns <= ns < one.closed_ns for one in sent)

    for ns in sorted(moments):
        if ns < start_ns:
            instant = sum(one.start_ns == one.closed_ns == ns for one in sent)
            assert n_open(ns) + instant >= trace.concurrency
        elif ns < trace.end_ns:
            assert n_open(ns) < trace.concurrency


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
