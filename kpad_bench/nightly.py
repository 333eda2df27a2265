"""One unattended night: doctor, sweep within a budget, reduce, compare, report, retain, tell.

Knows the order of things and the exit code; each thing is another module's. Whatever happens, the night ends
with a page that says what became of it. docs/nightly.md is for people.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kpad_bench import arrow, retention, webhook
from kpad_bench.cells import arm_variants
from kpad_bench.config import Resolved
from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.design import Design
from kpad_bench.disk import as_host_error, write_whole
from kpad_bench.doctor import Finding, examine
from kpad_bench.errors import EXIT_HOST, EXIT_INTERRUPTED, DataError, HostError
from kpad_bench.host import results_lock, terminable, utc_now
from kpad_bench.locks import ownership
from kpad_bench.nightly_order import NightAgenda
from kpad_bench.nightly_results import make_results, settled_places
from kpad_bench.nightly_summary import (
    INTERRUPTED,
    NOT_READY,
    STOPPED,
    Summary,
    bad_lines,
    measured_lines,
    span,
)
from kpad_bench.nightly_times import Times
from kpad_bench.nightly_wait import Clock, nvml, wait_for_gpus, why_busy
from kpad_bench.progress import Style
from kpad_bench.schema import MUST_MATCH, TRIALS
from kpad_bench.store import RunFolder, find_runs
from kpad_bench.sweep import Options, run_sweep

#: Rounds of a night where the configuration names no number, or the least where it names one.
ROUNDS = Design(3, 8)
#: Rows of so many earlier runs tell which model is stale and how long things take.
N_FORMER = 100
SUMMARY = "summary"
_FORMER = tuple(
    column
    for column in TRIALS
    if column.name
    in {
        *MUST_MATCH,
        *("trial_id", "run_id", "cell_id", "model", "corpus", "arm", "k", "round", "is_sentinel"),
        *("order_index", "status", "reason", "detail", "started_at", "boot_s", "duration_s"),
    }
)


@dataclass(frozen=True)
class Asked:
    """What a night is told: its sweep, how long it may take, how many nights keep everything."""

    config: str
    out: Path
    budget_s: float = 36000.0
    keep: int = 14
    gpu_wait_s: float = 3600.0
    progress: Style = "auto"

    def command(self) -> str:
        """The command that asks for the same sweep in the same place."""
        return shlex.join(["kpad-bench", "nightly", "--config", self.config, "--out", str(self.out)])


@dataclass(frozen=True)
class Tools:
    """What a test puts another thing in place of: the clocks, NVML, doctor, where messages go."""

    say: Callable[[str], None]
    clock: Clock = field(default_factory=Clock)
    now: Callable[[], dt.datetime] = utc_now
    gpu: Any = field(default_factory=nvml)
    examine: Callable[[Resolved, Path], list[Finding]] = examine


def run_nightly(asked: Asked, tools: Tools) -> Summary:
    """One night from the lock to the webhook; its summary, whose exit code is the command's.

    Raises UsageError for a configuration that cannot be, before anything is locked or started.
    """
    resolved = night_sweep(load_sweep(find_config(asked.config)))
    night = Night(asked, tools, resolved)
    with terminable():
        night.run()
    if why := webhook.post(night.summary.record()):
        tools.say(f"warning: {why}")
    return night.summary


def night_sweep(resolved: Resolved) -> Resolved:
    """The sweep as a night runs it: servers shared by corpora, and further rounds where time is left.

    What the configuration itself says stands, but for a fixed number of rounds (two or more), which becomes
    the least.
    """
    config, changes = resolved.config, dict[str, Any]()
    if "isolation" not in config.model_fields_set:
        changes["isolation"] = "reset"
    if "rounds" not in config.model_fields_set:
        changes["rounds"] = ROUNDS
    elif not config.rounds.is_adaptive and 1 < config.rounds.most < ROUNDS.most:
        changes["rounds"] = Design(config.rounds.most, ROUNDS.most)
    return resolved.model_copy(update={"config": config.model_copy(update=changes)})


class Night:
    """One night in progress, and the summary it fills."""

    def __init__(self, asked: Asked, tools: Tools, resolved: Resolved) -> None:
        self.asked, self.tools, self.resolved = asked, tools, resolved
        self.folder = asked.out / resolved.config.sweep
        started = tools.now()
        self.record: Mapping[str, Any] = {"started_at": started.isoformat(), "budget_s": asked.budget_s}
        self.began = tools.clock.now()
        self.until = self.began + asked.budget_s
        self.summary = Summary(resolved.config.sweep, platform.node(), started, asked.budget_s)
        self.summary.next_command = asked.command()

    def run(self) -> None:
        """All of it, under a lock that keeps a second night of the sweep away."""
        try:
            with results_lock(self.asked.out):  # a sweep that runs there now is named at once
                pass
            lock = ownership(self.folder / ".nightly.lock", f"the nights of {self.folder}")
            with lock:
                self._locked()
        except HostError as error:  # nothing of the folder is ours: no file is written there
            self._end(NOT_READY, EXIT_HOST, str(error))

    def _locked(self) -> None:
        try:
            self._go_on()
            if not self._is_ready():
                self._end(NOT_READY, EXIT_HOST)
            else:
                self._measure()
        except KeyboardInterrupt:
            self._tell_rows()
            self._end(
                INTERRUPTED, EXIT_INTERRUPTED, "the same command goes on with it until its time is over"
            )
            self._write(is_over=False)
            return
        self._retain()
        self._end(self.summary.state, self.summary.exit_code, self.summary.why)
        self._write(is_over=True)

    def _go_on(self) -> None:
        """Take up a night that was cut off and whose time is not over."""
        for run in find_runs(self.folder)[:-2:-1]:
            record = _night_of(run)
            if record is None or (run.path / f"{SUMMARY}.json").exists():
                continue
            started = dt.datetime.fromisoformat(record["started_at"])
            left_s = record["budget_s"] - (self.tools.now() - started).total_seconds()
            if left_s > 0:
                self.record, self.until = record, self.began + left_s
                self.summary.resumed = True
                self.tools.say(f"going on with the night in {run.path}, {span(left_s)} of it left")

    def _is_ready(self) -> bool:
        """What doctor says, and whether the GPUs are free in time. A GPU that is held may be waited for."""
        failures = self._examine()
        if any("gpu" not in one.name.lower() for one in failures):
            return False
        if why_busy(self.resolved, self.tools.gpu):
            before = self.tools.clock.now()
            wait_s = min(self.asked.gpu_wait_s, self.until - before)
            busy = wait_for_gpus(self.resolved, wait_s, self.tools.say, self.tools.gpu, self.tools.clock)
            self.summary.waited_s = self.tools.clock.now() - before
            if busy:
                self.summary.why = f"GPUs not free after {span(wait_s)}: {'; '.join(busy)}"
                return False
            failures = self._examine()
        return not failures

    def _examine(self) -> list[Finding]:
        """The failures that doctor finds; everything that is not ok goes to the summary."""
        findings = [one for one in self.tools.examine(self.resolved, self.asked.out) if one.state != "ok"]
        self.summary.findings = [
            f"{one.state}: {one.name}: {one.found}" + (f". Fix: {one.fix}" if one.fix else "")
            for one in findings
        ]
        failures = [one for one in findings if one.state == "failure"]
        self.summary.why = f"doctor: {', '.join(one.name for one in failures)}" if failures else None
        return failures

    def _measure(self) -> None:
        families = _families(self.resolved)
        agenda = NightAgenda(
            self.until,
            Times(self.resolved),
            self._former(),
            partial(settled_places, self.folder, families),
            self.tools.clock.now,
        )
        options = Options(
            out=self.asked.out, progress=self.asked.progress, night=dict(self.record), agenda=agenda
        )
        try:
            self.summary.exit_code = run_sweep(self.resolved, options)
        except HostError as error:
            self.summary.state, self.summary.exit_code, self.summary.why = STOPPED, EXIT_HOST, str(error)
        self._tell_rows()
        self._tell_left_out(agenda)
        run = self._run()
        if run is not None and self.summary.n_ok and self.summary.state != STOPPED:
            self._tell_results(run, families)

    def _former(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for run in find_runs(self.folder)[-N_FORMER:]:
            if _night_of(run) != self.record:
                rows += _rows(run)
        return rows

    def _run(self) -> RunFolder | None:
        """The run of this night, where it has come to one."""
        runs = [run for run in find_runs(self.folder) if _night_of(run) == self.record]
        return runs[-1] if runs else None

    def _tell_rows(self) -> None:
        run = self._run()
        if run is None:
            return
        rows = sorted(_rows(run), key=lambda row: row["order_index"] or 0)
        self.summary.run = str(run.path)
        self.summary.measured = measured_lines(rows)
        self.summary.not_ok = bad_lines(rows)
        self.summary.n_ok = len(rows) - len(self.summary.not_ok)

    def _tell_left_out(self, agenda: NightAgenda) -> None:
        if not hasattr(agenda, "models"):  # the sweep has not come to it
            return
        for out in agenda.left_out():
            last = f", last measured {out.last_ok:%Y-%m-%d}" if out.last_ok else ", never measured"
            what = f"{out.n_rounds} of {out.n_due} rounds" if out.n_rounds else f"none of {out.n_due} rounds"
            self.summary.not_measured.append(
                f"{out.model}: {what}: the rest takes about {span(out.need_s)}, "
                f"{span(max(0.0, out.left_s))} were left{last if not out.n_rounds else ''}"
            )
        self.summary.undecided = [f"{model} {corpus}" for model, corpus in agenda.undecided()]

    def _tell_results(self, run: RunFolder, families: list[str]) -> None:
        found, summary = make_results(self.folder, run, families), self.summary
        if found.n_rows:
            nights = (
                "1 night" if found.n_nights == 1 else f"{found.n_nights} nights, each counted as one value"
            )
            summary.table = f"{found.n_established} of {found.n_rows} best Ks established, over {nights}"
        summary.changes = found.changes or (["no choice changed tonight"] if found.n_rows else [])
        summary.comparisons = found.comparisons or ["with nothing: no earlier night has a comparable cell"]
        summary.regressions, summary.files = found.regressions, found.files
        summary.not_compared = [
            f"{len(cells)} cells, {why}: {', '.join(cells[:3])}{' ...' if len(cells) > 3 else ''}"
            for why, cells in found.not_compared.items()
        ]
        summary.notes += found.notes
        summary.next_command = shlex.join(["kpad-bench", "recommend", str(run.path)])

    def _retain(self) -> None:
        with as_host_error(self.folder):
            thinned = retention.thin(self.folder, self.asked.keep)
        free = shutil.disk_usage(self.folder).free / 1e9
        run = self._run()
        used = "" if run is None else f"this night takes {_size(run.path) / 1e6:.1f} MB; "
        self.summary.disk.append(f"{used}{free:.1f} GB free")
        if thinned.run_ids:
            self.summary.disk.append(
                f"logs, snapshots and request rows of {len(thinned.run_ids)} nights older than the newest "
                f"{self.asked.keep} removed, {thinned.n_bytes / 1e6:.1f} MB: {', '.join(thinned.run_ids)}"
            )
        self.summary.disk += [f"{run_id} keeps everything: {why}" for run_id, why in thinned.kept.items()]

    def _end(self, state: str, exit_code: int, why: str | None = None) -> None:
        summary = self.summary
        summary.state, summary.exit_code, summary.why = state, exit_code, why or summary.why
        summary.took_s = self.tools.clock.now() - self.began

    def _write(self, *, is_over: bool) -> None:
        """The page beside the rows, and beside the runs as that of the last night. The record says: over."""
        run = self._run()
        page = self.summary.page().encode()
        with as_host_error(self.folder):
            write_whole(self.folder / f"{SUMMARY}.md", page)
            if run is not None:
                write_whole(run.path / f"{SUMMARY}.md", page)
                if is_over:
                    record = json.dumps(self.summary.record(), indent=1, ensure_ascii=False, allow_nan=False)
                    write_whole(run.path / f"{SUMMARY}.json", f"{record}\n".encode())


def _families(resolved: Resolved) -> list[str]:
    """The families of padded arms, whose best K is looked for."""
    padded = [variant.arm for variant in arm_variants(resolved) if resolved.arms[variant.spec].pad]
    return list(dict.fromkeys(padded))


def _night_of(run: RunFolder) -> Mapping[str, Any] | None:
    try:
        night = run.read_manifest().get("night")
    except DataError:
        return None
    return night if isinstance(night, dict) and {"started_at", "budget_s"} <= night.keys() else None


def _rows(run: RunFolder) -> list[dict[str, Any]]:
    """What of a run can be read."""
    try:
        table, _ = arrow.run_table(run.path, "trials", _FORMER)
    except DataError:
        return []
    return list(table.to_pylist())


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
