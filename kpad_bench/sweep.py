"""Run a plan: boot, drive, measure, store, one trial at a time; a failure is a row, never the end.

The only module that knows all the others. A server or stream error becomes a row with its cause; a
host error ends the sweep with every finished trial on disk; a bug stops loudly.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpad_bench import provenance
from kpad_bench.argv import PYTHON, served_name
from kpad_bench.attached import attach
from kpad_bench.config import Cpus, Resolved
from kpad_bench.corpus import open_together
from kpad_bench.corpus_budget import check_models
from kpad_bench.errors import EXIT_OK, EXIT_TRIALS_FAILED, HostError, ServerError, UsageError
from kpad_bench.hostcpu import require_cpus
from kpad_bench.launch import Launch, pinned, without_secrets
from kpad_bench.models import models_dir
from kpad_bench.plan import Boot, Plan, Trial, make_plan, planned_doubts
from kpad_bench.progress import Progress, Style, make_progress
from kpad_bench.reading import AnyServer
from kpad_bench.schema import MUST_MATCH, OK
from kpad_bench.server import boot
from kpad_bench.store import RunFolder, find_runs
from kpad_bench.trial import TrialRunner, failed_row


@dataclass(frozen=True)
class Options:
    """What a run is told beside its configuration."""

    out: Path
    fresh: bool = False
    attach: str | None = None
    progress: Style = "auto"
    save_text: bool = False


def run_sweep(resolved: Resolved, options: Options) -> int:
    """Measure what is not measured yet; returns the exit code (0 all ok, 3 some trials are not)."""
    corpora = open_together(resolved.corpora)
    plan = make_plan(resolved, {name: corpus.digest for name, corpus in corpora.items()})
    check_models(resolved, corpora.values())
    attached = None if options.attach is None else attach_to(options.attach, resolved, plan)
    expected = expected_vllm(resolved, attached)
    server_cpus, client_cpus = cpu_sets(resolved.config.cpus, attached)
    with pinned(client_cpus), make_progress(options.progress) as progress, results_lock(options.out):
        facts = provenance.host_facts() | {"vllm_version": expected}
        folder = open_run(resolved, plan, options, facts)
        runner = TrialRunner(resolved, corpora, folder, facts, progress, options.save_text)
        with folder.lock(), terminable():
            n_bad = run_plan(plan, runner, Host(server_cpus, attached))
    return EXIT_TRIALS_FAILED if n_bad else EXIT_OK


def run_plan(plan: Plan, runner: TrialRunner, host: Host) -> int:
    """Run what is not done. Returns how many of the trials that are needed are not ok."""
    folder, progress = runner.folder, runner.progress
    rows = usable_rows(folder, runner.facts, progress)
    outlook = Outlook(plan, rows, folder.read_superseded(), rule_of(runner.resolved))
    n_trials, n_left = len(outlook.needed(plan.trials())), outlook.n_left(plan.blocks)
    if n_left:
        progress.start(n_trials, n_trials - n_left, str(folder.path))
        for doubt in planned_doubts(runner.resolved, plan):
            progress.note(f"warning: {doubt}")
    else:
        progress.note(f"all {n_trials} trials of {folder.path} are done; --fresh starts a new run")
    for place, block in enumerate(plan.blocks, start=1):
        run_block(block, outlook, rows, runner, host)
        for (model, corpus), ending, n_spared in outlook.close(block):
            spared = f": {n_spared} trials are not needed" if n_spared else ""
            progress.note(f"{model} {corpus}: {ending.why} after {ending.round} rounds{spared}")
        progress.revise(len(outlook.needed(plan.trials())), outlook.n_left(plan.blocks[place:]))
    n_bad = len(outlook.not_ok())
    if not n_bad:
        _, warnings = folder.compact()
        for warning in warnings:
            progress.note(f"warning: {warning}")
    if n_left:
        closing_note(folder, n_bad, progress)
    return n_bad


def rule_of(resolved: Resolved) -> Rule:
    """When rounds end: every family of padded arms is decided."""
    padded = [variant.arm for variant in arm_variants(resolved) if resolved.arms[variant.spec].pad]
    config = resolved.config
    return Rule(config.rounds, tuple(dict.fromkeys(padded)), config.thresholds.full_share_decode)


def run_block(
    block: Block, outlook: Outlook, rows: dict[str, Row], runner: TrialRunner, host: Host
) -> None:
    """Measure what is left of one block, as a whole where it has a gap."""
    left = outlook.left(block)
    if left.retaken:
        retake(block, left.retaken, rows, runner)
    run_trials_of(block, left.trials, rows, runner, host)
    if left.is_probe and any(rows[trial.trial_id]["status"] == OK for trial in left.trials):
        tried = {trial.trial_id for trial in left.trials}
        rest = [trial for trial in outlook.needed(block.trials()) if trial.trial_id not in tried]
        retake(block, rest, rows, runner)  # what has come back stands beside them only if they are measured now
        run_trials_of(block, rest, rows, runner, host)


def retake(block: Block, trials: Sequence[Trial], rows: dict[str, Row], runner: TrialRunner) -> None:
    """Take finished trials of a block that has a gap out of the run, to be measured next to the others."""
    ids = [trial.trial_id for trial in trials if trial.trial_id in rows]
    runner.progress.note(
        f"block {block.block_id} was not measured in one go: its {len(ids)} finished trials move to "
        f"{runner.folder.path / 'superseded'}, and it is measured again as a whole"
    )
    runner.folder.supersede(ids)
    for trial_id in ids:
        del rows[trial_id]


def run_trials_of(
    block: Block, trials: Sequence[Trial], rows: dict[str, Row], runner: TrialRunner, host: Host
) -> None:
    """Boot what these trials of a block need, in its order."""
    wanted = {trial.trial_id for trial in trials}
    for planned in block.boots:
        mine = [trial for trial in planned.trials if trial.trial_id in wanted]
        if mine:
            check_disk(runner.folder.path, runner.resolved.config.thresholds.low_disk_gb)
            rows |= {row["trial_id"]: row for row in run_boot(block.block_id, planned, mine, runner, host)}


def run_boot(
    block_id: str, planned: Boot, trials: list[Trial], runner: TrialRunner, host: Host
) -> list[dict[str, Any]]:
    """One server's life, and the rows of its trials."""
    runner.progress.booting(planned)
    started_at = utc_now()
    try:
        server = host.attached or boot(make_launch(planned, runner, host.server_cpus))
    except ServerError as error:
        failure = failed_row(error, started_at)
        return [runner.save_failure(block_id, planned, trial, failure) for trial in trials]
    try:
        return list(run_trials(block_id, planned, trials, runner, server))
    finally:
        server.stop()


def run_trials(
    block_id: str, planned: Boot, trials: list[Trial], runner: TrialRunner, server: AnyServer
) -> Iterator[dict[str, Any]]:
    """The row of each trial. What a dead server leaves undone gets its rows too."""
    warm_up = WarmUp()
    for trial in trials:
        if server.is_dead:
            yield runner.save_failure(block_id, planned, trial, failed_row(server.death(), utc_now()))
        else:
            yield runner.run(block_id, planned, trial, server, warm_up)


def make_launch(planned: Boot, runner: TrialRunner, cpus: frozenset[int] | None) -> Launch:
    """What ``server.boot`` needs for one planned boot."""
    config, entry = runner.resolved.config, runner.resolved.models[planned.model]
    return Launch(
        argv=planned.argv,
        env=dict(planned.env),
        served_name=served_name(planned.boot_id),
        log_path=runner.folder.log_path(planned.boot_id),
        models_dir=models_dir(),
        boot_timeout_s=entry.boot_timeout_s,
        cpus=cpus,
        port=config.server.port,
        optional_args=entry.optional_args,
    )


def open_run(resolved: Resolved, plan: Plan, options: Options, facts: Mapping[str, Any]) -> RunFolder:
    """The newest run of this very plan, of these model folders and this attached server, or a new one."""
    sweep_folder = options.out / resolved.config.sweep
    attached_to = options.attach and options.attach.rpartition("@")[2].rstrip("/")  # no user, no password
    places = {tag: entry.local for tag, entry in resolved.models.items() if entry.local is not None}
    for folder in [] if options.fresh else find_runs(sweep_folder)[::-1]:
        manifest = folder.read_manifest()
        theirs = (manifest.get("plan_digest"), manifest.get("attached_to"))
        # Ids hold no paths, so ./model of another folder has the same plan.
        if theirs == (plan.digest, attached_to) and manifest.get("model_folders", places) == places:
            return folder
    folder = RunFolder.create(new_run_path(sweep_folder))
    folder.write_manifest(
        {
            "sweep": plan.sweep,
            "run_id": folder.run_id,
            "plan_digest": plan.digest,
            "attached_to": attached_to,
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


