"""What is made of a night's rows: the best-K table over nights, the comparison, the report.

Writes them into the run's folder. What cannot be made is told, and never ends a night. Imported late:
pandas is slow to load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from kpad_bench import compare, compare_text
from kpad_bench.disk import as_host_error, write_whole
from kpad_bench.errors import DataError, UsageError
from kpad_bench.nightly_alike import Alike, Compared, compared, like_newest
from kpad_bench.pooling import plain_rows
from kpad_bench.reduce import best_k, load_rows, render
from kpad_bench.report import write_report
from kpad_bench.rounds import Place
from kpad_bench.schema import OK
from kpad_bench.store import RunFolder, find_runs

#: A comparison names what is slower by more than this, in percent.
REGRESSION_PCT = 3.0
ESTABLISHED_OVER_NIGHTS = "established over nights"
_TABLES = ("md", "csv", "json")
_SHOWN = ("best_k", "pick_k", "established", "tie_set")


@dataclass
class Results:
    """What a night's summary says of results."""

    files: list[str] = field(default_factory=list)
    #: How many nights the best-K table rests on, and what became of its rows.
    n_nights: int = 0
    n_rows: int = 0
    n_established: int = 0
    changes: list[str] = field(default_factory=list)
    comparisons: list[str] = field(default_factory=list)
    regressions: list[str] = field(default_factory=list)
    not_compared: dict[str, list[str]] = field(default_factory=dict)
    #: What is not pooled, and what could not be made.
    notes: list[str] = field(default_factory=list)


def settled_places(sweep_folder: Path, families: Collection[str]) -> dict[Place, str]:
    """Places whose best K is established over two nights or more, for every family of padded arms."""
    try:
        rows = like_newest(_rows(sweep_folder)).rows
        table = best_k(rows, candidates=_present(rows, families))
    except (UsageError, DataError):
        return {}
    found: dict[Place, bool] = {}
    for row in plain_rows(table[["model", "corpus", "established"]]):
        place = (row["model"], row["corpus"])
        found[place] = found.get(place, True) and bool(row["established"])
    ok = rows[rows["status"] == OK]
    n_nights = ok.groupby(["model", "corpus"], observed=True)["run_id"].nunique()
    return {
        place: ESTABLISHED_OVER_NIGHTS
        for place, is_established in found.items()
        if is_established and n_nights.get(place, 0) > 1
    }


def make_results(sweep_folder: Path, run: RunFolder, families: Sequence[str]) -> Results:
    """Reduce, compare and report, with a night as one value where several can be pooled."""
    results = Results()
    with _told(results, "results"):
        every = _rows(sweep_folder)
        alike = like_newest(every)
        results.notes += _not_pooled(alike)
        with _told(results, "best-K table"):
            _reduce(results, alike.rows, run, families)
        with _told(results, "comparison"):
            _compare(results, compared(every, alike.rows, run.run_id), run)
        with _told(results, "report"):
            _report(results, alike, run)
    return results


@contextmanager
def _told(results: Results, what: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, DataError) as error:
        results.notes.append(f"no {what}: {error}")


def _rows(sweep_folder: Path) -> pd.DataFrame:
    """The rows of every run of a sweep that can be read; the others are told in the notes."""
    try:
        return load_rows(sweep_folder, compare.COLUMNS)
    except DataError:
        readable, notes = list[Path](), list[str]()
        for run in find_runs(sweep_folder):
            try:
                load_rows(run.path, compare.COLUMNS)
            except DataError as error:
                notes.append(f"left out: {error}")
            else:
                readable.append(run.path)
        if not readable:
            raise
        rows = load_rows(readable, compare.COLUMNS)
        rows.attrs["notes"] = [*rows.attrs.get("notes", ()), *notes]
        return rows


def _reduce(results: Results, rows: pd.DataFrame, run: RunFolder, families: Sequence[str]) -> None:
    table = best_k(rows, candidates=_present(rows, families))
    for kind in _TABLES:
        data = render(table, kind)
        _write(results, run, f"best_k.{kind}", data if isinstance(data, bytes) else data.encode())
    records = _records(table)
    results.n_rows = len(records)
    results.n_established = sum(bool(row["established"]) for row in records.values())
    runs = rows["run_id"].astype("object")
    results.n_nights = runs.nunique()
    tonight = rows[(runs == run.run_id) & (rows["status"] == OK)]
    places = set(zip(tonight["model"].astype("object"), tonight["corpus"].astype("object"), strict=True))
    before = rows[runs < run.run_id]
    before.attrs = {}
    earlier = _before(before, families)
    results.changes += [
        text
        for key, row in records.items()
        if key[:2] in places and (text := _change(key, earlier.get(key), row)) is not None
    ]


def _before(rows: pd.DataFrame, families: Sequence[str]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The table as it was without tonight; empty where there was none."""
    try:
        return _records(best_k(rows, candidates=_present(rows, families)))
    except (UsageError, DataError):
        return {}


def _records(table: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = plain_rows(table[["model", "corpus", "arm", *_SHOWN]])
    return {(row["model"], row["corpus"], row["arm"]): row for row in rows}


def _change(key: tuple[str, str, str], old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str | None:
    """What tonight has done to one row of the table; None: nothing that a reader acts on."""
    now = _choice(new)
    if old is None:
        return f"{' '.join(key)}: {now} (new)"
    was = _choice(old)
    return None if was == now else f"{' '.join(key)}: {was} -> {now}"


def _choice(row: Mapping[str, Any]) -> str:
    if row["pick_k"] is None:
        return "no K eligible"
    tied = f", tied {','.join(map(str, row['tie_set']))}" if len(row["tie_set"]) > 1 else ""
    return f"K={row['pick_k']} ({'established' if row['established'] else 'not established'}{tied})"


def _compare(results: Results, found: Compared, run: RunFolder) -> None:
    results.not_compared = found.without
    texts = []
    for base, comparison in found.with_run:
        texts.append(f"# {base} -> {run.run_id}\n\n{compare_text.render(comparison, 'md')}")
        shift = comparison.nights.shift
        interval = "" if shift.low_pct is None else f" ({shift.low_pct:+.1f} to {shift.high_pct:+.1f})"
        results.comparisons.append(
            f"with {base}: {len(comparison.cells)} cells comparable; whole night {shift.pct:+.1f} %{interval}"
        )
        results.comparisons += [
            f"best K changed: {' '.join(family)} {best.base_k} -> {best.new_k}"
            for family, best in comparison.best_ks.items()
            if best.change == compare.SHOWN
        ]
        results.regressions += compare.regressions(comparison, REGRESSION_PCT)
    if texts:
        _write(results, run, "compare.md", "\n".join(texts).encode())


def _report(results: Results, alike: Alike, run: RunFolder) -> None:
    """The page of all that is pooled, or of tonight alone where some run holds what is not."""
    others = {run_id for run_id, _ in alike.others}
    names = [str(name) for name in alike.rows["run_id"].unique()]
    paths = [run.path] if others.intersection(names) else [run.path.parent / name for name in sorted(names)]
    write_report(paths, run.path / "report.html")
    results.files.append("report.html")


def _not_pooled(alike: Alike) -> list[str]:
    """One line for each reason: how many trials of how many runs stand apart."""
    by_why: dict[str, list[tuple[str, int]]] = {}
    for (run_id, why), n in alike.others.items():
        by_why.setdefault(why, []).append((run_id, n))
    return [
        f"{sum(n for _, n in found)} trials of {len(found)} earlier runs are not pooled, they differ in {why}"
        for why, found in sorted(by_why.items())
    ]


def _present(rows: pd.DataFrame, families: Collection[str]) -> list[str]:
    """The families with a trial, else all: then the error names what is missing."""
    arms = set(rows["arm"].dropna())
    return [family for family in families if family in arms] or list(families)


def _write(results: Results, run: RunFolder, name: str, data: bytes) -> None:
    with as_host_error(run.path):
        write_whole(run.path / name, data)
    results.files.append(name)
