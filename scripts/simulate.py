#!/usr/bin/env python3
"""How often the decision on K is right, by simulating cells whose truth is known; exit 5 if a promise breaks.

    python scripts/simulate.py [--seed 1] [--cells 4000] [--quick] [--leads FILE] [--processes 2]

Every figure comes from ``kpad_bench.stats.decide`` itself. Noise is the analysis model (normal, a drift of
each round of its own) and what it is not: drift from trial to trial that remembers, boots that fail to reach
their speed, heavy tails, Ks of unequal noise, missing trials. ``--leads`` is a long CSV with
model,corpus,k,output_tok_per_s whose cells are taken for the truth of the last table; without it, the mean
deficits of eleven groups of cells of a published K sweep are.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from simulate_cells import (
    DEFICITS_PCT,
    DRIFT,
    NOISES,
    TRUTHS,
    Array,
    Noise,
    normal,
    tied_noisier,
)
from simulate_measures import AT_LEAST_95, AT_MOST_5, MEASURES, Measure, Promise, established

from kpad_bench.stats import Decision, Design, decide

ADAPTIVE = Design(3, 8)
FIXED = (2, 3, 6, 8)
ANY, STOPPED = "any look", str(ADAPTIVE)


Counts = Counter[tuple[str, ...]]


def as_rounds(logs: Array, ks: Sequence[int]) -> list[dict[int, float]]:
    """Logarithms, NaN for a missing trial, as ``decide`` takes them."""
    return [
        {k: math.exp(value) for k, value in zip(ks, row, strict=True) if not math.isnan(value)}
        for row in logs.tolist()
    ]


def looks_at(rounds: Sequence[dict[int, float]], design: Design) -> list[Decision]:
    """The decisions after each round from the second on; of a fixed design, the one decision there is."""
    if not design.is_adaptive:
        return [decide(rounds, design)]
    return [decide(rounds[:n], design) for n in range(2, design.most + 1)]


def count_cells(noise: Noise, truth: str, n_cells: int, seed: Sequence[int]) -> Counts:
    """Hits and cells of every measure of one truth, by column."""
    rng, counts = np.random.default_rng(seed), Counts()
    ks = (4, 6, 8, 12)
    logs = dict(zip(ks, TRUTHS[truth], strict=True))
    for _ in range(n_cells):
        rounds = as_rounds(np.asarray(TRUTHS[truth]) + noise(rng, ADAPTIVE.most, len(ks)), ks)
        looks = looks_at(rounds, ADAPTIVE)
        columns = {str(n): [decide(rounds[:n])] for n in FIXED}
        columns |= {STOPPED: [next(d for d in looks if d.stop)], ANY: looks}
        for measure in MEASURES:
            for column, decisions in columns.items() if measure.truth == truth else ():
                found = measure.of(decisions, logs)
                if found is not None:
                    counts[noise.__name__, measure.name, truth, column, "n"] += 1
                    counts[noise.__name__, measure.name, truth, column, "hits"] += found
    return counts


def count_looks(noise: Noise, n_ks: int, design: Design, n_cells: int, seed: Sequence[int]) -> Counts:
    """Two exactly tied Ks with the others far below, established at any look of ``design``."""
    rng, counts = np.random.default_rng(seed), Counts()
    truth = np.where(np.arange(n_ks) < 2, 0.0, -0.2)
    for _ in range(n_cells):
        rounds = as_rounds(truth + noise(rng, design.most, n_ks), range(1, n_ks + 1))
        name = (noise.__name__, f"{n_ks} Ks", str(design))
        counts[*name, "n"] += 1
        counts[*name, "hits"] += any(d.is_established for d in looks_at(rounds, design))
    return counts


def count_agreement(
    truths: Sequence[dict[int, float]], cv: float, n_times: int, seed: Sequence[int]
) -> Counts:
    """Adaptive rounds against the eight fixed ones of which they saw the first."""
    rng, counts = np.random.default_rng(seed), Counts()
    for truth in [truth for truth in truths for _ in range(n_times)]:
        logs = np.log(list(truth.values()))
        noise = DRIFT * rng.standard_normal((8, 1)) + cv * rng.standard_normal((8, len(truth)))
        rounds = as_rounds(logs + noise, tuple(truth))
        fixed = decide(rounds)
        stopped = next(d for d in (decide(rounds[:n], ADAPTIVE) for n in range(3, 9)) if d.stop)
        same = stopped.is_established == fixed.is_established
        both = stopped.is_established and fixed.is_established
        found = {
            "n": 1,
            "rounds": stopped.n_rounds,
            SAME[0]: same,
            SAME[1]: same and stopped.best_k == fixed.best_k,
            SAME[2]: same and stopped.pick_k == fixed.pick_k,
            DIFFERENT: both and stopped.best_k != fixed.best_k,
        }
        counts.update({(f"{cv}", name): int(value) for name, value in found.items()})
    return counts


#: (noise, Ks, design, what is promised of it): other numbers of Ks and rounds, and what breaks the guard.
LOOKS: tuple[tuple[Noise, int, Design, Promise | None], ...] = (
    (normal, 2, Design(3, 8), AT_MOST_5),
    (normal, 3, Design(3, 8), AT_MOST_5),
    (normal, 6, Design(3, 8), AT_MOST_5),
    (normal, 2, Design(2, 4), AT_MOST_5),
    (normal, 4, Design(2, 5), AT_MOST_5),
    (normal, 2, Design(3, 12), AT_MOST_5),
    (normal, 4, Design(3, 12), AT_MOST_5),
    (normal, 2, Design(3, 20), AT_MOST_5),
    (tied_noisier, 4, Design(3, 3), None),
    (tied_noisier, 4, Design(8, 8), None),
    (tied_noisier, 4, Design(3, 8), None),
)
AGREEMENT_CV, PROMISED_CV = (0.005, 0.01, 0.02), 0.01
SAME = ("same flag", "same flag and best K", "same flag and K to run")
DIFFERENT = "two different Ks established"


def counted(jobs: Sequence[Callable[[], Counts]], n_processes: int) -> Counts:
    """All jobs' counts together, whatever the number of processes."""
    total = Counts()
    with Pool(n_processes) as pool:
        for counts in pool.imap_unordered(_call, jobs):
            total.update(counts)
    return total


def _call(job: Callable[[], Counts]) -> Counts:
    return job()


def jobs_of(seed: int, n_cells: int, truths: Sequence[dict[int, float]]) -> list[Callable[[], Counts]]:
    """Independent pieces of work, each with a random stream of its own."""
    pieces = [
        *(partial(count_cells, noise, truth, n_cells) for noise in NOISES for truth in TRUTHS),
        *(partial(count_looks, noise, n_ks, design, n_cells) for noise, n_ks, design, _ in LOOKS),
        *(partial(count_agreement, truths, cv, max(1, n_cells // len(truths))) for cv in AGREEMENT_CV),
    ]
    return [partial(piece, (seed, i)) for i, piece in enumerate(pieces)]


def rows(counts: Counts) -> Iterator[tuple[str, bool]]:
    """Lines of the tables, and whether every promise in them is kept."""
    columns = (*map(str, FIXED), STOPPED, ANY)
    yield f"| % of cells, 4 Ks | truth | noise | promise | {' | '.join(columns)} |", True
    yield "|---" * (4 + len(columns)) + "|", True
    for measure in MEASURES:
        for noise in NOISES:
            promise = measure.promise if noise in measure.promised_of else None
            name = (noise.__name__, measure.name, measure.truth)
            cells = [
                cell(counts, (*name, column), promise if promised(measure, column) else None)
                for column in columns
            ]
            shown = [measure.name, measure.truth, noise.__name__.replace("_", " "), str(promise or "")]
            yield f"| {' | '.join([*shown, *(text for text, _ in cells)])} |", all(kept for _, kept in cells)
    yield "", True
    yield "| Ks | noise | design | promise | two tied: established at some look |", True
    yield "|---|---|---|---|---|", True
    for noise, n_ks, design, promise in LOOKS:
        text, kept = cell(counts, (noise.__name__, f"{n_ks} Ks", str(design)), promise)
        yield f"| {n_ks} | {noise.__name__.replace('_', ' ')} | {design} | {promise or ''} | {text} |", kept


def promised(measure: Measure, column: str) -> bool:
    """A tie set is promised of the look at which the rounds stop; false results of all looks."""
    return column != ANY or measure.of is established


def cell(
    counts: Counts, name: tuple[str, ...], promise: Promise | None, share: str = "hits"
) -> tuple[str, bool]:
    """A percentage, marked where it breaks its promise, and whether it keeps it."""
    n, hits = counts[*name, "n"], counts[*name, share]
    if n == 0:
        return "", True
    kept = promise is None or promise.kept(hits, n)
    return f"{100 * hits / n:.1f}{'' if kept else ' **missed**'}", kept


def agreement_rows(counts: Counts) -> Iterator[tuple[str, bool]]:
    """Lines of the table of adaptive rounds against eight fixed ones."""
    yield f"| variation | cells | trials, % | {', % | '.join(SAME)}, % | {DIFFERENT} |", True
    yield "|---" * (4 + len(SAME)) + "|", True
    for cv in AGREEMENT_CV:
        n, different = counts[f"{cv}", "n"], counts[f"{cv}", DIFFERENT]
        trials = 100 * counts[f"{cv}", "rounds"] / (ADAPTIVE.most * n)
        promise = AT_LEAST_95 if cv <= PROMISED_CV else None
        shares = [cell(counts, (f"{cv}",), promise, share) for share in SAME]
        kept = different == 0 and all(kept for _, kept in shares) and (trials <= 50 or promise is None)
        line = [f"{100 * cv:g} %", str(n), f"{trials:.1f}", *(text for text, _ in shares), str(different)]
        yield f"| {' | '.join(line)} |", kept


def read_truths(path: Path | None) -> list[dict[int, float]]:
    """Throughput by K of every cell of a long CSV, or of the built-in deficits."""
    if path is None:
        return [
            dict(zip((8, 4, 6, 12), (1.0, *(1 - pct / 100 for pct in deficits)), strict=True))
            for deficits in DEFICITS_PCT
        ]
    cells: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells[row["model"], row["corpus"]][int(row["k"])] = float(row["output_tok_per_s"])
    if not cells or min(len(truth) for truth in cells.values()) < 2:
        raise ValueError("every cell needs two Ks")
    return list(cells.values())


def main() -> int:
    """Run the simulation and print its tables."""
    parser = argparse.ArgumentParser(description="How often the decision on K is right.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cells", type=int, default=4000, help="cells of each noise and truth")
    parser.add_argument("--quick", action="store_true", help="400 cells")
    parser.add_argument("--leads", type=Path, help="long CSV with model,corpus,k,output_tok_per_s")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    try:
        truths = read_truths(args.leads)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"--leads {args.leads}: {error!r}; it is a CSV with model,corpus,k,output_tok_per_s")
    n_cells, start = 400 if args.quick else args.cells, time.monotonic()
    counts = counted(jobs_of(args.seed, n_cells, truths), args.processes)
    is_kept = True
    for line, kept in (*rows(counts), ("", True), *agreement_rows(counts)):
        print(line)
        is_kept &= kept
    print(f"\n{n_cells} cells a row, seed {args.seed}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    if not is_kept:
        print("a promise is not kept: see the cells marked so", file=sys.stderr)
    return 0 if is_kept else 5


if __name__ == "__main__":
    sys.exit(main())
