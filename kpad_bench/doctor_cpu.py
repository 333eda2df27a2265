"""Doctor on CPUs: the sets of the configuration, NUMA and the frequency governor."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kpad_bench.config import Resolved, Slot
from kpad_bench.cpusets import CpuSet, HostCpus, keep_apart, require_cpus
from kpad_bench.doctor_finding import Check, Finding, failure, of_error, ok, warning
from kpad_bench.errors import KpadError
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.topology import text_of


@dataclass(frozen=True)
class CpuFacts:
    """The CPUs of this host. ``governors``: governor -> CPUs; empty where the kernel tells of none.

    ``balances_numa``: whether the kernel moves memory between nodes by itself; None where it cannot.
    """

    host: HostCpus
    governors: Mapping[str, frozenset[int]] = field(default_factory=dict)
    balances_numa: bool | None = None
    which: Callable[[str], str | None] = shutil.which

    @classmethod
    def here(cls, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> CpuFacts:
        """As they are now."""
        return cls(HostCpus.here(), governors(sys), numa_balancing(proc))


def governors(root: Path) -> dict[str, frozenset[int]]:
    """Governor -> its CPUs (Documentation/admin-guide/pm/cpufreq.rst)."""
    found: dict[str, set[int]] = {}
    for path in (root / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        number = path.parent.parent.name.removeprefix("cpu")
        if number.isdecimal() and (text := text_of(path)):
            found.setdefault(text, set()).add(int(number))
    return {name: frozenset(cpus) for name, cpus in found.items()}


def numa_balancing(proc: Path) -> bool | None:
    """Whether automatic NUMA balancing is on."""
    text = text_of(proc / "sys/kernel/numa_balancing")
    return None if text is None else text != "0"


def checks(resolved: Resolved, here: CpuFacts) -> list[Check]:
    """All of this subject."""
    return [
        Check("cpu sets", lambda: _sets(resolved, here)),
        Check("numa", lambda: _numa(resolved, here)),
        Check("governor", lambda: _governor(resolved, here)),
    ]


def _lists(resolved: Resolved) -> dict[str, str]:
    """Every CPU list by its key."""
    config = resolved.config
    whole = {"cpus.server": config.cpus.server, "cpus.client": config.cpus.client}
    lists = {key: text for key, text in whole.items() if text is not None}
    for slot in config.slots:
        lists |= slot.cpu_lists()
    return lists


def _sets(resolved: Resolved, here: CpuFacts) -> Iterator[Finding]:
    name, lists = "cpu sets", _lists(resolved)
    if not lists:
        yield _left_alone(resolved, here)
        return
    sets: list[CpuSet] = []
    faults: list[Finding] = []
    for key, text in lists.items():
        try:
            found = require_cpus(text, key, here.host)
            sets += [] if found is None else [found]
        except KpadError as error:
            faults += of_error(name, error)
    try:
        keep_apart(sets, here.host)
    except KpadError as error:
        faults += of_error(name, error)
    yield from faults
    if not faults:
        topology = here.host.topology
        shown = [f"{one.key} {one.text}: {topology.n_cores(one.cpus)} cores" for one in sets]
        yield ok(name, f"{', '.join(shown)}; no physical core is shared")


def _left_alone(resolved: Resolved, here: CpuFacts) -> Finding:
    n_cpus = len(here.host.usable)
    found = f"none are set: server and client share the {n_cpus} CPUs of this process"
    if resolved.config.server.platform == "cpu":
        return ok("cpu sets", found)
    return warning("cpu sets", found, "give cpus.server and cpus.client whole cores of their own")


def _numa(resolved: Resolved, here: CpuFacts) -> Iterator[Finding]:
    nodes = here.host.topology.node_cpus
    faults = [fault for slot in resolved.config.slots for fault in _slot_node(slot, here)]
    yield from faults
    if len(nodes) > 1 and here.balances_numa:
        yield warning(
            "numa",
            "the kernel moves memory between nodes by itself (numa_balancing), which pauses processes",
            "sudo sysctl kernel.numa_balancing=0",
        )
    elif not faults:
        shown = "; ".join(
            f"node {node}: {format_cpu_list(set(cpus))}" for node, cpus in sorted(nodes.items())
        )
        yield ok("numa", shown or "the system tells of no nodes")


def _slot_node(slot: Slot, here: CpuFacts) -> Iterator[Finding]:
    if slot.numa is None:
        return
    key, nodes = f"slots.{slot.name}.numa", here.host.topology.node_cpus
    if slot.numa not in nodes:
        there = ", ".join(map(str, sorted(nodes))) or "none"
        yield failure("numa", f"{key}: {slot.numa}: no such node; this host has {there}", "correct it")
    elif here.which("numactl") is None:
        yield failure("numa", f"{key}: numactl is not installed", "apt install numactl, or set it to null")


def _governor(resolved: Resolved, here: CpuFacts) -> Iterator[Finding]:
    name = "governor"
    slow = {text: cpus for text, cpus in here.governors.items() if text != "performance"}
    if not here.governors:
        yield ok(name, "the kernel does not tell (a virtual machine, or a fixed frequency)")
    elif slow:
        shown = ", ".join(f"{text} on CPUs {format_cpu_list(set(cpus))}" for text, cpus in slow.items())
        yield warning(
            name,
            f"{shown}: clocks follow the load, and steps get longer",
            "sudo cpupower frequency-set -g performance",
        )
    else:
        yield ok(name, "performance")
