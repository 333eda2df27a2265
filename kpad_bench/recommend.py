"""What to run for a model and its traffic: the K, or that padding does not pay, and the line that starts it.

Trial rows in, a recommendation out; ``recommend_text`` writes it down. Decides nothing that the best-K table
does not: a weighted mixture of corpora is one more corpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from kpad_bench.bestrow import BASELINES, Choice, Row, Versus, best_row, over
from kpad_bench.blocks import Cell, mean, present
from kpad_bench.csvrows import NO_SPECULATION
from kpad_bench.errors import UsageError
from kpad_bench.mixture import mix
from kpad_bench.pooling import pool
from kpad_bench.remarks import remarks
from kpad_bench.rowline import Launch, find_launch
from kpad_bench.traffic import Asked, distinct, loads_of, of_model, weights_of


class OnCorpus(NamedTuple):
    """One corpus of a mixture: its own best K, and what it gives and loses with the recommended one."""

    corpus: str
    weight: float
    best_k: int
    output_tok_per_s: float
    loss_pct: float


class AtLoad(NamedTuple):
    """What to run at another concurrency. ``arm`` None: nothing, for this reason."""

    concurrency: int
    arm: str | None
    k: int
    is_established: bool
    reason: str = ""


class Recommendation(NamedTuple):
    """What to run, and how sure that is. Throughputs of a mixture are weighted geometric means."""

    model: str
    weights: dict[str, float]
    #: The arm to run, and its K (0: no speculation): of the family asked for, or a baseline.
    arm: str
    k: int
    family: str
    #: The best K of the family to run, whether or not a baseline is faster.
    family_k: int
    #: The decision among the Ks of the family.
    choice: Choice
    is_established: bool
    #: Gains of ``family_k`` over every baseline.
    versus: list[Versus]
    #: K -> mean output tokens per second, and percent behind the best (mixture: behind each corpus's own).
    speeds: dict[int, float]
    behind: dict[int, float]
    on_corpora: list[OnCorpus]
    left_out: dict[int, str]
    launch: Launch
    #: Where several concurrencies were measured: this one's answer and that of every other.
    by_load: list[AtLoad]
    #: Doubts about the figures, the weightiest first.
    notes: list[str]

    @property
    def beaten_by(self) -> Versus | None:
        """The baseline that is recommended because no K of the family is faster."""
        return None if self.arm == self.family else _ahead(self.versus)


class _Found(NamedTuple):
    """A K of the family, before anything is said about how to run it."""

    row: Row
    k: int
    speeds: dict[int, float]
    behind: dict[int, float]
    on_corpora: list[OnCorpus]
    left_out: dict[int, str]
    notes: list[str]


def recommend(rows: pd.DataFrame, asked: Asked) -> Recommendation:
    """What to run, from trial rows as ``reduce.load_rows`` gives them.

    Raises UsageError for a model, corpus or arm that the rows do not have, for trials that are not alike,
    and where no K may be recommended, with the reasons.
    """
    if asked.family in NO_SPECULATION:
        raise UsageError(f"--arm: {asked.family!r} does not speculate and has no K; name one like kpad")
    mine = of_model(rows, asked.model)
    weights = weights_of(asked.corpora, distinct(mine["corpus"]))
    mine = mine[mine["corpus"].isin(list(weights))]
    loads = loads_of(mine, asked)
    mine = mine[mine["concurrency"] == loads[-1]] if loads else mine
    cells = {
        corpus: cell for (_, corpus), cell in pool(mine, [asked.family], BASELINES, asked.allow_mixed).items()
    }
    found = _found(mine, cells, weights, asked)
    choice = found.row.choice
    assert choice is not None  # else nothing was found
    versus = _versus(choice, found)
    ahead = _ahead(versus) if _ahead(found.row.versus) else None
    arm, k = (ahead.base.name, ahead.base.k) if ahead else (asked.family, found.k)
    launch = find_launch(mine, (arm, k), tuple(found.speeds), asked.platform, asked.launcher)
    established = choice.is_established and choice.decision.best_k == found.k
    others = [_at_load(rows, asked, load) for load in loads[:-1]]
    return Recommendation(
        model=asked.model,
        weights=weights,
        arm=arm,
        k=k,
        family=asked.family,
        family_k=found.k,
        choice=choice,
        is_established=established,
        versus=versus,
        speeds=found.speeds,
        behind=found.behind,
        on_corpora=found.on_corpora,
        left_out=found.left_out,
        launch=launch,
        by_load=[*others, AtLoad(loads[-1], arm, k, established)] if others else [],
        notes=[*found.notes, *rows.attrs.get("notes", ())],
    )


def _at_load(rows: pd.DataFrame, asked: Asked, load: int) -> AtLoad:
    try:
        found = recommend(rows, asked._replace(concurrency=load))
    except UsageError as error:
        return AtLoad(load, None, 0, is_established=False, reason=str(error))
    return AtLoad(load, found.arm, found.k, found.is_established)


def _found(rows: pd.DataFrame, cells: Mapping[str, Cell], weights: dict[str, float], asked: Asked) -> _Found:
    """The K for one corpus, or the one that loses least over several."""
    decided = {corpus: best_row(cell, asked.family) for corpus, cell in cells.items()}
    unused = [] if asked.corpora else [c for c in weights if c not in decided or decided[c].choice is None]
    if len(unused) == len(weights):  # then say why of each
        unused = []
    used = {corpus: weight for corpus, weight in weights.items() if corpus not in unused}
    if len(used) == 1:
        (corpus,) = used
        found = _of_one(corpus, decided.get(corpus), cells, asked)
    else:
        found = _of_many(rows, decided, used, asked)
    for corpus in unused:  # the caller shows what the K was chosen on
        del weights[corpus]
    return found._replace(
        notes=[*(f"{c} is no part of this: {_why_none(decided.get(c))}" for c in unused), *found.notes]
    )


def _of_one(corpus: str, row: Row | None, cells: Mapping[str, Cell], asked: Asked) -> _Found:
    if row is None or row.choice is None:
        raise UsageError(f"no K of {asked.family} may be recommended on {corpus}: {_why_none(row)}")
    nights = {
        cell.nights[night]
        for cell in cells.values()
        for night in cell.nights_in(present([arm for arm in cell.arms if arm.name == asked.family]))
    }
    speeds, best = _speeds(row.choice), row.choice.decision.best_k
    behind = {k: 100 * (1 - speed / speeds[best]) for k, speed in speeds.items()}
    notes = remarks(row, asked.family, nights)
    return _Found(row, row.choice.decision.pick_k, speeds, behind, [], row.left_out, notes)


def _of_many(
    rows: pd.DataFrame, decided: Mapping[str, Row], weights: Mapping[str, float], asked: Asked
) -> _Found:
    """One K for a mixture: of those that may be chosen on every corpus, the one that loses least."""
    left_out = _left_out(decided, weights)
    ks = sorted(
        {arm.k for row in decided.values() if row.choice for arm in row.choice.eligible} - set(left_out)
    )
    if not ks:
        why = "; ".join(f"K={k}: {reason}" for k, reason in left_out.items()) or "none was measured"
        raise UsageError(f"no K of {asked.family} may be recommended on all of {', '.join(weights)}: {why}")
    mixture = mix(rows, asked.family, ks, weights)
    ((_, cell),) = pool(mixture.rows.assign(model=asked.model), [asked.family], BASELINES, ()).items()
    row = best_row(cell, asked.family)
    assert row.choice is not None  # every trial of a mixture went well
    behind = mixture.losses(weights)
    k = min(behind, key=lambda k: (behind[k], k))
    notes = remarks(row, asked.family, set(cell.nights))
    if not mixture.is_paired and mixture.n_rounds > 1:
        notes.insert(
            0, "no two rounds hold every K on every corpus: means are compared, and nothing is established"
        )
    on_corpora = [_on_corpus(corpus, weight, mixture.means, k) for corpus, weight in weights.items()]
    return _Found(row, k, _speeds(row.choice), behind, on_corpora, left_out, notes)


def _left_out(decided: Mapping[str, Row], weights: Mapping[str, float]) -> dict[int, str]:
    """K -> why it may not be chosen for all corpora."""
    reasons: dict[int, list[str]] = {}
    known = {corpus: _eligible(decided.get(corpus)) for corpus in weights}
    failed = {corpus: decided[corpus].left_out if corpus in decided else {} for corpus in weights}
    for k in sorted({k for ks in [*known.values(), *failed.values()] for k in ks}):
        for corpus in weights:
            if k not in known[corpus]:
                reasons.setdefault(k, []).append(f"{failed[corpus].get(k, 'not measured')} on {corpus}")
    return {k: ", ".join(texts) for k, texts in reasons.items()}


def _eligible(row: Row | None) -> list[int]:
    return [] if row is None or row.choice is None else [arm.k for arm in row.choice.eligible]


def _why_none(row: Row | None) -> str:
    """Why no K of a corpus may be chosen."""
    reasons = {} if row is None else row.left_out
    return "; ".join(f"K={k}: {why}" for k, why in reasons.items()) or "none was measured"


def _on_corpus(corpus: str, weight: float, means: Mapping[int, Mapping[str, float]], k: int) -> OnCorpus:
    of_k = {other: by_corpus[corpus] for other, by_corpus in means.items()}
    best = min(of_k, key=lambda other: (-of_k[other], other))
    return OnCorpus(corpus, weight, best, of_k[k], 100 * (1 - of_k[k] / of_k[best]))


def _speeds(choice: Choice) -> dict[int, float]:
    """K -> mean output tokens per second over the blocks of the decision."""
    means = {arm.k: mean(choice.cell.unit_means(arm.speed, choice.used & arm.has)) for arm in choice.eligible}
    return {k: speed for k, speed in means.items() if speed is not None}


def _versus(choice: Choice, found: _Found) -> list[Versus]:
    """Gains of the K that was found, which need not be the fastest."""
    decision = choice.decision._replace(best_k=found.k, tok_per_s=found.speeds[found.k])
    return [over(choice._replace(decision=decision), base) for base, _, _ in found.row.versus]


def _ahead(versus: Sequence[Versus]) -> Versus | None:
    """The baseline that is furthest ahead; None where none is."""
    ahead = [one for one in versus if one.gain.pct < 0]
    return min(ahead, key=lambda one: one.gain.pct, default=None)
