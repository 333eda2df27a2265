"""Everything a report says, as plain values: from paths of rows to one ``Report``.

Every figure is one of ``reduce``, ``bestrow``, ``stats`` or ``mixture``: nothing is defined twice.
Draws nothing. Imported by ``report`` alone: pandas is slow to load.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from kpad_bench import report_cells, report_trials, stats
from kpad_bench.bestrow import BASELINES
from kpad_bench.blocks import Cell
from kpad_bench.csvrows import NO_SPECULATION
from kpad_bench.errors import UsageError
from kpad_bench.pooling import plain_rows, pool
from kpad_bench.reduce import Wins, best_k, wins
from kpad_bench.report_cells import Overall, Panel, Place, Price, Reversal
from kpad_bench.report_trials import Failure, Mechanism, Sentinel
from kpad_bench.schema import BEST_K, names
from kpad_bench.tables import Note

#: Arms that are looked for a best K in by default, the one that the figures are of first.
FAMILIES = ("kpad", "kfill")
#: What a gain is stated over.
BASES = ("suf", "van", "better")
#: States of a best K, from the surest to none.
ESTABLISHED, SMALL, TIED, STEADY = "established", "small lead", "tied", "steady differs"
ONE_TRIAL, APART, ONE_K, NO_K = "one trial", "rounds incomplete", "one K", "no K"


class Report(NamedTuple):
    """What a page says. Lists may be empty: then the page says why."""

    paths: list[str]
    families: tuple[str, ...]
    #: The best-K table, its footnotes, and what holds for it as a whole.
    best: list[dict[str, Any]]
    notes: list[Note]
    wins: Wins
    overall: dict[str, Overall]
    panels: list[Panel]
    reversals: list[Reversal]
    prices: list[Price]
    mechanisms: list[Mechanism]
    failures: list[Failure]
    sentinels: list[Sentinel]
    runs: list[dict[str, Any]]
    n_trials: int
    n_ok: int
    #: Cells that are left out because their trials are not alike, with the reason.
    refused: list[str]
    #: Files that could not be read.
    unread: list[str]

    @property
    def family(self) -> str:
        """The family of arms that the figures are of."""
        return self.families[0] if self.families else FAMILIES[0]

    @property
    def mine(self) -> list[dict[str, Any]]:
        """The rows of the best-K table of that family."""
        return [row for row in self.best if row["arm"] == self.family]

    @property
    def ks(self) -> list[int]:
        """Every K of the families that was measured: one shade stands for one K in all drawings."""
        measured = {at.k for at, *_ in self.mechanisms if at.arm in self.families}
        return sorted(measured | {row["best_k"] for row in self.best if row["best_k"] is not None})


def gather(
    paths: Sequence[Path], candidates: Sequence[str] = (), allow_mixed: Collection[str] = frozenset()
) -> Report:
    """Read the paths and work out everything a page says.

    ``candidates``: the families in which a best K is looked for; none given: those of ``FAMILIES`` that are
    there, else every arm with a K. Trials that may not be pooled leave their cell out, and a file that
    cannot be read is left out; both are named. Raises as ``report_trials.load`` does.
    """
    loaded = report_trials.load(paths)
    frame = report_trials.normal(loaded.rows)
    frame.attrs["notes"] = loaded.rows.attrs.get("notes", [])
    arms = _arms(frame)
    absent = [name for name in candidates if name not in arms]
    if absent:
        raise UsageError(f"--candidates: no trials of arm {', '.join(absent)}; there are: {', '.join(arms)}")
    families = tuple(candidates) or _families(arms)
    cells, refused = _pooled(frame, arms, allow_mixed)
    kept = report_trials.without(frame, refused)
    table = _table(kept, [name for name in families if name in _arms(kept)], allow_mixed)
    best = plain_rows(_bare(table)[list(names(BEST_K))]) if table is not None else []
    family = families[0] if families else FAMILIES[0]
    mine = {(row["model"], row["corpus"]): row for row in best if row["arm"] == family}
    gains = {base: report_cells.overall(best, family, base) for base in BASES}
    return Report(
        paths=[str(path) for path in paths],
        families=families,
        best=best,
        notes=_notes(table),
        wins=wins(best, family),
        overall={base: found for base, found in gains.items() if found is not None},
        panels=[
            report_cells.panel(place, cell, families, mine.get(place, {}).get("best_k"))
            for place, cell in cells.items()
        ],
        reversals=report_cells.reversals(cells, best, family),
        prices=report_cells.prices(kept, cells, family),
        mechanisms=report_trials.mechanisms(frame),
        failures=report_trials.failures(frame),
        sentinels=report_trials.sentinels(frame),
        runs=report_trials.runs(frame),
        n_trials=len(frame),
        n_ok=int(frame["is_ok"].sum()),
        refused=list(refused.values()),
        unread=loaded.problems,
    )


def state(row: Mapping[str, Any]) -> str:
    """How sure a row of the best-K table is, in one of the words above."""
    if row["best_k"] is None:
        return NO_K
    if row["established"]:
        return ESTABLISHED if row["relevant"] else SMALL
    if row["runner_up_k"] is None:
        return ONE_K
    if row["tie_basis"] != stats.MEASURED:
        return ONE_TRIAL if row["n_trials"] == 1 else APART
    return TIED if len(row["tie_set"]) > 1 else STEADY


def mix_last(corpora: Sequence[str]) -> list[str]:
    """Corpora by name, mixtures at the end."""
    return sorted(corpora, key=lambda name: (name.startswith("mix"), name))


def main_corpus(report: Report) -> str | None:
    """The corpus that a model is judged by first: a mixture where there is one."""
    corpora = mix_last(list({row["corpus"] for row in report.mine}))
    if "mix" in corpora:
        return "mix"
    return corpora[-1] if corpora else None


def _arms(frame: pd.DataFrame) -> dict[str, bool]:
    """Arm -> whether it has a K, of what is compared."""
    compared = frame.loc[~frame["is_sentinel"], ["arm", "k"]].drop_duplicates()
    with_k = set(compared.loc[compared["k"] > 0, "arm"])
    return {arm: arm in with_k for arm in sorted(map(str, compared["arm"].dropna().unique()))}


def _families(arms: Mapping[str, bool]) -> tuple[str, ...]:
    there = tuple(name for name in FAMILIES if name in arms)
    return there or tuple(
        name for name, has_k in arms.items() if has_k and name not in (*BASELINES, "suf-full")
    )


def _pooled(
    frame: pd.DataFrame, arms: Mapping[str, bool], allowed: Collection[str]
) -> tuple[dict[Place, Cell], dict[Place, str]]:
    """Cells by place; and those whose trials are not alike, with the reason."""
    bare = {*NO_SPECULATION, *(arm for arm, has_k in arms.items() if not has_k)}
    if not arms:
        return {}, {}
    try:
        return pool(frame, list(arms), (), allowed, bare), {}
    except UsageError:
        pass
    cells, refused = {}, {}
    compared = frame[~frame["is_sentinel"]]
    for keys, rows in compared.groupby(["model", "corpus"], observed=True):
        place = (str(keys[0]), str(keys[1]))
        try:
            cells.update(pool(rows, sorted(set(map(str, rows["arm"]))), (), allowed, bare))
        except UsageError as error:
            refused[place] = str(error)
    return cells, refused


def _table(frame: pd.DataFrame, families: Sequence[str], allowed: Collection[str]) -> pd.DataFrame | None:
    return best_k(frame, families, allowed) if families else None


def _notes(table: pd.DataFrame | None) -> list[Note]:
    """Footnotes with the places of their rows."""
    if table is None:
        return []
    place = {key: i for i, key in enumerate(zip(table["model"], table["corpus"], table["arm"], strict=True))}
    return [
        Note(note["text"], tuple(place[model, corpus, arm] for model, corpus, arm in note["cells"]))
        for note in table.attrs.get("notes", ())
    ]


def _bare(table: pd.DataFrame) -> pd.DataFrame:
    bare = table.copy(deep=False)
    bare.attrs = {}  # pandas copies them deeply, again and again
    return bare
