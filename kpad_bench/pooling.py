"""Which trial rows may stand together, and what they say of each arm at each K.

Takes rows from wherever, refuses what is not comparable, averages nothing over a difference in silence.
Chooses no K. Imported by ``reduce`` alone: pandas is slow to load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from kpad_bench.errors import DataError, UsageError
from kpad_bench.rows import PLACE
from kpad_bench.schema import MUST_MATCH, OK, STATUSES, TRIALS

VAN = "van"
#: Trials of one model and corpus are comparable only where all of these agree.
COMPARABLE = (
    *MUST_MATCH,
    *("corpus_digest", "n_prompts", "concurrency", "max_tokens", "max_model_len", "temperature"),
    *("model_revision", "tensor_parallel", "isolation"),
)
#: Trials of one arm and K are one series only where these agree too.
SAME_CELL = ("cell_id", "cache_state")
_NIGHT = ("sweep", "run_id")
_GROUP = ("model", "corpus", "arm", "k")
_READ = (
    *_NIGHT,
    *_GROUP,
    *("trial_id", "round", "repeat", "status", "reason", "warnings"),
    *("output_tok_per_s", "full_share_decode", "full_share_reason", "runner"),
    *SAME_CELL,
    *COMPARABLE,
)
#: The columns of the trials table that a best-K table is made from.
COLUMNS = tuple(column for column in TRIALS if column.name in _READ)
_DEFAULTS: dict[str, Any] = {"arm": "kpad", "status": OK, "round": 1}
_NUMBERS: dict[str, Any] = {
    "k": "Int64",
    "round": "Int64",
    "output_tok_per_s": "float64",
    "full_share_decode": "float64",
}


@dataclass
class ArmAtK:
    """What is known of one arm at one K on one model and corpus."""

    name: str
    k: int  # 0: no speculation
    #: (sweep, run_id, round) -> output tokens per second, repeats averaged.
    rounds: dict[tuple[Any, ...], float] = field(default_factory=dict)
    n_ok: int = 0
    failures: list[str] = field(default_factory=list)
    full_share: float | None = None
    full_share_reasons: set[str] = field(default_factory=set)
    runners: set[str] = field(default_factory=set)
    warnings: set[str] = field(default_factory=set)

    @property
    def label(self) -> str:
        """The arm as the command line writes it."""
        return f"{self.name}@{self.k}" if self.k else self.name

    @property
    def mean(self) -> float | None:
        """Mean over rounds, output tokens per second; None without an ok trial."""
        return math.fsum(self.rounds.values()) / len(self.rounds) if self.rounds else None

    @property
    def why_failed(self) -> str:
        """Every reason for which a trial does not count, once."""
        return ", ".join(sorted(set(self.failures)))

    @property
    def runs(self) -> set[tuple[Any, ...]]:
        """The runs that its ok trials are from."""
        return {key[:-1] for key in self.rounds}


def each_once(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Rows without repetition, and a note about those that were read twice.

    Raises DataError, naming both places, where two rows tell the same trial differently.
    """
    keys = [*_NIGHT, "trial_id"]
    again = frame[frame.duplicated(keys, keep=False)]
    if again.empty:
        return frame, []
    for _, group in again.groupby(keys, dropna=False, sort=False):
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
    rows: pd.DataFrame, candidates: Collection[str], baselines: Collection[str], allowed: Collection[str]
) -> dict[tuple[str, str], list[ArmAtK]]:
    """What is known of these arms at every K, by (model, corpus), all sorted.

    ``allowed`` names columns of ``COMPARABLE`` or ``SAME_CELL`` in which pooled trials may differ. Raises
    UsageError where others differ or a candidate has no trial, DataError for rows that cannot be.
    """
    trials = _completed(rows, {*candidates, *baselines})
    present = sorted(trials["arm"].unique())
    absent = [name for name in candidates if name not in present]
    if absent:
        raise UsageError(f"no trials of arm {', '.join(absent)}; there are: {', '.join(present)}")
    trials = trials[trials["arm"].isin([*candidates, *baselines])]
    counts = (trials["status"] == OK) & trials["output_tok_per_s"].notna()
    _refuse_mixed(trials[counts], allowed)
    keys: dict[Any, int] = trials.groupby(list(_GROUP)).size().to_dict()
    known = {key: ArmAtK(*key[2:]) for key in sorted(keys)}
    _add_speeds(known, trials[counts])
    _add_doubts(known, trials[counts])
    for row in plain_rows(trials.loc[~counts, [*_GROUP, "status", "reason"]]):
        why = "no throughput" if row["status"] == OK else row["reason"] or row["status"]
        known[_key(row)].failures.append(why)
    cells: dict[tuple[str, str], list[ArmAtK]] = {}
    for (model, corpus, *_), arm in known.items():
        cells.setdefault((model, corpus), []).append(arm)
    return cells


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


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _GROUP)


def _completed(rows: pd.DataFrame, used: Collection[str]) -> pd.DataFrame:
    """Rows with every column that is used, of the right type; K is 0 where there is no speculation.

    Only rows of arms in ``used`` have to have the K of their arm; others are not looked at further.
    """
    missing = [name for name in ("model", "corpus", "k", "output_tok_per_s") if name not in rows]
    if missing:
        raise UsageError(f"rows without a column {', '.join(missing)}")
    frame = rows.reindex(columns=[*_READ, PLACE]).reset_index(drop=True)
    for name, value in _DEFAULTS.items():
        if name not in rows:
            frame[name] = value
    for name, dtype in _NUMBERS.items():
        try:
            frame[name] = pd.to_numeric(frame[name]).astype(dtype)
        except (ValueError, TypeError) as error:
            raise DataError(f"column {name}: {error}") from error
    frame.loc[frame["arm"] == VAN, "k"] = 0
    frame["k"] = frame["k"].fillna(-1).astype("int64")
    frame[list(_NIGHT)] = frame[list(_NIGHT)].astype("object").fillna("")  # NaN is unlike itself in a key
    _refuse_impossible(frame, used)
    return frame


def _refuse_impossible(frame: pd.DataFrame, used: Collection[str]) -> None:
    speed = frame["output_tok_per_s"]
    impossible = {
        "model": frame["model"].isna(),
        "corpus": frame["corpus"].isna(),
        "arm": frame["arm"].isna(),
        "status": ~frame["status"].isin(STATUSES),
        "k": frame["arm"].isin([*used]) & (frame["arm"] != VAN) & (frame["k"] <= 0),
        "output_tok_per_s": (frame["status"] == OK) & speed.notna() & ~speed.between(0, math.inf, "neither"),
    }
    for name, bad in impossible.items():
        if bad.any():
            row = plain_rows(frame[bad].head(1))[0]
            value = "null" if name == "k" and row[name] == -1 else _shown(row[name])
            raise DataError(
                f"{_shown(row[PLACE])}, trial {_shown(row['trial_id'])}: {name} {value} cannot be"
            )


def _refuse_mixed(ok: pd.DataFrame, allowed: Collection[str]) -> None:
    """Raise UsageError where trials that would be pooled differ in what must be the same."""
    unknown = sorted(set(allowed) - {*COMPARABLE, *SAME_CELL})
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: choose from {', '.join((*COMPARABLE, *SAME_CELL))}")
    # An allowed difference is part of a cell's id too: then the id says nothing more.
    same_cell = [name for name in SAME_CELL if not (allowed and name == "cell_id")]
    for keys, checked in ((_GROUP[:2], COMPARABLE), (_GROUP, same_cell)):
        for name in checked:
            if name in allowed or ok[name].nunique(dropna=False) <= 1:
                continue
            n_values = ok.groupby(list(keys))[name].nunique(dropna=False)
            if (n_values > 1).any():
                _raise_mixed(ok, keys, n_values.idxmax(), [n for n in checked if n not in allowed])


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


def _add_speeds(known: dict[tuple[Any, ...], ArmAtK], ok: pd.DataFrame) -> None:
    sizes: dict[Any, int] = ok.groupby(list(_GROUP)).size().to_dict()
    for key, n_ok in sizes.items():
        known[key].n_ok = n_ok
    # Repeats inside a boot share its luck: averaged, they are one value. Sorted: a sum depends on its order.
    rounds = ok.sort_values("output_tok_per_s").groupby([*_GROUP, *_NIGHT, "round"], dropna=False)
    means: dict[Any, float] = rounds["output_tok_per_s"].mean().to_dict()
    for key, mean in means.items():
        known[key[: len(_GROUP)]].rounds[key[len(_GROUP) :]] = mean


def _add_doubts(known: dict[tuple[Any, ...], ArmAtK], ok: pd.DataFrame) -> None:
    shares: dict[Any, float] = ok.groupby(list(_GROUP))["full_share_decode"].min().dropna().to_dict()
    for key, share in shares.items():
        known[key].full_share = share
    uncounted = ok[ok["full_share_decode"].isna() & ok["full_share_reason"].notna()]
    for row in plain_rows(uncounted[[*_GROUP, "full_share_reason"]].drop_duplicates()):
        known[_key(row)].full_share_reasons.add(row["full_share_reason"])
    for row in plain_rows(ok.loc[ok["runner"].notna(), [*_GROUP, "runner"]].drop_duplicates()):
        known[_key(row)].runners.add(row["runner"])
    warned = ok.loc[ok["warnings"].notna(), [*_GROUP, "warnings"]]
    for row in plain_rows(warned[warned["warnings"].map(len).astype(bool)]):
        known[_key(row)].warnings.update(row["warnings"])
