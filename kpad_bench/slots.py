"""Where servers run beside their clients, and which block goes where next.

A site is the whole host, or a slot of it. Checks what the configuration asks for against the host; boots
nothing. Why whole blocks are dealt: docs/decisions/0011.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kpad_bench import gpu
from kpad_bench.argv import server_env
from kpad_bench.config import Resolved, Slot
from kpad_bench.cpusets import CpuSet, HostCpus, keep_apart, require_cpus
from kpad_bench.errors import HostError
from kpad_bench.gpu import Device
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.plan import Block
from kpad_bench.rounds import Row
from kpad_bench.schema import OK

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Under ``slots.*.cache_dir``. vLLM keeps those of torch and DeepGEMM under its own root.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}


@dataclass(frozen=True)
class Site:
    """Where one server at a time runs beside its client. Plain data, so that it can go to any process.

    ``name``: of the slot; None for the whole host. CPU sets are None where they are left alone.
    """

    name: str | None = None
    gpus: tuple[int, ...] = ()
    server_cpus: frozenset[int] | None = None
    client_cpus: frozenset[int] | None = None
    numa: int | None = None
    cache_dir: Path | None = None

    def env(self) -> dict[str, str]:
        """What a server is told of its GPUs and caches."""
        told = {}
        if self.gpus:  # in the order of NVML, which indices are of
            told = {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                VISIBLE: ",".join(map(str, self.gpus)),
            }
        if self.cache_dir is not None:
            told |= {name: str(self.cache_dir / folder) for name, folder in _CACHES.items()}
        return told


def make_sites(slots: Sequence[Slot], here: HostCpus) -> tuple[Site, ...]:
    """The slots on this host. Raises HostError, naming the key, for what is not there or overlaps."""
    given: dict[str, CpuSet] = {}
    for slot in slots:
        for key, text in slot.cpu_lists().items():
            found = require_cpus(text, key, here)
            assert found is not None
            given[key] = found
    servers = {slot.name: _server_set(slot, given, here) for slot in slots}
    clients = {slot.name: given.get(f"slots.{slot.name}.client_cpus") for slot in slots}
    keep_apart([one for one in (*servers.values(), *clients.values()) if one], here)
    _check_gpus(slots)
    sites = []
    for slot in slots:
        server, client = servers[slot.name], clients[slot.name]
        # Without a set of its own a server must not inherit the client's.
        cpus = server.cpus if server else here.usable if client else None
        cache_dir = None if slot.cache_dir is None else _made(slot)
        sites.append(Site(slot.name, slot.gpus, cpus, client.cpus if client else None, slot.numa, cache_dir))
    return tuple(sites)


class View(NamedTuple):
    """What a server variant sees of a host's GPUs, and how many it takes of that.

    ``setting``: of CUDA_VISIBLE_DEVICES; None: it is not set.
    """

    model: str
    setting: str | None
    n_gpus: int


def views(resolved: Resolved, environ: Mapping[str, str]) -> list[View]:
    """Of every server variant that a sweep without slots may boot. ``environ``: what servers inherit."""
    found = []
    for tag, entry in resolved.models.items():
        for arm in resolved.arms.values():
            env = {**environ, **server_env(entry, arm, resolved.config.server)}
            found.append(View(tag, env.get(VISIBLE), entry.tensor_parallel))
    return list(dict.fromkeys(found))


def devices_of(resolved: Resolved, found: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """The GPUs, of those found on this host, that servers of a sweep are on; none on the CPU.

    Those of its slots; else of what each server variant sees the first ones, as many as its model takes.
    """
    if resolved.config.server.platform != "cuda":
        return []
    if resolved.config.slots:
        used = {index for slot in resolved.config.slots for index in slot.gpus}
    else:
        seen = [gpu.visible(one.setting, found)[: one.n_gpus] for one in views(resolved, environ)]
        used = {index for indices in seen for index in indices}
    return [one for one in found if one.index in used]


def gpus_of(resolved: Resolved, n_gpus: int | None) -> list[str]:
    """The names of the same GPUs of this host, for their locks. ``n_gpus``: of the host.

    Without NVML they are as the configuration has them.
    """
    if found := gpu.devices():
        return [str(one.index) for one in devices_of(resolved, found, os.environ)]
    if resolved.config.slots:
        return [str(index) for slot in resolved.config.slots for index in slot.gpus]
    if resolved.config.server.platform != "cuda":
        return []
    every = ",".join(map(str, range(n_gpus or 0)))
    texts = [
        (every if one.setting is None else one.setting, one.n_gpus) for one in views(resolved, os.environ)
    ]
    names = [name.strip() for text, n in texts for name in text.split(",")[:n]]
    return list(dict.fromkeys(name for name in names if name))


@dataclass(frozen=True)
class Beside:
    """Which other slots had servers up, as one slot sees it; a host that is not split has none.

    ``counts`` has a number for each slot, raised when a block begins there and when it ends: odd is busy.
    None where servers are somebody else's, and nobody knows.
    """

    names: Sequence[str] = ()
    mine: str | None = None
    counts: Sequence[int] | None = ()

    def watch(self) -> tuple[int, ...]:
        """The state now, to be given to ``since``."""
        return tuple(self.counts or ())

    def since(self, before: Sequence[int]) -> list[str] | None:
        """The other slots that were busy at any moment since then."""
        if self.counts is None:
            return None
        seen = zip(self.names, before, self.counts, strict=True)
        return [name for name, old, new in seen if name != self.mine and (old % 2 or old != new)]


def fits_slot(resolved: Resolved, block: Block, site: Site, rows: Mapping[str, Row]) -> bool:
    """Whether a block may run on a slot.

    It needs GPUs enough for every server of the block. What is left of a block that was begun goes to
    the slot that has measured some of it: ``rows`` are those that count, by trial.
    """
    slot = next(slot for slot in resolved.config.slots if slot.name == site.name)
    most = max(resolved.models[boot.model].tensor_parallel for boot in block.boots)
    counted = (rows.get(trial.trial_id, {}) for trial in block.trials())
    homes = {row.get("slot") for row in counted if row.get("status") == OK}
    return slot.fits(most) and homes <= {site.name}


def never(block: Block, earlier: Block) -> bool:
    """No block waits for another."""
    return False


def same_cells(block: Block, other: Block) -> bool:
    """Whether two blocks are rounds of one (model, corpus)."""
    mine, theirs = ({(t.cell.model, t.cell.corpus) for t in one.trials()} for one in (block, other))
    return bool(mine & theirs)


@dataclass
class Dealer:
    """Deals whole blocks to free sites, in the order in which ``draw`` gives them.

    A block goes to the first free site that it ``fits``; those that come after it need not wait for it,
    but for the round before theirs where ``waits`` says so. A sentinel compares nights, so it is measured
    alone: after all that comes before it, and before all that comes after it. ``counts``: see ``Beside``.
    """

    sites: Sequence[Site]
    draw: Callable[[], Block | None]
    fits: Callable[[Block, Site], bool]
    waits: Callable[[Block, Block], bool] = never
    most_held: int | None = None
    counts: MutableSequence[int] = field(default_factory=list)
    held: list[Block] = field(default_factory=list)
    running: dict[str | None, Block] = field(default_factory=dict)
    _is_over: bool = False

    def free(self) -> list[Site]:
        """Sites without a block, the smallest first: it is the choosiest."""
        return sorted((s for s in self.sites if s.name not in self.running), key=lambda s: len(s.gpus))

    def deal(self, site: Site) -> Block | None:
        """The next block for a free site; None: none, or none for now."""
        if any(block.is_sentinel for block in self.running.values()):
            return None
        block = self._next_held(site)
        while block is None and self._may_draw():
            drawn = self.draw()
            if drawn is None:
                self._is_over = True
            else:
                self.held.append(drawn)
                block = self._next_held(site)
        if block is not None:
            self.held.remove(block)
            self.running[site.name] = block
            self._count(site)
        return block

    def done(self, site: Site) -> None:
        """The site's block has ended."""
        del self.running[site.name]
        self._count(site)

    def _count(self, site: Site) -> None:
        if self.counts:
            self.counts[self.sites.index(site)] += 1

    def _may_draw(self) -> bool:
        has_room = self.most_held is None or len(self.held) < self.most_held
        return has_room and not self._is_over and not any(block.is_sentinel for block in self.held)

    def _next_held(self, site: Site) -> Block | None:
        before = list(self.running.values())
        for block in self.held:
            if block.is_sentinel:
                return None if before or not self.fits(block, site) else block
            if self.fits(block, site) and not any(self.waits(block, earlier) for earlier in before):
                return block
            before.append(block)
        return None


def _server_set(slot: Slot, given: Mapping[str, CpuSet], here: HostCpus) -> CpuSet | None:
    """The server's CPUs, which are on the slot's node where it has one."""
    key, mine = f"slots.{slot.name}", given.get(f"slots.{slot.name}.cpus")
    if slot.numa is None:
        return mine
    nodes = here.topology.node_cpus
    if slot.numa not in nodes:
        there = ", ".join(map(str, sorted(nodes))) or "none that the system tells of"
        raise HostError(f"{key}.numa: {slot.numa}: no such NUMA node; this host has {there}")
    if shutil.which("numactl") is None:
        raise HostError(
            f"{key}.numa: numactl is not installed; install it (apt install numactl), or set null"
        )
    its = nodes[slot.numa]
    if mine is None:
        taken = here.topology.threads_of(cpu for one in given.values() for cpu in one.cpus)
        left = (its & here.usable) - taken
        if not left:
            raise HostError(f"{key}.cpus: null: no CPU of NUMA node {slot.numa} is left; give it a list")
        return CpuSet(f"{key}.cpus", f"null, so what is left of node {slot.numa}", frozenset(left))
    if away := mine.cpus - its:
        raise HostError(
            f"{key}.cpus: {mine.text!r}: CPUs {format_cpu_list(set(away))} are not of NUMA node {slot.numa}, "
            f"which has {format_cpu_list(set(its))}; change cpus or numa"
        )
    return mine


def _check_gpus(slots: Sequence[Slot]) -> None:
    there = {device.index for device in gpu.devices()}
    for slot in slots:
        if there and (missing := sorted(set(slot.gpus) - there)):
            raise HostError(
                f"slots.{slot.name}.gpus: {', '.join(map(str, missing))}: no such GPU; this host has "
                f"{format_cpu_list(there)}"
            )


def _made(slot: Slot) -> Path:
    path = Path(slot.cache_dir or "").expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"slots.{slot.name}.cache_dir: {path}: {error.strerror}; choose another folder"
        ) from error
    return path
