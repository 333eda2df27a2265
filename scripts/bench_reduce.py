#!/usr/bin/env python3
"""What `kpad-bench reduce` costs: synthetic runs in the real layout, reduced by a whole process.

    python scripts/bench_reduce.py [--runs 365] [--parts 1000,4000] [--keep DIR]

Makes a results folder of compacted runs with every column of the trials table (2,740 trials each: a year
of nights is 1,000,100 rows), then smaller ones of one part per trial, in a temporary folder; times the
command on each and reads its peak resident memory from the kernel. Needs neither vLLM nor a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kpad_bench import arrow
from kpad_bench.schema import SCHEMA_VERSION, TRIALS, Column

MODELS = [f"org/model-{i}" for i in range(11)]
CORPORA = ["sharegpt", "wildchat", "lmsys", "humaneval", "mbpp", "swebench", "mix"]
ARMS = [("van", 0), ("van-v1", 0), ("suf", 32), ("suf", 12), *(("kpad", k) for k in (4, 6, 8, 12))]
ARMS += [("kfill", k) for k in (4, 6, 8, 12)]
TRIALS_A_RUN = 2740  # 77 cells x 12 arms at K x 3 rounds, less a cell whose server did not boot
BYTES_A_KB = 1024


class Cost(NamedTuple):
    """One whole process: wall seconds, CPU seconds, peak resident memory in MB, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    out: str


def run_rows(night: int, n_trials: int = TRIALS_A_RUN) -> pa.Table:
    """The trials of one night: every column of the table, throughputs with night, round and K effects."""
    source = np.random.default_rng(night)
    grid = np.array(
        [(m, c, a, r) for r in (1, 2, 3) for m in range(11) for c in range(7) for a in range(len(ARMS))]
    )[:n_trials]
    model, corpus, arm, round_ = grid.T
    gain = np.array([1.0, 1.01, 1.9, 2.0, 2.3, 2.4, 2.38, 2.2, 2.25, 2.3, 2.35, 2.1])[arm]
    noise = source.normal(0, 0.01, len(grid)) + source.normal(0, 0.01) + round_ * 0.001
    speed = 1000 * (1 + model) * (1 + corpus / 10) * gain * np.exp(noise)
    failed = source.random(len(grid)) < 0.01
    names = [ARMS[a][0] for a in arm]
    k = np.array([ARMS[a][1] for a in arm])
    cell = [
        f"model-{m}.{CORPORA[c]}.{name}@{n}.0123456789"
        for m, c, name, n in zip(model, corpus, names, k, strict=True)
    ]
    given: dict[str, Any] = {
        "schema_version": np.full(len(grid), SCHEMA_VERSION),
        "sweep": ["nightly"] * len(grid),
        "run_id": [f"2026{night:04d}T010000Z"] * len(grid),
        "block_id": [f"r{r}.model-{m}" for r, m in zip(round_, model, strict=True)],
        "cell_id": cell,
        "trial_id": [f"{c}.r{r}.n1" for c, r in zip(cell, round_, strict=True)],
        "round": round_,
        "repeat": np.ones(len(grid), int),
        "is_sentinel": np.zeros(len(grid), bool),
        "model": [MODELS[m] for m in model],
        "corpus": [CORPORA[c] for c in corpus],
        "corpus_digest": [f"{c:064x}" for c in corpus],
        "arm": names,
        "k": pa.array(k, mask=k == 0),
        "design": ["adaptive(3..8)"] * len(grid),
        "cache_state": pa.array(["cold"] * len(grid), mask=k == 0),
        "status": np.where(failed, "failed", "ok"),
        "reason": pa.array(["capture_oom"] * len(grid), mask=~failed),
        "warnings": pa.array(
            [[f"{x:.2%} of steps replayed no graph"] if x < 0.02 else [] for x in source.random(len(grid))]
        ),
        "output_tok_per_s": pa.array(speed, mask=failed),
        "steady_output_tok_per_s": pa.array(speed * 1.02, mask=failed),
        "full_share": pa.array(0.93 + 0.05 * source.random(len(grid)), mask=failed),
        "full_share_decode": pa.array(np.where(k == 32, 0.0, 0.97), mask=failed),
        "full_share_reason": pa.nulls(len(grid), pa.string()),
        "acceptance_length": pa.array(1 + 3 * source.random(len(grid)), mask=failed),
        "step_time_mean": pa.array(0.004 + 0.001 * source.random(len(grid)), mask=failed),
        "gpu_name": ["NVIDIA B200"] * len(grid),
    }
    columns = [given.get(column.name, _filler(column, len(grid), source)) for column in TRIALS]
    schema = arrow.arrow_schema(TRIALS)
    return pa.table(
        [
            pa.array(c, f.type) if not isinstance(c, pa.Array) else c.cast(f.type)
            for c, f in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def _filler(column: Column, n: int, source: np.random.Generator) -> Any:
    """Values of the right kind for a column that does not matter here: constants, counts, measurements."""
    if column.kind == "str":
        return [f"{column.name} of this host"] * n
    if column.kind == "int":  # what describes the load or the host is one number, what was counted is many
        is_count = column.name.endswith("_tokens") and column.name != "max_tokens"
        return source.integers(1, 10**6, n) if is_count else np.full(n, 32)
    if column.kind == "float":
        return np.zeros(n) if column.name in ("temperature", "loop_share") else source.random(n)
    if column.kind == "bool":
        return np.zeros(n, bool)
    if column.kind == "time":
        return pa.array(np.arange(n) * 60_000_000, pa.timestamp("us", tz="UTC"))
    value = list(range(1, 13)) if column.kind == "ints" else [f"--flag-{i}=value {i}" for i in range(30)]
    return pa.array([value]).take(pa.array(np.zeros(n, int)))


def compacted(folder: Path, n_runs: int) -> int:
    """A sweep folder of compacted runs; number of trials."""
    n_rows = 0
    for night in range(1, n_runs + 1):
        run = folder / f"2026{night:04d}T010000Z"
        run.mkdir(parents=True)
        (run / arrow.MANIFEST).write_text("{}\n")
        table = run_rows(night)
        (run / "trials.parquet").write_bytes(arrow.to_bytes(table))
        n_rows += table.num_rows
    return n_rows


def in_parts(folder: Path, n_parts: int) -> int:
    """A sweep folder of runs that were never compacted: one file per trial; number of trials."""
    n_rows, night = 0, 0
    while n_rows < n_parts:
        night += 1
        parts = folder / f"2026{night:04d}T010000Z" / "trials"
        parts.mkdir(parents=True)
        table = run_rows(night, min(1000, n_parts - n_rows))
        for i in range(table.num_rows):
            row = table.slice(i, 1)
            (parts / f"{row['trial_id'][0]}.parquet").write_bytes(arrow.to_bytes(row))
        n_rows += table.num_rows
    return n_rows


def cost(folder: Path) -> Cost:
    """The command on a folder, as its own process."""
    argv = [sys.executable, "-m", "kpad_bench.cli", "reduce", str(folder), "--format", "csv"]
    start = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / BYTES_A_KB, out)


def main() -> None:
    """Make the folders, time the command on each, print one line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=365, help="compacted runs; 0 leaves them out")
    parser.add_argument("--parts", default="1000,4000", help="trials in one part each, like 1000,4000")
    parser.add_argument("--times", type=int, default=3, help="how often each is timed")
    parser.add_argument("--keep", type=Path, help="make the runs here, and use them again the next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        jobs: list[tuple[str, Callable[[Path, int], int], int]] = (
            [("compacted", compacted, options.runs)] if options.runs else []
        )
        jobs += [("parts", in_parts, int(n)) for n in options.parts.split(",") if n]
        for name, make, size in jobs:
            folder = root / f"{name}-{size}"
            if not folder.exists():
                make(folder, size)
            for _ in range(options.times):
                found = cost(folder)
                n_lines = found.out.count("\n") - 1
                print(
                    f"{folder.name}: {found.wall_s:.2f} s wall, {found.cpu_s:.2f} s CPU, "
                    f"{found.peak_mb:.0f} MB, {n_lines} best-K rows",
                    flush=True,
                )


if __name__ == "__main__":
    main()
