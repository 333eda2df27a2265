"""CPU sets of servers and clients: whether they are there to be used, and share no physical core.

Knows the host's topology and what this process may use; nothing of what runs on the sets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kpad_bench.errors import HostError
from kpad_bench.hostcpu import format_cpu_list, parse_cpu_list
from kpad_bench.topology import Topology, cgroup_cpus


@dataclass(frozen=True)
class HostCpus:
    """The CPUs of this host, those of the control group (None: it says nothing), those of this process."""

    topology: Topology
    group: frozenset[int] | None
    usable: frozenset[int]

    @classmethod
    def here(cls) -> HostCpus:
        """As they are now; ask before this process pins itself."""
        group = cgroup_cpus()
        return cls(
            Topology.read(), None if group is None else frozenset(group), frozenset(os.sched_getaffinity(0))
        )


class CpuSet(NamedTuple):
    """A list of a configuration: its key, as it was written, and its CPUs."""

    key: str
    text: str
    cpus: frozenset[int]


def require_cpus(text: str | None, key: str, host: HostCpus) -> CpuSet | None:
    """The CPUs of a list, all usable by this process; None for None. Raises HostError when some are not.

    taskset itself exits 0 when only a part of the list exists, so it cannot be asked.
    """
    if text is None:
        return None
    wanted = frozenset(parse_cpu_list(text, key))
    if wanted <= host.usable:
        return CpuSet(key, text, wanted)
    missing = wanted - host.usable
    reasons = "".join(f"; {reason}" for reason in _why_missing(missing, host))
    raise HostError(
        f"{key}: {text!r}: CPUs {_shown(missing)} are not available to this process "
        f"(it may use {_shown(host.usable)}){reasons}; change the list or set it to null"
    )


def keep_apart(sets: Sequence[CpuSet], host: HostCpus) -> None:
    """Raise HostError where two of the sets have a physical core in common: its threads share its units."""
    for place, one in enumerate(sets):
        for other in sets[:place]:
            shared = one.cpus & host.topology.threads_of(other.cpus)
            if not shared:
                continue
            theirs = other.cpus & host.topology.threads_of(shared)
            if same := shared & theirs:
                what = f"CPUs {_shown(same)} are in {other.key} ({other.text}) too"
            else:
                what = (
                    f"CPUs {_shown(shared)} are SMT siblings of CPUs {_shown(theirs)} of {other.key}: two "
                    "threads of one core slow each other down"
                )
            free = host.usable - host.topology.threads_of(cpu for each in sets for cpu in each.cpus)
            way_out = (
                f"whole cores are free on {_shown(free)}" if free else f"or take them out of {other.key}"
            )
            raise HostError(f"{one.key}: {one.text!r}: {what}; give it CPUs of other cores ({way_out})")


def _why_missing(missing: frozenset[int], host: HostCpus) -> list[str]:
    """Where each of the missing ones got lost."""
    reasons = []
    there = host.topology.cpus
    if there and (absent := missing - there):
        reasons.append(f"{_shown(absent)} are not on this host, which has {_shown(there)}")
        missing -= absent
    if there and host.group is not None and (barred := missing - host.group):
        reasons.append(
            f"{_shown(barred)} are not in the cpuset of its control group ({_shown(host.group)}): widen that "
            "(docker --cpuset-cpus, systemd AllowedCPUs, the CPUs of the job)"
        )
        missing -= barred
    if there and missing:
        reasons.append(
            f"{_shown(missing)} are outside the CPUs it was started on: start it without taskset or the like"
        )
    return reasons


def _shown(cpus: frozenset[int] | set[int]) -> str:
    return format_cpu_list(set(cpus))
