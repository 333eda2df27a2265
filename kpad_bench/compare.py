"""What changed between two nights: trial rows of both in, one row for each cell out.

A cell is compared with itself; whether it changed is decided by ``nights.compare_nights``. Differences of
load are refused, differences of machine and software are named as causes. Writes no text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import pandas as pd

from kpad_bench import alike, stats
from kpad_bench.alike import Cause, Facts, Key
from kpad_bench.bestrow import Row, best_row
from kpad_bench.blocks import Cell
from kpad_bench.contrasts import mean
from kpad_bench.csvrows import NO_SPECULATION
from kpad_bench.errors import UsageError
from kpad_bench.nights import CellPair, Change, Nights, compare_nights
from kpad_bench.pooling import COLUMNS as POOLED
from kpad_bench.pooling import COMPARABLE, SAME_CELL, pool
from kpad_bench.rows import PLACE
from kpad_bench.schema import OK, TRIALS

#: The columns of the trials table that a comparison is made from.
COLUMNS = tuple(column for column in TRIALS if column in {*POOLED, *alike.COLUMNS})
#: What became of the best K. Shown: on each night the other's best K is slower than its own, by its rounds
#: and by more than a night does to single cells.
SAME, SHOWN, NOT_SHOWN = "no", "shown", "not shown"
_FAIL_ON = re.compile(r"regression:(\d+(?:\.\d+)?)%")


class Compared(NamedTuple):
    """One cell on both nights."""

    key: Key
    base_tok_per_s: float
    new_tok_per_s: float
    #: Rounds behind each figure; nights, where a side holds several.
    n_base: int
    n_new: int
    change: Change
    causes: list[Cause]


class BestK(NamedTuple):
    """The best K of one family of arms on both nights, and whether it changed (one of three words)."""

    base_k: int
    new_k: int
    change: str


class Comparison(NamedTuple):
    """Everything two nights say of each other."""

    cells: list[Compared]
    nights: Nights
    #: By (model, corpus, arm).
    best_ks: dict[tuple[str, str, str], BestK]
    #: The cell that was repeated through each night; empty where one of them had none, or another.
    sentinels: list[Compared]
    #: Cells of one night only, and why their trials on the other do not count, where it has some.
    only_base: dict[Key, str]
    only_new: dict[Key, str]
    #: Doubts about the reading.
    notes: list[str]


class _Measured(NamedTuple):
    """One cell on one side: a value for each unit of a decision; none: why not."""

    values: list[float]
    tok_per_s: float
    why_not: str


class _Side(NamedTuple):
    cells: dict[tuple[str, str], Cell]
    measured: dict[Key, _Measured]
    facts: dict[Key, Facts]


def compare(base: pd.DataFrame, new: pd.DataFrame, allow_mixed: Collection[str] = frozenset()) -> Comparison:
    """Compare trial rows of two nights (or of two sets of nights: then the unit is the night).

    ``allow_mixed`` names columns in which trials of one side, or the loads of both, may differ.
    Raises UsageError for trials of one side that may not be pooled, for loads that differ, and where no
    cell is on both sides; DataError for rows that cannot be.
    """
    unknown = sorted(set(allow_mixed) - {*COMPARABLE, *SAME_CELL, *alike.LOAD})
    if unknown:
        known = ", ".join(dict.fromkeys((*COMPARABLE, *SAME_CELL, *alike.LOAD)))
        raise UsageError(f"--allow-mixed: {', '.join(unknown)}: choose from {known}")
    sides = {}
    for name, rows in (("BASE", base), ("NEW", new)):
        sides[name] = _side(rows[~_is_sentinel(rows)], allow_mixed)
        if not any(one.values for one in sides[name].measured.values()):
            raise UsageError(f"{name} has no trial that went well and is no sentinel: nothing to compare")
    one, other = sides["BASE"], sides["NEW"]
    notes = alike.refuse_other_loads(one.facts, other.facts, allow_mixed)
    keys = sorted(one.facts.keys() & other.facts.keys())
    if not keys:
        raise UsageError(
            "no cell (model, corpus, arm, K) is in both: "
            f"BASE has {_some(one.facts)}; NEW has {_some(other.facts)}"
        )
    cells, nights = _compared(keys, one, other)
    return Comparison(
        cells=cells,
        nights=nights,
        best_ks=_best_ks(one.cells, other.cells, {cell.key: cell for cell in cells}),
        sentinels=_sentinels(base, new, allow_mixed),
        only_base=_only(one, other),
        only_new=_only(other, one),
        notes=[*_reading("BASE", base), *_reading("NEW", new), *notes],
    )


def parse_fail_on(text: str) -> float:
    """The percent of ``regression:3%``. Raises UsageError for anything else."""
    match = _FAIL_ON.fullmatch(text.strip())
    if match is None or not float(match[1]) < 100:
        raise UsageError(f"--fail-on: {text!r}: write regression:3% (a percentage below 100)")
    return float(match[1])


def regressions(found: Comparison, limit_pct: float) -> list[str]:
    """What is slower by more than ``limit_pct``, one line each; empty: nothing is shown to be.

    The whole night, by the end of its interval that is nearer to none; and every cell that is slower by
    more than that, and significantly slower than its night.
    """
    shift, lines = found.nights.shift, []
    if shift.high_pct is not None and shift.high_pct < -limit_pct:
        lines.append(f"the whole night: {shift.pct:+.1f} % ({shift.low_pct:+.1f} to {shift.high_pct:+.1f})")
    for cell in found.cells:
        change = cell.change
        if change.is_significant and change.beyond_pct < 0 and change.pct < -limit_pct:
            interval = f"{change.low_pct:+.1f} to {change.high_pct:+.1f}"
            lines.append(f"{alike.label(cell.key)}: {change.pct:+.1f} % ({interval})")
    return lines


def causes_of_all(cells: list[Compared]) -> list[Cause]:
    """The causes that every cell has alike; of the cell id, that it differs is enough."""
    common = {str(cause) for cause in cells[0].causes}
    for cell in cells:
        common &= {str(cause) for cause in cell.causes}
    return [cause for cause in cells[0].causes if str(cause) in common]


def _is_sentinel(rows: pd.DataFrame) -> pd.Series[bool]:
    if "is_sentinel" not in rows:
        return pd.Series(data=False, index=rows.index)
    return rows["is_sentinel"].astype("boolean").fillna(value=False).astype(bool)


def _side(rows: pd.DataFrame, allowed: Collection[str]) -> _Side:
    rows = rows.assign(is_sentinel=False)
    if rows.empty:
        return _Side({}, {}, {})
    has_k = rows["k"].notna() & ~rows["arm"].isin(NO_SPECULATION)
    with_k = set(rows.loc[has_k, "arm"].dropna())
    # An arm of a config of one's own may be without speculation too: it has no K in any row.
    arms = sorted(set(rows["arm"].dropna()))
    bare = {*NO_SPECULATION, *(arm for arm in arms if arm not in with_k)}
    cells = pool(rows, arms, (), {*allowed}.intersection((*COMPARABLE, *SAME_CELL)), bare)
    measured = {
        (*place, arm.name, arm.k): _Measured(
            cell.unit_means(arm.speed, arm.has).tolist(), arm.mean or 0.0, arm.why_failed
        )
        for place, cell in cells.items()
        for arm in cell.arms
    }
    return _Side(cells, measured, alike.facts_of(_counted(rows, bare)))


def _counted(rows: pd.DataFrame, bare: Collection[str]) -> pd.DataFrame:
    """The rows that a figure rests on, by cells."""
    is_ok = rows["status"] == OK if "status" in rows else True
    ok = rows[is_ok & rows["output_tok_per_s"].notna()]
    ks = ok["k"].astype("Int64").mask(ok["arm"].isin(bare), 0).astype("int64")
    names = {name: ok[name].astype("object") for name in ("model", "corpus", "arm")}
    return ok.assign(**names, k=ks, **({} if PLACE in ok else {PLACE: "a row"}))


def _compared(keys: list[Key], one: _Side, other: _Side) -> tuple[list[Compared], Nights]:
    pairs = [CellPair(one.measured[key].values, other.measured[key].values, key[:2]) for key in keys]
    nights = compare_nights(pairs)
    cells = []
    for key, pair, change in zip(keys, pairs, nights.changes, strict=True):
        speeds = mean(pair.base), mean(pair.new)
        causes = alike.causes(one.facts[key], other.facts[key])
        cells.append(Compared(key, *speeds, len(pair.base), len(pair.new), change, causes))
    return cells, nights


def _sentinels(base: pd.DataFrame, new: pd.DataFrame, allowed: Collection[str]) -> list[Compared]:
    one, other = (_side(rows[_is_sentinel(rows)], allowed) for rows in (base, new))
    keys = sorted(one.facts.keys() & other.facts.keys())
    if not keys:
        return []
    alike.refuse_other_loads(one.facts, other.facts, allowed)
    return _compared(keys, one, other)[0]


def _best_ks(
    base: Mapping[tuple[str, str], Cell],
    new: Mapping[tuple[str, str], Cell],
    compared: Mapping[Key, Compared],
) -> dict[tuple[str, str, str], BestK]:
    found = {}
    for place in sorted(base.keys() & new.keys()):
        families = [{arm.name for arm in cell.arms if arm.k} for cell in (base[place], new[place])]
        for family in sorted(families[0] & families[1]):
            mine = {key[3]: cell for key, cell in compared.items() if key[:3] == (*place, family)}
            best = _best_k(best_row(base[place], family), best_row(new[place], family), mine)
            if best is not None:
                found[(*place, family)] = best
    return found


def _best_k(base: Row, new: Row, compared: Mapping[int, Compared]) -> BestK | None:
    """None where there is nothing to choose, or nothing that may be chosen. ``compared``: by K."""
    if base.choice is None or new.choice is None:
        return None
    one, other = base.choice.decision, new.choice.decision
    ks = [{arm.k for arm in row.choice.eligible} for row in (base, new) if row.choice]
    if len(ks[0] | ks[1]) < 2:
        return None
    if one.best_k == other.best_k:
        return BestK(one.best_k, other.best_k, SAME)
    is_shown = (
        one.tie_basis == other.tie_basis == stats.MEASURED
        and other.best_k in ks[0] - set(one.tie_set)
        and one.best_k in ks[1] - set(other.tie_set)
        and _swapped(compared.get(one.best_k), compared.get(other.best_k))
    )
    return BestK(one.best_k, other.best_k, SHOWN if is_shown else NOT_SHOWN)


def _swapped(was: Compared | None, now: Compared | None) -> bool:
    """Whether each of two Ks led on its night by more than the rounds and the night do to single cells.

    The lead of one K over another on one night varies like the change of one K between two nights.
    """
    if was is None or now is None or was.change.high_pct is None or now.change.high_pct is None:
        return False
    least = max(
        math.log((100 + cell.change.high_pct) / (100 + cell.change.pct))
        for cell in (was, now)
        if cell.change.high_pct is not None
    )
    leads = was.base_tok_per_s / now.base_tok_per_s, now.new_tok_per_s / was.new_tok_per_s
    return min(map(math.log, leads)) > least


def _only(mine: _Side, theirs: _Side) -> dict[Key, str]:
    """The cells measured here alone, and why the other night's trials do not count; "": it has none."""
    return {
        key: theirs.measured[key].why_not if key in theirs.measured else ""
        for key in sorted(mine.facts.keys() - theirs.facts.keys())
    }


def _reading(side: str, rows: pd.DataFrame) -> list[str]:
    return [f"{side}: {note}" for note in rows.attrs.get("notes", ())]


def _some(keys: Collection[Key]) -> str:
    shown = [alike.label(key) for key in sorted(keys)]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
