"""CPU sets that are not there, and sets that share a physical core, are refused with the way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import topologies

from kpad_bench.affinity import read_affinity
from kpad_bench.configfile import load_sweep
from kpad_bench.cpusets import CpuSet, HostCpus, keep_apart, require_cpus
from kpad_bench.errors import HostError
from kpad_bench.hostcpu import parse_cpu_list
from kpad_bench.topology import Topology

NIGHTLY = Path(__file__).parents[1] / "configs" / "nightly-dgx-b200.yaml"


@pytest.fixture
def dgx(tmp_path: Path) -> HostCpus:
    topology = Topology.read(topologies.dgx_b200(tmp_path))
    return HostCpus(topology, None, topology.cpus)


def the_set(key: str, text: str) -> CpuSet:
    return CpuSet(key, text, frozenset(parse_cpu_list(text, key)))


def refused(host: HostCpus, **sets: str) -> str:
    with pytest.raises(HostError) as caught:
        keep_apart([the_set(f"cpus.{who}", text) for who, text in sets.items()], host)
    return str(caught.value)


def test_the_nightly_sets_share_no_core(dgx: HostCpus) -> None:
    """On the host they are written for."""
    cpus = load_sweep(NIGHTLY).config.cpus
    sets = [require_cpus(cpus.server, "cpus.server", dgx), require_cpus(cpus.client, "cpus.client", dgx)]
    keep_apart([one for one in sets if one], dgx)


def test_an_smt_sibling_is_named_with_its_core(dgx: HostCpus) -> None:
    """160 is the other thread of 48: key, CPUs, siblings, and where cores are free."""
    text = refused(dgx, server="0-103", client="104,160-161")
    assert text == (
        "cpus.client: '104,160-161': CPUs 160-161 are SMT siblings of CPUs 48-49 of cpus.server: two threads "
        "of one core slow each other down; give it CPUs of other cores (whole cores are free on "
        "105-111,217-223)"
    )


def test_without_a_free_core_the_other_set_has_to_give(dgx: HostCpus) -> None:
    """Nothing else is left to say."""
    assert "(or take them out of cpus.server)" in refused(dgx, server="0-111", client="112")


def test_the_same_cpus_twice(dgx: HostCpus) -> None:
    """Sets of two slots, which no configuration compares, are held apart too."""
    assert "CPUs 3-4 are in cpus.a (0-4) too" in refused(dgx, a="0-4", b="3-7")


def test_without_smt_neighbours_are_apart(tmp_path: Path) -> None:
    """Two cores, one thread each."""
    host = HostCpus(Topology.read(topologies.two_cores(tmp_path)), None, frozenset({0, 1}))
    keep_apart([the_set("a", "0"), the_set("b", "1")], host)


def test_cpus_that_are_not_there_are_named(dgx: HostCpus) -> None:
    """taskset would take a part of the list in silence; here the missing ones are told (exit 4)."""
    found = require_cpus("1-2", "cpus.server", dgx)
    assert found is not None
    assert found.cpus == {1, 2}
    assert require_cpus(None, "cpus.server", dgx) is None
    with pytest.raises(HostError) as caught:
        require_cpus("220-225", "cpus.server", dgx)
    assert str(caught.value) == (
        "cpus.server: '220-225': CPUs 224-225 are not available to this process (it may use 0-223); 224-225 "
        "are not on this host, which has 0-223; change the list or set it to null"
    )


def test_every_reason_has_its_way_out(dgx: HostCpus) -> None:
    """Not on the host, not in the container's cpuset, or not where the process was started."""
    host = HostCpus(dgx.topology, frozenset(range(48)), frozenset(range(8)))
    with pytest.raises(HostError) as caught:
        require_cpus("0-63,300", "cpus.server", host)
    text = str(caught.value)
    assert "CPUs 8-63,300 are not available to this process (it may use 0-7)" in text
    assert "300 are not on this host" in text
    assert "48-63 are not in the cpuset of its control group (0-47): widen that" in text
    assert "8-47 are outside the CPUs it was started on: start it without taskset" in text


def test_without_sysfs_only_the_affinity_counts() -> None:
    """No reason is made up."""
    with pytest.raises(HostError, match=r"\(it may use 0\); change the list"):
        require_cpus("0-1", "cpus.server", HostCpus(Topology(), None, frozenset({0})))


def test_affinity_of_running_processes() -> None:
    """All threads of all processes together; what may leave its set is named; none living is unknown."""
    mine = os.sched_getaffinity(0)
    found = read_affinity([os.getpid()], mine)
    assert found is not None
    assert (found.cpus, found.strays) == (mine, ())
    strayed = read_affinity([os.getpid()], {4095})
    assert strayed is not None
    assert strayed.strays[0].startswith(f"pid {os.getpid()} (")
    assert read_affinity([2**22 + 1], None) is None
