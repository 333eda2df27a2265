"""The decision on K from rounds x Ks: assumed and measured, fixed and adaptive; gains and q values."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kpad_bench.critical import (
    LEVEL,
    dunnett_tail,
    selection_bias,
)
from kpad_bench.stats import Design, decide, gain, q_values

SPEEDS = st.dictionaries(st.integers(1, 40), st.floats(1, 1e6), min_size=1, max_size=8)
ADAPTIVE = Design(3, 8)


@st.composite
def layouts(draw):
    """Two to eight rounds of one to five Ks that differ by up to a fifth, and vary by a few per cent."""
    ks = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True))
    levels = {k: draw(st.floats(80, 100)) for k in ks}
    noise = st.floats(-0.03, 0.03)
    n = draw(st.integers(2, 8))
    return [{k: level * math.exp(draw(noise)) for k, level in levels.items()} for _ in range(n)]


def rounds_of(logs, ks=(4, 6, 8, 12)):
    """Rows of logarithms as rounds."""
    return [dict(zip(ks, np.exp(row).tolist(), strict=True)) for row in np.asarray(logs)]


def noisy(seed, n_rounds, truth=(0.0, 0.0, -0.2, -0.2), cv=0.01):
    """Rounds with a drift of their own and normal noise."""
    rng = np.random.default_rng(seed)
    return rounds_of(
        np.asarray(truth)
        + 0.01 * rng.standard_normal((n_rounds, 1))
        + cv * rng.standard_normal((n_rounds, len(truth)))
    )


# ---------------------------------------------------------------- one trial per K


def test_two_single_runs_are_told_apart_from_three_and_a_half_percent_on():
    """1.2 % of variation and four Ks: log differences up to 0.035 are ties."""
    decision = decide([{4: 100.0, 6: 96.7, 8: 96.4, 12: 50.0}])
    assert decision.threshold_pct == pytest.approx(3.56, abs=0.01)
    assert decision.tie_set == (4, 6)


def test_one_trial_per_k_names_the_argmax_and_establishes_nothing():
    """Best, runner-up, lead, and what the pick may lose under the assumption; nothing is measured."""
    decision = decide([{4: 1900.0, 6: 2000.0, 8: 1990.0, 12: 1500.0}])
    assert (decision.best_k, decision.pick_k, decision.runner_up_k) == (6, 6, 8)
    assert decision.tok_per_s == 2000
    assert decision.margin_pct == pytest.approx(0.5025, abs=1e-3)
    assert (decision.tie_set, decision.tie_basis) == ((6, 8), "assumed")
    assert not decision.is_established
    assert not decision.is_relevant
    assert decision.regret_pct == pytest.approx(2.95, abs=0.01)
    assert decision.n_rounds == 1
    measured = ("ci_low", "ci_high", "p_value", "cv_pct", "detectable_pct", "stop")
    assert [getattr(decision, name) for name in measured] == [None] * 6


def test_a_large_lead_risks_nothing_but_is_still_not_established():
    """Alone in its tie set on an assumption is not the same as measured."""
    decision = decide([{4: 100.0, 8: 200.0}])
    assert decision.tie_set == (8,)
    assert decision.regret_pct == 0
    assert decision.is_relevant
    assert not decision.is_established


def test_equal_means_give_the_smaller_k():
    """An exact tie goes to the smaller K, and the other is the runner-up."""
    decision = decide([{12: 5.0, 4: 5.0, 8: 5.0}])
    assert (decision.best_k, decision.runner_up_k, decision.margin_pct) == (4, 8, 0)
    assert decision.tie_set == (4, 8, 12)


def test_a_single_k_has_nothing_to_be_compared_with():
    """One K: it is best, and lead, risk and threshold are unknown, however often it was measured."""
    for rounds in ([{8: 5.0}], [{8: 5.0}, {8: 5.2}, {8: 4.9}]):
        decision = decide(rounds)
        assert (decision.best_k, decision.pick_k, decision.tie_set) == (8, 8, (8,))
        assert (decision.is_established, decision.tie_basis, decision.regrets) == (False, "assumed", ())
        unknown = ("runner_up_k", "margin_pct", "regret_pct", "threshold_pct", "p_value", "cv_pct")
        assert [getattr(decision, name) for name in unknown] == [None] * 6
    assert decision.n_rounds == 3


@pytest.mark.parametrize(
    "rounds", [[], [{}], [{4: 0.0}], [{4: -1.0}], [{4: float("nan")}], [{4: float("inf")}]]
)
def test_what_is_no_throughput_is_refused(rounds):
    """No value, zero, negative, NaN and infinity never reach a decision."""
    with pytest.raises(ValueError, match="throughput"):
        decide(rounds)


@given(SPEEDS, st.floats(0.001, 1000))
def test_the_unit_of_throughput_does_not_matter(speeds, factor):
    """Scaling every value scales the throughput alone, up to rounding on the very edge of a tie."""
    one, other = decide([speeds]), decide([{k: v * factor for k, v in speeds.items()}])
    assert other.tok_per_s == pytest.approx(one.tok_per_s * factor)
    assert speeds[other.best_k] == pytest.approx(speeds[one.best_k])


@given(SPEEDS)
def test_the_best_is_in_its_tie_set_and_leads(speeds):
    """The best K is the smallest argmax, ties hold it, and risk lies between nothing and everything."""
    decision = decide([speeds])
    assert decision.best_k == min(k for k, v in speeds.items() if v == max(speeds.values()))
    assert decision.best_k in decision.tie_set
    assert decision.margin_pct is None or decision.margin_pct >= 0
    assert decision.regret_pct is None or 0 <= decision.regret_pct < 100
    assert decide([dict(sorted(speeds.items(), reverse=True))]) == decision


# ---------------------------------------------------------------- measured rounds


def test_the_layout_is_that_of_round_and_k():
    """Residual variation, lead and bound equal those of a least-squares fit of log y ~ round + K."""
    rounds = noisy(3, 5, truth=(0.0, -0.01, -0.03, -0.05))
    logs = np.log([list(row.values()) for row in rounds])
    residual = logs - logs.mean(1, keepdims=True) - logs.mean(0) + logs.mean()
    mse = np.sum(residual**2) / (4 * 3)
    decision = decide(rounds)
    assert decision.cv_pct == pytest.approx(100 * math.sqrt(mse))
    assert (decision.best_k, decision.runner_up_k, decision.n_rounds) == (4, 6, 5)
    own = np.var(logs[:, 0] - logs[:, 1], ddof=1)
    error = math.sqrt(max(2 * mse, own) / 5)
    assert decision.threshold_pct == pytest.approx(100 * math.expm1(2.2873 * error), rel=1e-4)
    t = (logs[:, 0] - logs[:, 1]).mean() / error
    assert decision.p_value == pytest.approx(dunnett_tail(t, 3, 12), rel=1e-6)


def test_a_noisy_pair_goes_by_its_own_variance():
    """Two Ks that vary against each other are not told apart by the calm of the others."""
    logs = np.array([[0.05, 0, -0.3, -0.3], [-0.01, 0, -0.3, -0.3], [0.05, 0, -0.3, -0.3]])
    decision = decide(rounds_of(logs))
    own = np.var([0.05, -0.01, 0.05], ddof=1)
    assert decision.threshold_pct == pytest.approx(100 * math.expm1(2.5581 * math.sqrt(own / 3)), rel=1e-4)
    assert decision.tie_set == (4, 6)


def test_values_without_any_variation_are_not_believed():
    """Equal rounds: a lead of 0.1 % is a tie, one of 0.5 % is established and not relevant."""
    one = {4: 100.0, 6: 99.9, 8: 90.0}
    decision = decide([one] * 3)
    assert (decision.tie_set, decision.is_established, decision.cv_pct) == ((4, 6), False, 0)
    decision = decide([{**one, 6: 99.5}] * 3)
    assert (decision.tie_set, decision.is_established, decision.is_relevant) == ((4,), True, False)
    decision = decide([dict.fromkeys((4, 6), 5.0)] * 4)
    assert (decision.best_k, decision.tie_set, decision.margin_pct) == (4, (4, 6), 0)
    assert decision.p_value == pytest.approx(1)


def test_only_rounds_that_hold_every_k_count():
    """An incomplete round moves neither means nor variation."""
    rounds = noisy(5, 4)
    assert decide([*rounds, {4: 1.0, 6: 1e6}, {8: 3.0}]) == decide(rounds)
    assert decide([*rounds, {}]).n_rounds == 4


def test_below_two_complete_rounds_nothing_is_measured():
    """Two Ks that never share two rounds: all their values count, and the variation is assumed."""
    decision = decide([{4: 100.0, 6: 110.0}, {4: 120.0}])
    assert (decision.tie_basis, decision.n_rounds, decision.best_k) == ("assumed", 1, 4)
    assert decision.tok_per_s == 110
    assert decide([{4: 1.0}, {6: 2.0}]).n_rounds == 0


def test_the_pick_is_the_smallest_tied_k_within_the_margin():
    """A smaller K behind by 0.9 % is picked with the risk it has; one that is behind by 2 % is not."""
    wobble = np.array([[0.01], [-0.01], [0.01]]) * np.array([[1, -1, 1]])
    near = decide(rounds_of(np.log([99.1, 100.0, 80.0]) + wobble, (4, 8, 12)))
    assert (near.best_k, near.tie_set, near.pick_k) == (8, (4, 8), 4)
    far = decide(rounds_of(np.log([98.0, 100.0, 80.0]) + wobble, (4, 8, 12)))
    assert (far.tie_set, far.pick_k) == ((4, 8), 8)
    assert decide(rounds_of(np.log([98.0, 100.0, 80.0]) + wobble, (4, 8, 12)), margin=0.03).pick_k == 4
    assert near.regret_pct == dict(near.regrets)[4] > dict(near.regrets)[8] > 0
    assert near.threshold_pct is not None
    bound = math.log1p(near.threshold_pct / 100)
    logs = np.log([list(row.values()) for row in rounds_of(np.log([99.1, 100.0, 80.0]) + wobble, (4, 8, 12))])
    deficit = logs[:, 1].mean() - logs[:, 0].mean()
    assert near.regret_pct == pytest.approx(-100 * math.expm1(-(deficit + bound)))


def test_one_k_has_the_interval_of_students_t():
    """Nothing was chosen: the mean of the logarithms, give or take t."""
    speeds = [100.0, 103.0, 99.0, 101.5]
    decision = decide([{8: speed} for speed in speeds])
    logs = np.log(speeds)
    low, high = scipy_stats.t.interval(0.95, 3, logs.mean(), logs.std(ddof=1) / 2)
    assert (decision.ci_low, decision.ci_high) == pytest.approx((math.exp(low), math.exp(high)))


def test_the_best_of_several_is_corrected_for_having_been_chosen():
    """Its interval is centred below its mean by half of the selection bias."""
    rounds = noisy(1, 4)
    decision = decide(rounds)
    logs = np.log([list(row.values()) for row in rounds])
    assert decision.cv_pct is not None
    bias = selection_bias(logs.mean(0).tolist(), decision.cv_pct / 100 / 2)
    centre = (math.log(decision.ci_low) + math.log(decision.ci_high)) / 2
    assert centre == pytest.approx(max(logs.mean(0)) - bias / 2)


@given(layouts(), st.randoms(), st.sampled_from([None, Design(3, 8)]))
def test_the_order_of_rounds_and_ks_does_not_matter(rounds, source, design):
    """The same rounds in any order, and the same Ks in any order, are the same decision."""
    shuffled = [dict(source.sample(sorted(row.items()), len(row))) for row in rounds]
    source.shuffle(shuffled)
    assert decide(shuffled, design) == decide(rounds, design)


@given(layouts(), st.integers(-8, 8))
def test_the_unit_does_not_matter_to_measured_rounds(rounds, power):
    """Scaling by a power of two moves the throughputs alone."""
    factor = 2.0**power
    one, other = decide(rounds), decide([{k: v * factor for k, v in row.items()} for row in rounds])
    assert other.tok_per_s == one.tok_per_s * factor
    assert other.best_k == one.best_k
    if one.p_value is not None:
        assert other.p_value == pytest.approx(one.p_value, abs=1e-6)
        assert other.cv_pct == pytest.approx(one.cv_pct)


@given(layouts(), st.sampled_from([None, Design(2, 8), Design(3, 8), Design(3, 12)]))
def test_what_holds_of_every_decision(rounds, design):
    """The best is tied, the pick is tied, established means alone and p at most 5 %, risks are bounds."""
    decision = decide(rounds, design)
    assert decision.best_k in decision.tie_set
    assert decision.pick_k in decision.tie_set
    assert decision.pick_k <= decision.best_k
    is_alone = len(decision.tie_set) == 1 and decision.tie_basis == "measured"
    assert decision.is_established == is_alone
    assert decision.ci_low is not None
    assert decision.ci_low < decision.ci_high
    if decision.tie_basis == "measured":
        if abs(decision.p_value - LEVEL) > 1e-9:
            assert decision.is_established == (decision.p_value < LEVEL)
        assert tuple(k for k, _ in decision.regrets) == decision.tie_set
        assert all(0 <= pct < 100 for _, pct in decision.regrets)
        assert (decision.regret_pct == 0) or not decision.is_established


# ---------------------------------------------------------------- adaptive designs


def test_a_clear_lead_stops_at_the_least_number_of_rounds():
    """Established at two rounds already, and ended at three."""
    clear = noisy(1, 8, truth=(0.0, -0.3, -0.3, -0.3))
    assert [decide(clear[:n], ADAPTIVE).stop for n in (1, 2, 3)] == [None, None, "established"]
    assert decide(clear[:3]).stop is None, "a fixed design has nothing to stop"


def test_a_tie_stops_as_futile_from_the_fourth_round_on():
    """Nothing left to hope for; a lead that may still be established goes on."""
    tied = rounds_of([[0.01, -0.01], [-0.01, 0.01], [0.01, -0.01], [-0.01, 0.01]], (4, 8))
    assert [decide(tied[:n], ADAPTIVE).stop for n in (2, 3, 4)] == [None, None, "futile"]
    hopeful = rounds_of([[0.02, 0.0], [0.0, 0.01], [0.02, 0.0], [0.01, 0.0]], (4, 8))
    decision = decide(hopeful, ADAPTIVE)
    assert (decision.is_established, decision.stop) == (False, None)


def test_rounds_end_at_the_limit_complete_or_not():
    """The eighth round is the last, also where some were incomplete."""
    hopeful = rounds_of([[0.02, 0.0], [0.0, 0.01], [0.02, 0.0], [0.01, 0.0]], (4, 8))
    assert decide([*hopeful, *[{4: 1.0}] * 4], ADAPTIVE).stop == "limit"
    assert decide([{4: 1.0}] * 4 + [{8: 1.0}] * 4, ADAPTIVE).stop == "limit"
    clear = noisy(1, 2, truth=(0.0, -0.3, -0.3, -0.3))
    assert decide([*clear, *[{4: 1.0}] * 6], ADAPTIVE).stop == "established"


def test_an_adaptive_look_asks_for_more_than_a_fixed_design():
    """The same rounds: a wider bound, a larger p, by the ratio of the levels."""
    rounds = noisy(2, 6, truth=(0.0, -0.02, -0.03, -0.05))
    fixed, look = decide(rounds), decide(rounds, ADAPTIVE)
    ratio = math.log1p(look.threshold_pct / 100) / math.log1p(fixed.threshold_pct / 100)
    assert ratio == pytest.approx(2.798 / 2.239, rel=1e-3)
    assert look.p_value == pytest.approx(min(1.0, fixed.p_value * 0.05 / (0.0232 * 6 / 8)), rel=1e-6)
    assert set(fixed.tie_set) <= set(look.tie_set)


@pytest.mark.parametrize("design", [Design(3, 3), Design(3, 8), Design(1, 1)])
def test_a_design_reads_back_from_its_text(design):
    """fixed(3) and adaptive(3..8) are what rows carry."""
    assert Design.parse(str(design)) == design


@pytest.mark.parametrize("text", ["", "3", "fixed(0)", "adaptive(8..3)", "adaptive(3..3)", "fixed(3..8)"])
def test_what_is_no_design_is_refused(text):
    """Other texts are named in the error, with what a design looks like."""
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Design.parse(text)


@pytest.mark.parametrize(("seed", "truth"), [(10, (0.0, 0.0, -0.2, -0.2)), (11, (0.0, 0.0, 0.0, 0.0))])
def test_exact_ties_are_seldom_established_at_any_look(seed, truth):
    """300 cells, looked at after every round from the second: at most 5 %, and what chance adds to 300."""
    found = 0
    for cell in range(300):
        rounds = noisy((seed, cell), 8, truth)
        found += any(decide(rounds[:n], ADAPTIVE).is_established for n in range(2, 9))
    assert found <= scipy_stats.binom.ppf(0.9999, 300, LEVEL)


def test_a_lead_of_two_percent_is_found_by_eight_rounds():
    """1 % of variation, all rivals 2 % behind: about 80 % of 300 cells, the right K, tied in nearly all."""
    decisions = [decide(noisy((12, cell), 8, (0.0, -0.02, -0.02, -0.02))) for cell in range(300)]
    assert 0.7 < sum(d.is_established for d in decisions) / 300 < 0.92
    assert all(d.best_k == 4 for d in decisions if d.is_established)
    assert sum(4 in d.tie_set for d in decisions) >= 295
    covered = sum(d.ci_low <= 1 <= d.ci_high for d in decisions)
    assert 0.90 < covered / 300 < 0.99


# ---------------------------------------------------------------- gains, q values, imports


def test_a_gain_is_paired_on_the_log_scale():
    """Drift that both sides share cancels; the interval is Student's t of the log ratios."""
    pairs = [(110.0, 100.0), (222.0, 200.0), (54.5, 50.0)]
    logs = np.log([value / base for value, base in pairs])
    low, high = scipy_stats.t.interval(0.95, 2, logs.mean(), logs.std(ddof=1) / math.sqrt(3))
    found = gain(pairs)
    expected = [100 * math.expm1(x) for x in (logs.mean(), low, high)]
    assert [*found] == pytest.approx(expected)


def test_a_gain_of_one_block_has_no_interval():
    """One block: the plain ratio; equal blocks: an interval that is not empty; no block: refused."""
    assert gain([(110.0, 100.0)]).pct == pytest.approx(10)
    assert gain([(110.0, 100.0)])[1:] == (None, None)
    same = gain([(110.0, 100.0)] * 3)
    assert same.low_pct < 10 < same.high_pct
    with pytest.raises(ValueError, match="throughput"):
        gain([])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12))
def test_q_values_are_those_of_benjamini_and_hochberg(p):
    """Equal to scipy's, with what is not known left out and left where it was."""
    found = q_values(p)
    assert [q is None for q in found] == [value is None for value in p]
    known = [value for value in p if value is not None]
    if known:
        expected = scipy_stats.false_discovery_control(known)
        assert [q for q in found if q is not None] == pytest.approx(expected)


def test_the_module_loads_neither_numpy_nor_scipy():
    """Whoever only names a design or a decision does not wait for them."""
    code = "import sys, kpad_bench.stats; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"numpy", "scipy"}.isdisjoint(name.split(".")[0] for name in done.stdout.split())
