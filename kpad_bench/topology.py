"""What the CPUs of a host are to each other: threads of one core, NUMA nodes, sockets. Read from sysfs.

Documentation/ABI/stable/sysfs-devices-system-cpu and -node of Linux say what the files hold. Knows nothing of
servers or configurations; what a file does not say stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from kpad_bench.errors import UsageError
from kpad_bench.hostcpu import parse_cpu_list

#: Newer and older name of one list.
_SIBLINGS = ("core_cpus_list", "thread_siblings_list")


@dataclass(frozen=True)
class Topology:
    """The CPUs that are online, by number, and what is known of each.

    ``siblings``: all threads of its physical core, itself among them. ``node_cpus``: NUMA nodes with CPUs.
    """

    siblings: Mapping[int, frozenset[int]] = field(default_factory=dict)
    socket_of: Mapping[int, int] = field(default_factory=dict)
    node_cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    has_smt: bool | None = None
    #: CPUs that do not say which core they are of; each is taken for one of its own
    unknown: frozenset[int] = frozenset()

    @classmethod
    def read(cls, root: Path = Path("/sys")) -> Topology:
        """The topology under ``root``; without any CPU where there is no such tree."""
        folder = root / "devices/system/cpu"
        online = _cpu_list(folder / "online")
        if online is None:
            online = {int(one.name[3:]) for one in folder.glob("cpu[0-9]*") if one.name[3:].isdecimal()}
        siblings, sockets = {}, {}
        for cpu in sorted(online):
            about = folder / f"cpu{cpu}" / "topology"
            if threads := next(filter(None, (_cpu_list(about / name) for name in _SIBLINGS)), None):
                siblings[cpu] = frozenset(threads) | {cpu}
            socket = text_of(about / "physical_package_id")
            if socket is not None and socket.isdecimal():  # -1 where the firmware does not say
                sockets[cpu] = int(socket)
        unknown = frozenset(online - siblings.keys())
        return cls(
            siblings=siblings | {cpu: frozenset({cpu}) for cpu in unknown},
            socket_of=sockets,
            node_cpus=node_cpus(root),
            has_smt=_has_smt(folder / "smt", siblings),
            unknown=unknown,
        )

    @property
    def cpus(self) -> frozenset[int]:
        """All that are online; empty where nothing is known."""
        return frozenset(self.siblings)

    def threads_of(self, cpus: Iterable[int]) -> set[int]:
        """The CPUs, and every other thread of their physical cores."""
        return {thread for cpu in cpus for thread in self.siblings.get(cpu, {cpu})}

    def n_cores(self, cpus: Iterable[int]) -> int:
        """How many physical cores they are threads of."""
        return len({min(self.siblings.get(cpu, {cpu})) for cpu in cpus})

    def nodes_of(self, cpus: Set[int]) -> list[int]:
        """NUMA nodes that hold some of them."""
        return [node for node, its in sorted(self.node_cpus.items()) if its & cpus]


def node_cpus(root: Path = Path("/sys")) -> dict[int, frozenset[int]]:
    """The CPUs of every NUMA node that has some."""
    found = {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        number, cpus = folder.name.removeprefix("node"), _cpu_list(folder / "cpulist")
        if number.isdecimal() and cpus:  # empty for a node of memory alone
            found[int(number)] = frozenset(cpus)
    return found


def numa_nodes(cpus: Set[int], root: Path = Path("/sys")) -> str | None:
    """NUMA nodes that hold these CPUs, like ``0`` or ``0,1``; None where the system does not say."""
    return ",".join(map(str, Topology(node_cpus=node_cpus(root)).nodes_of(cpus))) or None


def cgroup_cpus(proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> set[int] | None:
    """The cpuset of this process's control group, version 2 or 1; None where none is said to have one.

    A group without a cpuset of its own has its parent's; in a container, where the path may not exist, the
    root's.
    """
    for line in (text_of(proc / "cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        is_v2 = number == "0" and not controllers
        if not is_v2 and "cpuset" not in controllers.split(","):
            continue
        base = root if is_v2 else root / "cpuset"
        names = ("cpuset.cpus.effective",) if is_v2 else ("cpuset.effective_cpus", "cpuset.cpus")
        group = base / path.lstrip("/")
        for place in (group, *group.parents):
            cpus = next(filter(None, (_cpu_list(place / name) for name in names)), None)
            if cpus:
                return cpus
            if place == base:
                break
    return None


def _has_smt(folder: Path, siblings: Mapping[int, frozenset[int]]) -> bool | None:
    """Whether some core runs more than one thread: as the kernel says, else as the lists do."""
    said = {"1": True, "0": False}.get(text_of(folder / "active") or "")
    if said is None and text_of(folder / "control") in ("off", "forceoff", "notsupported", "notimplemented"):
        said = False
    if said is None and siblings:
        said = any(len(threads) > 1 for threads in siblings.values())
    return said


def text_of(path: Path) -> str | None:
    """What a file of /sys or /proc says; None where it is not there or cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _cpu_list(path: Path) -> set[int] | None:
    """The CPUs of a file; an empty set for an empty file, None for none and for what is no list."""
    text = text_of(path)
    if not text:
        return None if text is None else set()
    try:
        return parse_cpu_list(text, str(path))
    except UsageError:
        return None
