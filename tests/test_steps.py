"""Step counters of the plugin: differences by rank, shares, and step times."""

import math

import pytest

from kpad_bench.padding import tally
from kpad_bench.steps import (
    BINS_PER_E,
    StepDeltas,
    front_end_deltas,
    graph_columns,
    step_columns,
    step_deltas,
)


def status(rank, *, output=False, bins=None, **counters):
    """A worker's status, as the plugin answers."""
    return {"rank": rank, "is_output_rank": output, "counters": counters or None, "decode_bins": bins}


def test_steps_come_from_the_output_rank():
    """The output rank's difference counts, and agreeing ranks are silent."""
    before = [status(0, steps=10, pad_tokens=4), status(1, output=True, steps=10, pad_tokens=4)]
    after = [status(1, output=True, steps=30, pad_tokens=9), status(0, steps=30, pad_tokens=9)]
    found = step_deltas(before, after)
    assert (found.steps, found.pad_tokens, found.mode_full) == (20, 5, None)
    assert (found.disagree, found.backwards) == ((), ())


def test_ranks_that_disagree_are_reported():
    """A rank that drafted differently is named by its counter; so is one that did not answer."""
    before = [status(0, output=True, steps=1, pad_tokens=0), status(1, steps=1, pad_tokens=0)]
    after = [status(0, output=True, steps=2, pad_tokens=3), status(1, steps=2, pad_tokens=5)]
    assert step_deltas(before, after).disagree == ("pad_tokens",)
    assert step_deltas(before, after[:1]).disagree == ("steps", "pad_tokens")


def test_step_counters_that_fell_are_named():
    """A worker that restarted has counted less."""
    found = step_deltas([status(0, output=True, steps=9)], [status(0, output=True, steps=3)])
    assert (found.steps, found.backwards) == (None, ("steps",))


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([status(0, output=True)], [status(0, output=True)]), ([], [status(0, output=True, steps=3)])],
)
def test_no_step_counters_is_none(before, after):
    """A runner that the plugin does not count leaves nothing, not zeros."""
    assert step_deltas(before, after) is None


def test_ranks_may_differ_in_time_but_not_in_steps():
    """Each rank has its own clock; the output rank's times are taken."""
    before = [
        status(r, output=r == 0, steps=0, timed_ns=0, timed_decode_ns=0, timed_decode_steps=0) for r in (0, 1)
    ]
    after = [
        status(0, output=True, steps=4, timed_ns=900, timed_decode_ns=800, timed_decode_steps=4),
        status(1, steps=4, timed_ns=950, timed_decode_ns=820, timed_decode_steps=4),
    ]
    found = step_deltas(before, after)
    assert (found.disagree, found.timed_ns) == ((), 900)
    assert step_columns(found)["step_time_mean"] == pytest.approx(200e-9)


def test_the_median_step_time_is_within_a_bin():
    """Two reads of the histogram, keys as text after JSON; steps before the pass do not count."""
    place = int(math.log(3_000_000) * BINS_PER_E)
    before = [status(0, output=True, steps=9, bins={"7": 9})]
    after = [status(0, output=True, steps=16, bins={"7": 9, str(place): 5, str(place + 300): 2})]
    found = step_deltas(before, after)
    assert found.decode_bins == {place: 5, place + 300: 2}
    assert step_columns(found)["step_time_p50"] == pytest.approx(3e-3, rel=0.01)


def test_both_sides_of_the_histogram_use_the_same_bins():
    """The plugin stands apart from the package, so the width is written twice."""
    assert tally.BINS_PER_E == BINS_PER_E


def test_nothing_timed_is_null():
    """No step time, no share of time."""
    assert step_columns(StepDeltas())["step_time_mean"] is None
    assert step_columns(StepDeltas())["step_time_p50"] is None
    assert graph_columns(StepDeltas(steps=3, mode_full=3), True)["full_share_time"] is None


def test_share_of_time_in_full_graphs():
    """FULL steps may be few and long, or many and short."""
    steps = StepDeltas(steps=4, mode_full=3, timed_ns=100, timed_full_ns=25)
    assert graph_columns(steps, True)["full_share_time"] == 0.25
    assert graph_columns(steps, True)["full_share"] == 0.75


def test_the_mean_batch_is_of_decode_only_steps():
    """Decodes that ran beside a prompt are in neither number."""
    assert step_columns(StepDeltas(decode_steps=4, decode_requests=10, steps=9))["mean_batch"] == 2.5
    assert step_columns(StepDeltas(decode_steps=4))["mean_batch"] is None


def test_shares_of_time_add_up_over_graph_modes():
    """FULL, PIECEWISE and no graph share the time of all timed steps."""
    steps = StepDeltas(timed_ns=100, timed_full_ns=25, timed_piecewise_ns=60, timed_none_ns=15)
    columns = graph_columns(steps, True)
    assert (columns["piecewise_share_time"], columns["none_share_time"]) == (0.6, 0.15)


def front(**counts):
    """Samples of the plugin's stat logger, and what stands beside them."""
    others = [("kpad:front_steps_created", (), 1.7e9), ("vllm:generation_tokens_total", (), 99.0)]
    return [*others, *((f"kpad:front_{name}_total", (), float(value)) for name, value in counts.items())]


def test_steps_that_only_the_front_end_saw():
    """Step time, batch and their source are known; pads, drafts and what vLLM did not tell are not."""
    before = front(steps=4, decode_steps=2, decode_requests=8, timed_decode_steps=2, timed_decode_ns=10)
    after = front(steps=9, decode_steps=6, decode_requests=20, timed_decode_steps=6, timed_decode_ns=50)
    found = front_end_deltas(before, after)
    columns = step_columns(found)
    assert (columns["steps_source"], columns["n_steps"], columns["mean_batch"]) == ("front_end", 5, 3.0)
    assert columns["step_time_mean"] == pytest.approx(10e-9)
    assert columns["pad_tokens"] is columns["uniform_share_decode"] is None
    assert graph_columns(found, True)["full_share"] is None


def test_a_graph_mode_seen_first_in_the_pass_counts_from_zero():
    """And the modes that were not seen at all are zero, once any is told of."""
    found = front_end_deltas(front(steps=4), front(steps=9, mode_full=5))
    assert (found.mode_full, found.mode_piecewise, found.mode_none) == (5, 0, 0)


def test_front_end_counts_that_fell_are_named_and_missing_ones_are_none():
    """A restarted API process has counted less; a dump without the samples says nothing."""
    assert front_end_deltas(front(steps=9), front(steps=3)).backwards == ("steps",)
    assert front_end_deltas(front(steps=9), []) is None
    assert front_end_deltas([], front(steps=9)) is None
    assert step_columns(StepDeltas())["steps_source"] is None
