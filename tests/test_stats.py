"""The decision on K from rounds x Ks, with one trial per K and an assumed variation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.critical import LEVEL, dunnett_bound, t_bound
from kpad_bench.stats import decide

SPEEDS = st.dictionaries(st.integers(1, 40), st.floats(1, 1e6), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("n_others", "value"),
    # 1 and 2: the two-sided bound of one pair. From 3: Dunnett (1955), one-sided 5 %, infinitely many
    # degrees of freedom, as printed.
    [(1, 1.96), (2, 1.96), (3, 2.06), (4, 2.16), (5, 2.23), (6, 2.29), (7, 2.34)],
)
def test_critical_value_agrees_with_the_printed_tables(n_others, value):
    """The bound comes from quadrature and equals Dunnett's table."""
    assert max(dunnett_bound(n_others, math.inf, LEVEL), t_bound(math.inf)) == pytest.approx(value, abs=0.005)


def test_two_single_runs_are_told_apart_from_three_and_a_half_percent_on():
    """1.2 % of variation and four Ks: log differences up to 0.035 are ties."""
    decision = decide([{4: 100.0, 6: 96.7, 8: 96.4, 12: 50.0}])
    assert decision.threshold_pct == pytest.approx(3.56, abs=0.01)
    assert decision.tie_set == (4, 6)


def test_one_trial_per_k_names_the_argmax_and_establishes_nothing():
    """Best, runner-up, lead, and what the pick may lose under the assumption."""
    decision = decide([{4: 1900.0, 6: 2000.0, 8: 1990.0, 12: 1500.0}])
    assert (decision.best_k, decision.pick_k, decision.runner_up_k) == (6, 6, 8)
    assert decision.tok_per_s == 2000
    assert decision.margin_pct == pytest.approx(0.5025, abs=1e-3)
    assert (decision.tie_set, decision.tie_basis) == ((6, 8), "assumed")
    assert not decision.is_established
    assert decision.regret_pct == pytest.approx(2.95, abs=0.01)


def test_a_large_lead_risks_nothing_but_is_still_not_established():
    """Alone in its tie set on an assumption is not the same as measured."""
    decision = decide([{4: 100.0, 8: 200.0}])
    assert decision.tie_set == (8,)
    assert decision.regret_pct == 0
    assert not decision.is_established


def test_equal_means_give_the_smaller_k():
    """An exact tie goes to the smaller K, and the other is the runner-up."""
    decision = decide([{12: 5.0, 4: 5.0, 8: 5.0}])
    assert (decision.best_k, decision.runner_up_k, decision.margin_pct) == (4, 8, 0)
    assert decision.tie_set == (4, 8, 12)


def test_a_single_k_has_nothing_to_be_compared_with():
    """One K: it is best, and lead, risk and threshold are unknown."""
    decision = decide([{8: 5.0}])
    assert (decision.best_k, decision.tie_set) == (8, (8,))
    assert (
        decision.runner_up_k is decision.margin_pct is decision.regret_pct is decision.threshold_pct is None
    )


def test_rounds_narrow_the_tie_set():
    """Rounds that agree tell apart what single runs cannot."""
    one = {4: 100.0, 6: 97.5}
    assert decide([one]).tie_set == (4, 6)
    assert decide([one] * 4).tie_set == (4,)
    assert decide([{4: 1.0, 6: 4.0}, {4: 3.0}]).tok_per_s == 4


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
