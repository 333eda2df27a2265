"""Blocks measured side by side: each slot is driven by a client process of its own.

So that one client's pass is not disturbed by another's, and a client that dies takes one block with it.
The processes write into the same run; nobody but the sweep's own process deals blocks or shows progress.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from kpad_bench.blockjob import Bench, BlockJob, Setup
from kpad_bench.errors import KpadError, ServerError
from kpad_bench.host import terminable, utc_now
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.launch import pinned
from kpad_bench.plan import Block, Boot, Trial
from kpad_bench.progress import Progress
from kpad_bench.reading import AnyServer
from kpad_bench.rounds import Row
from kpad_bench.schema import OK
from kpad_bench.slots import Beside, Site, fits_slot
from kpad_bench.trial import TrialRunner, failed_row

PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: As long as a server may take to stop (``server``), and some for what comes after it.
STOP_S = 45.0


class Done(NamedTuple):
    """A job that has ended, and the row of each of its trials."""

    site: Site
    job: BlockJob
    rows: Sequence[Row]


class Lanes(Protocol):
    """What measures jobs, one at a time on each site. ``counts``: see ``slots.Beside``."""

    @property
    def sites(self) -> Sequence[Site]:
        """Where jobs may run; a site may disappear."""

    @property
    def counts(self) -> MutableSequence[int]:
        """Raised when a block begins on a site and when it ends; empty where that is not told."""

    def fits(self, block: Block, site: Site, rows: Mapping[str, Row]) -> bool:
        """Whether a block may run on a site; ``rows`` are those that count, by trial."""

    def start(self, site: Site, job: BlockJob) -> None:
        """Begin a job on a site that has none."""

    def pending(self) -> list[Trial]:
        """Trials of jobs in progress that have no row yet."""

    def wait(self) -> Done:
        """The next job to end. Raises HostError."""


@contextmanager
def lanes_on(sites: Sequence[Site], runner: TrialRunner, attached: AnyServer | None) -> Iterator[Lanes]:
    """One lane in this process for the whole host, a process each for slots; none is left afterwards."""
    if attached is not None:
        runner.beside = Beside(counts=None)
    if sites[0].name is None:
        yield Here(Bench(runner, sites[0], attached))
    else:
        with SlotProcesses(sites, runner) as lanes:
            yield lanes


class Here:
    """The one lane of a host that is not split: this process itself."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sites: Sequence[Site] = (bench.site,)
        self.counts: MutableSequence[int] = []
        self._jobs: list[BlockJob] = []

    def fits(self, block: Block, site: Site, rows: Mapping[str, Row]) -> bool:
        """The whole host takes every block."""
        return True

    def start(self, site: Site, job: BlockJob) -> None:
        """Remember the job; ``wait`` does it."""
        self._jobs.append(job)

    def pending(self) -> list[Trial]:
        """All of a job that was not begun."""
        return [trial for job in self._jobs for trial in job.trials]

    def wait(self) -> Done:
        """Measure it."""
        job = self._jobs.pop()
        return Done(self.bench.site, job, self.bench.measure(job))


@dataclass
class Worker:
    """The client process of one slot, and what it is at."""

    site: Site
    process: BaseProcess
    pipe: Connection
    job: BlockJob | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    before: tuple[int, ...] = ()


class SlotProcesses:
    """The lanes of a host that is split into slots."""

    def __init__(self, sites: Sequence[Site], runner: TrialRunner) -> None:
        self.sites, self.runner = sites, runner
        self._context = multiprocessing.get_context("spawn")
        self.counts: MutableSequence[int] = self._context.RawArray("q", len(sites))
        self._names = [site.name or "" for site in sites]
        self._workers: dict[str | None, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all clients, each after its server; what does not end in time is killed, and its server by
        its keeper."""
        workers, deadline = list(self._workers.values()), time.monotonic() + STOP_S
        try:
            for worker in workers:
                if kind is None:
                    with suppress(OSError):
                        worker.pipe.send(None)
                else:
                    worker.process.terminate()
            for worker in workers:
                worker.process.join(max(deadline - time.monotonic(), 0.0))
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()
                worker.pipe.close()

    def fits(self, block: Block, site: Site, rows: Mapping[str, Row]) -> bool:
        """As slots do."""
        return fits_slot(self.runner.resolved, block, site, rows)

    def start(self, site: Site, job: BlockJob) -> None:
        """Hand a job to the slot's client, which is started for its first one, and anew after its death."""
        worker = self._workers.get(site.name) or self._spawn(site)
        self._workers[site.name] = worker
        worker.job, worker.rows = job, {}
        worker.before = self._beside(site).watch()
        with suppress(OSError):  # dead: ``wait`` sees it
            worker.pipe.send(job)

    def pending(self) -> list[Trial]:
        """Those of which no client has told the end."""
        jobs = [(worker.job, worker.rows) for worker in self._workers.values() if worker.job]
        return [trial for job, rows in jobs for trial in job.trials if trial.trial_id not in rows]

    def wait(self) -> Done:
        """The next job to end, well or with its client; what clients tell meanwhile is shown."""
        while True:
            pipes = {worker.pipe: worker for worker in self._workers.values()}
            for pipe in wait(list(pipes)):
                worker = pipes[pipe]  # type: ignore[index] # only pipes were given
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    if worker.job is None:
                        self._forget(worker)
                        continue
                    return self._bury(worker, worker.job)
                if (done := self._hear(worker, *message)) is not None:
                    return done

    def _hear(self, worker: Worker, what: str, *told: Any) -> Done | None:
        """One message of a client; a job's end, when it tells of one."""
        if what == "error":
            raise told[0]
        if what == "bug":
            raise RuntimeError(f"the client of slot {worker.site.name} failed:\n{told[0]}")
        if what == "done":
            job, worker.job = worker.job, None
            assert job is not None
            return Done(worker.site, job, list(worker.rows.values()))
        if what == "ended":
            trial, row = told
            worker.rows[trial.trial_id] = row
        getattr(self.runner.progress, what)(*told)
        return None

    def _bury(self, worker: Worker, job: BlockJob) -> Done:
        """Rows for what a client that died has left undone. Its server dies by its keeper."""
        self._forget(worker)
        code = worker.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        error = ServerError("client_died", f"the client process of slot {worker.site.name} {how}")
        on_disk, _ = self.runner.folder.read_done()
        failure = failed_row(error, utc_now()) | {
            "slot": worker.site.name,
            "neighbours": self._beside(worker.site).since(worker.before),
        }
        for boot, trials in job.boots():
            for trial in trials:
                name = trial.trial_id
                if name not in worker.rows and on_disk.get(name, {}).get("status") == OK:
                    worker.rows[name] = on_disk[name]  # saved, but not told any more
                elif name not in worker.rows:
                    worker.rows[name] = self.runner.save_failure(job.block.block_id, boot, trial, failure)
        return Done(worker.site, job, list(worker.rows.values()))

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.site.name]
        worker.process.join()
        worker.pipe.close()

    def _spawn(self, site: Site) -> Worker:
        facts = {**self.runner.facts, "slot": site.name}
        setup = Setup(self.runner.resolved, self.runner.folder.path, facts, self.runner.save_text, site)
        mine, theirs = self._context.Pipe()
        process = self._context.Process(
            target=serve,
            args=(theirs, setup, self._beside(site), os.getpid()),
            name=f"kpad-bench slot {site.name}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return Worker(site, process, mine)

    def _beside(self, site: Site) -> Beside:
        return Beside(self._names, site.name, self.counts)


class Relay(Progress):
    """Tells the sweep's process what happens here. Nothing is sent while a pass is measured."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def booting(self, boot: Boot) -> None:
        """Told."""
        self.pipe.send(("booting", boot))

    def warming(self, trial: Trial) -> None:
        """Told."""
        self.pipe.send(("warming", trial))

    def passing(self, trial: Trial) -> None:
        """Told."""
        self.pipe.send(("passing", trial))

    def ended(self, trial: Trial, row: Row) -> None:
        """Told."""
        self.pipe.send(("ended", trial, dict(row)))

    def note(self, message: str) -> None:
        """Told."""
        self.pipe.send(("note", message))


def serve(pipe: Connection, setup: Setup, beside: Beside, parent: int) -> None:
    """The client process of a slot: measure the jobs that come until there is none."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    os.setsid()  # Ctrl-C is the sweep's, which ends its clients itself
    try:
        with terminable(), pinned(setup.site.client_cpus):
            facts = {**setup.facts, "client_cpus": format_cpu_list(os.sched_getaffinity(0))}
            bench = Setup(setup.resolved, setup.run_path, facts, setup.save_text, setup.site).bench(
                Relay(pipe)
            )
            bench.runner.beside = beside
            while (job := pipe.recv()) is not None:
                bench.measure(job)
                pipe.send(("done",))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return
    except KpadError as error:
        pipe.send(("error", error))
    except Exception:  # noqa: BLE001 a bug: it stops the sweep, with this traceback
        pipe.send(("bug", traceback.format_exc()))
