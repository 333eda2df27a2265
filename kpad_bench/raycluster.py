"""The hosts of a Ray cluster: which there are, and whether each has what a sweep needs.

Everything that a host lacks is told before the first boot. Measures nothing; ``raylanes`` does.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kpad_bench import __version__, provenance, storage
from kpad_bench.config import Resolved, Slot
from kpad_bench.configfile import read_slots
from kpad_bench.corpus import open_together
from kpad_bench.corpus_fit import check_fit
from kpad_bench.errors import HostError, KpadError
from kpad_bench.host import expected_vllm, sites_of
from kpad_bench.schema import MUST_MATCH
from kpad_bench.slots import Site

#: Names the file with the slots of a host that has others than the configuration says.
SLOTS_VARIABLE = "KPAD_BENCH_SLOTS"
#: A host that has to start its first worker, and to open the corpora.
PROBE_S = 180.0
HOW_TO_START = (
    "start one with `ray start --head` on one host and `ray start --address=HOST:6379` on the others, with "
    "the same Python, Ray and kpad-bench on each, or name a running one with --ray-address"
)


@dataclass(frozen=True)
class Asked:
    """What a sweep asks of the cluster. ``resource``: the custom resource of a class of hosts; None: any."""

    address: str | None = None
    resource: str | None = None


@dataclass(frozen=True)
class Node:
    """One host of the cluster, with its sites and what is to be known of it."""

    node_id: str
    name: str
    n_gpus: int
    n_cpus: float
    sites: tuple[Site, ...] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Report:
    """What a host says of itself: its sites and facts, or what it lacks."""

    problems: tuple[str, ...]
    version: str
    sites: tuple[Site, ...] = ()
    facts: Mapping[str, Any] | None = None


@contextmanager
def connected(asked: Asked) -> Iterator[Any]:
    """Ray, connected to a running cluster until this ends. Raises HostError where there is none."""
    try:
        import ray  # noqa: PLC0415 an extra, and slow
        import ray.util.queue  # noqa: PLC0415
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError as error:
        raise HostError(f"--executor ray: {error}; pip install 'kpad-bench[ray]'") from error
    try:
        ray.init(address=asked.address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise HostError(f"--executor ray: {told}; {HOW_TO_START}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def ready_nodes(
    ray: Any, asked: Asked, resolved: Resolved, digests: Mapping[str, str], out: Path
) -> list[Node]:
    """The hosts that are to measure, each with all that it needs. Raises HostError that names what lacks."""
    nodes = _nodes(ray, asked)
    with _mark(out) as mark:
        reports = _ask(ray, nodes, (resolved, digests, str(mark)))
    problems = [
        f"{node.name}: {problem}"
        for node, report in zip(nodes, reports, strict=True)
        for problem in _problems(report)
    ]
    if problems:
        raise HostError("--executor ray: not every host is ready:\n" + "\n".join(problems))
    found = [
        replace(node, sites=report.sites, facts=report.facts)
        for node, report in zip(nodes, reports, strict=True)
    ]
    _check_alike(found)
    _check_fit(found, resolved)
    return found


def probe(resolved: Resolved, digests: Mapping[str, str], mark: str) -> Report:
    """Run on a host: whether it has vLLM, the models, the corpora, the CPU sets and the results."""
    checks: list[Callable[[], None]] = [
        lambda: _check_corpora(resolved, digests),
        lambda: _check_mark(storage.place(mark)),
    ]
    problems: list[str] = []
    facts: dict[str, Any] = {}
    sites: tuple[Site, ...] = ()
    for check in checks:
        try:
            check()
        except KpadError as error:
            problems.append(str(error))
    try:
        facts = provenance.host_facts() | {"vllm_version": expected_vllm(resolved, None)}
        sites = sites_of(with_own_slots(resolved), None)
    except KpadError as error:
        problems.append(str(error))
    return Report(tuple(problems), __version__, sites, facts)


def with_own_slots(resolved: Resolved) -> Resolved:
    """The sweep with the slots of this host, where its environment names a file of them."""
    path = os.environ.get(SLOTS_VARIABLE)
    if not path:
        return resolved
    slots: tuple[Slot, ...] = read_slots(Path(path))
    return resolved.model_copy(update={"config": resolved.config.model_copy(update={"slots": slots})})


def _nodes(ray: Any, asked: Asked) -> list[Node]:
    """The living hosts of the class that is asked for, by name."""
    living = [node for node in ray.nodes() if node["Alive"]]
    kept = [node for node in living if asked.resource is None or asked.resource in node["Resources"]]
    if not kept:
        there = sorted({name for node in living for name in node["Resources"] if ":" not in name})
        raise HostError(
            f"--ray-resource {asked.resource}: no living host has it; the cluster has {', '.join(there)}"
        )
    names = [node["NodeName"] for node in kept]
    found = [
        Node(
            node["NodeID"],
            node["NodeName"]
            if names.count(node["NodeName"]) == 1
            else f"{node['NodeName']}-{node['NodeID'][:6]}",
            int(node["Resources"].get("GPU", 0)),
            node["Resources"].get("CPU", 0.0),
        )
        for node in kept
    ]
    return sorted(found, key=lambda node: node.name)


def on_node(ray: Any, node: Node) -> Any:
    """Ray's word for: there and nowhere else."""
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def _ask(ray: Any, nodes: Sequence[Node], arguments: tuple[Any, ...]) -> list[Report]:
    """Every host's report; one that cannot give any says why."""
    task = ray.remote(max_retries=0, num_cpus=0)(probe)
    refs = [task.options(scheduling_strategy=on_node(ray, node)).remote(*arguments) for node in nodes]
    reports = []
    for ref in refs:
        try:
            reports.append(ray.get(ref, timeout=PROBE_S))
        except ray.exceptions.RayError as error:
            reports.append(Report((_why(error),), __version__))
    return reports


def _why(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"cannot be asked: {lines[-1].strip() if lines else type(error).__name__}"


def _problems(report: Report) -> list[str]:
    told = list(report.problems)
    if report.version != __version__:
        told.append(
            f"has kpad-bench {report.version}, the driver {__version__}; install the same on all hosts"
        )
    return told


def _check_corpora(resolved: Resolved, digests: Mapping[str, str]) -> None:
    corpora = open_together(resolved.corpora)
    check_fit(resolved, corpora.values())
    for name, corpus in corpora.items():
        if corpus.digest != digests[name]:
            raise HostError(
                f"corpus {name}: digest {corpus.digest[:12]}, the driver has {digests[name][:12]}; copy the "
                "frozen corpora of the driver there (KPAD_BENCH_CORPORA names their folder)"
            )


def _check_mark(mark: Path) -> None:
    """Whether this host sees the results folder, and may write there."""
    with storage.as_storage_error(mark):
        is_there = mark.exists()
    if not is_there:
        raise HostError(
            f"{mark.parent}: not the results folder that the driver sees; give --out a shared folder or a URL"
        )
    if storage.is_remote(mark):
        storage.check_writable(mark.parent)
    elif not os.access(mark.parent, os.W_OK):
        raise HostError(f"{mark.parent}: may not be written to")


@contextmanager
def _mark(out: Path) -> Iterator[Path]:
    """A sign in the results folder, by which other hosts know that they see the same one."""
    folder = out if storage.is_remote(out) else out.absolute()
    mark = folder / f".seen-{uuid.uuid4().hex}"
    with storage.as_storage_error(folder):
        if storage.is_remote(folder):
            storage.put(mark, b"")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
    try:
        yield mark
    finally:
        with storage.as_storage_error(folder):
            mark.unlink()


def _check_alike(nodes: Sequence[Node]) -> None:
    """Trials of hosts that differ may not be pooled, so they may not be in one run."""
    first = nodes[0]
    for node in nodes[1:]:
        assert first.facts is not None
        assert node.facts is not None
        theirs, ours = node.facts, first.facts
        differs = [name for name in MUST_MATCH if theirs.get(name) != ours.get(name)]
        if differs:
            shown = ", ".join(f"{name} {theirs.get(name)!r} and {ours.get(name)!r}" for name in differs)
            raise HostError(
                f"--executor ray: {node.name} and {first.name} are of different kinds ({shown}), and their "
                "trials may not be pooled; give the hosts of a kind a custom resource (ray start "
                "--resources '{\"dgx\": 1}') and name it with --ray-resource"
            )


def _check_fit(nodes: Sequence[Node], resolved: Resolved) -> None:
    """Every model runs on some site."""
    if resolved.config.server.platform != "cuda":
        return
    most = max(gpus_of_site(node, site) for node in nodes for site in node.sites)
    for tag, entry in resolved.models.items():
        if entry.tensor_parallel > most:
            raise HostError(
                f"model {tag}: tensor_parallel {entry.tensor_parallel}, and no host has more than {most} "
                "GPUs for one server; run vLLM over several hosts on its own multi-node backend, and measure "
                "that server with --attach"
            )


def gpus_of_site(node: Node, site: Site) -> int:
    """GPUs that servers of a site have: the slot's, or all of the host's."""
    return len(site.gpus) if site.name is not None else node.n_gpus
