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
from kpad_bench.corpus import open_frozen
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


@dataclass(frozen=True)
class Host:
    """What servers run on: a CPU set of their own, or a server that somebody else runs."""

    server_cpus: frozenset[int] | None
    attached: AnyServer | None


def run_sweep(resolved: Resolved, options: Options) -> int:
    """Measure what is not measured yet; returns the exit code (0 all ok, 3 some trials are not)."""
    corpora = {name: open_frozen(name) for name in resolved.config.corpora}
    plan = make_plan(resolved, {name: corpus.digest for name, corpus in corpora.items()})
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
    """Run the trials that are not done. Returns how many of them are not ok."""
    folder, progress = runner.folder, runner.progress
    done = done_trials(folder, runner.facts, progress)
    n_trials = len(list(plan.trials()))
    n_done = sum(trial.trial_id in done for trial in plan.trials())
    if n_done == n_trials:
        progress.note(f"all {n_trials} trials of {folder.path} are done; --fresh starts a new run")
    else:
        progress.start(n_trials, n_done, str(folder.path))
        for doubt in planned_doubts(runner.resolved, plan):
            progress.note(f"warning: {doubt}")
    n_bad = sum(run_boots(plan, done, runner, host))
    if not n_bad:
        _, warnings = folder.compact()
        for warning in warnings:
            progress.note(f"warning: {warning}")
    if n_done < n_trials:
        closing_note(folder, n_bad, progress)
    return n_bad


def run_boots(plan: Plan, done: set[str], runner: TrialRunner, host: Host) -> Iterator[int]:
    """How many trials of each boot are not ok."""
    for block, planned in plan.boots():
        trials = [trial for trial in planned.trials if trial.trial_id not in done]
        if trials:
            check_disk(runner.folder.path, runner.resolved.config.thresholds.low_disk_gb)
            yield run_boot(block.block_id, planned, trials, runner, host)


def run_boot(block_id: str, planned: Boot, trials: list[Trial], runner: TrialRunner, host: Host) -> int:
    """One server's life. Returns how many of its trials are not ok."""
    runner.progress.booting(planned)
    started_at = utc_now()
    try:
        server = host.attached or boot(make_launch(planned, runner, host.server_cpus))
    except ServerError as error:
        for trial in trials:
            runner.save_failure(block_id, planned, trial, failed_row(error, started_at))
        return len(trials)
    try:
        return sum(run_trials(block_id, planned, trials, runner, server))
    finally:
        server.stop()


def run_trials(
    block_id: str, planned: Boot, trials: list[Trial], runner: TrialRunner, server: AnyServer
) -> Iterator[bool]:
    """Whether each trial is not ok. What a dead server leaves undone gets its rows too."""
    for trial in trials:
        if server.is_dead:
            runner.save_failure(block_id, planned, trial, failed_row(server.death(), utc_now()))
            yield True
        else:
            yield runner.run(block_id, planned, trial, server)["status"] != OK


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


def attach_to(url: str, resolved: Resolved, plan: Plan) -> AnyServer:
    """The server at ``url``. Raises UsageError unless the plan is one unpadded server variant."""
    variants = sorted({boot.arm_at_k for _, boot in plan.boots()})
    if len(variants) != 1 or any(arm.pad for arm in resolved.arms.values()):
        raise UsageError(
            f"--attach: this plan needs {', '.join(variants)}, a running server is one variant "
            "and cannot prove that it pads; name one unpadded arm, like --arm suf@8"
        )
    return attach(url)


def expected_vllm(resolved: Resolved, attached: AnyServer | None) -> str | None:
    """The vLLM version to expect, None when only servers can tell. Raises HostError for what is not here."""
    if attached is not None:
        found = attached.endpoint.answer("/version")
        return found.get("version") if isinstance(found, dict) else None
    config = resolved.config
    for tag, entry in resolved.models.items():
        path = None if entry.local is None else models_dir() / entry.local
        if path is not None and not (path / "config.json").is_file():
            raise HostError(f"model {tag}: no model in {path}; run `kpad-bench models fetch {entry.local}`")
    launcher = config.server.launcher[0]
    if launcher != PYTHON:
        if shutil.which(launcher) is None:
            raise HostError(f"server.launcher: {launcher!r}: no such program on this host")
        return None  # only its servers can tell
    version = provenance.installed_vllm()
    if version is None:
        raise HostError("vLLM is not installed here; run `make setup` (CPU) or pip install 'kpad-bench[gpu]'")
    if not provenance.is_plugin_installed():
        raise HostError("the vLLM plugin 'kpad' is not installed; install this package with pip")
    return version


def cpu_sets(cpus: Cpus, attached: AnyServer | None) -> tuple[frozenset[int] | None, frozenset[int] | None]:
    """CPUs of server and client, None to leave them alone. Raises HostError for CPUs that are not there.

    A server must not inherit the client's set: without one of its own it gets all that there are.
    """
    server = None if attached else require_cpus(cpus.server, "cpus.server")
    client = require_cpus(cpus.client, "cpus.client")
    if client is not None and server is None:
        server = os.sched_getaffinity(0)
    return (None if server is None else frozenset(server)), (None if client is None else frozenset(client))


@contextlib.contextmanager
def results_lock(out: Path) -> Iterator[None]:
    """One sweep at a time in a results folder, so that two never measure each other."""
    there = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        raise UsageError(f"--out: {there}: not a folder; give another one")
    with RunFolder(out).lock():
        yield


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
            "design": {"rounds": resolved.config.rounds, "kind": "fixed"},
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


def done_trials(folder: RunFolder, facts: Mapping[str, Any], progress: Progress) -> set[str]:
    """Trials that are whole, ok, and of the same must-match provenance as this host."""
    rows, warnings = folder.read_done()
    for warning in warnings:
        progress.note(f"warning: {warning}")
    done = set()
    for trial_id, row in rows.items():
        if row["status"] != OK:
            continue
        known = [name for name in MUST_MATCH if name != "vllm_version" or facts[name] is not None]
        differs = [name for name in known if row.get(name) != facts.get(name)]
        if differs:
            shown = ", ".join(f"{name} was {row.get(name)!r}, is {facts.get(name)!r}" for name in differs)
            raise UsageError(
                f"{folder.path}: trials were measured elsewhere ({shown}); start anew with --fresh"
            )
        done.add(trial_id)
    return done


def check_disk(path: Path, low_disk_gb: float) -> None:
    """Raise HostError before the disk is full, while there is room to end well."""
    free_gb = shutil.disk_usage(path).free / 1e9
    if free_gb < low_disk_gb:
        raise HostError(
            f"{path}: {free_gb:.1f} GB free, thresholds.low_disk_gb is {low_disk_gb:g}; "
            "make room, then run the same command again"
        )


def closing_note(folder: RunFolder, n_bad: int, progress: Progress) -> None:
    """Where the rows are, and what to run next."""
    if n_bad:
        progress.note(
            f"{n_bad} trials are not ok: their rows say why. Running the same command again redoes them"
        )
    progress.note(f"rows: {folder.path}\nnext: kpad-bench reduce {shlex.quote(str(folder.path))}")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """TERM and HUP end a sweep as Ctrl-C does: server gone, finished rows kept, exit 130.

    A signal that whoever started us has set to be ignored (nohup, a job in the background) stays so.
    """

    def as_interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, as_interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def utc_now() -> dt.datetime:
    """Now, in UTC."""
    return dt.datetime.now(dt.UTC)
