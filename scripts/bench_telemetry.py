#!/usr/bin/env python3
"""What GPU telemetry costs the process that generates the load; without a GPU.

    python scripts/bench_telemetry.py [--gpus 8] [--call-us 100] [--seconds 5] [--rounds 6]

NVML's bindings are replaced by ones whose every call sleeps in C with the interpreter's lock released, as the
real ones do while the driver answers. Beside the thread that samples, an event loop wakes every 2.5 ms and
works for a while, like the load generator between two steps. Rounds with and without the thread alternate.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from kpad_bench.gpu import connect
from kpad_bench.telemetry import PERIOD_S, Watch

STEP_S = 0.0025
#: Iterations that take about a fifth of a millisecond: 32 events.
WORK = range(5000)


class SlowBindings(ModuleType):
    """``pynvml`` with GPUs that answer after a while."""

    class NVMLError(Exception):
        """Never raised."""

    def __init__(self, n_gpus: int, call_us: int) -> None:
        super().__init__("pynvml")
        self.n_gpus, self.call_us = n_gpus, call_us
        self.usleep = ctypes.CDLL(None).usleep  # a CDLL's calls release the lock

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name in ("nvmlInit", "nvmlDeviceGetCount"):
                return self.n_gpus
            if name == "nvmlDeviceGetHandleByIndex":
                return arguments[0]
            self.usleep(self.call_us)
            return SimpleNamespace(used=0, free=0, total=0) if "Memory" in name else 1

        return call


async def lateness_ms(seconds: float) -> list[float]:
    """How late the loop woke up, each time."""
    found, end_s = [], time.monotonic() + seconds
    while (due_s := time.monotonic() + STEP_S) < end_s:
        await asyncio.sleep(STEP_S)
        found.append((time.monotonic() - due_s) * 1e3)
        sum(WORK)
    return sorted(found)


def one_round(watch: Watch, seconds: float) -> dict[str, float]:
    """Lateness of the loop, and CPU of the whole process."""
    with watch:
        cpu_s = time.process_time()
        late = asyncio.run(lateness_ms(seconds))
        cpu_s = time.process_time() - cpu_s
    return {
        "late_p50_ms": late[len(late) // 2],
        "late_p99_ms": late[int(len(late) * 0.99)],
        "late_max_ms": late[-1],
        "cpu_ms_per_s": cpu_s / seconds * 1e3,
    }


def sample_cost(n_gpus: int) -> dict[str, float]:
    """Time of one sample of all GPUs, with nothing beside it."""
    nvml = connect()
    assert nvml is not None
    handles, n = [handle for _, handle in nvml.handles()], 50
    cpu_s, wall_s = time.thread_time(), time.monotonic()
    for _ in range(n):
        for handle in handles:
            nvml.moment(handle)
    return {
        "sample_cpu_ms": (time.thread_time() - cpu_s) / n * 1e3,
        "sample_wall_ms": (time.monotonic() - wall_s) / n * 1e3,
    }


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--call-us", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    sys.modules["pynvml"] = SlowBindings(given.gpus, given.call_us)
    runs: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for _ in range(given.rounds):
        runs["without"].append(one_round(Watch(()), given.seconds))
        runs["with"].append(one_round(Watch(tuple(range(given.gpus)), PERIOD_S), given.seconds))
    found: dict[str, Any] = sample_cost(given.gpus)
    for name, each in runs.items():
        found[name] = {key: statistics.median(one[key] for one in each) for key in each[0]}
        print(name, {key: round(value, 3) for key, value in found[name].items()})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
