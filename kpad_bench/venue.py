"""Where a sweep is measured: on this host, or on those of a Ray cluster. What holds there, and its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpad_bench import provenance
from kpad_bench.config import Resolved
from kpad_bench.host import attach_to, expected_vllm, sites_of
from kpad_bench.launch import pinned
from kpad_bench.plan import Plan
from kpad_bench.raycluster import Asked, connected, ready_nodes
from kpad_bench.raylanes import ray_lanes
from kpad_bench.slots import gpus_of
from kpad_bench.slotwork import Lanes, lanes_on
from kpad_bench.trial import TrialRunner


@dataclass(frozen=True)
class Venue:
    """``facts``: what rows say of the hosts. ``gpus``: what this process takes for itself.

    ``has_hosts``: several, so that a block which is resumed may go to another one.
    """

    facts: Mapping[str, Any]
    lanes: Callable[[TrialRunner], AbstractContextManager[Lanes]]
    gpus: tuple[str, ...] = ()
    has_hosts: bool = False


@contextmanager
def this_host(resolved: Resolved, plan: Plan, attach: str | None) -> Iterator[Venue]:
    """This host, its slots, or the server at a URL; this process is on the client's CPUs until it ends.

    Raises HostError for what is not there.
    """
    attached = None if attach is None else attach_to(attach, resolved, plan)
    expected = expected_vllm(resolved, attached)
    sites = sites_of(resolved, attached)
    with pinned(None if resolved.config.slots else sites[0].client_cpus):
        facts = provenance.host_facts() | {"vllm_version": expected}
        gpus = () if attached else tuple(gpus_of(resolved, facts["gpu_count"]))
        yield Venue(facts, lambda runner: lanes_on(sites, runner, attached), gpus)


@contextmanager
def ray_cluster(resolved: Resolved, digests: Mapping[str, str], out: Path, asked: Asked) -> Iterator[Venue]:
    """The hosts of a cluster, all with what the sweep needs. Raises HostError that names what lacks where."""
    with connected(asked) as ray:
        nodes = ready_nodes(ray, asked, resolved, digests, out)
        facts = nodes[0].facts
        assert facts is not None
        yield Venue(facts, lambda runner: ray_lanes(ray, nodes, runner, asked.resource), has_hosts=True)
