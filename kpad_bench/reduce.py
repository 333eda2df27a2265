"""Trial rows to a best-K table: one row for each (model, corpus, family of arms).

DataFrame in, DataFrame out. Doubts travel in ``DataFrame.attrs["notes"]`` and become footnotes. Knows no
servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kpad_bench import stats, tables
from kpad_bench.bestrow import BASELINES, STEP_BASELINE, SUF, VAN, best_row
from kpad_bench.blocks import Cell, Night
from kpad_bench.critical import LEVEL
from kpad_bench.pooling import COLUMNS, each_once, plain_rows, pool
from kpad_bench.remarks import remarks
from kpad_bench.rows import PLACE, read_rows
from kpad_bench.schema import BEST_K, Column, names
from kpad_bench.stats import Gain
from kpad_bench.storage import place
from kpad_bench.tables import Note

_DTYPES = {"int": "Int64", "float": "float64", "bool": "bool"}
#: Between the warnings of one trial while they are one text: a character that no text holds.
_BETWEEN = "\x1e"


def load_rows(paths: Iterable[Path | str] | Path | str, columns: Sequence[Column] = COLUMNS) -> pd.DataFrame:
    """Trials from run folders, sweep folders, Parquet files and long CSVs: one row each, none twice.

    ``columns`` of the trials table are read, by default those of a best-K table, which have to be among them.
    Text is categorical, the warnings of a row are a tuple. A file without run ids is a run of its own.
    Raises UsageError or DataError, naming file, line, column and value, for what cannot be read, and for
    a trial that two files tell differently.
    """
    given = [paths] if isinstance(paths, str) or not isinstance(paths, Iterable) else list(paths)
    read = read_rows([place(path) for path in given], columns)
    frame, repeated = each_once(_frame(read.table))
    unnamed = frame["run_id"].isna()
    if unnamed.any():
        files = frame[PLACE].astype("object").str.rsplit(", line ", n=1).str[0]
        frame["run_id"] = frame["run_id"].astype("object").mask(unnamed, files).astype("category")
    frame.attrs["notes"] = [*read.notes, *repeated]
    return frame


def _frame(table: pa.Table) -> pd.DataFrame:
    place = table.schema.get_field_index("warnings")
    texts = pc.binary_join(table["warnings"], _BETWEEN)
    table = table.set_column(
        place, "warnings", pc.if_else(pc.equal(texts, ""), None, texts).dictionary_encode()
    )
    types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=types.get, split_blocks=True)
    warnings = frame["warnings"].cat
    each = pd.Index([tuple(text.split(_BETWEEN)) for text in warnings.categories], tupleize_cols=False)
    frame["warnings"] = pd.Categorical.from_codes(warnings.codes, categories=each)
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
    cells = pool(rows, candidates, (*BASELINES, STEP_BASELINE), allow_mixed)
    nights = {family: _nights(cells.values(), family) for family in candidates}
    records: list[dict[str, Any]] = []
    notes: dict[str, list[list[str]]] = {text: [] for text in rows.attrs.get("notes", ())}
    for (model, corpus), cell in cells.items():
        for family in sorted({arm.name for arm in cell.arms}.intersection(candidates)):
            row = best_row(cell, family)
            records.append({**row.record, "model": model, "corpus": corpus, "arm": family})
            for text in dict.fromkeys(remarks(row, family, nights[family])):
                notes.setdefault(text, []).append([model, corpus, family])
    for record, q_value in zip(records, stats.q_values([r["p_value"] for r in records]), strict=True):
        record["q_value"] = q_value
    if any(record["step_time_ratio"] is not None for record in records):
        notes[f"step_time_ratio (R) is the mean step time of best_k over that of {STEP_BASELINE}"] = []
    columns = {
        c.name: pd.Series([record[c.name] for record in records], dtype=_DTYPES.get(c.kind, "object"))
        for c in BEST_K
    }
    frame = pd.DataFrame(columns)
    frame.attrs["notes"] = [{"text": text, "cells": about} for text, about in notes.items()]
    return frame


def _nights(cells: Iterable[Cell], family: str) -> set[Night]:
    """The nights in which a family was measured, on whatever model and corpus."""
    return {
        cell.nights[night]
        for cell in cells
        for arm in cell.arms
        if arm.name == family
        for night in cell.nights_in(arm.has)
    }


class Wins(NamedTuple):
    """In how many cells a family beats the better of van and suf, of those where all three are there."""

    n_won: int
    n_cells: int
    #: Cells in which both gains have an interval above zero; None where no cell has intervals.
    n_shown: int | None


def wins(rows: Sequence[Mapping[str, Any]], family: str) -> Wins:
    """Count the rows of a best-K table in which a family wins."""
    mine = [row for row in rows if row["arm"] == family]
    gains = [gain for row in mine if (gain := over_better(row))]
    least = [pair for row in mine if None not in (pair := (row["vs_van_low_pct"], row["vs_suf_low_pct"]))]
    n_shown = sum(min(pair) > 0 for pair in least) if least else None
    return Wins(sum(gain.pct > 0 for gain in gains), len(gains), n_shown)


def over_better(row: Mapping[str, Any]) -> Gain | None:
    """The gain of a row of a best-K table over the better of van and suf; None where one is missing."""
    gains = [Gain(*(row[f"vs_{base}_{end}"] for end in ("pct", "low_pct", "high_pct"))) for base in BASELINES]
    return None if any(gain.pct is None for gain in gains) else min(gains, key=lambda gain: gain.pct)


def render(table: pd.DataFrame, output_format: str = "table") -> str | bytes:
    """A best-K table as table, md, csv, json (str) or parquet (bytes)."""
    notes, rows = _notes(table), _rows(table)
    return tables.render(rows, _summary(rows), notes, output_format)


def footnotes(table: pd.DataFrame) -> list[str]:
    """The doubts about a best-K table, numbered: for stderr where the format is exactly the data."""
    return tables.numbered(_notes(table))


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What holds for the whole table: how often padding pays, and how many claims may be wrong."""
    return [
        *(text for family in sorted({row["arm"] for row in rows}) for text in _headline(rows, family)),
        *_expectation(sum(row["tie_basis"] == stats.MEASURED for row in rows)),
    ]


def _headline(rows: Sequence[Mapping[str, Any]], family: str) -> Iterator[str]:
    found = wins(rows, family)
    if found.n_cells:
        sure = (
            ""
            if found.n_shown is None
            else f" In {found.n_shown} of them both gains have an interval above zero."
        )
        yield (
            f"{family} beats the better of {VAN} and {SUF} in {found.n_won} of {found.n_cells} cells: those "
            f"where all three were measured.{sure}"
        )


def _expectation(n_measured: int) -> Iterator[str]:
    if n_measured:
        false = LEVEL * n_measured
        yield (
            f"A measured cell is decided at {100 * LEVEL:g} %: expect about {false:.2g} falsely established "
            f"among {n_measured} if all of them were exact ties, {false / 5:.2g} if a fifth were."
        )


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    bare = table.copy(deep=False)
    bare.attrs = {}  # pandas copies them deeply, again and again
    return plain_rows(bare[list(names(BEST_K))])


def _notes(table: pd.DataFrame) -> list[Note]:
    rows = list(zip(table["model"], table["corpus"], table["arm"], strict=True))
    notes = []
    for note in table.attrs.get("notes", ()):
        about = [tuple(cell) for cell in note["cells"]]
        positions = tuple(i for i, row in enumerate(rows) if row in about)
        if positions or not about:  # a row may have been filtered out since
            notes.append(Note(note["text"], positions))
    return notes
