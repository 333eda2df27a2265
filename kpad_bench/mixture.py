"""Several corpora as one: trials of a weighted mixture, so that one K is decided for all of them.

A trial of the mixture is the weighted geometric mean of the trials of one arm and K in one round, one for
each corpus: K then counts by its ratio to others, and a fast corpus weighs no more than a slow one. DataFrame
in, DataFrame out; chooses no K. Imported by ``recommend`` alone: pandas is slow to load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from kpad_bench.bestrow import BASELINES
from kpad_bench.schema import OK

#: The name of the mixture among corpora.
MIXTURE = "(mixture)"
_RUN = ["sweep", "run_id"]
_ROUND = [*_RUN, "round"]
_ARM = ["arm", "k"]
_SPEED, _STEADY = "output_tok_per_s", "steady_output_tok_per_s"


class Mixture(NamedTuple):
    """Trials of the mixture, and the means they are made of."""

    rows: pd.DataFrame
    #: K -> corpus -> mean output tokens per second, of the family.
    means: dict[int, dict[str, float]]
    #: Whether rounds of different corpora could be put together; False: one value for each corpus and K.
    is_paired: bool
    #: Rounds that there are of some corpus and K.
    n_rounds: int

    def losses(self, weights: Mapping[str, float]) -> dict[int, float]:
        """Percent that each K loses to every corpus's own best: weighted geometric mean over the corpora."""
        best = {corpus: max(by_corpus[corpus] for by_corpus in self.means.values()) for corpus in weights}
        total = math.fsum(weights.values())
        logs = {
            k: math.fsum(w * math.log(best[c] / by_corpus[c]) for c, w in weights.items()) / total
            for k, by_corpus in self.means.items()
        }
        return {k: 100 * -math.expm1(-deficit) + 0.0 for k, deficit in logs.items()}


def mix(rows: pd.DataFrame, family: str, ks: Collection[int], weights: Mapping[str, float]) -> Mixture:
    """The mixture of one model's trials (no sentinels) of these Ks of a family, and of the baselines.

    Rounds go together by sweep, run and number where two or more hold every K on every corpus; else every
    corpus counts by its mean for each K, which establishes nothing.
    """
    speeds, steady, designs = _speeds(rows, family, ks, weights)
    whole = speeds.dropna()
    n_ks = whole[whole.index.get_level_values("arm") == family].groupby(_ROUND).size()
    complete = n_ks[n_ks == len(ks)].index
    is_paired = len(complete) > 1
    if is_paired:
        counted = whole[pd.MultiIndex.from_frame(whole.index.to_frame()[_ROUND]).isin(complete)]
        steady = steady.loc[whole.index]
    else:
        counted = whole = speeds.groupby(_ARM).mean().dropna()
        steady = steady.groupby(_ARM).mean().loc[whole.index]
    mixed = pd.DataFrame({_SPEED: _mean(whole, weights), _STEADY: _mean(steady, weights)}).reset_index()
    mixed["corpus"] = MIXTURE
    if is_paired:
        mixed["design"] = [designs.get(run) for run in zip(*(mixed[name] for name in _RUN), strict=True)]
    of_family = counted.groupby(_ARM).mean().loc[family]
    means = {
        int(k): dict(zip(of_family.columns, map(float, row), strict=True))
        for k, *row in of_family.itertuples()
    }
    return Mixture(mixed, means, is_paired, int(speeds.groupby(_ARM).size().max()))


def _mean(speeds: pd.DataFrame, weights: Mapping[str, float]) -> pd.Series[float]:
    """The weighted geometric mean of each row; NaN where a corpus is not known."""
    shares = np.array([weights[corpus] for corpus in speeds.columns]) / math.fsum(weights.values())
    logs = speeds.apply(np.log).mul(shares, axis="columns")
    return logs.sum(axis="columns", skipna=False).map(math.exp)


def _speeds(
    rows: pd.DataFrame, family: str, ks: Collection[int], weights: Mapping[str, float]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[tuple[str, str], str | None]]:
    """Output tokens per second of the whole pass and of the steady window, by arm, K and round (rows) and
    corpus (columns), repeats averaged; and the design that each run names."""
    ok = rows[(rows["status"] == OK) & rows[_SPEED].notna()]
    plain = pd.DataFrame({name: ok[name].astype("object").fillna("") for name in (*_RUN, "arm", "corpus")})
    plain["k"] = ok["k"].fillna(0).astype("int64")
    plain["round"] = ok["round"].fillna(1).astype("int64")
    for name in (_SPEED, _STEADY):
        plain[name] = ok[name].astype("float64")
    design = ok["design"].astype("object")
    designs = {
        (str(sweep), str(run_id)): text
        for sweep, run_id, text in zip(
            plain["sweep"], plain["run_id"], design.where(design.notna(), None), strict=True
        )
    }
    is_family = (plain["arm"] == family) & plain["k"].isin(list(ks))
    is_base = plain["arm"].isin([name for name in BASELINES if name != family])
    used = plain[(is_family | is_base) & plain["corpus"].isin(list(weights))]
    groups = used.groupby([*_ARM, *_ROUND, "corpus"])
    speeds, steady = (pd.DataFrame(groups[name].mean().unstack("corpus")) for name in (_SPEED, _STEADY))
    return speeds, steady, designs
