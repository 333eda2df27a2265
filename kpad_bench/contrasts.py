"""Rounds x Ks as means, differences on the log scale and their standard errors: measured or assumed.

What the data say before anything is decided; knows no levels and no designs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

#: Variation of one trial below which no measured one is believed: equal values are luck.
LEAST_CV = 0.001
_LEAST_PAIR_VARIANCE = 2 * LEAST_CV**2


class Layout(NamedTuple):
    """The Ks of one cell, the best first."""

    ranked: list[int]
    #: Mean throughput.
    means: dict[int, float]
    #: Mean of its logarithm.
    logs: dict[int, float]
    #: Standard error of the difference of two Ks on the log scale, in both orders.
    errors: dict[tuple[int, int], float]
    #: Rounds behind the measured variation; 1 where it was assumed.
    n_rounds: int
    #: Residual variation of one trial; None where it was assumed, or with one K.
    cv: float | None

    @property
    def df(self) -> float:
        """Degrees of freedom of the residual; infinite where the variation was assumed."""
        return (self.n_rounds - 1) * (len(self.ranked) - 1) if self.n_rounds > 1 else math.inf

    def behind(self, k: int, other: int) -> float:
        """Observed deficit of ``k`` against ``other``, on the log scale."""
        return self.logs[other] - self.logs[k]

    def at_most_behind(self, k: int, bound: float) -> float:
        """What ``k`` may be behind the best of the others; negative: it is ahead of all of them.

        ``bound`` in standard errors.
        """
        others = (other for other in self.ranked if other != k)
        return max(self.behind(k, other) + bound * self.errors[k, other] for other in others)


def assumed(values: Mapping[int, Sequence[float]], cv: float) -> Layout:
    """The layout of every K's values where the variation of one trial is declared, not measured."""
    means = {k: mean(v) for k, v in values.items()}
    errors = {}
    for i, j in combinations(means, 2):
        errors[i, j] = errors[j, i] = cv * math.sqrt(1 / len(values[i]) + 1 / len(values[j]))
    return Layout(_ranked(means), means, {k: math.log(m) for k, m in means.items()}, errors, 1, None)


def measured(rounds: Sequence[Mapping[int, float]]) -> Layout:
    """The layout log y ~ round + K of at least two rounds that hold the same Ks.

    Its residual mean square is half the mean, over pairs of Ks, of the variance of their difference. It
    is pooled over Ks; a pair that varies more than the pool goes by its own variance, because Ks may have
    unequal noise.
    """
    n, ks = len(rounds), sorted(rounds[0])
    means = {k: mean([row[k] for row in rounds]) for k in ks}
    by_k = {k: [math.log(row[k]) for row in rounds] for k in ks}
    own = {
        (i, j): variance([one - other for one, other in zip(by_k[i], by_k[j], strict=True)])
        for i, j in combinations(ks, 2)
    }
    pooled = mean(list(own.values())) if own else None
    errors = {}
    for (i, j), of_pair in own.items():
        errors[i, j] = errors[j, i] = math.sqrt(max(pooled or 0.0, of_pair, _LEAST_PAIR_VARIANCE) / n)
    logs = {k: mean(values) for k, values in by_k.items()}
    return Layout(_ranked(means), means, logs, errors, n, None if pooled is None else math.sqrt(pooled / 2))


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; the order of the values does not matter, to the last digit."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Unbiased variance of at least two values. (``statistics.variance`` is exact and 50 times slower.)"""
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def _ranked(means: Mapping[int, float]) -> list[int]:
    return sorted(means, key=lambda k: (-means[k], k))
