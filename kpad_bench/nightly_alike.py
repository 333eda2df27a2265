"""Which trials of several nights may stand together, and what changed from one night to the next.

Takes trial rows of all runs of a sweep, of which one is tonight's. Works on whole columns; writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kpad_bench import alike
from kpad_bench.alike import Key, label
from kpad_bench.compare import Comparison, compare
from kpad_bench.pooling import COMPARABLE, SAME_CELL, plain_rows
from kpad_bench.schema import OK

#: Trials of one model and corpus stand together only where these agree, those of one cell where the rest do.
_OF_PLACE = COMPARABLE
_OF_CELL = tuple(name for name in (*SAME_CELL, *alike.LOAD) if name not in COMPARABLE)
_PLACE = ("model", "corpus", "is_sentinel")
_CELL = (*_PLACE, "arm", "k")


class Alike(NamedTuple):
    """The rows that may be pooled with the newest of their kind; of each run, how many may not, and why."""

    rows: pd.DataFrame
    #: (run_id, names of the columns that differ) -> number of trials
    others: Counter[tuple[str, str]]


class Compared(NamedTuple):
    """Tonight beside earlier nights: each of its cells with the newest night that has a comparable one."""

    with_run: list[tuple[str, Comparison]]
    #: Why a cell has none -> the cells, as people write them.
    without: dict[str, list[str]]


def like_newest(rows: pd.DataFrame) -> Alike:
    """Rows made like the newest good ones of their model and corpus: same host, software, load and prompts.

    Rows that are not ok stay where the run has good ones of that model and corpus that stay, and in the
    newest run of all.
    """
    frame = _completed(rows)
    ok = ((frame["status"] == OK) & frame["output_tok_per_s"].notna()).to_numpy(bool)
    differs = {
        name: ok & _differs(frame, ok, group, name)
        for group, names in ((_PLACE, _OF_PLACE), (_CELL, _OF_CELL))
        for name in names
        if name in frame
    }
    is_other = np.logical_or.reduce([*differs.values(), np.zeros(len(frame), bool)])
    places = frame.groupby(["run_id", *_PLACE], dropna=False, observed=True, sort=False).ngroup().to_numpy()
    is_kept_place = np.isin(places, np.unique(places[ok & ~is_other]))
    runs = frame["run_id"].astype("object")
    is_newest = (runs == runs.max()).to_numpy(bool)
    kept = np.where(ok, ~is_other, is_kept_place | is_newest)
    others: Counter[tuple[str, str]] = Counter()
    for place in np.flatnonzero(is_other):
        why = ", ".join(name for name, mask in differs.items() if mask[place])
        others[str(runs.iat[place]), why] += 1
    found = rows[kept]
    found.attrs = rows.attrs
    return Alike(found, others)


def compared(rows: pd.DataFrame, kept: pd.DataFrame, run_id: str) -> Compared:
    """Compare the cells of a run with those of earlier ones. ``kept``: as ``like_newest`` gives them."""
    keys = _keys(kept)
    is_ok = (kept["status"] == OK) & kept["output_tok_per_s"].notna()
    is_sentinel = _sentinels(kept)
    runs = kept["run_id"].astype("object")
    mine = {key for key, good in zip(keys, (runs == run_id) & is_ok & ~is_sentinel, strict=True) if good}
    left, with_run = set(mine), []
    for earlier in sorted({str(run) for run in runs[is_ok & (runs < run_id)]}, reverse=True):
        theirs = set(keys[(runs == earlier) & is_ok & ~is_sentinel])
        common = left & theirs
        if not common:
            continue
        wanted = keys.isin(common) | is_sentinel
        found = compare(kept[wanted & (runs == earlier)], kept[wanted & (runs == run_id)])
        with_run.append((earlier, found))
        left -= common
    return Compared(with_run, _without(rows, left, run_id))


def _without(rows: pd.DataFrame, cells: set[Key], run_id: str) -> dict[str, list[str]]:
    """Why no earlier trial of these cells may be compared."""
    keys = _keys(rows)
    runs = rows["run_id"].astype("object")
    is_ok = (rows["status"] == OK) & rows["output_tok_per_s"].notna() & ~_sentinels(rows)
    found: dict[str, list[str]] = {}
    for cell in sorted(cells):
        mine = rows[is_ok & (keys == cell) & (runs == run_id)].tail(1)
        before = rows[is_ok & (keys == cell) & (runs < run_id)]
        if before.empty:
            why = "not measured before"
        else:
            newest = before[
                before["run_id"].astype("object") == before["run_id"].astype("object").max()
            ].tail(1)
            (old,), (new,) = plain_rows(newest), plain_rows(mine)
            why = f"last measured in {old['run_id']} with another {_difference(old, new)}"
        found.setdefault(why, []).append(label(cell))
    return found


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [n for n in (*_OF_PLACE, *_OF_CELL) if n in old and old[n] != new[n]]
    # The cell's id differs wherever its load does: it is worth naming only alone.
    told = [name for name in names if name != "cell_id"] or names
    return ", ".join(f"{name} ({_short(old[name])}, now {_short(new[name])})" for name in told) or "host"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def _completed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(is_sentinel=_sentinels(rows)).reset_index(drop=True)


def _sentinels(rows: pd.DataFrame) -> pd.Series[bool]:
    if "is_sentinel" not in rows:
        return pd.Series(data=False, index=rows.index)
    return rows["is_sentinel"].astype("boolean").fillna(value=False).astype(bool)


def _keys(rows: pd.DataFrame) -> pd.Series[Any]:
    """(model, corpus, arm, K or 0) of every row."""
    ks = rows["k"].astype("Int64").fillna(0).astype("int64")
    columns = [rows[name].astype("object") for name in ("model", "corpus", "arm")]
    return pd.Series(list(zip(*columns, ks, strict=True)), index=rows.index, dtype="object")


def _differs(
    frame: pd.DataFrame, ok: NDArray[np.bool_], group: Sequence[str], name: str
) -> NDArray[np.bool_]:
    """Which rows have another value of a column than the newest good row of their group."""
    places = frame.groupby(list(group), dropna=False, observed=True, sort=False).ngroup().to_numpy()
    order = np.argsort(frame["run_id"].astype("object").to_numpy().astype(str), kind="stable")
    newest = np.full(int(places.max(initial=-1)) + 1, -1)
    good = order[ok[order]]
    newest[places[good]] = good  # the last of each group stays
    column = frame[name]
    codes = pd.factorize(column.astype("object"))[0]
    return np.where(newest[places] >= 0, codes != codes[newest[places]], False)
