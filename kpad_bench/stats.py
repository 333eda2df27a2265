"""Which K is best, and how sure that is: one pure decision from rounds x Ks.

Takes throughputs, gives a decision; knows no files, tables or arms. Every caller that has to choose a K,
or has to know whether another round is worth it, calls ``decide``. docs/statistics.md says what it promises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

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

MEASURED, ASSUMED = "measured", "assumed"
ESTABLISHED, FUTILE, LIMIT = "established", "futile", "limit"
#: Run-to-run variation taken for granted where it was not measured: what the published K sweep states
#: for itself (DGX B200, 2026-06-14, one run per cell).
ASSUMED_CV = 0.012
#: Lead that is worth a choice.
MARGIN = 0.01
#: Variation of one trial below which no measured one is believed: equal values are luck.
LEAST_CV = 0.001
_LEAST_VARIANCE = LEAST_CV**2
_EDGE = 1e-12  # arithmetic, where a deficit is compared with the margin
#: An adaptive design looks for futility from this round on, and calls less than this chance futile.
FUTILE_FROM, FUTILE_BELOW = 4, 0.1


class Design(NamedTuple):
    """How many rounds were planned: a fixed number, or as many as it takes between two numbers."""

    least: int
    most: int

    @property
    def is_adaptive(self) -> bool:
        """Whether a decision is taken after every round from ``least`` on."""
        return self.least < self.most

    def __str__(self) -> str:
        return f"adaptive({self.least}..{self.most})" if self.is_adaptive else f"fixed({self.most})"

    @classmethod
    def parse(cls, text: str) -> Design:
        """The design of which ``text`` is the string; raises ValueError for anything else."""
        found = re.fullmatch(r"fixed\((\d+)\)|adaptive\((\d+)\.\.(\d+)\)", text)
        numbers = [int(group) for group in found.groups() if group] if found else []
        if not numbers or numbers[0] < 1 or numbers != sorted(set(numbers)):
            raise ValueError(f"{text!r} is no design: it looks like fixed(3) or adaptive(3..8)")
        return cls(numbers[0], numbers[-1])


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


class _Layout(NamedTuple):
    """Rounds x Ks as means, differences on the log scale and their standard errors."""

    ranked: list[int]  # the best first
    means: dict[int, float]
    logs: dict[int, float]
    errors: dict[tuple[int, int], float]  # of each ordered pair of Ks
    bound: float  # standard errors

    def behind(self, k: int, other: int) -> float:
        """Observed deficit of ``k`` against ``other``."""
        return self.logs[other] - self.logs[k]

    def at_most_behind(self, k: int) -> float:
        """Upper bound of what ``k`` is behind the best of the others; negative: it is ahead of all."""
        return max(
            self.behind(k, other) + self.bound * self.errors[k, other] for other in self.ranked if other != k
        )


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
    n_rounds, n_ks = len(complete), len(values)
    design = design or Design(n_rounds, n_rounds)
    if n_rounds < 2:
        layout = _assumed_layout(values, assumed_cv)
        decision = _compared(layout, n_rounds, ASSUMED, margin)
        return decision._replace(
            threshold_pct=_pct(layout.bound * assumed_cv * math.sqrt(2)) if n_ks > 1 else None,
            stop=LIMIT if design.is_adaptive and len(rounds) >= design.most else None,
        )
    layout, variances = _measured_layout(complete, design)
    decision = _compared(layout, n_rounds, MEASURED if n_ks > 1 else ASSUMED, margin)
    low, high = _interval(layout, complete)
    decision = decision._replace(ci_low=low, ci_high=high)
    if n_ks > 1:
        best, runner_up = layout.ranked[:2]
        cv = math.sqrt(_mean(list(variances.values())) / 2)
        decision = decision._replace(
            p_value=_p_value(layout, design, n_rounds),
            cv_pct=100 * cv,
            detectable_pct=_pct(max(cv, LEAST_CV) * detectable(n_rounds, n_ks, layout.bound)),
            threshold_pct=_pct(layout.bound * layout.errors[runner_up, best]),
        )
    left = max(0, design.most - len(rounds))
    return decision._replace(stop=_stop(decision, layout, design, left))


def gain(pairs: Sequence[tuple[float, float]]) -> Gain:
    """Gain of value over base from (value, base) of the same block each: paired, on the log scale.

    Raises ValueError without a pair, or with a throughput that is not positive and finite.
    """
    _checked([{0: value, 1: base} for value, base in pairs])
    logs = [math.log(value / base) for value, base in pairs]
    centre = _mean(logs)
    if len(logs) < 2:
        return Gain(_pct(centre), None, None)
    error = math.sqrt(max(_variance(logs), 2 * _LEAST_VARIANCE) / len(logs))
    half = t_bound(len(logs) - 1) * error
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


def _assumed_layout(values: Mapping[int, list[float]], cv: float) -> _Layout:
    means = {k: _mean(v) for k, v in values.items()}
    errors = {
        (i, j): cv * math.sqrt(1 / len(values[i]) + 1 / len(values[j]))
        for i in means
        for j in means
        if i != j
    }
    logs = {k: math.log(mean) for k, mean in means.items()}
    return _Layout(_ranked(means), means, logs, errors, _bound(Design(1, 1), 1, len(means)))


def _measured_layout(
    rounds: Sequence[Mapping[int, float]], design: Design
) -> tuple[_Layout, dict[tuple[int, int], float]]:
    """The layout, and the variance over rounds of each pair's difference.

    The mean of those variances is twice the residual mean square of log y ~ round + K. It is pooled over
    Ks, and a pair that varies more than the pool goes by its own: Ks may have unequal noise.
    """
    n = len(rounds)
    ks = sorted(rounds[0])
    means = {k: _mean([row[k] for row in rounds]) for k in ks}
    logs = {k: _mean([math.log(row[k]) for row in rounds]) for k in ks}
    variances = {
        (i, j): _variance([math.log(row[i] / row[j]) for row in rounds]) for i, j in combinations(ks, 2)
    }
    pooled = max(_mean(list(variances.values())) if variances else 0.0, 2 * _LEAST_VARIANCE)
    errors = {}
    for (i, j), own in variances.items():
        errors[i, j] = errors[j, i] = math.sqrt(max(pooled, own) / n)
    return _Layout(_ranked(means), means, logs, errors, _bound(design, n, len(ks))), variances


def _ranked(means: Mapping[int, float]) -> list[int]:
    return sorted(means, key=lambda k: (-means[k], k))


def _bound(design: Design, n_rounds: int, n_ks: int) -> float:
    """Standard errors that exclude a K; below two rounds for a known variation.

    A fixed design takes the larger of the comparison with the best and the two-sided bound of one pair,
    which two tied Ks with the others far below need. The levels of an adaptive one allow for both.
    """
    if n_ks < 2:
        return 0.0
    df = _df(n_rounds, n_ks)
    if design.is_adaptive and n_rounds > 1:
        return dunnett_bound(n_ks - 1, df, look_level(n_ks, n_rounds, design.most))
    return max(dunnett_bound(n_ks - 1, df, LEVEL), t_bound(df))


def _df(n_rounds: int, n_ks: int) -> float:
    return (n_rounds - 1) * (n_ks - 1) if n_rounds > 1 else math.inf


def _compared(layout: _Layout, n_rounds: int, basis: str, margin: float) -> Decision:
    """What any basis can say: order, tie set, pick, risks. No interval and nothing that is measured."""
    best, *others = layout.ranked
    tied = tuple(sorted([best, *(k for k in others if _is_tied(layout, k))]))
    regrets = tuple((k, -_pct(-max(0.0, layout.at_most_behind(k)))) for k in tied) if others else ()
    lead = gain_pct(layout.means[best], layout.means[others[0]]) if others else None
    # A smaller K of the tie set is worth choosing only where the tie was measured.
    near = [k for k in tied if layout.means[k] >= layout.means[best] * (1 - margin - _EDGE)]
    pick = near[0] if basis == MEASURED else best
    return Decision(
        best_k=best,
        tok_per_s=layout.means[best],
        ci_low=None,
        ci_high=None,
        n_rounds=n_rounds,
        runner_up_k=others[0] if others else None,
        margin_pct=lead,
        tie_set=tied,
        tie_basis=basis,
        is_established=basis == MEASURED and tied == (best,),
        is_relevant=lead is not None and lead >= 100 * (margin - _EDGE),
        p_value=None,
        cv_pct=None,
        detectable_pct=None,
        pick_k=pick,
        regret_pct=dict(regrets).get(pick),
        regrets=regrets,
        threshold_pct=None,
        stop=None,
    )


def _is_tied(layout: _Layout, k: int) -> bool:
    best = layout.ranked[0]
    return layout.behind(k, best) <= layout.bound * layout.errors[k, best]


def _interval(layout: _Layout, rounds: Sequence[Mapping[int, float]]) -> tuple[float, float]:
    """95 % for the best K, by its own variation over rounds, drift included.

    Chosen for being the largest, it overstates itself: half of the bias is taken off that it would have
    if the means were the truth. All of it would be too much, because the means lie wider than the truth.
    """
    best, n = layout.ranked[0], len(rounds)
    centre = layout.logs[best]
    if layout.errors:
        pooled = min(layout.errors.values()) / math.sqrt(2)
        centre -= selection_bias([layout.logs[k] for k in layout.ranked], pooled) / 2
    own = _variance([math.log(row[best]) for row in rounds])
    half = t_bound(n - 1) * math.sqrt(max(own, _LEAST_VARIANCE) / n)
    return math.exp(centre - half), math.exp(centre + half)


def _p_value(layout: _Layout, design: Design, n_rounds: int) -> float:
    best, *others = layout.ranked
    closest = min(layout.behind(k, best) / layout.errors[k, best] for k in others)
    df = _df(n_rounds, len(layout.ranked))
    chance = dunnett_tail(closest, len(others), df)
    if design.is_adaptive:
        return min(1.0, chance * LEVEL / look_level(len(layout.ranked), n_rounds, design.most))
    return max(chance, t_tail(closest, df))


def _stop(decision: Decision, layout: _Layout, design: Design, left: int) -> str | None:
    if not design.is_adaptive or decision.n_rounds < design.least:
        return None
    if decision.is_established:
        return ESTABLISHED
    if left == 0:
        return LIMIT
    if decision.n_rounds < FUTILE_FROM:
        return None
    rivals = [k for k in decision.tie_set if k != decision.best_k]
    chances = [_chance(layout, k, decision.n_rounds, left, design) for k in rivals]
    return FUTILE if all(chance < FUTILE_BELOW for chance in chances) else None


def _chance(layout: _Layout, k: int, n_rounds: int, left: int, design: Design) -> float:
    """Predicted chance that ``k`` is excluded once all ``left`` rounds were run.

    The final difference is normal around the one observed, which itself is uncertain: v (1/n - 1/N).
    """
    best, last = layout.ranked[0], n_rounds + left
    one_round = layout.errors[k, best] ** 2 * n_rounds
    needed = _bound(design, last, len(layout.ranked)) * math.sqrt(one_round / last)
    return normal_cdf((layout.behind(k, best) - needed) / math.sqrt(one_round * (1 / n_rounds - 1 / last)))


def _pct(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    centre = _mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
