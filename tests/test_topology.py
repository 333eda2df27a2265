"""Threads of a core, nodes and sockets, read from invented hosts; what is not said stays unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import topologies

from kpad_bench.topology import Topology, cgroup_cpus, numa_nodes


def test_a_dgx_b200(tmp_path: Path) -> None:
    """Two sockets and nodes, 112 cores, siblings 112 apart."""
    host = Topology.read(topologies.dgx_b200(tmp_path))
    assert host.cpus == frozenset(range(224))
    assert host.siblings[48] == {48, 160}
    assert host.siblings[223] == {111, 223}
    assert host.threads_of({0, 55, 168}) == {0, 112, 55, 167, 168, 56}
    assert (host.n_cores(range(224)), host.n_cores([0, 112, 1])) == (112, 2)
    assert (host.socket_of[55], host.socket_of[56], host.socket_of[167]) == (0, 1, 0)
    assert host.nodes_of({0, 112}) == [0]
    assert host.nodes_of({55, 56}) == [0, 1]
    assert (host.has_smt, host.unknown) == (True, frozenset())


def test_a_virtual_machine(tmp_path: Path) -> None:
    """Two cores of one thread each."""
    host = Topology.read(topologies.two_cores(tmp_path))
    assert host.siblings == {0: {0}, 1: {1}}
    assert host.threads_of({1}) == {1}
    assert (host.nodes_of({0, 1}), host.has_smt) == ([0], False)


def test_neighbouring_numbers_as_siblings(tmp_path: Path) -> None:
    """Some hosts count a core's threads next to each other, and newer kernels rename the list."""
    host = Topology.read(topologies.make(tmp_path, [(0, 1), (2, 3)], smt="1"))
    assert host.threads_of({1, 2}) == {0, 1, 2, 3}
    assert host.socket_of == {}
    assert host.nodes_of({0}) == []


def test_files_that_are_missing(tmp_path: Path) -> None:
    """A CPU that does not say its core is one of its own, and is told; no tree is no CPU."""
    root = topologies.dgx_b200(tmp_path / "a")
    cpu = root / "devices/system/cpu"
    (cpu / "online").unlink()
    (cpu / "cpu5/topology/core_cpus_list").unlink()
    (cpu / "cpu6/topology/core_cpus_list").write_text("\n")
    (cpu / "cpu7/topology/core_cpus_list").write_text("0xff\n")
    (root / "devices/system/node/node1/cpulist").unlink()
    host = Topology.read(root)
    assert host.cpus == frozenset(range(224))
    assert host.unknown == {5, 6, 7}
    assert host.siblings[5] == {5}
    assert host.siblings[117] == {5, 117}
    assert host.nodes_of({0, 60}) == [0]
    nothing = Topology.read(tmp_path / "none")
    assert (nothing.cpus, nothing.has_smt, nothing.nodes_of({0})) == (frozenset(), None, [])
    assert nothing.threads_of({3}) == {3}


def test_cpus_that_are_off(tmp_path: Path) -> None:
    """SMT switched off at run time: the folders stay, the CPUs do not count."""
    root = topologies.make(tmp_path, [(0,), (1,)], smt="0")
    (root / "devices/system/cpu/cpu2").mkdir()
    assert Topology.read(root).cpus == {0, 1}


@pytest.mark.parametrize(
    ("active", "control", "cores", "has_smt"),
    [
        ("1", "on", [(0, 1)], True),
        ("0", "on", [(0,)], False),
        (None, "off", [(0,)], False),
        (None, "forceoff", [(0,)], False),
        (None, "notsupported", [(0,)], False),
        (None, "notimplemented", [(0,)], False),
        (None, None, [(0, 1)], True),
        (None, None, [(0,), (1,)], False),
    ],
)
def test_smt(tmp_path: Path, active: str, control: str, cores: list[tuple[int, ...]], has_smt: bool) -> None:
    """As the kernel says; where it says nothing, as the lists of siblings show."""
    root = topologies.make(tmp_path, cores, smt=active)
    if control is not None:
        topologies.write(root / "devices/system/cpu/smt/control", control)
    assert Topology.read(root).has_smt is has_smt


def test_numa_nodes_are_those_that_hold_the_cpus(tmp_path: Path) -> None:
    """In the order of their numbers; nodes of memory alone hold none."""
    for name, cpus in {"node0": "0-3", "node1": "", "node2": "4-5,9", "node10": "6-7"}.items():
        topologies.write(tmp_path / "devices/system/node" / name / "cpulist", cpus)
    (tmp_path / "devices/system/node/node11").mkdir()
    assert numa_nodes({6, 9, 0}, tmp_path) == "0,2,10"
    assert numa_nodes({5}, tmp_path) == "2"
    assert numa_nodes({99}, tmp_path) is None


CGROUPS = [
    ("0::/user.slice/a.scope", {"user.slice/a.scope/cpuset.cpus.effective": "0-3"}, {0, 1, 2, 3}),
    ("0::/user.slice/a.scope", {"user.slice/cpuset.cpus.effective": "4-5"}, {4, 5}),
    ("0::/docker/0123", {"cpuset.cpus.effective": "6"}, {6}),
    ("0::/", {}, None),
    ("9:name=systemd:/\n3:cpuset:/job\n0::/", {"cpuset/job/cpuset.cpus": "1-2"}, {1, 2}),
    ("3:cpu,cpuset:/job", {"cpuset/job/cpuset.effective_cpus": "1", "cpuset/job/cpuset.cpus": "1-2"}, {1}),
    ("3:cpuset:/job", {"cpuset/job/cpuset.cpus": "", "cpuset/cpuset.cpus": "0-7"}, set(range(8))),
    ("3:cpuset:/job", {"cpuset.cpus": "0-7"}, None),
    ("1:cpu:/job:with:colons\n0::/job:1", {"job:1/cpuset.cpus.effective": "2"}, {2}),
    (None, {"cpuset.cpus.effective": "2"}, None),
]


@pytest.mark.parametrize(("lines", "files", "cpus"), CGROUPS)
def test_the_cpuset_of_a_control_group(
    tmp_path: Path, lines: str | None, files: dict[str, str], cpus: set[int] | None
) -> None:
    """Version 2 and 1; a group without its own has its parent's; a path of outside a container its root's."""
    for name, text in files.items():
        topologies.write(tmp_path / "fs" / name, text)
    if lines is not None:
        topologies.write(tmp_path / "proc/cgroup", lines)
    assert cgroup_cpus(tmp_path / "proc", tmp_path / "fs") == cpus


def test_this_host() -> None:
    """Where the tests run, what this process may use is there, and in its group's cpuset."""
    usable = os.sched_getaffinity(0)
    host, group = Topology.read(), cgroup_cpus()
    assert not host.cpus or usable <= host.cpus
    assert group is None or usable <= group
