"""Which trial rows may stand together, laid out by model and corpus as blocks x arms.

Takes rows from wherever, refuses what is not comparable, averages nothing over a difference in silence.
Chooses no K. Works on whole columns, never row by row: a year of nights is a million rows. Imported by
``reduce`` alone: pandas is slow to load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kpad_bench.blocks import Cell
from kpad_bench.csvrows import NO_SPECULATION
from kpad_bench.errors import DataError, UsageError
from kpad_bench.layout import lay_out, ranked
from kpad_bench.rows import PLACE
from kpad_bench.schema import MUST_MATCH, OK, STATUSES, TRIALS

#: Trials of one model and corpus are comparable only where all of these agree.
COMPARABLE = (
    *MUST_MATCH,
    *("corpus_digest", "n_prompts", "concurrency", "max_tokens", "max_model_len", "temperature"),
    *("model_revision", "tensor_parallel", "isolation", "source"),
)
#: Trials of one arm and K are one series only where these agree too.
SAME_CELL = ("cell_id", "cache_state")
_NIGHT = ("sweep", "run_id")
_GROUP = ("model", "corpus", "arm", "k")
_FLOATS = (
    *("output_tok_per_s", "steady_output_tok_per_s", "acceptance_length", "step_time_mean"),
    *("full_share_decode", "full_share"),
)
_READ = (
    *_NIGHT,
    *_GROUP,
    *("trial_id", "round", "repeat", "is_sentinel", "design", "status", "reason", "warnings"),
    *_FLOATS,
    *("full_share_reason", "runner"),
    *SAME_CELL,
    *COMPARABLE,
)
#: The columns of the trials table that a best-K table is made from.
COLUMNS = tuple(column for column in TRIALS if column.name in _READ)
_DEFAULTS: dict[str, Any] = {"arm": "kpad", "status": OK, "round": 1}


def each_once(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Rows without repetition, and a note about those that were read twice.

    Raises DataError, naming both places, where two rows tell the same trial differently.
    """
    keys = [*_NIGHT, "trial_id"]
    again = frame[frame.duplicated(keys, keep=False)]
    if again.empty:
        return frame, []
    for _, group in again.groupby(keys, dropna=False, sort=False, observed=True):
        first, *others = plain_rows(group)
        for other in others:
            differs = [name for name in first if name != PLACE and first[name] != other[name]]
            if differs:
                what = ", ".join(f"{n} {_shown(first[n])} and {_shown(other[n])}" for n in differs)
                raise DataError(
                    f"{first[PLACE]} and {other[PLACE]} both hold trial {first['trial_id']}, with {what}; "
                    "leave one out (in a CSV, number further trials of a K in a column named round)"
                )
    kept = frame.drop_duplicates(keys)
    where = sorted(set(again[PLACE]))
    more = f" and {len(where) - 2} more" if len(where) > 2 else ""
    return kept, [f"{len(frame) - len(kept)} rows read twice, counted once: {', '.join(where[:2])}{more}"]


def pool(
    rows: pd.DataFrame,
    candidates: Collection[str],
    baselines: Collection[str],
    allowed: Collection[str],
    without_k: Collection[str] = NO_SPECULATION,
) -> dict[tuple[str, str], Cell]:
    """What is known of these arms at every K, by (model, corpus), all sorted.

    Sentinels are no part of it. ``allowed`` names columns of ``COMPARABLE`` or ``SAME_CELL`` in which
    pooled trials may differ; ``without_k`` the arms that have no K. Raises UsageError where others differ
    or a candidate has no trial, DataError for rows that cannot be.
    """
    trials = _completed(rows, {*candidates, *baselines}, without_k)
    is_compared = ~trials["is_sentinel"]
    present = sorted(trials.loc[is_compared, "arm"].unique())
    absent = [name for name in candidates if name not in present]
    if absent:
        there = ", ".join(present) or "none (only sentinels)"
        raise UsageError(f"no trials of arm {', '.join(absent)}; there are: {there}")
    trials = trials[is_compared & trials["arm"].isin([*candidates, *baselines])]
    counts = ((trials["status"] == OK) & trials["output_tok_per_s"].notna()).to_numpy(bool)
    _refuse_mixed(trials, counts, allowed)
    return lay_out(trials, counts)


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts of plain Python values; None where there is none."""
    return [{str(k): _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array or a scalar of numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return list(value)
    return None if pd.isna(value) else value


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _completed(rows: pd.DataFrame, used: Collection[str], without_k: Collection[str]) -> pd.DataFrame:
    """Rows with every column that is used, of the right type; K is 0 where there is no speculation.

    Only rows of arms in ``used`` have to have the K of their arm; others are not looked at further.
    """
    missing = [name for name in ("model", "corpus", "k", "output_tok_per_s") if name not in rows]
    if missing:
        raise UsageError(f"rows without a column {', '.join(missing)}")
    kinds = {column.name: column.kind for column in COLUMNS} | {PLACE: "str"}
    frame = pd.DataFrame(
        {name: _completed_column(rows, name, kind) for name, kind in kinds.items()}, copy=False
    )
    frame.loc[frame["arm"].isin(without_k), "k"] = 0
    _refuse_impossible(frame, set(used).difference(without_k))
    return frame


def _completed_column(rows: pd.DataFrame, name: str, kind: str) -> pd.Series[Any]:
    if name not in rows:
        rows = pd.DataFrame({name: [_DEFAULTS.get(name)]}).take(np.zeros(len(rows), int))
    column = rows[name].reset_index(drop=True)
    if kind == "strs":
        return column if isinstance(column.dtype, pd.CategoricalDtype) else _as_category(column.map(_tuple))
    if kind == "str":
        column = column if isinstance(column.dtype, pd.CategoricalDtype) else _as_category(column)
        return _without_null(column) if name in _NIGHT else column
    if kind == "bool":
        return column.astype("boolean").fillna(value=False).astype(bool)
    try:
        column = column if pd.api.types.is_numeric_dtype(column) else pd.to_numeric(column)
        if name in _FLOATS:
            return column.astype("float64")
        if name in ("k", "round"):  # a K that is null is none; the round of a row without one is the first
            return column.astype("Int64").fillna(-1 if name == "k" else 1).astype("int64")
    except (ValueError, TypeError) as error:
        raise DataError(f"column {name}: {error}") from error
    return column


def _as_category(column: pd.Series[Any]) -> pd.Series[Any]:
    codes, values = pd.factorize(column.astype("object"))
    categories = pd.Index(values, tupleize_cols=False)
    return pd.Series(pd.Categorical.from_codes(codes, categories=categories))


def _tuple(value: Any) -> tuple[str, ...] | None:
    return tuple(value) if hasattr(value, "__len__") and len(value) else None


def _without_null(column: pd.Series[Any]) -> pd.Series[Any]:
    """Rows that name no run are of one run without a name."""
    if not column.hasnans:
        return column
    if "" not in column.cat.categories:
        column = column.cat.add_categories([""])
    return column.fillna("")


def _refuse_impossible(frame: pd.DataFrame, with_k: Collection[str]) -> None:
    speed = frame["output_tok_per_s"]
    has_k = frame["arm"].isin(with_k)
    impossible = {
        "model": frame["model"].isna(),
        "corpus": frame["corpus"].isna(),
        "arm": frame["arm"].isna(),
        "status": ~frame["status"].isin(STATUSES),
        "k": has_k & (frame["k"] <= 0),
        "output_tok_per_s": (frame["status"] == OK) & speed.notna() & ~speed.between(0, math.inf, "neither"),
    }
    for name, bad in impossible.items():
        if bad.any():
            row = plain_rows(frame[bad].head(1))[0]
            value = "null" if name == "k" and row[name] == -1 else _shown(row[name])
            raise DataError(
                f"{_shown(row[PLACE])}, trial {_shown(row['trial_id'])}: {name} {value} cannot be"
            )


def _refuse_mixed(trials: pd.DataFrame, counts: NDArray[np.bool_], allowed: Collection[str]) -> None:
    """Raise UsageError where trials that count and would be pooled differ in what must be the same."""
    unknown = sorted(set(allowed) - {*COMPARABLE, *SAME_CELL})
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: choose from {', '.join((*COMPARABLE, *SAME_CELL))}")
    # An allowed difference is part of a cell's id too: then the id says nothing more.
    same_cell = [name for name in SAME_CELL if not (allowed and name == "cell_id")]
    for keys, columns in ((_GROUP[:2], COMPARABLE), (_GROUP, same_cell)):
        checked = [name for name in columns if name not in allowed]
        group, groups = ranked(trials, keys)
        some = np.zeros(len(groups), np.int64)  # a trial of each group that counts
        some[group[counts]] = np.flatnonzero(counts)
        for name in checked:
            values = _codes(trials[name])
            differs = counts & (values != values[some[group]])
            if differs.any():
                _raise_mixed(trials[counts], keys, groups[int(group[differs].min())], checked)


def _codes(column: pd.Series[Any]) -> NDArray[np.int64]:
    """Numbers that are equal where the values are, null being a value."""
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    return np.asarray(column.cat.codes if is_category else pd.factorize(column)[0], dtype=np.int64)


def _raise_mixed(ok: pd.DataFrame, keys: Sequence[str], cell: Any, checked: Sequence[str]) -> None:
    """Say everything in which the trials of one cell differ, with a place for each value."""
    mask = pd.Series(data=True, index=ok.index)
    for name, value in zip(keys, cell, strict=True):
        mask &= ok[name] == value
    differing = {}
    for name in checked:
        firsts = plain_rows(ok.loc[mask, [name, PLACE]].drop_duplicates(name))
        if len(firsts) > 1:
            differing[name] = " and ".join(sorted(f"{_shown(r[name])} ({_shown(r[PLACE])})" for r in firsts))
    raise UsageError(
        f"{' '.join(map(str, cell))}: trials that are not alike are not pooled: "
        f"{'; '.join(f'{name} is {values}' for name, values in differing.items())}. "
        f"Reduce them apart, or allow it by name: --allow-mixed {','.join(differing)}"
    )
