"""How long a plan takes on each kind of host that has measured some of it: hours, and hours of GPUs.

Boots and passes of earlier runs, where there are any; else the estimates of the model entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench import arrow
from kpad_bench.config import Resolved
from kpad_bench.nightly_times import Times
from kpad_bench.plan import Block
from kpad_bench.schema import TRIALS
from kpad_bench.store import find_runs

_READ = (
    "trial_id",
    "status",
    "model",
    "corpus",
    "boot_s",
    "duration_s",
    "gpu_name",
    "gpu_count",
    "cpu_model",
)
_COLUMNS = tuple(column for column in TRIALS if column.name in _READ)
#: The name of the estimate that rests on no measurement.
ANY_HOST = "any host"


class HostTime(NamedTuple):
    """What some blocks take on one kind of host. ``n_trials``: measured there, that this rests on."""

    host: str
    n_trials: int
    hours: float
    gpu_hours: float


def measured_rows(sweep_folder: Path) -> list[dict[str, Any]]:
    """Trials of all runs of a sweep, of the columns that tell of time; parts that cannot be read left out."""
    tables = [arrow.run_table(run.path, "trials", _COLUMNS)[0] for run in find_runs(sweep_folder)]
    return [row for table in tables for row in table.to_pylist()]


def host_times(
    resolved: Resolved, blocks: Sequence[Block], rows: Iterable[Mapping[str, Any]]
) -> Iterator[HostTime]:
    """For each kind of host that has ok trials among the rows; without any, once from the estimates."""
    by_host = defaultdict(list)
    for row in rows:
        if row["status"] == "ok":
            by_host[_kind_of(row)].append(row)
    for host, mine in sorted(by_host.items()) or [(ANY_HOST, [])]:
        times = Times(resolved)
        times.learn(mine)
        hours = {block: times.block_s(block, block.trials()) / 3600 for block in blocks}
        gpu_hours = sum(took * _gpus_of(resolved, block) for block, took in hours.items())
        yield HostTime(host, len(mine), sum(hours.values()), gpu_hours)


def _kind_of(row: Mapping[str, Any]) -> str:
    if row["gpu_name"] is None:
        return str(row["cpu_model"])
    return f"{row['gpu_count'] or 1} x {row['gpu_name']}"


def _gpus_of(resolved: Resolved, block: Block) -> int:
    """GPUs that a block holds while it is measured: those of its largest model."""
    if resolved.config.server.platform != "cuda":
        return 0
    return max(resolved.models[boot.model].tensor_parallel for boot in block.boots)
