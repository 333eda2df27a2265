"""Which K is best, and how sure that is: one pure decision from rounds x Ks.

Takes throughputs, gives a decision; knows no files, tables or arms. Every caller that has to choose
a K calls ``decide``. Intervals are not computed yet: the tie set rests on a declared variation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

MEASURED, ASSUMED = "measured", "assumed"
#: Run-to-run variation taken for granted where it was not measured: what the published K sweep states
#: for itself (DGX B200, 2026-06-14, one run per cell).
ASSUMED_CV = 0.012
#: Chance of declaring some K worse than the best when all of them are equal.
LEVEL = 0.05
_Z_TWO_SIDED = 1.959963984540054  # standard normal quantile at 1 - LEVEL / 2


class Decision(NamedTuple):
    """What one (model, corpus) says about K. Percentages compare throughputs; None is not known."""

    best_k: int
    tok_per_s: float
    runner_up_k: int | None
    margin_pct: float | None
    tie_set: tuple[int, ...]
    tie_basis: str
    is_established: bool
    pick_k: int
    regret_pct: float | None
    #: Lead below which two single runs cannot be told apart, percent; None with one K.
    threshold_pct: float | None


def decide(rounds: Sequence[Mapping[int, float]], assumed_cv: float = ASSUMED_CV) -> Decision:
    """Best K of one cell: the argmax of the mean over rounds, and which Ks could be as good.

    One mapping K -> output tokens per second for each round, repeats inside a boot averaged before;
    a K that is missing from a round has no trial there. Equal means: the smaller K is best.
    ``assumed_cv`` is the declared standard deviation of log throughput between boots.
    Raises ValueError without any throughput, or with one that is not positive and finite.
    """
    means, counts = _means(rounds)
    ranked = sorted(means, key=lambda k: (-means[k], k))
    best = ranked[0]
    others = ranked[1:]
    if not others:
        return Decision(best, means[best], None, None, (best,), ASSUMED, False, best, None, None)
    critical = critical_value(len(others)) * assumed_cv
    # How much better than the best each other K may still be, on the log scale; negative: it is worse.
    slack = {
        k: critical * math.sqrt(1 / counts[best] + 1 / counts[k]) - math.log(means[best] / means[k])
        for k in others
    }
    return Decision(
        best_k=best,
        tok_per_s=means[best],
        runner_up_k=others[0],
        margin_pct=gain_pct(means[best], means[others[0]]),
        tie_set=tuple(sorted([best, *(k for k in others if slack[k] >= 0)])),
        tie_basis=ASSUMED,
        is_established=False,  # an assumption about the variation establishes nothing
        pick_k=best,  # a smaller K of the tie set is worth choosing only where the tie was measured
        regret_pct=-100 * math.expm1(-max(0.0, *slack.values())),
        threshold_pct=100 * math.expm1(critical * math.sqrt(2)),
    )


def gain_pct(value: float, base: float) -> float:
    """How much more ``value`` is than ``base``, percent."""
    return 100 * (value / base - 1)


@lru_cache(maxsize=64)
def critical_value(n_others: int) -> float:
    """Standard errors by which ``n_others`` Ks must trail the best before they count as worse.

    The larger of Dunnett's one-sided bound (comparison with the best, Hsu 1984) and the two-sided one
    for a single pair, both at 5 % and with a known variation: 1.960, 1.960, 2.062 for 1, 2, 3 others.
    """
    low, high = 0.0, 8.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _all_below(middle, n_others) < 1 - LEVEL else (low, middle)
    return max(high, _Z_TWO_SIDED)


def _all_below(bound: float, n_others: int, n_points: int = 160) -> float:
    """P(all (Z_j - Z_0) / sqrt 2 <= bound) for independent normal Z: integrated over Z_0.

    The trapezoid rule on a smooth integrand that vanishes at both ends: exact to 1e-12 here.
    """
    step = 16 / n_points
    points = (-8 + i * step for i in range(n_points + 1))
    total = sum(_normal_cdf(z + bound * math.sqrt(2)) ** n_others * math.exp(-z * z / 2) for z in points)
    return total * step / math.sqrt(2 * math.pi)


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _means(rounds: Sequence[Mapping[int, float]]) -> tuple[dict[int, float], dict[int, int]]:
    values: dict[int, list[float]] = {}
    for row in rounds:
        for k, value in row.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"k {k}: {value} is not a throughput")
            values.setdefault(k, []).append(value)
    if not values:
        raise ValueError("no throughput to decide from")
    means = {k: math.fsum(v) / len(v) for k, v in values.items()}
    return means, {k: len(v) for k, v in values.items()}
