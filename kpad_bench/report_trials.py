"""What a report says of trials one by one or by server: reading, mechanism, failures, sentinels, runs.

Rows in, plain values out. Chooses no K, draws nothing. Imported by ``report_data`` alone: pandas is slow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from kpad_bench.arrow import is_run
from kpad_bench.contrasts import mean, variance
from kpad_bench.csvrows import NO_SPECULATION
from kpad_bench.errors import DataError
from kpad_bench.pooling import COLUMNS as POOLED
from kpad_bench.pooling import plain_rows
from kpad_bench.reduce import load_rows
from kpad_bench.schema import OK, TRIALS

#: Facts of a run that a reader needs to believe it, in the order in which they are shown.
RUN_FACTS = (
    *("host", "gpu_name", "gpu_count", "driver", "cpu_model", "vllm_version", "torch_version"),
    *("cuda_version", "arctic_version", "kpad_bench_version", "git_commit", "schema_version"),
)
#: What explains a throughput, averaged over ok trials; a report shows those that some trial knows.
MEASURES = (
    *("output_tok_per_s", "full_share_decode", "full_share_time", "acceptance_length", "step_time_mean"),
    *("mean_batch", "steady_output_tok_per_s", "steady_share", "tail_share"),
)
_MORE = {*RUN_FACTS, *MEASURES, "pad_tokens", "draft_tokens", "started_at", "detail"}
#: The columns of the trials table that a report is made from.
COLUMNS = tuple(column for column in TRIALS if column in POOLED or column.name in _MORE)
#: Points of a sentinel that are drawn one by one; more are averaged by run.
MOST_POINTS = 200


class At(NamedTuple):
    """One arm at one K on one model and corpus."""

    model: str
    corpus: str
    arm: str
    k: int  # 0: no speculation

    @property
    def label(self) -> str:
        """The arm as the command line writes it."""
        return f"{self.arm}@{self.k}" if self.k else self.arm


class Mechanism(NamedTuple):
    """Means over the ok trials of one arm at one K; None is not measured."""

    at: At
    n_ok: int
    means: dict[str, float | None]
    #: pad_tokens / draft_tokens over all of them.
    pad_share: float | None

    @property
    def steady_over_whole(self) -> float | None:
        """Throughput of the steady window over that of the whole pass."""
        steady, whole = self.means["steady_output_tok_per_s"], self.means["output_tok_per_s"]
        return steady / whole if steady and whole else None


class Failure(NamedTuple):
    """Trials of one arm at one K that do not count for one reason."""

    at: At
    status: str
    reason: str
    n: int
    #: Trials there are of that arm and K, good ones too.
    n_all: int
    detail: str


class Sentinel(NamedTuple):
    """One cell that was repeated to compare times: (when, tok/s) in order, and how much it varies."""

    at: At
    #: Time in seconds since 1970, or the place in order where no trial says when; throughput.
    points: list[tuple[float, float]]
    has_times: bool
    #: Whether a point is the mean of a run.
    by_run: bool
    cv_pct: float | None
    #: The last third over the first, percent.
    drift_pct: float | None


class Loaded(NamedTuple):
    """Trials, and what could not be read."""

    rows: pd.DataFrame
    problems: list[str]


def load(paths: Sequence[Path]) -> Loaded:
    """The trials under the paths; a run that cannot be read is left out and named.

    Raises UsageError for a path that is not there or holds no run, DataError where nothing could be read.
    """
    try:
        return Loaded(load_rows(paths, COLUMNS), [])
    except DataError as error:
        whole = error
    good, problems = [], []
    for path in _one_by_one(paths):
        try:
            load_rows(path, COLUMNS)
        except DataError as error:
            problems.append(str(error))
        else:
            good.append(path)
    if not good or not problems:
        raise whole
    return Loaded(load_rows(good, COLUMNS), problems)


def _one_by_one(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        is_sweep = path.is_dir() and not is_run(path)
        found += sorted(run for run in path.iterdir() if is_run(run)) if is_sweep else [path]
    return found


def normal(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the defaults that a CSV leaves out: K 0 without speculation, ok, no sentinel."""
    frame = rows.copy(deep=False)
    frame.attrs = {}
    frame["is_sentinel"] = rows["is_sentinel"].astype("boolean").fillna(value=False).astype(bool)
    frame["status"] = _filled(rows["status"], OK)
    frame["arm"] = _filled(rows["arm"], "kpad")
    is_bare = frame["arm"].isin(NO_SPECULATION)
    frame["k"] = rows["k"].astype("Int64").mask(is_bare, 0).fillna(0).astype("int64")
    frame["is_ok"] = (frame["status"] == OK) & rows["output_tok_per_s"].notna()
    return frame


def _filled(column: pd.Series[Any], value: str) -> pd.Series[Any]:
    if isinstance(column.dtype, pd.CategoricalDtype) and value not in column.cat.categories:
        column = column.cat.add_categories([value])
    return column.fillna(value)


_AT = ["model", "corpus", "arm", "k"]


def mechanisms(frame: pd.DataFrame) -> list[Mechanism]:
    """What explains the throughput of every arm at every K, sorted."""
    ok = frame[frame["is_ok"] & ~frame["is_sentinel"]]
    groups = ok.groupby(_AT, observed=True, sort=False)
    means = groups[list(MEASURES)].mean().assign(n_ok=groups.size())
    has_both = ok["pad_tokens"].notna() & ok["draft_tokens"].notna()
    sums = ok[has_both].groupby(_AT, observed=True)[["pad_tokens", "draft_tokens"]].sum()
    sums = sums[sums["draft_tokens"] > 0].astype("float64")
    shares = dict(zip(sums.index, (sums["pad_tokens"] / sums["draft_tokens"]).tolist(), strict=True))
    found = []
    for row in plain_rows(means.reset_index()):
        at = _at(row)
        found.append(
            Mechanism(at, row["n_ok"], {name: row[name] for name in MEASURES}, shares.get(tuple(at)))
        )
    return sorted(found)


def failures(frame: pd.DataFrame) -> list[Failure]:
    """Every reason for which trials do not count, the most frequent first."""
    bad = frame[~frame["is_ok"]]
    if bad.empty:
        return []
    n_all = frame.groupby(_AT, observed=True).size()
    plain = pd.DataFrame({name: bad[name].astype("object") for name in (*_AT, "status", "reason", "detail")})
    plain["reason"] = plain["reason"].where(plain["reason"].notna(), "no reason stated")
    found = []
    for keys, mine in plain.groupby([*_AT, "status", "reason"], sort=False):
        at = _place(keys)
        details = mine["detail"].dropna()
        shown = str(details.iloc[-1]) if len(details) else ""
        found.append(Failure(at, str(keys[4]), str(keys[5]), len(mine), int(n_all[tuple(at)]), shown))
    return sorted(found, key=lambda one: (-one.n, one))


def sentinels(frame: pd.DataFrame) -> list[Sentinel]:
    """The cells that were repeated through the night, in order of time."""
    found = []
    mine = frame[frame["is_sentinel"] & frame["is_ok"]]
    for keys, rows in mine.groupby(_AT, observed=True):
        has_times = bool(rows["started_at"].notna().all())
        ordered = rows.sort_values("started_at" if has_times else "round")
        times = ordered["started_at"].astype("int64") / 1e6 if has_times else pd.Series(range(len(ordered)))
        series = pd.DataFrame(
            {"time": times.to_numpy(float), "speed": ordered["output_tok_per_s"].to_numpy(float)}
        )
        by_run = len(series) > MOST_POINTS
        if by_run:
            run = ordered["run_id"].astype("object").to_numpy()
            series = series.groupby(run, sort=False).mean()
        points = list(zip(series["time"].tolist(), series["speed"].tolist(), strict=True))
        speeds = [speed for _, speed in points]
        found.append(Sentinel(_place(keys), points, has_times, by_run, *_varies(speeds)))
    return found


def _varies(speeds: Sequence[float]) -> tuple[float | None, float | None]:
    if len(speeds) < 2:
        return None, None
    third = max(1, len(speeds) // 3)
    drift = 100 * (mean(speeds[-third:]) / mean(speeds[:third]) - 1)
    return 100 * variance(speeds) ** 0.5 / mean(speeds), drift


def runs(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Every run, the newest first: when, how many trials, and the facts of ``RUN_FACTS`` (several: all)."""
    groups = frame.groupby(["sweep", "run_id"], observed=True, dropna=False)
    number = groups.ngroup()
    facts = {name: _values(number, frame[name]) for name in RUN_FACTS}
    sums = groups.agg(started=("started_at", "min"), trials=("is_ok", "size"), ok=("is_ok", "sum"))
    found = []
    for i, ((sweep, run_id), first, trials, ok) in enumerate(sums.itertuples()):
        row: dict[str, Any] = {
            "sweep": _text(sweep),
            "run_id": _text(run_id),
            "started": None if pd.isna(first) else f"{first:%Y-%m-%d %H:%M} UTC",
            "trials": int(trials),
            "ok": int(ok),
        }
        found.append(row | {name: ", ".join(values.get(i, ())) or None for name, values in facts.items()})
    return sorted(found, key=lambda row: (row["started"] or "", row["run_id"] or ""), reverse=True)


def _values(number: pd.Series[int], column: pd.Series[Any]) -> dict[int, list[str]]:
    """Number of a run -> the distinct values of a column in it, sorted."""
    pairs = pd.DataFrame({"run": number, "value": column}).drop_duplicates().dropna()
    found: dict[int, list[str]] = {}
    for run, value in sorted(zip(pairs["run"].tolist(), map(str, pairs["value"]), strict=True)):
        found.setdefault(run, []).append(value)
    return found


def _text(value: Any) -> str | None:
    return None if pd.isna(value) or value == "" else str(value)


def _place(keys: Sequence[Any]) -> At:
    return At(str(keys[0]), str(keys[1]), str(keys[2]), int(keys[3]))


def _at(row: Mapping[str, Any]) -> At:
    return At(str(row["model"]), str(row["corpus"]), str(row["arm"]), int(row["k"]))


def without(frame: pd.DataFrame, cells: Collection[tuple[str, str]]) -> pd.DataFrame:
    """The rows without those of some (model, corpus)."""
    if not cells:
        return frame
    keys = pd.MultiIndex.from_arrays([frame["model"].astype("object"), frame["corpus"].astype("object")])
    kept = frame[~keys.isin(list(cells))]
    kept.attrs = frame.attrs
    return kept
