"""CPU time of a whole Linux host, from /proc/stat, and what of it was used by others than we.

Counts the time of processes (user, nice, system). Left out: interrupts, waiting for disks, and what a
hypervisor took (steal): no process of this host used it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
_USER, _NICE, _SYSTEM = 0, 1, 2  # proc(5); user and nice hold guest and guest_nice


@dataclass(frozen=True, slots=True)
class HostLoad:
    """CPU seconds since the host was started, how many CPUs share them, and those of this process."""

    at_ns: int
    busy_s: float
    n_cpus: int
    own_s: float


def host_load() -> HostLoad | None:
    """As it is now; None where /proc/stat does not tell."""
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
        ticks = [int(field) for field in lines[0].split()[1:]]
        busy = ticks[_USER] + ticks[_NICE] + ticks[_SYSTEM]
    except (OSError, ValueError, IndexError):
        return None
    n_cpus = sum(line.startswith("cpu") for line in lines) - 1
    per_second = os.sysconf("SC_CLK_TCK")
    return HostLoad(time.monotonic_ns(), busy / per_second, n_cpus, time.process_time())


def other_cpu_share(before: HostLoad | None, after: HostLoad | None, server_s: float | None) -> float | None:
    """CPUs that others kept busy between two moments (1: one of them, all the time).

    ``server_s``: CPU seconds of the server's processes in between; None, which makes the answer None, where
    they are not known. Time is booked in ticks of 10 ms, so little is as good as nothing.
    """
    if before is None or after is None or server_s is None or server_s < 0:
        return None
    wall_s = (after.at_ns - before.at_ns) / 1e9
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s) - server_s
    return max(0.0, others_s / wall_s) if wall_s > 0 else None
