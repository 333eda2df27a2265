"""Two nights, cell by cell: the shift of the whole night, and which cells moved by more than that.

Takes throughputs, gives changes with intervals; knows no files, tables or arms. docs/statistics.md says what
it promises.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import median
from typing import NamedTuple

from kpad_bench.contrasts import LEAST_CV, mean, variance
from kpad_bench.critical import LEVEL, t_bound, t_tail
from kpad_bench.stats import q_values

#: Standard deviation of what a night does to one cell and not to the others, where it cannot be measured.
ASSUMED_CELL_CV = 0.005
#: Cells from which on their spread tells what a night does to single cells. With fewer, no cell is told
#: from its night.
LEAST_CELLS = 6
#: When more than this share of the tested cells moved, the night is at fault and no single cell.
MOST_MOVED = 0.25
#: What a standard deviation is in median absolute deviations, if normal.
_PER_MAD = 1.4826
#: What a median absolute deviation and a median know, relative to the usual estimates, if normal.
_MAD_EFFICIENCY, _MEDIAN_EFFICIENCY = 0.37, 2 / math.pi
#: Of a spread over few cells: fewer degrees of freedom keep what is promised with room to spare.
_LEAST_DF = 4.0


class CellPair(NamedTuple):
    """One cell on two nights: output tokens per second by round, or by night where a side has several."""

    base: Sequence[float]
    new: Sequence[float]
    #: Cells that were measured next to each other share it, and much of their luck.
    group: Hashable = None


class Change(NamedTuple):
    """How a cell changed, percent. None: not known, because one of the nights has a single value."""

    pct: float
    #: 95 % interval, what a night does to single cells included.
    low_pct: float | None
    high_pct: float | None
    #: Change beyond the whole night's.
    beyond_pct: float
    p_value: float | None
    q_value: float | None
    is_significant: bool


class Shift(NamedTuple):
    """How much the whole night changed: the median over cells, percent, with its 95 % interval."""

    pct: float
    low_pct: float | None
    high_pct: float | None


class Nights(NamedTuple):
    """What two nights say of each other."""

    changes: list[Change]
    shift: Shift
    #: Standard deviation, percent, of a cell's change that its own rounds do not explain.
    cell_cv_pct: float
    #: Whether that was assumed, for want of cells.
    is_assumed: bool
    n_tested: int
    #: Cells with q at most 5 %.
    n_moved: int

    @property
    def is_attributed(self) -> bool:
        """Whether single cells may be named: not where too many of them moved."""
        return self.n_moved <= MOST_MOVED * self.n_tested


class _Spread(NamedTuple):
    """Variances of log changes."""

    #: Of a cell's change, as the spread over cells shows it: rounds and night together. 0: not known.
    total: float
    #: The part of the night.
    cell: float
    df: float


def compare_nights(cells: Sequence[CellPair]) -> Nights:
    """Change of every cell, tested against the shift of the whole night.

    The shift is the median of the log changes. What a night does to single cells is taken from the median
    absolute deviation around it, less what the rounds explain; a cell's variance is that and its own, never
    less than the spread shows. Student's t, then Benjamini and Hochberg over the table.
    Raises ValueError without a cell, and for a throughput that is not positive and finite.
    """
    logs = [(_logs(cell.base), _logs(cell.new)) for cell in cells]
    if not logs:
        raise ValueError("no cell to compare")
    changes = [mean(new) - mean(base) for base, new in logs]
    within = [_within(base, new) for base, new in logs]
    shift = median(changes)
    spread = _spread(changes, shift, within, _least_df(cells))
    errors = [None if own is None else math.sqrt(max(spread.total, spread.cell + own)) for own in within]
    is_tested = len(cells) >= LEAST_CELLS
    p_values = [
        t_tail(abs(change - shift) / error, spread.df) if is_tested and error is not None else None
        for change, error in zip(changes, errors, strict=True)
    ]
    adjusted = q_values(p_values)
    nights = Nights(
        changes=[],
        shift=_shift(shift, [e for e in errors if e is not None], spread, cells),
        cell_cv_pct=100 * math.sqrt(spread.cell),
        is_assumed=not is_tested,
        n_tested=sum(p is not None for p in p_values),
        n_moved=sum(q is not None and q <= LEVEL for q in adjusted),
    )
    for change, error, p_value, q_value in zip(changes, errors, p_values, adjusted, strict=True):
        low, high = _interval(change, error, spread.df)
        moved = q_value is not None and q_value <= LEVEL and nights.is_attributed
        nights.changes.append(Change(_pct(change), low, high, _pct(change - shift), p_value, q_value, moved))
    return nights


def _spread(changes: Sequence[float], shift: float, within: Sequence[float | None], df: float) -> _Spread:
    n, known = len(changes), [own for own in within if own is not None]
    own = median(known) if known else 0.0
    if n < LEAST_CELLS:
        return _Spread(0.0, 2 * ASSUMED_CELL_CV**2, df)
    # A few cells deviate less from their own median than from the true one.
    deviation = _PER_MAD * median(abs(change - shift) for change in changes) * n / (n - 0.8)
    return _Spread(deviation**2, max(0.0, deviation**2 - own), max(_LEAST_DF, _MAD_EFFICIENCY * (n - 1)))


def _least_df(cells: Sequence[CellPair]) -> float:
    """Degrees of freedom of the cell with the fewest rounds, of those with several on both nights."""
    rounds = [(len(cell.base), len(cell.new)) for cell in cells]
    return float(min((sum(pair) - 2 for pair in rounds if min(pair) > 1), default=1))


def _shift(shift: float, errors: Sequence[float], spread: _Spread, cells: Sequence[CellPair]) -> Shift:
    """Cells of one group count as one: they rise and fall together with the rounds that they share."""
    typical = median(errors) if errors else 0.0
    if not errors and len(cells) >= LEAST_CELLS:  # one trial each: their spread over cells tells
        typical = math.sqrt(max(spread.total, 2 * LEAST_CV**2))
    n = len({cell.group for cell in cells}) if cells[0].group is not None else len(cells)
    efficiency = _MEDIAN_EFFICIENCY if len(cells) > 2 else 1.0
    low, high = _interval(shift, typical / math.sqrt(n * efficiency) if typical else None, spread.df)
    return Shift(_pct(shift), low, high)


def _interval(centre: float, error: float | None, df: float) -> tuple[float | None, float | None]:
    if error is None:
        return None, None
    half = t_bound(df) * error
    return _pct(centre - half), _pct(centre + half)


def _within(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Variance of the difference of two means, from the rounds of each night."""
    if min(len(base), len(new)) < 2:
        return None
    return math.fsum(max(variance(values), LEAST_CV**2) / len(values) for values in (base, new))


def _logs(values: Sequence[float]) -> list[float]:
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{value} is not a throughput")
    if not values:
        raise ValueError("a cell without a throughput")
    return [math.log(value) for value in values]


def _pct(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)
