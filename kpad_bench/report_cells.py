"""What a report says of cells: throughput at every K, where suffix decoding loses, what one fixed K costs.

Cells and rows in, plain values out. Every interval is ``stats.gain``'s and every loss ``mixture``'s; draws
nothing. Imported by ``report_data`` alone: pandas is slow to load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from kpad_bench.bestrow import PUBLISHED_SUF_K, SUF, VAN, best_row, paired
from kpad_bench.blocks import ArmAtK, Cell
from kpad_bench.mixture import mix
from kpad_bench.reduce import over_better
from kpad_bench.stats import Gain, gain

Place = tuple[str, str]  # model, corpus


class Point(NamedTuple):
    """One arm at one K: mean output tok/s, and the interval of its difference to the fastest, as tok/s."""

    k: int
    tok_per_s: float
    low: float | None
    high: float | None
    n_ok: int


class Panel(NamedTuple):
    """Throughput against K on one model and corpus."""

    model: str
    corpus: str
    #: Family of arms -> its Ks, ascending.
    curves: dict[str, list[Point]]
    #: Arms that are one line: no speculation, unpadded.
    levels: dict[str, float]
    best_k: int | None


class Reversal(NamedTuple):
    """A cell in which unpadded suffix decoding is slower than no speculation."""

    model: str
    corpus: str
    #: Over no speculation.
    suf: Gain
    padded: Gain | None
    best_k: int | None


class Price(NamedTuple):
    """What one fixed K costs a model whose corpus is not known, percent behind every corpus's own best."""

    model: str
    corpora: list[str]
    #: K -> weighted geometric mean over corpora.
    losses: dict[int, float]
    #: K -> the corpus on which it loses most, and how much.
    worst: dict[int, tuple[str, float]]
    #: Whether rounds of the corpora were put together.
    is_paired: bool


class Overall(NamedTuple):
    """Geometric mean gain over cells; the interval is over models, over corpora where there is one model."""

    gain: Gain
    n_cells: int
    #: What the interval is over, and how many of them.
    unit: str
    n_units: int


def panel(place: Place, cell: Cell, families: Sequence[str], best_k: int | None) -> Panel:
    """The curves of one cell. The reference of a family's intervals is its fastest K that may win, or else
    its fastest."""
    curves, levels = {}, {}
    for family in families:
        arms = [arm for arm in cell.arms if arm.name == family and arm.n_ok]
        if arms:
            curves[family] = _points(cell, arms, best_k if family == families[0] else None)
    for arm in cell.arms:
        if arm.name not in families and arm.mean is not None:
            levels[arm.label] = arm.mean
    return Panel(*place, curves, levels, best_k)


def _points(cell: Cell, arms: Sequence[ArmAtK], best_k: int | None) -> list[Point]:
    fastest = max(arms, key=lambda arm: (arm.k == best_k, arm.mean or 0.0, -arm.k))
    points = []
    for arm in sorted(arms, key=lambda arm: arm.k):
        low = high = None
        if arm is not fastest and (found := paired(cell, arm, fastest).gain).low_pct is not None:
            low, high = (
                (fastest.mean or 0.0) * (1 + (pct or 0.0) / 100) for pct in (found.low_pct, found.high_pct)
            )
        points.append(Point(arm.k, arm.mean or 0.0, low, high, arm.n_ok))
    return points


def reversals(cells: Mapping[Place, Cell], rows: Sequence[Mapping[str, Any]], family: str) -> list[Reversal]:
    """The cells where unpadded suffix decoding at the published K loses to no speculation, worst first."""
    by_place = {(row["model"], row["corpus"]): row for row in rows if row["arm"] == family}
    found = []
    for place, cell in cells.items():
        van, suf = (
            next((arm for arm in cell.arms if (arm.name, arm.k) == key and arm.n_ok), None)
            for key in ((VAN, 0), (SUF, PUBLISHED_SUF_K))
        )
        if van is None or suf is None:
            continue
        lost = paired(cell, suf, van).gain
        if lost.pct < 0:
            row = by_place.get(place, {})
            pct = row.get("vs_van_pct")
            ours = None if pct is None else Gain(pct, row["vs_van_low_pct"], row["vs_van_high_pct"])
            found.append(Reversal(*place, lost, ours, row.get("best_k")))
    return sorted(found, key=lambda one: one.suf.pct)


def prices(frame: pd.DataFrame, cells: Mapping[Place, Cell], family: str) -> list[Price]:
    """What each K that may be chosen on all corpora of a model loses; models with several corpora and Ks."""
    compared = frame[~frame["is_sentinel"]]
    found = []
    for model in dict.fromkeys(model for model, _ in cells):
        eligible = {}
        for (name, corpus), cell in cells.items():
            row = best_row(cell, family) if name == model else None
            if row is not None and row.choice is not None:
                eligible[corpus] = {arm.k for arm in row.choice.eligible}
        ks = set.intersection(*eligible.values()) if eligible else set()
        if len(eligible) > 1 and len(ks) > 1:
            found.append(_price(model, compared[compared["model"] == model], family, sorted(ks), eligible))
    return found


def _price(
    model: str, rows: pd.DataFrame, family: str, ks: Sequence[int], corpora: Mapping[str, Any]
) -> Price:
    weights = dict.fromkeys(corpora, 1.0)
    mixture = mix(rows, family, ks, weights)
    worst: dict[int, tuple[str, float]] = {}
    for corpus in weights:
        for k, loss in mixture.losses({corpus: 1.0}).items():
            worst[k] = max(worst.get(k, (corpus, loss)), (corpus, loss), key=lambda one: one[1])
    return Price(model, list(weights), mixture.losses(weights), worst, mixture.is_paired)


def overall(rows: Sequence[Mapping[str, Any]], family: str, base: str) -> Overall | None:
    """The geometric mean gain over cells of a best-K table: over ``suf``, ``van`` or ``better`` (of the two).

    Each model weighs the same. None where no cell has one.
    """
    by_model: dict[str, list[float]] = {}
    for row in rows:
        found = gain_of(row, base) if row["arm"] == family else None
        if found is not None:
            by_model.setdefault(row["model"], []).append(1 + found.pct / 100)
    cells = [ratio for ratios in by_model.values() for ratio in ratios]
    if not cells:
        return None
    is_by_model = len(by_model) > 1
    units = [_geometric(ratios) for ratios in by_model.values()] if is_by_model else cells
    unit = "models" if is_by_model else "corpora"
    return Overall(gain([(ratio, 1.0) for ratio in units]), len(cells), unit, len(units))


def gain_of(row: Mapping[str, Any], base: str) -> Gain | None:
    """The gain of a row of the best-K table over ``suf``, ``van`` or the ``better`` of them."""
    if base == "better":
        return over_better(row)
    pct = row[f"vs_{base}_pct"]
    return None if pct is None else Gain(pct, row[f"vs_{base}_low_pct"], row[f"vs_{base}_high_pct"])


def _geometric(ratios: Sequence[float]) -> float:
    return 1 + gain([(ratio, 1.0) for ratio in ratios]).pct / 100
