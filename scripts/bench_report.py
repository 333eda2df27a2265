#!/usr/bin/env python3
"""What `kpad-bench report` costs: a full night and a year of nights, each by a whole process.

    python scripts/bench_report.py [--runs 365] [--times 3] [--keep DIR]

A full night is 462 cells (11 models, 7 corpora; van, suf and four Ks of kpad) in 6 rounds, with one sentinel
a block and one trial in a hundred failed; the year is that of bench_reduce.py, a million rows. Prints wall
and CPU seconds, peak resident memory and the size of the page; ends in 5 where a bound is missed. Needs
neither vLLM nor a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from bench_reduce import ARMS, BYTES_A_KB, MODELS, compacted, run_rows

from kpad_bench import arrow
from kpad_bench.errors import EXIT_CHECK_FAILED

ROUNDS = 6
#: Places in bench_reduce's list of van, suf@32 and kpad at four Ks.
NIGHT_ARMS = (0, 2, 4, 5, 6, 7)


class Bound(NamedTuple):
    """Most seconds of a whole process, and most megabytes of its page (0: none stated)."""

    wall_s: float
    page_mb: float


BOUNDS = {"night": Bound(5.0, 3.0), "year": Bound(30.0, 0.0)}


class Cost(NamedTuple):
    """One whole process."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    page_mb: float

    def is_within(self, bound: Bound) -> bool:
        """Whether time and page keep the bound."""
        return self.wall_s <= bound.wall_s and (not bound.page_mb or self.page_mb < bound.page_mb)


def night_rows() -> pa.Table:
    """The trials of a full night: 462 cells in six rounds, and 66 sentinels between its blocks."""
    halves = [_some_arms(run_rows(seed, 3 * len(MODELS) * 7 * len(ARMS))) for seed in (1, 2)]
    second = _with(halves[1], "round", pa.array([n + 3 for n in halves[1]["round"].to_pylist()], pa.int64()))
    second = _with(second, "run_id", halves[0]["run_id"])
    renamed = [f"{text}.second" for text in second["trial_id"].to_pylist()]
    trials = pa.concat_tables([halves[0], _with(second, "trial_id", pa.array(renamed))])
    return pa.concat_tables([trials, _sentinels(trials)])


def _some_arms(rows: pa.Table) -> pa.Table:
    kept = [i for i in range(rows.num_rows) if i % len(ARMS) in NIGHT_ARMS]
    return rows.take(pa.array(kept))


def _sentinels(trials: pa.Table) -> pa.Table:
    """One cell, measured ``ROUNDS`` x 11 times, a little slower every time."""
    n = ROUNDS * len(MODELS)
    rows = trials.take(pa.array([2] * n))
    rows = _with(rows, "is_sentinel", pa.array([True] * n))
    rows = _with(rows, "status", pa.array(["ok"] * n))
    rows = _with(rows, "trial_id", pa.array([f"sentinel.{i}" for i in range(n)]))
    speeds = 2000 * np.exp(np.random.default_rng(7).normal(0, 0.005, n) - np.arange(n) / 5000)
    rows = _with(rows, "output_tok_per_s", pa.array(speeds))
    times = pa.array(np.arange(n) * 3_600_000_000 // 7, pa.timestamp("us", tz="UTC"))
    return _with(rows, "started_at", times)


def _with(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(name), values.cast(rows.schema.field(name).type))


def night(folder: Path) -> int:
    """A run folder with a full night; number of trials."""
    folder.mkdir(parents=True)
    (folder / arrow.MANIFEST).write_text("{}\n")
    rows = night_rows()
    (folder / "trials.parquet").write_bytes(arrow.to_bytes(rows))
    return int(rows.num_rows)


def cost(folder: Path, out: Path) -> Cost:
    """The command on a folder, as its own process."""
    argv = [sys.executable, "-m", "kpad_bench.cli", "report", str(folder), "--out", str(out)]
    start = time.perf_counter()
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall_s, cpu_s, usage.ru_maxrss / BYTES_A_KB, out.stat().st_size / 1e6)


def main() -> int:
    """Make the folders, time the command on each, print one line for each; 5 where a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=365, help="runs of the year; 0 leaves it out")
    parser.add_argument("--times", type=int, default=3, help="how often each is timed")
    parser.add_argument("--keep", type=Path, help="make the runs here, and use them again the next time")
    options = parser.parse_args()
    is_within = True
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        folders = {"night": root / "night"}
        if not folders["night"].exists():
            night(folders["night"])
        if options.runs:
            folders["year"] = root / f"compacted-{options.runs}"
            if not folders["year"].exists():
                compacted(folders["year"], options.runs)
        for name, folder in folders.items():
            for _ in range(options.times):
                found = cost(folder, Path(temporary) / f"{name}.html")
                is_within = is_within and found.is_within(BOUNDS[name])
                print(
                    f"{name}: {found.wall_s:.2f} s wall, {found.cpu_s:.2f} s CPU, {found.peak_mb:.0f} MB, "
                    f"page {found.page_mb:.2f} MB",
                    flush=True,
                )
    return 0 if is_within else EXIT_CHECK_FAILED


if __name__ == "__main__":
    sys.exit(main())
