"""Which K is best, and how sure that is: one pure decision from rounds x Ks.

Takes throughputs, gives a decision; knows no files, tables or arms. Every caller that has to choose a K,
or has to know whether another round is worth it, calls ``decide``. docs/statistics.md says what it promises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kpad_bench.contrasts import LEAST_CV, Layout, assumed, mean, measured, variance
from kpad_bench.critical import (
    LEVEL,
    detectable,
    dunnett_bound,
    dunnett_tail,
    look_level,
    normal_cdf,
    selection_bias,
    t_bound,
    t_tail,
)
from kpad_bench.design import Design as Design  # noqa: PLC0414 callers name it beside decide

MEASURED, ASSUMED = "measured", "assumed"
ESTABLISHED, FUTILE, LIMIT = "established", "futile", "limit"
#: Run-to-run variation taken for granted where it was not measured: what the published K sweep states
#: for itself (DGX B200, 2026-06-14, one run per cell).
ASSUMED_CV = 0.012
#: Lead that is worth a choice.
MARGIN = 0.01
_EDGE = 1e-12  # arithmetic, where a deficit is compared with the margin
#: An adaptive design looks for futility from this round on, and calls less than this chance futile.
FUTILE_FROM, FUTILE_BELOW = 4, 0.1


class Decision(NamedTuple):
    """What one (model, corpus) says about K. Percentages compare throughputs; None is not known."""

    best_k: int
    #: Mean over the rounds that count.
    tok_per_s: float
    #: 95 % interval of the best K's throughput, corrected for its having been chosen; None below two rounds.
    ci_low: float | None
    ci_high: float | None
    #: Rounds that hold every K.
    n_rounds: int
    runner_up_k: int | None
    margin_pct: float | None
    tie_set: tuple[int, ...]
    tie_basis: str
    is_established: bool
    #: Whether the lead is at least the practical margin, established or not.
    is_relevant: bool
    #: Of the best K being no better than its closest rival, adjusted for several Ks and looks: established
    #: at 0.05 or less.
    p_value: float | None
    #: Variation of one trial that is neither its round nor its K.
    cv_pct: float | None
    #: Lead over all others that as many rounds establish in 80 % of cells.
    detectable_pct: float | None
    pick_k: int
    #: What pick_k may lose at most.
    regret_pct: float | None
    #: (K, the same for it) for every K of the tie set.
    regrets: tuple[tuple[int, float], ...]
    #: Lead that would have excluded the runner-up (one trial per K: any other); None with one K.
    threshold_pct: float | None
    #: Why an adaptive design needs no further round; None: go on, or a fixed design.
    stop: str | None


class Gain(NamedTuple):
    """How much more one throughput is than another, percent, with a 95 % interval; None below two blocks."""

    pct: float
    low_pct: float | None
    high_pct: float | None


def decide(
    rounds: Sequence[Mapping[int, float]],
    design: Design | None = None,
    *,
    assumed_cv: float = ASSUMED_CV,
    margin: float = MARGIN,
) -> Decision:
    """Best K of one cell: the argmax of the mean over rounds, and which Ks could be as good.

    One mapping K -> output tokens per second for each round, repeats inside a boot averaged before; a K
    that is missing from a round has no trial there. From two rounds that hold every K on, those alone
    count and the variation is measured; before that, every value counts and ``assumed_cv`` (standard
    deviation of log throughput between boots) takes its place, which establishes nothing.
    ``design`` None: a fixed number of rounds, as many as there are. ``margin`` is the practical margin, a
    fraction. Equal means: the smaller K is best.
    Raises ValueError without any throughput, or with one that is not positive and finite.
    """
    values = _checked(rounds)
    complete = [row for row in rounds if len(row) == len(values)]
    is_measured = len(complete) > 1
    layout = measured(complete) if is_measured else assumed(values, assumed_cv)
    design = design or Design(len(complete), len(complete))
    bound = _bound(layout, design)
    best, *others = layout.ranked
    runner_up = others[0] if others else None
    tied = tuple(
        sorted([best, *(k for k in others if layout.behind(k, best) <= bound * layout.errors[k, best])])
    )
    pick = _pick(layout, tied, margin) if is_measured else best
    regrets = tuple((k, _loss_pct(layout.at_most_behind(k, bound))) for k in tied) if others else ()
    lead = None if runner_up is None else gain_pct(layout.means[best], layout.means[runner_up])
    low, high = _interval(layout, [row[best] for row in complete]) if is_measured else (None, None)
    decision = Decision(
        best_k=best,
        tok_per_s=layout.means[best],
        ci_low=low,
        ci_high=high,
        n_rounds=len(complete),
        runner_up_k=runner_up,
        margin_pct=lead,
        tie_set=tied,
        tie_basis=ASSUMED if layout.cv is None else MEASURED,
        is_established=layout.cv is not None and len(tied) == 1,
        is_relevant=lead is not None and lead >= 100 * (margin - _EDGE),
        p_value=None if layout.cv is None else _p_value(layout, design),
        cv_pct=None if layout.cv is None else 100 * layout.cv,
        detectable_pct=None if layout.cv is None else _detectable_pct(layout, layout.cv, bound),
        pick_k=pick,
        regret_pct=dict(regrets).get(pick),
        regrets=regrets,
        threshold_pct=None if runner_up is None else _pct(bound * layout.errors[runner_up, best]),
        stop=None,
    )
    return decision._replace(stop=_stop(decision, layout, design, n_left=max(0, design.most - len(rounds))))


def gain(pairs: Sequence[tuple[float, float]]) -> Gain:
    """Gain of value over base from (value, base) of the same block each: paired, on the log scale.

    Raises ValueError without a pair, or with a throughput that is not positive and finite.
    """
    _checked([{0: value, 1: base} for value, base in pairs])
    logs = [math.log(value / base) for value, base in pairs]
    centre = mean(logs)
    if len(logs) < 2:
        return Gain(_pct(centre), None, None)
    half = t_bound(len(logs) - 1) * math.sqrt(max(variance(logs), 2 * LEAST_CV**2) / len(logs))
    return Gain(_pct(centre), _pct(centre - half), _pct(centre + half))


def gain_pct(value: float, base: float) -> float:
    """How much more ``value`` is than ``base``, percent."""
    return 100 * (value / base - 1)


def q_values(p: Sequence[float | None]) -> list[float | None]:
    """p values adjusted for being many (Benjamini and Hochberg 1995); None stays and does not count."""
    known = sorted((value, i) for i, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    least = 1.0
    for rank, (value, i) in reversed(list(enumerate(known, start=1))):
        least = min(least, value * len(known) / rank)
        adjusted[i] = least
    return adjusted


def _checked(rounds: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for row in rounds:
        for k, value in row.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"k {k}: {value} is not a throughput")
            values.setdefault(k, []).append(value)
    if not values:
        raise ValueError("no throughput to decide from")
    return values


def _bound(layout: Layout, design: Design) -> float:
    """Standard errors that exclude a K.

    A fixed design takes the larger of the comparison with the best and the two-sided bound of one pair,
    which two tied Ks with the others far below need. The levels of an adaptive one allow for both.
    """
    n_others = len(layout.ranked) - 1
    if n_others == 0:
        return 0.0
    if design.is_adaptive and layout.cv is not None:
        return dunnett_bound(n_others, layout.df, look_level(n_others + 1, layout.n_rounds, design.most))
    return max(dunnett_bound(n_others, layout.df, LEVEL), t_bound(layout.df))


def _pick(layout: Layout, tied: Sequence[int], margin: float) -> int:
    """The smallest K of the tie set whose observed deficit is at most the margin."""
    least = layout.means[layout.ranked[0]] * (1 - margin - _EDGE)
    return min(k for k in tied if layout.means[k] >= least)


def _interval(layout: Layout, speeds: Sequence[float]) -> tuple[float, float]:
    """95 % for the best K's throughput, from its own variation over rounds, drift included.

    Chosen for being the largest, it overstates itself. Half of the bias is taken off that it would have
    were the means the truth; all of it would be too much, because means lie wider apart than the truth.
    """
    n, best = len(speeds), layout.ranked[0]
    centre = layout.logs[best]
    if layout.cv is not None:
        error = max(layout.cv, LEAST_CV) / math.sqrt(n)
        centre -= selection_bias([layout.logs[k] for k in layout.ranked], error) / 2
    own = max(variance([math.log(speed) for speed in speeds]), LEAST_CV**2)
    half = t_bound(n - 1) * math.sqrt(own / n)
    return math.exp(centre - half), math.exp(centre + half)


def _p_value(layout: Layout, design: Design) -> float:
    best, *others = layout.ranked
    closest = min(layout.behind(k, best) / layout.errors[k, best] for k in others)
    chance = dunnett_tail(closest, len(others), layout.df)
    if design.is_adaptive:
        return min(1.0, chance * LEVEL / look_level(len(layout.ranked), layout.n_rounds, design.most))
    return max(chance, t_tail(closest, layout.df))


def _detectable_pct(layout: Layout, cv: float, bound: float) -> float:
    return _pct(max(cv, LEAST_CV) * detectable(layout.n_rounds, len(layout.ranked), bound))


def _stop(decision: Decision, layout: Layout, design: Design, n_left: int) -> str | None:
    if not design.is_adaptive:
        return None
    if decision.is_established and (decision.n_rounds >= design.least or n_left == 0):
        return ESTABLISHED
    if n_left == 0:
        return LIMIT
    if decision.n_rounds < max(design.least, FUTILE_FROM):
        return None
    rivals = [k for k in decision.tie_set if k != decision.best_k]
    return FUTILE if all(_chance(layout, k, n_left, design) < FUTILE_BELOW for k in rivals) else None


def _chance(layout: Layout, k: int, n_left: int, design: Design) -> float:
    """Predicted chance that ``k`` is excluded once all rounds were run.

    The final difference is normal around the observed one, which is uncertain itself: v (1/n - 1/N).
    """
    best, n = layout.ranked[0], layout.n_rounds
    one_round = layout.errors[k, best] ** 2 * n
    end = layout._replace(n_rounds=n + n_left)
    needed = _bound(end, design) * math.sqrt(one_round / end.n_rounds)
    return normal_cdf((layout.behind(k, best) - needed) / math.sqrt(one_round * (1 / n - 1 / end.n_rounds)))


def _pct(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _loss_pct(log_deficit: float) -> float:
    """Percent less by ``log_deficit``; 0 where it is none."""
    return -100 * math.expm1(-max(0.0, log_deficit))
