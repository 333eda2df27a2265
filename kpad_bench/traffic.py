"""What a recommendation is asked for: a model and its traffic, looked up among trial rows.

Finds the trials that a question is about, and says what there is where it finds none. Chooses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from kpad_bench.errors import UsageError


class Asked(NamedTuple):
    """What a recommendation is for. ``corpora`` as given: ``name`` or ``name=weight``; none: all there are.
    ``concurrency`` None: the highest of several; ``launcher`` and ``platform`` None: as measured."""

    model: str
    corpora: tuple[str, ...] = ()
    family: str = "kpad"
    concurrency: int | None = None
    launcher: str | None = None
    platform: str | None = None
    allow_mixed: frozenset[str] = frozenset()


def of_model(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """The trials of a model, without sentinels, which are no part of a best K.

    Raises UsageError where there is none.
    """
    compared = rows[~rows["is_sentinel"].astype("boolean").fillna(value=False).astype(bool)]
    mine = compared[compared["model"] == model]
    if mine.empty:
        there = ", ".join(distinct(compared["model"])) or "none (only sentinels)"
        raise UsageError(f"--model: {model!r}: no such model in the rows; there are: {there}")
    return mine


def weights_of(given: Sequence[str], there: Sequence[str]) -> dict[str, float]:
    """Corpus -> weight; every corpus that is there, weighing the same, where none is given.

    Raises UsageError for a corpus that is not there, one that is named twice, and a weight that is none.
    """
    found: dict[str, float] = {}
    for text in given:
        name, _, number = (text, "", "1") if text in there or "=" not in text else text.rpartition("=")
        if name not in there:
            raise UsageError(
                f"--corpus: {name!r}: no such corpus in the rows of this model; there are: {', '.join(there)}"
            )
        if name in found:
            raise UsageError(f"--corpus: {name!r} is there twice; name each corpus once")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise UsageError(f"--corpus: {text!r}: a weight is a positive number, like {name}=2")
    return found or dict.fromkeys(there, 1.0)


def loads_of(rows: pd.DataFrame, asked: Asked) -> list[int]:
    """The concurrencies to choose from, ascending; the last is the one to decide for. None: no choice.

    Raises UsageError where the concurrency that is asked for was not measured.
    """
    by_corpus = rows.groupby("corpus", observed=True)["concurrency"].nunique()
    there = sorted(int(load) for load in rows["concurrency"].dropna().unique())
    if asked.concurrency is not None:
        if asked.concurrency not in there:
            known = ", ".join(map(str, there)) or "none is stated"
            raise UsageError(f"--concurrency: {asked.concurrency}: not in the rows; there are: {known}")
        return [asked.concurrency]
    return there if (by_corpus > 1).any() and "concurrency" not in asked.allow_mixed else []


def distinct(column: pd.Series[str]) -> list[str]:
    """The names in a column, sorted."""
    return sorted({str(value) for value in column.dropna().unique()})
