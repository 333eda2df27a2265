"""The trials of one model and corpus as blocks x arms: what was measured side by side, and on which night.

Plain data and the question which blocks go together. Knows no files and no tables, chooses no K.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]
#: A run of a sweep: sweep, run_id.
Night = tuple[str, str]


@dataclass(eq=False)
class ArmAtK:
    """What is known of one arm at one K. Arrays go by block; NaN where the block has no ok trial of it."""

    name: str
    k: int  # 0: no speculation
    #: Output tokens per second, whole pass and steady window, repeats averaged: they share a boot's luck.
    speed: Values
    steady: Values
    acceptance_length: Values
    step_time: Values
    n_ok_by_block: NDArray[np.int64]
    #: Why trials do not count, and how many for each reason.
    failures: dict[str, int] = field(default_factory=dict)
    #: Least share of decode-only steps in FULL graphs; None where no trial knows it.
    full_share: float | None = None
    #: Why ok trials do not know it, and how many for each reason.
    unknown_shares: dict[str, int] = field(default_factory=dict)
    runners: set[str] = field(default_factory=set)
    warnings: set[str] = field(default_factory=set)

    @property
    def label(self) -> str:
        """The arm as the command line writes it."""
        return f"{self.name}@{self.k}" if self.k else self.name

    @property
    def n_ok(self) -> int:
        """Trials that count."""
        return int(self.n_ok_by_block.sum())

    @property
    def has(self) -> Mask:
        """The blocks in which it was measured."""
        return ~np.isnan(self.speed)

    @property
    def mean(self) -> float | None:
        """Mean over its blocks, output tokens per second; None without an ok trial."""
        return mean(self.speed)

    @property
    def why_failed(self) -> str:
        """Every reason for which a trial does not count."""
        return ", ".join(sorted(self.failures))


@dataclass(eq=False)
class Cell:
    """One model on one corpus: every arm that was asked for, by name and K, over the same blocks."""

    arms: list[ArmAtK]
    nights: list[Night]
    #: The place in ``nights`` of each block; blocks are in order of night and round.
    night_of: NDArray[np.int64]
    #: What the trials of each night say of their design; None: nothing.
    designs: list[set[str | None]]

    def nights_in(self, mask: Mask) -> list[int]:
        """The nights that some of these blocks are of."""
        return [int(night) for night in np.unique(self.night_of[mask])]

    def unit_means(self, values: Values, mask: Mask) -> Values:
        """These blocks as the values that a decision takes: the mean of each night, where there are several
        nights, because nights differ by more than the rounds inside one; else every block's own value."""
        night_of = self.night_of[mask]
        n_blocks = np.bincount(night_of)
        if np.count_nonzero(n_blocks) < 2:
            return values[mask]
        sums = np.bincount(night_of, weights=values[mask])
        return sums[n_blocks > 0] / n_blocks[n_blocks > 0]


def complete(arms: Sequence[ArmAtK]) -> Mask:
    """The blocks that hold every one of these arms."""
    mask: Mask = np.all([arm.has for arm in arms], axis=0)
    return mask


def present(arms: Sequence[ArmAtK]) -> Mask:
    """The blocks that hold some of these arms."""
    mask: Mask = np.any([arm.has for arm in arms], axis=0)
    return mask


def mean(values: Iterable[float]) -> float | None:
    """Mean of what is known; None where nothing is. The same to the last bit in any order."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None
