"""Blocks measured on the hosts of a Ray cluster: one actor for each site, one whole block at a time.

The same bench measures as on this host (``blockjob``); Ray only carries jobs there and says who is lost.
Ray retries nothing: what a host that died leaves undone becomes rows with a reason, as everywhere. Why an
actor and not tasks, and what watches servers when Ray kills an actor: docs/decisions/0015.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kpad_bench.blockjob import Bench, BlockJob, Setup
from kpad_bench.errors import HostError, KpadError, ServerError
from kpad_bench.host import utc_now
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.launch import pinned
from kpad_bench.locks import gpu_set
from kpad_bench.plan import Block, Boot, Trial
from kpad_bench.progress import Progress
from kpad_bench.raycluster import Node, gpus_of_site, on_node
from kpad_bench.rounds import Row
from kpad_bench.schema import OK
from kpad_bench.slots import Beside, Site, gpus_of
from kpad_bench.slotwork import Done, Lanes
from kpad_bench.store import RunFolder
from kpad_bench.trial import TrialRunner, failed_row

#: How long to listen to actors before what they told is shown.
LISTEN_S = 0.5
#: The cluster may hear of an actor's death before it hears of its host's, which takes Ray 15 s by default.
LOSS_S = 20.0
#: How long an actor of a driver that was killed may still be at a block.
DYING_S = 60.0
#: A share of a host's custom resource, so that all its slots may hold one.
OF_A_CLASS = 0.001


@dataclass
class Lane:
    """One site of one host, its actor, and the job it is at."""

    node: Node
    site: Site
    actor: Any = None
    ref: Any = None
    job: BlockJob | None = None
    busy: tuple[str, ...] = ()


@dataclass
class RayLanes:
    """The lanes of a cluster. Sites are named for their host; those of a host that is lost disappear."""

    ray: Any
    nodes: Sequence[Node]
    runner: TrialRunner
    resource: str | None = None
    #: shared with who deals: a lost host's sites go
    sites: MutableSequence[Site] = field(default_factory=list)
    counts: MutableSequence[int] = field(default_factory=list)
    _lanes: dict[str | None, Lane] = field(default_factory=dict)
    _told: Any = None
    _is_deaf: bool = False
    _ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for site in node.sites:
                name = node.name if site.name is None else f"{node.name}/{site.name}"
                named = replace(site, name=name)
                self.sites.append(named)
                self._lanes[name] = Lane(node, named)

    def fits(self, block: Block, site: Site, rows: Mapping[str, Row]) -> bool:
        """Whether a site has GPUs enough for every server of a block; a block with a gap is taken whole."""
        if self.runner.resolved.config.server.platform != "cuda":
            return True
        lane, models = self._lanes[site.name], self.runner.resolved.models
        own = next(one for one in lane.node.sites if one.gpus == site.gpus)
        n_gpus = gpus_of_site(lane.node, own)
        return all(models[boot.model].tensor_parallel <= n_gpus for boot in block.boots)

    def start(self, site: Site, job: BlockJob) -> None:
        """Hand a job to the site's actor, which is made for its first one, and anew after its death."""
        lane = self._lanes[site.name]
        if lane.actor is None:
            lane.actor = self._actor(lane)
        lane.busy = tuple(
            str(other.site.name)
            for other in self._lanes.values()
            if other.job is not None and other.node == lane.node
        )
        lane.job = job
        self._ended -= {trial.trial_id for trial in job.trials}
        lane.ref = lane.actor.measure.remote(job, lane.busy)

    def pending(self) -> list[Trial]:
        """Trials of jobs in progress of whose end nothing was told yet."""
        jobs = (lane.job for lane in self._lanes.values() if lane.job is not None)
        return [trial for job in jobs for trial in job.trials if trial.trial_id not in self._ended]

    def wait(self) -> Done:
        """The next job to end, well or with its host; what actors tell meanwhile is shown."""
        while True:
            lanes = {lane.ref: lane for lane in self._lanes.values() if lane.job is not None}
            ready, _ = self.ray.wait(list(lanes), timeout=LISTEN_S)
            self._listen()
            for ref in ready:
                return self._end(lanes[ref])

    def close(self) -> None:
        """End every actor; servers that are up end by their keepers."""
        for lane in self._lanes.values():
            if lane.actor is not None:
                self.ray.kill(lane.actor)
        if self._told is not None:
            self._told.shutdown(force=True)

    def _end(self, lane: Lane) -> Done:
        job = lane.job
        assert job is not None
        lane.job = None
        try:
            what, told = self.ray.get(lane.ref)
        except self.ray.exceptions.RayError as error:
            return self._bury(lane, job, error)
        if what == "error":
            raise told
        if what == "bug":
            raise RuntimeError(f"{lane.site.name} failed:\n{told}")
        return Done(lane.site, job, told)

    def _bury(self, lane: Lane, job: BlockJob, error: Exception) -> Done:
        """Rows for what an actor that died, or its host, has left undone."""
        lane.actor = None
        is_there = self._stays(lane.node)
        if not is_there:
            self.sites.remove(lane.site)
            self.runner.progress.note(f"warning: host {lane.node.name} is lost; its blocks go to the others")
        if not self.sites:
            self._rows(lane, job, "node_lost", error)
            raise HostError("--executor ray: every host of the cluster is lost; run the same command again")
        return Done(lane.site, job, self._rows(lane, job, "client_died" if is_there else "node_lost", error))

    def _stays(self, node: Node) -> bool:
        """Whether the host of an actor that died is still there when the cluster has had time to look."""
        deadline = time.monotonic() + LOSS_S
        while any(one["Alive"] and one["NodeID"] == node.node_id for one in self.ray.nodes()):
            if time.monotonic() > deadline:
                return True
            time.sleep(LISTEN_S)
        return False

    def _rows(self, lane: Lane, job: BlockJob, reason: str, error: Exception) -> list[Row]:
        """What was saved counts; the rest failed, with a reason."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = ServerError(reason, f"{lane.site.name}: {lines[0] if lines else type(error).__name__}")
        failure = failed_row(told, utc_now()) | {"slot": lane.site.name, "neighbours": list(lane.busy)}
        on_disk, _ = self.runner.folder.read_done()
        return [
            on_disk[trial.trial_id]
            if on_disk.get(trial.trial_id, {}).get("status") == OK
            else self.runner.save_failure(job.block.block_id, boot, trial, failure)
            for boot, trials in job.boots()
            for trial in trials
        ]

    def _listen(self) -> None:
        """Show what actors have told. Rows do not come this way: without it a sweep is silent, not over."""
        if self._told is None or self._is_deaf:
            return
        try:
            n_told = self._told.qsize()
            news = self._told.get_nowait_batch(n_told) if n_told else ()
        except self.ray.exceptions.RayError as error:
            self._is_deaf = True
            self.runner.progress.note(
                f"warning: progress is no longer shown, blocks go on: {str(error).splitlines()[0]}"
            )
            return
        for what, told in news:
            if what == "ended":
                self._ended.add(told[0].trial_id)
            getattr(self.runner.progress, what)(*told)

    def _actor(self, lane: Lane) -> Any:
        if self._told is None:
            here = self.ray.get_runtime_context().get_node_id()
            strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
            self._told = self.ray.util.queue.Queue(
                actor_options={"num_cpus": 0, "scheduling_strategy": strategy}
            )
        is_cuda = self.runner.resolved.config.server.platform == "cuda"
        share = 1 / len(lane.node.sites)
        options = {
            "num_cpus": 0 if is_cuda else int(lane.node.n_cpus * share),
            "num_gpus": int(lane.node.n_gpus if len(lane.node.sites) == 1 else len(lane.site.gpus)) * is_cuda,
            "resources": {self.resource: OF_A_CLASS} if self.resource else None,
            "scheduling_strategy": on_node(self.ray, lane.node),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        setup = Setup(
            self.runner.resolved,
            self.runner.folder.path,
            {**self.runner.facts, "host": (lane.node.facts or {}).get("host"), "slot": lane.site.name},
            self.runner.save_text,
            lane.site,
        )
        return self.ray.remote(NodeBench).options(**options).remote(setup, self._told)


@contextmanager
def ray_lanes(ray: Any, nodes: Sequence[Node], runner: TrialRunner, resource: str | None) -> Iterator[Lanes]:
    """The lanes of these hosts; no actor is left afterwards."""
    lanes = RayLanes(ray, nodes, runner, resource)
    try:
        yield lanes
    finally:
        lanes.close()


class NodeBench:
    """The actor: the bench of one site, in a process of Ray's on its host."""

    def __init__(self, setup: Setup, told: Any) -> None:
        self.setup, self.told = setup, told
        self.bench: Bench | None = None

    def measure(self, job: BlockJob, busy: tuple[str, ...]) -> tuple[str, Any]:
        """``rows`` and the row of each trial; ``error`` and what this host lacks; ``bug`` and a traceback."""
        try:
            with pinned(self.setup.site.client_cpus):
                bench = self.bench or self._make()
                self.bench = bench
                mine = str(self.setup.site.name)
                bench.runner.beside = Beside([mine, *busy], mine, [1] * (1 + len(busy)))
                with gpu_set(self._gpus()), self._block(bench.runner.folder, job):
                    return "rows", bench.measure(job)
        except KpadError as error:
            return "error", HostError(str(error))
        except Exception:  # noqa: BLE001 a bug: the driver stops, with this traceback
            return "bug", traceback.format_exc()

    def _gpus(self) -> list[str]:
        site, facts = self.setup.site, self.setup.facts
        if site.gpus:
            return [str(gpu) for gpu in site.gpus]
        return gpus_of(self.setup.resolved.without_slots(), facts.get("gpu_count"))

    @contextmanager
    def _block(self, folder: RunFolder, job: BlockJob) -> Iterator[None]:
        """The block is this actor's alone. One that a dying driver left behind gets a moment to end."""
        deadline = time.monotonic() + DYING_S
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(folder.block_lock(job.block.block_id))
                    break
                except HostError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LISTEN_S)
            yield

    def _make(self) -> Bench:
        cpus = format_cpu_list(os.sched_getaffinity(0))
        return replace(self.setup, facts={**self.setup.facts, "client_cpus": cpus}).bench(Relay(self.told))


class Relay(Progress):
    """Tells the driver what happens on a host. Nothing is sent while a pass is measured."""

    def __init__(self, told: Any) -> None:
        self.told = told

    def _tell(self, what: str, *arguments: Any) -> None:
        from ray.exceptions import RayError  # noqa: PLC0415 it is there: this runs in a process of Ray's

        with suppress(RayError):  # nobody listens any more, which is no reason to end a block
            self.told.put_nowait((what, arguments))

    def booting(self, boot: Boot) -> None:
        """Told."""
        self._tell("booting", boot)

    def ended(self, trial: Trial, row: Row) -> None:
        """Told."""
        self._tell("ended", trial, dict(row))

    def note(self, message: str) -> None:
        """Told."""
        self._tell("note", message)
