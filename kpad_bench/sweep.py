"""Run a plan: boot, drive, measure, store, one trial at a time; a failure is a row, never the end.

The only module that knows all the others. A server or stream error becomes a row with its cause; a
host error ends the sweep with every finished trial on disk; a bug stops loudly.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kpad_bench.agenda import Agenda
from kpad_bench.blockjob import BlockJob
from kpad_bench.cells import arm_variants
from kpad_bench.config import Resolved
from kpad_bench.corpus import open_together
from kpad_bench.corpus_fit import check_fit
from kpad_bench.errors import EXIT_OK, EXIT_TRIALS_FAILED, UsageError
from kpad_bench.host import results_lock, terminable, utc_now
from kpad_bench.launch import without_secrets
from kpad_bench.locks import gpu_set
from kpad_bench.plan import Block, Plan, Trial, make_plan, planned_doubts
from kpad_bench.progress import Progress, Style, make_progress
from kpad_bench.raycluster import Asked
from kpad_bench.rounds import Outlook, Row, Rule
from kpad_bench.schema import MUST_MATCH, OK
from kpad_bench.slots import Dealer, Site, never, same_cells
from kpad_bench.slotwork import Done, Lanes
from kpad_bench.store import RunFolder, find_runs
from kpad_bench.trial import TrialRunner
from kpad_bench.venue import ray_cluster, this_host


@dataclass(frozen=True)
class Options:
    """What a run is told beside its configuration."""

    out: Path
    fresh: bool = False
    attach: str | None = None
    progress: Style = "auto"
    save_text: bool = False
    #: the night that the run is, for its manifest: none resumes another's run
    night: Mapping[str, Any] | None = None
    #: which blocks are measured, and in which order; by default all of the plan
    agenda: Agenda = field(default_factory=Agenda)
    #: the Ray cluster that measures; None: this host does
    ray: Asked | None = None


def run_sweep(resolved: Resolved, options: Options) -> int:
    """Measure what is not measured yet; returns the exit code (0 all ok, 3 some trials are not)."""
    if options.attach is not None:  # somebody's running server is no fixed point to compare nights by
        resolved = resolved.without_sentinel().without_slots()
    corpora = open_together(resolved.corpora)
    plan = make_plan(resolved, {name: corpus.digest for name, corpus in corpora.items()})
    check_fit(resolved, corpora.values())
    with contextlib.ExitStack() as stack:
        if options.ray is None:
            venue = stack.enter_context(this_host(resolved, plan, options.attach))
        else:
            digests = {name: corpus.digest for name, corpus in corpora.items()}
            venue = stack.enter_context(ray_cluster(resolved, digests, options.out, options.ray))
        progress = stack.enter_context(make_progress(options.progress))
        stack.enter_context(results_lock(options.out))
        stack.enter_context(gpu_set(venue.gpus))
        folder = open_run(resolved, plan, options, venue.facts)
        runner = TrialRunner(resolved, corpora, folder, venue.facts, progress, options.save_text)
        stack.enter_context(folder.lock())
        stack.enter_context(terminable())
        lanes = stack.enter_context(venue.lanes(runner))
        n_bad = Run(plan, runner, lanes, options.agenda, has_hosts=venue.has_hosts).execute()
    return EXIT_TRIALS_FAILED if n_bad else EXIT_OK


class Run:
    """One run of a plan in progress: what has been measured, and what is next."""

    def __init__(
        self, plan: Plan, runner: TrialRunner, lanes: Lanes, agenda: Agenda, *, has_hosts: bool = False
    ) -> None:
        self.plan, self.runner, self.lanes, self.agenda = plan, runner, lanes, agenda
        self.folder, self.progress = runner.folder, runner.progress
        self.rows = usable_rows(self.folder, runner.facts, self.progress)
        earlier, rule = self.folder.read_superseded(), rule_of(runner.resolved)
        self.outlook = Outlook(plan, self.rows, earlier, rule, has_hosts=has_hosts)
        agenda.begin(plan, self.outlook, runner.facts)
        self.dealer = Dealer(
            lanes.sites,
            agenda.take,
            lambda block, site: lanes.fits(block, site, self.rows),
            waits=same_cells if plan.design.is_adaptive else never,
            most_held=None if agenda.is_whole else len(lanes.sites),
            counts=lanes.counts,
        )
        #: Blocks of which only trials that failed for a lasting reason are being tried.
        self.probed: set[str] = set()

    def execute(self) -> int:
        """Measure what is not done. Returns how many of the trials that are needed are not ok."""
        n_trials, left = self._n_needed(), self.outlook.models_left(self.agenda.ahead())
        n_left = left.total()
        if n_left:
            where, is_most = str(self.folder.path), self.plan.design.is_adaptive
            self.progress.start(n_trials, left, where, is_most=is_most)
            for doubt in planned_doubts(self.runner.resolved, self.plan):
                self.progress.note(f"warning: {doubt}")
            for one in self.runner.corpora.values():
                if one.n_elsewhere:
                    self.progress.note(
                        f"{one.name}: {one.n_elsewhere} of its prompts are measured in another corpus"
                    )
        elif n_trials:
            self.progress.note(
                f"all {n_trials} trials of {self.folder.path} are done; --fresh starts a new run"
            )
        self._measure()
        n_bad = len(self.outlook.not_ok())
        if not n_bad:
            _, warnings = self.folder.compact()
            for warning in warnings:
                self.progress.note(f"warning: {warning}")
        if n_left and self.agenda.is_whole:
            closing_note(self.folder, n_bad, self.progress)
        return n_bad

    def _n_needed(self) -> int:
        return len(self.outlook.needed(t for block in self.agenda.blocks() for t in block.trials()))

    def _measure(self) -> None:
        """Deal blocks to free sites until there is none left and the last has ended."""
        while True:
            for site in self.dealer.free():
                self._deal(site)
            if not self.dealer.running:
                return
            self._end(self.lanes.wait())

    def _deal(self, site: Site) -> None:
        """Start what is left of the next block; of one with a gap that is all of it."""
        while (block := self.dealer.deal(site)) is not None:
            left = self.outlook.left(block)
            self._retake(block, left.retaken)
            if left.trials:
                if left.is_probe:
                    self.probed.add(block.block_id)
                self.lanes.start(site, BlockJob(block, tuple(left.trials)))
                return
            self._close(block, site)

    def _end(self, done: Done) -> None:
        """Keep the rows of a job; its block ends with it, unless the rest of the block has to follow."""
        block = done.job.block
        self.rows |= {row["trial_id"]: row for row in done.rows}
        if rest := self._rest(done.job):
            self._retake(block, rest)
            self.lanes.start(done.site, BlockJob(block, tuple(rest)))
        else:
            self._close(block, done.site)

    def _rest(self, job: BlockJob) -> list[Trial]:
        """What is to be measured again because a trial has come back: it counts only beside its block."""
        was_probe = job.block.block_id in self.probed
        self.probed.discard(job.block.block_id)
        tried = {trial.trial_id for trial in job.trials}
        if not was_probe or all(self.rows[name]["status"] != OK for name in tried):
            return []
        return [t for t in self.outlook.needed(job.block.trials()) if t.trial_id not in tried]

    def _retake(self, block: Block, trials: Sequence[Trial]) -> None:
        """Take finished trials of a block with a gap out of the run, to be measured beside the others."""
        ids = [trial.trial_id for trial in trials if trial.trial_id in self.rows]
        if ids:
            self.progress.note(
                f"block {block.block_id} was not measured in one go: {len(ids)} finished trials of it move "
                f"to {self.folder.path / 'superseded'} and are measured again"
            )
            self.folder.supersede(ids)
        for trial_id in ids:
            del self.rows[trial_id]

    def _close(self, block: Block, site: Site) -> None:
        """Say what needs no further round, and what is left."""
        self.dealer.done(site)
        for (model, corpus), ending, n_spared in self.outlook.close(block):
            spared = f": {n_spared} trials are not needed" if n_spared else ""
            self.progress.note(f"{model} {corpus}: {ending.why} after {ending.round} rounds{spared}")
        left = self.outlook.models_left([*self.dealer.held, *self.agenda.ahead()])
        left.update(trial.cell.model for trial in self.lanes.pending())
        self.progress.revise(self._n_needed(), left)


def rule_of(resolved: Resolved) -> Rule:
    """When rounds end: every family of padded arms is decided."""
    padded = [variant.arm for variant in arm_variants(resolved) if resolved.arms[variant.spec].pad]
    config = resolved.config
    return Rule(config.rounds, tuple(dict.fromkeys(padded)), config.thresholds.full_share_decode)


def open_run(resolved: Resolved, plan: Plan, options: Options, facts: Mapping[str, Any]) -> RunFolder:
    """The newest run of this very plan, of these model folders and this attached server, or a new one."""
    sweep_folder = options.out / resolved.config.sweep
    attached_to = options.attach and options.attach.rpartition("@")[2].rstrip("/")  # no user, no password
    places = {tag: entry.local for tag, entry in resolved.models.items() if entry.local is not None}
    for folder in [] if options.fresh else find_runs(sweep_folder)[::-1]:
        manifest = folder.read_manifest()
        theirs = (manifest.get("plan_digest"), manifest.get("attached_to"), manifest.get("night"))
        # Ids hold no paths, so ./model of another folder has the same plan.
        if (
            theirs == (plan.digest, attached_to, options.night)
            and manifest.get("model_folders", places) == places
        ):
            return folder
    folder = RunFolder.create(new_run_path(sweep_folder))
    folder.write_manifest(
        {
            "sweep": plan.sweep,
            "run_id": folder.run_id,
            "plan_digest": plan.digest,
            "attached_to": attached_to,
            "night": options.night,
            "model_folders": places,
            "created_at": utc_now().isoformat(),
            "design": str(resolved.config.rounds),
            "config": without_secrets(resolved.model_dump(mode="json")),
            "host": dict(facts),
        }
    )
    return folder


def new_run_path(sweep_folder: Path) -> Path:
    """A folder named for the UTC second; a second run in the same second gets a number."""
    stamp = utc_now().strftime("%Y%m%dT%H%M%SZ")
    names = [stamp, *(f"{stamp}-{number}" for number in range(2, 100))]
    return next(sweep_folder / name for name in names if not (sweep_folder / name).exists())


def usable_rows(folder: RunFolder, facts: Mapping[str, Any], progress: Progress) -> dict[str, Row]:
    """The row of every trial that has one. Raises UsageError where an ok one is from another host."""
    rows, warnings = folder.read_done()
    for warning in warnings:
        progress.note(f"warning: {warning}")
    known = [name for name in MUST_MATCH if name != "vllm_version" or facts[name] is not None]
    for row in rows.values():
        differs = [name for name in known if row["status"] == OK and row.get(name) != facts.get(name)]
        if differs:
            shown = ", ".join(f"{name} was {row.get(name)!r}, is {facts.get(name)!r}" for name in differs)
            raise UsageError(
                f"{folder.path}: trials were measured elsewhere ({shown}); start anew with --fresh"
            )
    return dict(rows)


def closing_note(folder: RunFolder, n_bad: int, progress: Progress) -> None:
    """Where the rows are, and what to run next."""
    if n_bad:
        progress.note(
            f"{n_bad} trials are not ok: their rows say why. Running the same command again redoes them"
        )
    progress.note(f"rows: {folder.path}\nnext: kpad-bench reduce {shlex.quote(str(folder.path))}")
