"""The CPUs that running processes may use, thread by thread, read back from the system."""

from __future__ import annotations

import os
from collections.abc import Iterable, Set
from contextlib import suppress
from typing import NamedTuple

from kpad_bench.hostcpu import format_cpu_list


class Affinity(NamedTuple):
    """``cpus``: of all threads together. ``strays``: the processes that may leave their set, in words."""

    cpus: frozenset[int]
    strays: tuple[str, ...]


def read_affinity(pids: Iterable[int], allowed: Set[int] | None) -> Affinity | None:
    """The affinity of some processes, held against the set they were given; None when none of them lives."""
    every: set[int] = set()
    strays = []
    for pid in pids:
        cpus = _cpus_of(pid)
        every |= cpus
        if allowed is not None and not cpus <= allowed:
            strays.append(f"pid {pid} ({_name(pid)}) may run on CPUs {format_cpu_list(cpus - allowed)}")
    return Affinity(frozenset(every), tuple(strays)) if every else None


def _cpus_of(pid: int) -> set[int]:
    """Of all its threads; a thread that ends meanwhile has none."""
    cpus: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                cpus |= os.sched_getaffinity(int(thread))
    return cpus


def _name(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return "gone"
