"""Invented trees of sysfs: hosts that the tests do not run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from kpad_bench.hostcpu import format_cpu_list


def write(path: Path, text: str) -> None:
    """One file as sysfs has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def make(
    root: Path,
    cores: Iterable[tuple[int, ...]],
    nodes: Mapping[int, Iterable[int]] | None = None,
    siblings: str = "thread_siblings_list",
    smt: str | None = None,
) -> Path:
    """A tree: cores as their threads, nodes as their CPUs; a core's socket is its node."""
    cores, nodes = list(cores), {node: set(cpus) for node, cpus in (nodes or {}).items()}
    cpu_folder = root / "devices/system/cpu"
    cpu_folder.mkdir(parents=True)
    write(cpu_folder / "online", format_cpu_list({cpu for core in cores for cpu in core}))
    (cpu_folder / "cpufreq").mkdir()
    for core in cores:
        for cpu in core:
            about = cpu_folder / f"cpu{cpu}" / "topology"
            write(about / siblings, format_cpu_list(set(core)))
            socket = next((node for node, cpus in nodes.items() if cpu in cpus), -1)
            write(about / "physical_package_id", str(socket))
    for node, cpus in nodes.items():
        write(root / f"devices/system/node/node{node}/cpulist", format_cpu_list(cpus))
    if smt is not None:
        write(cpu_folder / "smt/active", smt)
    return root


def dgx_b200(root: Path) -> Path:
    """224 threads: two sockets of 56 cores, SMT siblings n and n + 112."""
    return make(
        root,
        [(n, n + 112) for n in range(112)],
        {0: [*range(56), *range(112, 168)], 1: [*range(56, 112), *range(168, 224)]},
        siblings="core_cpus_list",
        smt="1",
    )


def two_cores(root: Path) -> Path:
    """A virtual machine: two cores of one thread, one node."""
    return make(root, [(0,), (1,)], {0: [0, 1]}, smt="0")
