#!/usr/bin/env python3
"""How often a comparison of two nights is right, by simulating nights whose truth is known.

    python scripts/simulate_nights.py [--seed 1] [--tables 1000]

Every figure comes from ``kpad_bench.nights.compare_nights`` itself. Nights are 2 % apart as a whole and their
cells vary by night and by round; the rest is in the columns that are printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kpad_bench.nights import CellPair, compare_nights

_SHIFT = 0.02


class Case(NamedTuple):
    """Two nights: variations are standard deviations of log throughput."""

    n_cells: int = 77
    n_rounds: int = 3
    by_night: float = 0.005
    by_round: float = 0.005
    #: Common to the cells of one group in one round, and how many cells a group has.
    drift: float = 0.0
    group: int = 1
    noise: str = "normal"
    #: Of the first cell; 0: the nights are alike but for the shift.
    regression: float = 0.0

    def logs(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Cells x rounds of one night."""
        shape = (self.n_cells, self.n_rounds)
        noise = (
            rng.standard_t(3, shape) / np.sqrt(3) if self.noise == "heavy tails" else rng.normal(size=shape)
        )
        if self.noise == "unequal":
            noise *= rng.choice([0.5, 1, 1, 1.5], (self.n_cells, 1))
        drift = rng.normal(size=shape)[np.arange(self.n_cells) // self.group] * self.drift
        values: NDArray[np.float64] = (
            8 + drift + self.by_round * noise + self.by_night * rng.normal(size=(self.n_cells, 1))
        )
        return values


CASES = [
    *(Case(n_cells=n) for n in (6, 8, 12, 20, 77)),
    *(Case(n_rounds=2), Case(n_rounds=6), Case(by_round=0.01), Case(by_night=0.0), Case(by_night=0.01)),
    *(Case(noise="heavy tails"), Case(noise="unequal"), Case(78, drift=0.01, group=6)),
    *(Case(n_cells=n, regression=0.05) for n in (8, 20, 77)),
    *(Case(by_round=0.01, regression=0.05), Case(n_cells=8, regression=0.1)),
    Case(78, drift=0.01, group=6, regression=0.05),
]


def rates(case: Case, n_tables: int, rng: np.random.Generator) -> list[float]:
    """Percent of tables with a cell flagged falsely, with the true one flagged, and of intervals that hold
    the truth: of the shift, of a cell."""
    counts = np.zeros(4)
    truth = 100 * np.expm1(_SHIFT)
    for _ in range(n_tables):
        base, new = np.exp(case.logs(rng)), np.exp(case.logs(rng) + _SHIFT)
        new[0] *= 1 - case.regression
        found = compare_nights(
            [
                CellPair(*pair, i // case.group)
                for i, pair in enumerate(zip(base.tolist(), new.tolist(), strict=True))
            ]
        )
        first, *others = found.changes
        alike = others if case.regression else found.changes
        counts += (
            any(change.is_significant for change in alike),
            bool(case.regression) and first.is_significant,
            (found.shift.low_pct or 0) <= truth <= (found.shift.high_pct or 0),
            np.mean([(c.low_pct or 0) <= truth <= (c.high_pct or 0) for c in alike]),
        )
    return [float(count) for count in 100 * counts / n_tables]


def rows(seed: int, n_tables: int) -> Iterator[str]:
    """The lines of the table."""
    varied = "by night, % | by round, % | drift, % | noise"
    yield f"| cells | rounds | {varied} | change | false | found | shift | cell |"
    yield f"|{' ---: |' * 5} --- |{' ---: |' * 5}"
    for number, case in enumerate(CASES):
        false, found, shift, cell = rates(case, n_tables, np.random.default_rng([seed, number]))
        percents = " | ".join(f"{100 * value:g}" for value in (case.by_night, case.by_round, case.drift))
        true = f"-{100 * case.regression:g} %" if case.regression else "none"
        seen = f"{found:.1f}" if case.regression else ""
        yield (
            f"| {case.n_cells} | {case.n_rounds} | {percents} | {case.noise} | {true} | {false:.1f} | {seen} "
            f"| {shift:.1f} | {cell:.1f} |"
        )


def main() -> None:
    """Run the simulation and print its table."""
    parser = argparse.ArgumentParser(description="How often a comparison of two nights is right.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", type=int, default=1000, help="pairs of nights of each row")
    args, start = parser.parse_args(), time.monotonic()
    for line in rows(args.seed, args.tables):
        print(line, flush=True)
    print(
        f"\n{args.tables} tables a row, seed {args.seed}, {time.monotonic() - start:.0f} s", file=sys.stderr
    )


if __name__ == "__main__":
    main()
