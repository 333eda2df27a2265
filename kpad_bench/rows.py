"""Trial rows from wherever they lie: runs, sweeps, Parquet files, long CSVs; each trial once.

Finds and reads files. What the rows mean, and which of them may be pooled, is not decided here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from kpad_bench import arrow, foreign, storage
from kpad_bench.csvrows import read_long_csv
from kpad_bench.errors import DataError, UsageError
from kpad_bench.schema import Column

#: The column that says where a row was read.
PLACE = "place"
_N_NAMED = 4
_N_THREADS = 4  # decoding is Arrow's, and lets other threads run


class Rows(NamedTuple):
    """Trial rows as an Arrow table (the columns asked for, and ``place``; text as dictionaries), and doubts
    about the reading."""

    table: pa.Table
    notes: list[str]


def read_rows(paths: Iterable[Path], columns: Sequence[Column]) -> Rows:
    """These columns of every trial under the paths.

    A path is a run folder, a sweep folder (all its runs), a Parquet file of trials, what ``vllm bench sweep``
    left (``foreign``), or else a long CSV.
    Raises UsageError for a path that holds none of these, DataError for a file that is not what it must be.
    """
    # Arrow's own allocator spends a second in the kernel on a year of nights (two-core virtual machine,
    # 2026-12-01: 1.6 s of system time against 0.5 s).
    pa.set_memory_pool(pa.system_memory_pool())
    tables: list[pa.Table] = []
    notes: list[str] = []
    for path in paths:
        for read in _read(path, columns, notes):
            tables.append(read)
    if not tables or not sum(table.num_rows for table in tables):
        raise DataError(f"{', '.join(map(str, paths)) or 'no path'}: no trials there yet")
    return Rows(pa.concat_tables(tables).unify_dictionaries(), notes)


def _read(path: Path, columns: Sequence[Column], notes: list[str]) -> Iterator[pa.Table]:
    with storage.as_storage_error(path) if storage.is_remote(path) else nullcontext():
        is_there, is_folder = path.exists(), path.is_dir()
    if not is_there:
        raise UsageError(f"{path}: no such file or folder")
    if _is_foreign(path, is_folder):
        summaries = foreign.read_summaries(path, columns)
        notes += summaries.notes
        yield _of_files(summaries.rows, summaries.places, columns)
    elif is_folder:
        runs = _runs(path, notes)
        with ThreadPoolExecutor(min(_N_THREADS, os.cpu_count() or 1)) as pool:
            read = pool.map(lambda run: arrow.run_table(run, "trials", columns, is_encoded=True), runs)
            for run, (table, problems) in zip(runs, read, strict=True):
                notes += [f"left out: {problem}" for problem in problems]
                yield _placed(table, [str(run)], pa.repeat(0, table.num_rows))
    elif path.suffix == ".parquet":
        table = arrow.read_table(path, columns, is_encoded=True)
        yield _placed(table, [str(path)], pa.repeat(0, table.num_rows))
    else:
        found = read_long_csv(path, columns)
        notes += [f"{path}: column {', '.join(found.unread)} not read"] if found.unread else []
        yield _of_files(found.rows, found.places, columns)


def _of_files(rows: Sequence[Mapping[str, Any]], places: list[str], columns: Sequence[Column]) -> pa.Table:
    table = arrow.encoded(arrow.to_table(rows, columns), columns)
    return _placed(table, places, pa.array(range(table.num_rows)))


def _is_foreign(path: Path, is_folder: bool) -> bool:
    """Whether another tool wrote it; a folder with a run of this one in it is this one's."""
    if storage.is_remote(path) or not foreign.is_summary(path):
        return False
    return not is_folder or not any(arrow.is_run(folder) for folder in (path, *path.iterdir()))


def _runs(folder: Path, notes: list[str]) -> list[Path]:
    """The folder itself where it is a run, else the runs in it."""
    if arrow.is_run(folder):
        return [folder]
    runs = sorted(path for path in folder.iterdir() if arrow.is_run(path))
    if not runs:
        below = sorted({str(path.parent.parent) for path in folder.glob(f"*/*/{arrow.MANIFEST}")})
        hint = f"; name one of {', '.join(below)}" if below else ""
        raise UsageError(f"{folder}: no run in it (a run holds {arrow.MANIFEST} or trials/){hint}")
    if len(runs) > 1:
        named = [path.name for path in runs]
        shown = named if len(named) <= _N_NAMED else [named[0], "...", named[-1]]
        notes.append(f"{folder}: {len(runs)} runs read: {', '.join(shown)}")
    return runs


def _placed(table: pa.Table, places: list[str], place_of: pa.Array) -> pa.Table:
    """With a column that says which of these places each row is from."""
    shown = [place.encode("utf-8", "replace").decode() for place in places]  # a path may be no UTF-8
    column = pa.DictionaryArray.from_arrays(place_of.cast(pa.int32()), pa.array(shown, pa.string()))
    return table.append_column(PLACE, column)
