"""What older nights give up so that the disk lasts: logs, snapshots and request rows, never a trial's row.

Decisions pool nights, so ``trials.parquet``, the manifest and all that was made from them stay for ever.
Only nights of one sweep are looked at. Interrupted at any moment, the next call finishes what was begun.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kpad_bench import arrow
from kpad_bench.errors import DataError, HostError
from kpad_bench.schema import OK, TRIALS
from kpad_bench.store import RunFolder, find_runs

#: What goes, in this order. Rows that name a request find none; everything else finds what it needs.
BULKY = ("logs", "raw", "requests", "requests.parquet")
#: Under this name a thing is on its way out: never taken for the whole of it.
_GOING = ".thinned."
_COLUMNS = tuple(column for column in TRIALS if column.name in {"trial_id", "cell_id", "status"})


class Thinned(NamedTuple):
    """Runs that gave up their bulk now, the bytes freed, and runs that keep theirs, with the reason."""

    run_ids: list[str]
    n_bytes: int
    kept: dict[str, str]


def thin(sweep_folder: Path, keep: int) -> Thinned:
    """Take the bulk of every night of a sweep but the newest ``keep``.

    A night that alone holds a cell's good trials among those with their bulk keeps it, and so does one that
    somebody works on. Runs that were no nights are left alone.
    """
    nights = [run for run in find_runs(sweep_folder) if _is_night(run)]
    young, old = (nights[-keep:], nights[:-keep]) if keep else ([], nights)
    full = [run for run in old if any(_there(run.path))]
    seen = set[str]().union(*(_cells(run) or () for run in young if full))
    done, n_bytes = Thinned([], 0, {}), 0
    for run in reversed(full):
        if why := _why_kept(run, seen):
            done.kept[run.run_id] = why
            continue
        try:
            with run.lock():
                n_bytes += _take_bulk(run.path)
        except HostError as error:
            done.kept[run.run_id] = str(error)
        else:
            done.run_ids.append(run.run_id)
    return done._replace(run_ids=done.run_ids[::-1], n_bytes=n_bytes)


def _why_kept(run: RunFolder, seen: set[str]) -> str | None:
    """Why a night keeps its bulk; its cells are then among those ``seen``. One that was begun on does not."""
    cells = _cells(run)
    if cells is None:
        return "its rows cannot be read"
    only = sorted(cells - seen)
    if not only or any(run.path.glob(f"{_GOING}*")):
        return None
    seen |= cells
    return f"no later night has {_some(only)}"


def _is_night(run: RunFolder) -> bool:
    with suppress(DataError):
        return run.read_manifest().get("night") is not None
    return False


def _cells(run: RunFolder) -> set[str] | None:
    """Cells with a good trial; None where the rows cannot be read."""
    try:
        table, problems = arrow.run_table(run.path, "trials", _COLUMNS)
    except DataError:
        return None
    if problems:
        return None
    return {row["cell_id"] for row in table.to_pylist() if row["status"] == OK and row["cell_id"]}


def _there(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f"{_GOING}*")
    yield from (folder / name for name in BULKY if (folder / name).exists())


def _take_bulk(folder: Path) -> int:
    """Rename first, then remove: a kill leaves whole things, or things under a name that says so."""
    n_bytes = 0
    for path in list(_there(folder)):
        going = path if path.name.startswith(_GOING) else path.with_name(f"{_GOING}{path.name}")
        if going != path:
            if going.exists():  # of an earlier night's interrupted go
                n_bytes += _remove(going)
            os.replace(path, going)
        n_bytes += _remove(going)
    return n_bytes


def _remove(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    n_bytes = sum(one.lstat().st_size for one in files)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    return n_bytes


def _some(cells: Sequence[str]) -> str:
    return cells[0] if len(cells) == 1 else f"{cells[0]} and {len(cells) - 1} more"
