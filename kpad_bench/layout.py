"""Comparable trial rows laid out as blocks x arms, one cell for each model and corpus.

Works on whole columns. Imported by ``pooling`` alone, which says what the rows must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kpad_bench.blocks import ArmAtK, Cell
from kpad_bench.schema import OK

#: The reason for an unknown FULL share that is no doubt: a platform without CUDA graphs.
NO_GRAPHS = "no_graphs"
Codes = NDArray[np.int64]


def ranked(frame: pd.DataFrame, names: Sequence[str]) -> tuple[Codes, list[tuple[Any, ...]]]:
    """The place of each row among the sorted distinct values of these columns, and those values."""
    codes, sizes, values = np.zeros(len(frame), np.int64), [], []
    for name in names:
        places, found = _ranked_column(frame[name])
        codes = codes * max(1, len(found)) + places
        sizes.append(max(1, len(found)))
        values.append(found)
    places, distinct = pd.factorize(codes, sort=True)
    columns = np.unravel_index(distinct, sizes)
    cells = [[found[i] for i in places_of] for found, places_of in zip(values, columns, strict=True)]
    return places.astype(np.int64), list(zip(*cells, strict=True))


def _ranked_column(column: pd.Series[Any]) -> tuple[Codes, list[Any]]:
    if not isinstance(column.dtype, pd.CategoricalDtype):
        codes, distinct = pd.factorize(column, sort=True)
        return codes.astype(np.int64), list(distinct.tolist())
    values = list(column.cat.categories)
    order = sorted(range(len(values)), key=lambda i: str(values[i]))
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    return rank[column.cat.codes], [values[i] for i in order]


def lay_out(trials: pd.DataFrame, counts: NDArray[np.bool_]) -> dict[tuple[str, str], Cell]:
    """Cells by (model, corpus). ``counts`` says which trials have a throughput that may be believed."""
    where, names = ranked(trials, ("model", "corpus"))
    rows = _Rows(trials, counts)
    ends = np.cumsum(np.bincount(where, minlength=len(names)))[:-1]
    by_cell = np.split(np.argsort(where, kind="stable"), ends)
    return {(model, corpus): rows.cell(mine) for (model, corpus), mine in zip(names, by_cell, strict=True)}


class _Labels:
    """A column of text as codes (-1: null) and the values that they stand for."""

    def __init__(self, codes: NDArray[np.integer[Any]], values: Sequence[Any]) -> None:
        self.codes = codes
        self.values = [*values, None]

    @classmethod
    def of_column(cls, column: pd.Series[Any]) -> _Labels:
        """The labels of a categorical column."""
        return cls(column.cat.codes.to_numpy(), list(column.cat.categories))

    @classmethod
    def of_some(cls, mask: NDArray[np.bool_], texts: pd.Series[Any]) -> _Labels:
        """The texts of the rows in the mask; null elsewhere."""
        codes = np.full(len(mask), -1)
        codes[mask], values = pd.factorize(texts)
        return cls(codes, list(values))

    def of(self, mine: Codes) -> dict[Any, int]:
        """The distinct values of these rows, and how many rows have each; null is left out."""
        codes, counts = np.unique(self.codes[mine], return_counts=True)
        return {self.values[c]: n for c, n in zip(codes.tolist(), counts.tolist(), strict=True) if c >= 0}

    def by_group(self, mine: Codes, group: Codes, n_groups: int) -> list[set[Any]]:
        """The distinct values of the rows of each group, null among them."""
        found: list[set[Any]] = [set() for _ in range(n_groups)]
        n_values = len(self.values)
        for pair in np.unique(group * n_values + self.codes[mine] % n_values).tolist():
            found[pair // n_values].add(self.values[pair % n_values])
        return found


class _Rows:
    """The columns of all trials as arrays, from which cells take their part."""

    def __init__(self, trials: pd.DataFrame, counts: NDArray[np.bool_]) -> None:
        self.counts = counts
        self.arm, self.arms = ranked(trials, ("arm", "k"))
        self.night, self.nights = ranked(trials, ("sweep", "run_id"))
        self.round, rounds = ranked(trials, ("round",))
        self.n_rounds = len(rounds)
        self.speed = trials["output_tok_per_s"].to_numpy()
        self.steady = trials["steady_output_tok_per_s"].to_numpy()
        self.acceptance_length = trials["acceptance_length"].to_numpy()
        self.step_time = trials["step_time_mean"].to_numpy()
        self.full_share = trials["full_share_decode"].to_numpy()
        self.failure = _failures(trials, counts)
        self.unknown_share = _unknown_shares(trials)
        self.design, self.runner, self.warnings = (
            _Labels.of_column(trials[name]) for name in ("design", "runner", "warnings")
        )

    def cell(self, mine: Codes) -> Cell:
        """The cell of these rows."""
        blocks, block = np.unique(self.night[mine] * self.n_rounds + self.round[mine], return_inverse=True)
        nights, night_of = np.unique(blocks // self.n_rounds, return_inverse=True)
        arms, arm = np.unique(self.arm[mine], return_inverse=True)
        ok = self.counts[mine]
        return Cell(
            arms=[self._arm(a, mine[arm == i], block[arm == i], len(blocks)) for i, a in enumerate(arms)],
            nights=[self.nights[night] for night in nights],
            night_of=night_of.astype(np.int64),
            designs=self.design.by_group(mine[ok], night_of[block[ok]], len(nights)),
        )

    def _arm(self, arm: int, mine: Codes, block: Codes, n_blocks: int) -> ArmAtK:
        ok, (name, k) = self.counts[mine], self.arms[arm]
        good, place = mine[ok], block[ok]
        shares = self.full_share[good]
        return ArmAtK(
            name=name,
            k=k,
            speed=_by_block(self.speed[good], place, n_blocks),
            steady=_by_block(self.steady[good], place, n_blocks),
            acceptance_length=_by_block(self.acceptance_length[good], place, n_blocks),
            step_time=_by_block(self.step_time[good], place, n_blocks),
            n_ok_by_block=np.bincount(place, minlength=n_blocks).astype(np.int64),
            failures=self.failure.of(mine[~ok]),
            full_share=None if np.isnan(shares).all() else float(np.nanmin(shares)),
            unknown_shares=self.unknown_share.of(good),
            runners=set(self.runner.of(good)),
            warnings={text for texts in self.warnings.of(good) for text in texts},
        )


def _by_block(values: NDArray[np.float64], block: Codes, n_blocks: int) -> NDArray[np.float64]:
    """Mean of each block; NaN where nothing is known."""
    known = ~np.isnan(values)
    values, block = values[known], block[known]
    counts = np.bincount(block, minlength=n_blocks)
    if len(values) and counts.max() > 1:  # a sum depends on its order
        order = np.argsort(values)
        values, block = values[order], block[order]
    sums = np.bincount(block, weights=values, minlength=n_blocks)
    means = np.full(n_blocks, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _failures(trials: pd.DataFrame, counts: NDArray[np.bool_]) -> _Labels:
    """Why each trial does not count, where it does not."""
    bad = trials.loc[~counts, ["status", "reason"]].astype("object")
    why = bad["reason"].where(bad["reason"].notna(), bad["status"])
    return _Labels.of_some(~counts, why.mask(bad["status"] == OK, "no throughput"))


def _unknown_shares(trials: pd.DataFrame) -> _Labels:
    """Why a share of FULL graphs is not known, where that is a doubt.

    Rows without these columns, those of a CSV, leave it to the reader.
    """
    unknown = trials["full_share_decode"].isna().to_numpy()
    some = trials.loc[unknown, ["full_share_reason", "full_share"]]
    reason = some["full_share_reason"].astype("object")
    reason = reason.mask(reason.isna() & some["full_share"].notna(), "no_decode_only_step")
    return _Labels.of_some(unknown, reason.where(reason != NO_GRAPHS))
