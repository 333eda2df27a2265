"""Critical values, levels, selection bias and detectable leads against tables, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from kpad_bench.critical import (
    LEVEL,
    detectable,
    dunnett_bound,
    dunnett_tail,
    look_level,
    selection_bias,
    t_bound,
)


@pytest.mark.parametrize(
    ("n_rounds", "value"),
    [(2, 3.279), (3, 2.558), (4, 2.372), (5, 2.287), (6, 2.239), (7, 2.208), (8, 2.186)],
)
def test_fixed_rounds_of_four_ks_have_these_bounds(n_rounds, value):
    """One-sided Dunnett 5 % with 3(n-1) degrees of freedom, which lies above the two-sided t."""
    df = 3 * (n_rounds - 1)
    assert dunnett_bound(3, df, LEVEL) == pytest.approx(value, abs=0.0006)
    assert dunnett_bound(3, df, LEVEL) > t_bound(df)


@pytest.mark.parametrize(
    ("n_rounds", "value"), [(3, 3.999), (4, 3.303), (5, 2.988), (6, 2.798), (7, 2.666), (8, 2.567)]
)
def test_looks_of_an_adaptive_design_of_four_ks_have_these_bounds(n_rounds, value):
    """The level after round n of 8 is 0.0232 n / 8."""
    level = look_level(4, n_rounds, most=8)
    assert level == pytest.approx(0.0232 * n_rounds / 8)
    assert dunnett_bound(3, 3 * (n_rounds - 1), level) == pytest.approx(value, abs=0.0006)


@pytest.mark.parametrize(
    ("df", "level", "printed"),
    [
        # Dunnett (1955), J. Am. Stat. Assoc. 50, 1096, tables 1a and 1b: one-sided, 1 to 9 treatments.
        (5, 0.05, [2.02, 2.44, 2.68, 2.85, 2.98, 3.08, 3.16, 3.24, 3.30]),
        (10, 0.05, [1.81, 2.15, 2.34, 2.47, 2.56, 2.64, 2.70, 2.76, 2.81]),
        (20, 0.05, [1.72, 2.03, 2.19, 2.30, 2.39, 2.46, 2.51, 2.56, 2.60]),
        (math.inf, 0.05, [1.64, 1.92, 2.06, 2.16, 2.23, 2.29, 2.34, 2.38, 2.42]),
        (10, 0.01, [2.76, 3.11, 3.31, 3.45, 3.56, 3.64, 3.71, 3.78, 3.83]),
    ],
)
def test_bounds_agree_with_dunnetts_printed_tables(df, level, printed):
    """The quadrature gives the table of 1955, to its last digit and one."""
    assert [dunnett_bound(m, df, level) for m in range(1, 10)] == pytest.approx(printed, abs=0.011)


@pytest.mark.parametrize(("n_others", "df"), [(1, 1), (2, 4), (3, 6), (5, 35)])
def test_bounds_agree_with_the_multivariate_t_of_scipy(n_others, df):
    """Another road to the same number: scipy integrates the joint density with correlation 0.5."""
    shape = 0.5 * np.eye(n_others) + 0.5
    joint = scipy_stats.multivariate_t(shape=shape, df=df, seed=1)
    below = joint.cdf(np.full(n_others, dunnett_bound(n_others, df, LEVEL)))
    assert below == pytest.approx(1 - LEVEL, abs=2e-4)


def test_one_rival_is_students_t():
    """With two Ks the quadrature is Student's t, far into the tail."""
    for df in (1, 3, 21, 200):
        assert dunnett_tail(5.0, 1, df) == pytest.approx(scipy_stats.t.sf(5.0, df), abs=1e-8)


@pytest.mark.parametrize("n_ks", [2, 3, 4, 7])
def test_levels_of_looks_grow_and_other_designs_get_no_more(n_ks):
    """Later looks have more; a design of more than eight rounds shares what eight have."""
    levels = [look_level(n_ks, n, 8) for n in range(2, 10)]
    assert levels[:-1] == sorted(set(levels[:-1]))
    assert levels[-1] == levels[-2]
    assert look_level(n_ks, 5, 5) == look_level(n_ks, 8, 8) == pytest.approx(2 * look_level(n_ks, 16, 16))


def test_the_selection_bias_of_equal_means_is_that_of_the_largest_of_normals():
    """Two and three equal means: 1 and 1.5 over the root of pi; one far ahead has none."""
    assert selection_bias([7.0, 7.0], 0.5) == pytest.approx(0.5 / math.sqrt(math.pi))
    assert selection_bias([7.0, 7.0, 7.0], 1) == pytest.approx(1.5 / math.sqrt(math.pi))
    assert selection_bias([0.0, 20.0], 1) == pytest.approx(0, abs=1e-9)
    rng = np.random.default_rng(0)
    truth = np.array([0.0, -0.5, -1.0, -3.0])
    seen = truth + rng.standard_normal((400_000, 4))
    simulated = np.mean(seen.max(axis=1) - truth[seen.argmax(axis=1)])
    assert selection_bias(truth.tolist(), 1) == pytest.approx(simulated, abs=0.006)


def test_the_detectable_lead_is_about_the_root_of_thirty_over_n():
    """For four Ks from five rounds on; above 64 rounds it goes on with the root of the number."""
    for n in (5, 6, 8):
        bound = dunnett_bound(3, 3 * (n - 1), LEVEL)
        assert detectable(n, 4, bound) == pytest.approx(math.sqrt(30 / n), rel=0.05)
    assert detectable(256, 4, 2.07) == pytest.approx(detectable(64, 4, 2.07) / 2)
