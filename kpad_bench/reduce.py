"""Trial rows to a best-K table: one row for each (model, corpus, family of arms).

DataFrame in, DataFrame out. Says which Ks may win; the choice among those is ``stats.decide``'s. Doubts
travel in ``DataFrame.attrs["notes"]`` and become footnotes. Knows no servers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from kpad_bench import stats, tables
from kpad_bench.pooling import COLUMNS, VAN, ArmAtK, each_once, plain_rows, pool
from kpad_bench.rows import read_rows
from kpad_bench.schema import BEST_K, names
from kpad_bench.tables import Note

#: Least share of decode-only steps in FULL graphs for a padded K to count as padded.
FULL_SHARE_MIN = 0.9
#: Arms a gain is stated against. Their steps need not be in FULL graphs: that is what padding is for.
SUF, PUBLISHED_SUF_K = "suf", 32
BASELINES = (VAN, SUF)
#: The reason for an unknown FULL share that is no doubt: a platform without CUDA graphs.
NO_GRAPHS = "no_graphs"
_DTYPES = {"int": "Int64", "float": "float64", "bool": "bool"}


def load_rows(paths: Iterable[Path | str] | Path | str) -> pd.DataFrame:
    """Trials from run folders, sweep folders, Parquet files and long CSVs: one row each, none twice.

    Raises UsageError or DataError, naming file, line, column and value, for what cannot be read, and for
    a trial that two files tell differently.
    """
    given = [paths] if isinstance(paths, Path | str) else list(paths)
    read = read_rows([Path(path) for path in given], COLUMNS)
    frame, repeated = each_once(read.table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get))
    frame.attrs["notes"] = [*read.notes, *repeated]
    return frame


def best_k(
    rows: pd.DataFrame,
    candidates: Sequence[str] = ("kpad",),
    allow_mixed: Collection[str] = frozenset(),
) -> pd.DataFrame:
    """The best-K table of trial rows, sorted by model, corpus and arm; columns as in ``schema.BEST_K``.

    ``candidates`` are the families of arms in which a best K is looked for. ``allow_mixed`` names columns
    in which trials may differ and be pooled all the same. Raises UsageError where others differ or a
    candidate has no trial at all, DataError for rows that cannot be.
    """
    records: list[dict[str, Any]] = []
    notes: dict[str, list[list[str]]] = {text: [] for text in rows.attrs.get("notes", ())}
    for (model, corpus), arms in pool(rows, candidates, BASELINES, allow_mixed).items():
        for family in sorted({arm.name for arm in arms}.intersection(candidates)):
            record, texts = _best(arms, family)
            records.append({**record, "model": model, "corpus": corpus, "arm": family})
            for text in dict.fromkeys(texts):
                notes.setdefault(text, []).append([model, corpus, family])
    columns = {
        c.name: pd.Series([record[c.name] for record in records], dtype=_DTYPES.get(c.kind, "object"))
        for c in BEST_K
    }
    frame = pd.DataFrame(columns)
    frame.attrs["notes"] = [{"text": text, "cells": cells} for text, cells in notes.items()]
    return frame


def render(table: pd.DataFrame, output_format: str = "table") -> str | bytes:
    """A best-K table as table, md, csv, json (str) or parquet (bytes)."""
    return tables.render(plain_rows(table[list(names(BEST_K))]), _notes(table), output_format)


def footnotes(table: pd.DataFrame) -> list[str]:
    """The doubts about a best-K table, numbered: for stderr where the format is exactly the data."""
    return tables.numbered(_notes(table))


def _notes(table: pd.DataFrame) -> list[Note]:
    rows = list(zip(table["model"], table["corpus"], table["arm"], strict=True))
    notes = []
    for note in table.attrs.get("notes", ()):
        about = [tuple(cell) for cell in note["cells"]]
        positions = tuple(i for i, row in enumerate(rows) if row in about)
        if positions or not about:  # a row may have been filtered out since
            notes.append(Note(note["text"], positions))
    return notes


def _best(arms: Sequence[ArmAtK], family: str) -> tuple[dict[str, Any], list[str]]:
    """The row of one family on one (model, corpus), without its names, and the doubts about it."""
    members = {arm.k: arm for arm in arms if arm.name == family}
    left_out = {k: why for k, arm in members.items() if (why := _why_not_eligible(arm))}
    eligible = [arm for k, arm in members.items() if k not in left_out]
    baselines = [arm for arm in arms if arm.name in BASELINES and arm.name != family]
    speeds = {(arm.name, arm.k): arm.mean for arm in baselines if arm.mean is not None}
    record: dict[str, Any] = dict.fromkeys(names(BEST_K))
    record |= {
        "n_trials": 0,
        "tie_set": [],
        "established": False,
        "van_tok_per_s": speeds.get((VAN, 0)),
        "suf_tok_per_s": speeds.get((SUF, PUBLISHED_SUF_K)),
        "not_eligible": [f"{k}: {why}" for k, why in left_out.items()],
    }
    texts = [f"K={k} left out: {why}" for k, why in left_out.items()]
    if eligible:
        decision = stats.decide(_by_round(eligible))
        best = members[decision.best_k]
        record |= {
            "best_k": decision.best_k,
            "output_tok_per_s": decision.tok_per_s,
            "n_trials": best.n_ok,
            "runner_up_k": decision.runner_up_k,
            "margin_pct": _rounded(decision.margin_pct),
            "tie_set": list(decision.tie_set),
            "tie_basis": decision.tie_basis,
            "established": decision.is_established,
            "pick_k": decision.pick_k,
            "regret_pct": _rounded(decision.regret_pct),
            "vs_suf_pct": _gain_pct(decision.tok_per_s, record["suf_tok_per_s"]),
            "vs_van_pct": _gain_pct(decision.tok_per_s, record["van_tok_per_s"]),
            "vs_best_baseline_pct": _gain_pct(decision.tok_per_s, max(speeds.values(), default=None)),
        }
        texts = [*_doubts_of_choice(decision, eligible), *texts]
        texts += [
            f"{arm.label} was measured in another run than {family}: drift between runs is in the gain"
            for arm in baselines
            if arm.rounds and arm.runs.isdisjoint(best.runs)
        ]
        texts += [
            f"{arm.label} ran on vLLM's {_listed(arm.runners)} runner, {best.label} on "
            f"{_listed(best.runners)}: the gain over it is of the runners too"
            for arm in baselines
            if arm.rounds and arm.runners and best.runners and arm.runners != best.runners
        ]
    return record, [*texts, *_doubts_of_trials(eligible, baselines)]


def _listed(runners: set[str]) -> str:
    return " and ".join(sorted(runner.upper() for runner in runners))


def _why_not_eligible(arm: ArmAtK) -> str | None:
    if not arm.rounds:
        return arm.why_failed
    share = arm.full_share
    if arm.name not in BASELINES and share is not None and share < FULL_SHARE_MIN:
        return f"full_share {math.floor(share * 100) / 100:.2f} < {FULL_SHARE_MIN}"
    return None


def _by_round(arms: Sequence[ArmAtK]) -> list[dict[int, float]]:
    keys = sorted({key for arm in arms for key in arm.rounds}, key=str)
    return [{arm.k: arm.rounds[key] for arm in arms if key in arm.rounds} for key in keys]


def _gain_pct(value: float, base: float | None) -> float | None:
    return None if base is None else _rounded(stats.gain_pct(value, base))


def _rounded(percent: float | None) -> float | None:
    """Without the digits that are only arithmetic: 10.000000000000009 is 10."""
    return None if percent is None else round(percent, 6)


def _doubts_of_choice(decision: stats.Decision, eligible: Sequence[ArmAtK]) -> Iterator[str]:
    """Why the best K is not established, in plain words."""
    if decision.threshold_pct is None:
        yield "only one K could be compared: nothing is established"
        return
    cv = 100 * stats.ASSUMED_CV
    n_rounds = {len(arm.rounds) for arm in eligible}
    if n_rounds == {1}:
        unit = "trial" if all(arm.n_ok == 1 for arm in eligible) else "boot"
        yield (
            f"one {unit} per K: nothing is established. Assuming that runs vary by {cv:g} %, two single runs "
            f"closer than {decision.threshold_pct:.1f} % cannot be told apart: tied holds every K that close "
            "to the best, and risk is what the pick may lose to one of them"
        )
        return
    yield (
        f"several trials per K, but intervals are not computed yet: nothing is established, and tied and "
        f"risk assume that runs vary by {cv:g} %"
    )
    if len(n_rounds) > 1:
        counts = ", ".join(f"{len(arm.rounds)} of K={arm.k}" for arm in eligible)
        yield f"not every K was measured in every round ({counts}): drift between rounds is in their means"


def _doubts_of_trials(eligible: Sequence[ArmAtK], baselines: Sequence[ArmAtK]) -> Iterator[str]:
    """What the trials behind the numbers say against themselves."""
    for arm in eligible:
        for reason in sorted(arm.full_share_reasons - {NO_GRAPHS}):
            yield f"K={arm.k}: the share of FULL graphs is not known ({reason})"
    for arm in (*eligible, *baselines):
        if arm.failures:
            which = f", {len(arm.failures)} of {len(arm.failures) + arm.n_ok} trials" if arm.n_ok else ""
            yield f"{arm.label}{which} left out: {arm.why_failed}"
        for warning in sorted(arm.warnings):
            yield f"{arm.label}: {warning}"
