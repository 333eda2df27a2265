"""The work of one block as one value, and the bench that does it: boot, drive, measure, store.

A job and a setup are plain data, so that the same code runs in the process of the sweep, in that of a slot,
or on another host. Knows nothing of the order of blocks. A failure is a row, never the end.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kpad_bench.argv import served_name
from kpad_bench.config import Resolved
from kpad_bench.corpus import open_together
from kpad_bench.errors import ServerError
from kpad_bench.gpu import server_gpus
from kpad_bench.host import check_disk, utc_now
from kpad_bench.launch import Launch
from kpad_bench.models import models_dir
from kpad_bench.plan import Block, Boot, Trial
from kpad_bench.progress import Progress
from kpad_bench.reading import AnyServer
from kpad_bench.release import GpuMemory
from kpad_bench.retry import Booter
from kpad_bench.rounds import Row
from kpad_bench.slots import Site
from kpad_bench.store import RunFolder
from kpad_bench.trial import TrialRunner, failed_row
from kpad_bench.warmup import WarmUp


@dataclass(frozen=True)
class BlockJob:
    """Trials of one block, to be measured in one go at one place."""

    block: Block
    trials: tuple[Trial, ...]

    def boots(self) -> list[tuple[Boot, list[Trial]]]:
        """The boots that these trials need, in the block's order, and the trials of each."""
        wanted = {trial.trial_id for trial in self.trials}
        mine = [(boot, [t for t in boot.trials if t.trial_id in wanted]) for boot in self.block.boots]
        return [(boot, some) for boot, some in mine if some]


@dataclass(frozen=True)
class Setup:
    """What another process needs to make the bench of one site for itself."""

    resolved: Resolved
    run_path: Path
    facts: Mapping[str, Any]
    save_text: bool
    site: Site

    def bench(self, progress: Progress) -> Bench:
        """A bench of its own, on the corpora and the run that the setup names."""
        corpora, facts = open_together(self.resolved.corpora), dict(self.facts)
        folder = RunFolder(self.run_path)
        runner = TrialRunner(self.resolved, corpora, folder, facts, progress, self.save_text)
        return Bench(runner, self.site)


@dataclass
class Bench:
    """One site of a host, or a server that somebody else runs, and what measures on it."""

    runner: TrialRunner
    site: Site
    attached: AnyServer | None = None
    booter: Booter = field(init=False)

    def __post_init__(self) -> None:
        self.booter = Booter(self.runner.resolved.config.retry)

    def measure(self, job: BlockJob) -> list[Row]:
        """Boot what the trials of a job need, in its order; the row of each. Raises HostError."""
        config, boots = self.runner.resolved.config, job.boots()
        together = [boots] if config.isolation == "resident" and boots else [[one] for one in boots]
        rows: list[Row] = []
        for group in together:
            check_disk(self.runner.folder.path, config.thresholds.low_disk_gb)
            rows += self._run(job.block.block_id, group)
        return rows

    def _run(self, block_id: str, group: Sequence[tuple[Boot, Sequence[Trial]]]) -> list[Row]:
        """Servers that are up together, and the rows of their trials, one after the other.

        Raises GpuNotReleased, with every row stored, where they do not give back the memory of their GPUs.
        """
        progress = self.runner.progress
        for planned, _ in group:
            progress.booting(planned)
        booted_at = utc_now()
        launches = [make_launch(planned, self.runner, self.site) for planned, _ in group]
        memory = GpuMemory.now(self._gpus(group, launches))
        servers: Sequence[AnyServer | ServerError] = (
            [self.attached] if self.attached else self.booter.boot(launches, progress.note, progress.stage)
        )
        with contextlib.ExitStack() as stack:
            turns: list[tuple[Trial, Life]] = []
            for (planned, trials), server in zip(group, servers, strict=True):
                stack.callback(self.runner.folder.save_log, planned.boot_id)
                if not isinstance(server, ServerError):
                    stack.callback(server.stop)
                life = Life(planned, server, booted_at)
                turns += [(trial, life) for trial in trials]
            turns.sort(key=lambda turn: turn[0].order_index)
            rows: list[Row] = [life.run(block_id, trial, self.runner) for trial, life in turns]
        memory.require_back()
        return rows

    def _gpus(self, group: Sequence[tuple[Boot, Sequence[Trial]]], launches: Sequence[Launch]) -> set[int]:
        """The GPUs of servers that we start."""
        resolved = self.runner.resolved
        if self.attached or resolved.config.server.platform != "cuda":
            return set()
        sizes = [resolved.models[planned.model].tensor_parallel for planned, _ in group]
        pairs = zip(launches, sizes, strict=True)
        return {index for launch, size in pairs for index in server_gpus(launch.full_env(), size)}


@dataclass
class Life:
    """One server of a block from its boot on; the error instead where it did not come up."""

    planned: Boot
    server: AnyServer | ServerError
    booted_at: dt.datetime
    warm_up: WarmUp = field(default_factory=WarmUp)

    def run(self, block_id: str, trial: Trial, runner: TrialRunner) -> dict[str, Any]:
        """The row of one trial. What a server leaves undone, dead or never up, gets its rows too."""
        if isinstance(self.server, ServerError):
            failure = failed_row(self.server, self.booted_at)
        elif self.server.is_dead:
            failure = failed_row(self.server.death(), utc_now())
        else:
            return runner.run(block_id, self.planned, trial, self.server, self.warm_up)
        return runner.save_failure(block_id, self.planned, trial, failure)


def make_launch(planned: Boot, runner: TrialRunner, site: Site) -> Launch:
    """What ``server.boot`` needs for one planned boot."""
    config, entry = runner.resolved.config, runner.resolved.models[planned.model]
    return Launch(
        argv=planned.argv,
        env={**dict(planned.env), **site.env()},
        served_name=served_name(planned.boot_id),
        log_path=runner.folder.log_path(planned.boot_id),
        models_dir=models_dir(),
        boot_timeout_s=entry.boot_timeout_s,
        cpus=site.server_cpus,
        numa=site.numa,
        port=config.server.port,
        optional_args=entry.optional_args,
    )
