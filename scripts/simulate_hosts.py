#!/usr/bin/env python3
"""How long a matrix takes on 1, 4 and 64 hosts that fail now and then, against what no schedule can beat.

    python scripts/simulate_hosts.py [--config nightly-dgx-b200] [--hours-between-failures 200] [--seeds 200]

Blocks are those of the plan, their lengths those that ``sweep --dry-run`` adds up. Each host takes the next
block of the plan as soon as it is free. A host that fails loses the block it is at, from whose ok trials
nothing is kept (a block is measured in one go), and is back after a repair; the block is taken next by
whoever is free. The bound is the larger of all work over all hosts and the longest block.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections import deque
from collections.abc import Sequence
from random import Random
from statistics import fmean, quantiles
from typing import NamedTuple

from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.nightly_times import Times
from kpad_bench.plan import make_plan

HOSTS = (1, 4, 64)


class Outcome(NamedTuple):
    """One simulated run: hours until the last block is done, hours of work that failures cost, failures."""

    makespan_h: float
    lost_h: float
    n_failures: int


def simulate(
    blocks: Sequence[float], n_hosts: int, random: Random, between_h: float, repair_h: float
) -> Outcome:
    """Deal blocks (their hours, in order) to hosts that fail on the mean every ``between_h`` hours."""
    todo = deque(enumerate(blocks))
    rate = 1 / between_h
    fails_at = [wait_h(random, rate) for _ in range(n_hosts)]
    free = [(0.0, host) for host in range(n_hosts)]
    heapq.heapify(free)
    ends, lost_h, n_failures = [0.0], 0.0, 0
    given_back: list[tuple[float, tuple[int, float]]] = []  # by when their host fails
    while todo or given_back:
        now, host = heapq.heappop(free)
        while given_back and given_back[0][0] <= now:
            todo.appendleft(heapq.heappop(given_back)[1])
        if not todo:  # what is left comes back when a failing host is found to have failed
            heapq.heappush(free, (given_back[0][0], host))
            continue
        while fails_at[host] <= now:  # it failed while it had nothing to do
            fails_at[host] += wait_h(random, rate)
        block = todo.popleft()
        end = now + block[1]
        if fails_at[host] < end:
            n_failures += 1
            lost_h += fails_at[host] - now
            heapq.heappush(given_back, (fails_at[host], block))
            heapq.heappush(free, (fails_at[host] + repair_h, host))
            fails_at[host] += repair_h + wait_h(random, rate)
        else:
            ends.append(end)
            heapq.heappush(free, (end, host))
    return Outcome(max(ends), lost_h, n_failures)


def seeded(seed: int) -> Random:
    """Numbers that are the same every time."""
    return Random(seed)  # noqa: S311 no secret hangs on them


def wait_h(random: Random, rate: float) -> float:
    """Hours to the next failure."""
    return random.expovariate(rate) if rate else math.inf


def bound_h(blocks: Sequence[float], n_hosts: int) -> float:
    """What no schedule can beat: all work spread evenly, or the longest block."""
    return max(sum(blocks) / n_hosts, *blocks)


def block_hours(config: str) -> list[float]:
    """Hours of every block of a plan, in its order."""
    resolved = load_sweep(find_config(config))
    times = Times(resolved)
    return [times.block_s(block, block.trials()) / 3600 for block in make_plan(resolved, {}).blocks]


def main() -> int:
    """Print the table; exit 5 where a run without failures is further from the bound than it can be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="nightly-dgx-b200")
    parser.add_argument(
        "--hours-between-failures", type=float, default=200.0, help="of one host, on the mean"
    )
    parser.add_argument("--repair-hours", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=200)
    options = parser.parse_args()
    blocks = block_hours(options.config)
    print(
        f"{options.config}: {len(blocks)} blocks, {sum(blocks):.1f} h in all, longest {max(blocks):.1f} h; "
        f"a host fails every {options.hours_between_failures:g} h, repair {options.repair_hours:g} h, "
        f"{options.seeds} seeds\n"
    )
    print(
        "| hosts | bound, h | no failures, h | over bound | with failures: mean, h | p95, h | over bound "
        "| lost, h |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    is_right = True
    for n_hosts in HOSTS:
        bound = bound_h(blocks, n_hosts)
        calm = simulate(blocks, n_hosts, seeded(0), math.inf, 0.0)
        runs = [
            simulate(blocks, n_hosts, seeded(seed), options.hours_between_failures, options.repair_hours)
            for seed in range(options.seeds)
        ]
        makespans = [run.makespan_h for run in runs]
        p95 = quantiles(makespans, n=20)[-1] if len(makespans) > 1 else makespans[0]
        # List scheduling ends within sum / hosts + (1 - 1 / hosts) x longest block (Graham 1969).
        is_right &= calm.makespan_h <= sum(blocks) / n_hosts + (1 - 1 / n_hosts) * max(blocks) + 1e-9
        print(
            f"| {n_hosts} | {bound:.1f} | {calm.makespan_h:.1f} | {calm.makespan_h / bound:.2f} | "
            f"{fmean(makespans):.1f} | {p95:.1f} | {fmean(makespans) / bound:.2f} | "
            f"{fmean(run.lost_h for run in runs):.1f} |"
        )
    return 0 if is_right else 5


if __name__ == "__main__":
    sys.exit(main())
