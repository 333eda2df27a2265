"""The cells of simulate.py: noises on the log scale, and the truths they are put on.

A noise gives rounds x Ks; NaN is a missing trial. ``normal`` is the analysis model, the others are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Noise = Callable[[np.random.Generator, int, int], Array]

#: Standard deviations of a trial and of a round.
CV, DRIFT = 0.01, 0.01


def normal(rng: np.random.Generator, n: int, k: int) -> Array:
    """The analysis model."""
    return DRIFT * rng.standard_normal((n, 1)) + CV * rng.standard_normal((n, k))


def remembering_drift(rng: np.random.Generator, n: int, k: int) -> Array:
    """Drift with a memory of ten trials, inside rounds too; random order in each round."""
    kept = math.exp(-1 / 10)
    drift = [rng.standard_normal()]
    for step in math.sqrt(1 - kept**2) * rng.standard_normal(n * k - 1):
        drift.append(kept * drift[-1] + step)
    in_order = DRIFT * np.reshape(drift, (n, k))
    shuffled: Array = rng.permuted(in_order, axis=1)
    return shuffled + CV * rng.standard_normal((n, k))


def slow_boots(rng: np.random.Generator, n: int, k: int) -> Array:
    """One boot in twenty is 5 % slower; what a K is worth is the mean over such boots."""
    return normal(rng, n, k) - 0.05 * ((rng.random((n, k)) < 0.05) - 0.05)


def heavy_tails(rng: np.random.Generator, n: int, k: int) -> Array:
    """Student's t with three degrees of freedom, of the same standard deviation."""
    return DRIFT * rng.standard_normal((n, 1)) + CV / math.sqrt(3) * rng.standard_t(3, (n, k))


def unequal(rng: np.random.Generator, n: int, k: int) -> Array:
    """Ks of unequal noise, up to three times, whichever K it hits; the same mean square."""
    spread = np.resize([0.5, 1, 1, 1.5], k)
    own = rng.permutation(spread / np.sqrt(np.mean(spread**2)))
    return DRIFT * rng.standard_normal((n, 1)) + CV * own * rng.standard_normal((n, k))


def tied_noisier(rng: np.random.Generator, n: int, k: int) -> Array:
    """The first two Ks, the tied ones, twice as noisy as all others: what the guard does not cover."""
    spread = np.where(np.arange(k) < 2, 2.0, 1.0)
    own: Array = spread / np.sqrt(np.mean(spread**2))
    return DRIFT * rng.standard_normal((n, 1)) + CV * own * rng.standard_normal((n, k))


def missing_trials(rng: np.random.Generator, n: int, k: int) -> Array:
    """The analysis model; every fifth round lacks a trial."""
    noise = normal(rng, n, k)
    for i in np.flatnonzero(rng.random(n) < 0.2):
        noise[i, rng.integers(k)] = np.nan
    return noise


NOISES: tuple[Noise, ...] = (normal, remembering_drift, slow_boots, heavy_tails, unequal, missing_trials)
#: True log throughput: exact ties, the hard exact tie, a lead too small to see, one that is seen.
TRUTHS = {
    "all tied": (0.0, 0.0, 0.0, 0.0),
    "two tied": (0.0, 0.0, -0.2, -0.2),
    "lead 0.1 %": (0.0, -0.001, -0.001, -0.001),
    "lead 2 %": (0.0, -0.02, -0.03, -0.05),
}
#: Deficits of the second, third and fourth K, percent: means over eleven groups of seven cells, ordered by
#: the lead, of the published sweep (DGX B200, 2026-06-14).
DEFICITS_PCT = (
    (0.6, 6.4, 11.8),
    (1.3, 4.4, 12.6),
    (2.2, 6.6, 14.5),
    (3.5, 9.9, 19.7),
    (4.3, 10.3, 16.8),
    (5.1, 10.0, 20.8),
    (6.2, 9.2, 17.5),
    (7.3, 15.2, 25.2),
    (8.9, 14.2, 20.4),
    (11.6, 18.4, 31.1),
    (18.7, 27.0, 39.5),
)
