"""Numbers that a comparison with the best needs: Dunnett's bounds and chances, levels, selection bias.

Pure functions of numbers, the costly ones cached by their few arguments. scipy's and numpy's imports wait
for the first call, so that importing this module costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

#: Chance of declaring some K worse than the best when all of them are equal.
LEVEL = 0.05
_MANY_ROUNDS = 64  # from here on a variation counts as known
#: Level after n of 8 rounds = this x n / 8, by number of Ks (the last for more), so that at most LEVEL of
#: exact ties are established whatever ends the rounds. By simulation: docs/statistics.md.
_LOOKS_OF = 8
_LOOK_LEVELS = {2: 0.0104, 3: 0.0200, 4: 0.0232}
_SMALLEST = 1e-12  # share of S's distribution that the quadrature leaves out at each end


@lru_cache(maxsize=512)
def dunnett_bound(n_others: int, df: float, level: float) -> float:
    """Standard errors by which ``n_others`` Ks must trail the best before they count as worse.

    Dunnett's one-sided bound for equal numbers of rounds at ``level``, which is also the bound of a
    comparison with the best (Hsu 1984); ``df`` degrees of freedom, infinite for a known variation.
    """
    low, high = 0.0, 8.0
    while dunnett_tail(high, n_others, df) > level:
        high *= 2
    for _ in range(52):
        middle = (low + high) / 2
        low, high = (middle, high) if dunnett_tail(middle, n_others, df) > level else (low, middle)
    return high


def dunnett_tail(bound: float, n_others: int, df: float) -> float:
    """P(some (Z_j - Z_0) / (S sqrt 2) > bound) for ``n_others`` j, Z normal, df S^2 chi-square."""
    from scipy import special  # noqa: PLC0415 slow to import, and not needed by every command

    z, z_weights = _normal_nodes()
    s, s_weights = _scale_nodes(df)
    inside = special.ndtr(z + bound * math.sqrt(2) * s[:, None])
    return float(max(0.0, 1 - s_weights @ inside**n_others @ z_weights))


def look_level(n_ks: int, n_rounds: int, most: int) -> float:
    """Level of the one-sided comparison after ``n_rounds`` of an adaptive design of at most ``most``.

    Up to 8 rounds the levels of 8 are kept: there are fewer looks, so they err on the safe side. More
    looks than 8 share what 8 have.
    """
    full = _LOOK_LEVELS[min(n_ks, max(_LOOK_LEVELS))] * min(1.0, _LOOKS_OF / most)
    return full * min(1.0, n_rounds / most)


@lru_cache(maxsize=512)
def t_bound(df: float, level: float = LEVEL) -> float:
    """Two-sided bound of Student's t; ``df`` may be infinite."""
    from scipy import special  # noqa: PLC0415

    return float(-special.ndtri(level / 2) if math.isinf(df) else -special.stdtrit(df, level / 2))


def t_tail(bound: float, df: float) -> float:
    """Two-sided chance of Student's t beyond ``bound``; 1 for a negative bound."""
    from scipy import special  # noqa: PLC0415

    return float(2 * special.stdtr(df, -max(0.0, bound)))


def normal_cdf(x: float) -> float:
    """P(Z <= x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def selection_bias(means: Sequence[float], error: float) -> float:
    """How much the largest of ``means`` overstates itself by having been chosen, were they the truth.

    Each mean has the standard error ``error``. The expectation of (estimate - truth) of whichever comes
    out largest, integrated by parts: the sum over ordered pairs of the integral of both densities times
    the distribution functions of all others.
    """
    import numpy as np  # noqa: PLC0415
    from scipy import special  # noqa: PLC0415

    z = np.linspace(-6, 6, 49)
    behind = z - (np.asarray(means)[:, None] - max(means)) / error
    density = np.exp(-(behind**2) / 2) / math.sqrt(2 * math.pi)
    below = special.ndtr(behind)
    ratio = density / below
    pairs = np.sum(ratio, axis=0) ** 2 - np.sum(ratio**2, axis=0)
    return error * float(np.sum(np.prod(below, axis=0) * pairs) * (z[1] - z[0]))


@lru_cache(maxsize=512)
def detectable(n_rounds: int, n_ks: int, bound: float) -> float:
    """The lead over all other Ks that is established in 80 % of cells, as a multiple of the variation.

    By simulating 8,000 cells of ``n_rounds`` rounds with the standard errors that the decision uses;
    accurate to about 1 %. Above 64 rounds those are as good as known, and the lead goes with the root of the
    number: a year of nights would take 400 MB and a second.
    """
    import numpy as np  # noqa: PLC0415

    if n_rounds > _MANY_ROUNDS:
        return detectable(_MANY_ROUNDS, n_ks, bound) * math.sqrt(_MANY_ROUNDS / n_rounds)
    noise = np.random.default_rng(1).standard_normal((8000, n_rounds, n_ks))
    to_best = noise[:, :, :1] - noise[:, :, 1:]
    residual = noise - noise.mean(axis=1, keepdims=True)
    residual -= residual.mean(axis=2, keepdims=True)
    mse = np.sum(residual**2, axis=(1, 2)) / ((n_rounds - 1) * (n_ks - 1))
    error = np.sqrt(np.maximum(2 * mse[:, None], to_best.var(axis=1, ddof=1)) / n_rounds)
    needed = np.max(bound * error - to_best.mean(axis=1), axis=1)
    return float(np.quantile(needed, 0.8))


@lru_cache(maxsize=1)
def _normal_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for a mean over a standard normal: the trapezoid rule, whose ends vanish."""
    import numpy as np  # noqa: PLC0415

    z = np.linspace(-8, 8, 49)
    return z, np.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)


@lru_cache(maxsize=64)
def _scale_nodes(df: float) -> tuple[np.ndarray, np.ndarray]:
    """The same for S, where df S^2 is chi-square: Gauss-Legendre between its extreme quantiles."""
    import numpy as np  # noqa: PLC0415
    from scipy import special  # noqa: PLC0415

    if math.isinf(df):
        return np.ones(1), np.ones(1)
    low, high = (math.sqrt(special.chdtri(df, p) / df) for p in (1 - _SMALLEST, _SMALLEST))
    nodes, weights = np.polynomial.legendre.leggauss(32)
    s = low + (nodes + 1) * (high - low) / 2
    log_density = (
        math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2) + (df - 1) * np.log(s) - df * s * s / 2
    )
    return s, weights * (high - low) / 2 * np.exp(log_density)
