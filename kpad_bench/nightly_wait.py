"""Wait until the GPUs that a night needs are free, for so long and no longer.

Asks NVML through ``gpu``; without it, or for a sweep on the CPU, there is nothing to wait for. Clock and
sleep are given to it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kpad_bench.config import Resolved
from kpad_bench.gpu import GIB, VLLM_UTILIZATION
from kpad_bench.slots import devices_of

POLL_S = 30.0


@dataclass(frozen=True)
class Clock:
    """Seconds on a clock that never goes back, and how to let them pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def nvml() -> Any:
    """The module that asks NVML; None where it cannot be loaded."""
    try:
        return importlib.import_module("kpad_bench.gpu")
    except ImportError:
        return None


def wait_for_gpus(
    resolved: Resolved, wait_s: float, say: Callable[[str], None], gpu: Any, clock: Clock
) -> list[str]:
    """Wait until no GPU of the sweep is taken; after ``wait_s`` seconds, why some still are (none: [])."""
    until = clock.now() + wait_s
    told: list[str] = []
    while busy := why_busy(resolved, gpu):
        left_s = until - clock.now()
        if left_s <= 0:
            return busy
        if busy != told:
            say(f"waiting for GPUs, for {left_s / 60:.0f} min at most: {'; '.join(busy)}")
            told = busy
        clock.sleep(min(POLL_S, left_s))
    return []


def why_busy(resolved: Resolved, gpu: Any) -> list[str]:
    """One line for each GPU of the sweep that others hold, or that lacks the memory a server will take."""
    if gpu is None or resolved.config.server.platform != "cuda":
        return []
    devices = devices_of(resolved, gpu.devices(), os.environ)
    holders = gpu.holders([device.index for device in devices]) if devices else []
    share = resolved.config.server.gpu_memory_utilization or VLLM_UTILIZATION
    busy = []
    for device in devices:
        mine = [one for one in holders if one.gpu_index == device.index and one.pid != os.getpid()]
        who = ", ".join(f"{one.name} (pid {one.pid})" for one in mine)
        total, free = device.memory_total, device.memory_free
        lacks = total is not None and free is not None and free < share * total
        if mine or lacks:
            room = f", {free / GIB:.1f} of {total / GIB:.1f} GiB free" if total and free is not None else ""
            busy.append(f"GPU {device.index} is held by {who or 'nobody known'}{room}")
    return busy
