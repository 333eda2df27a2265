"""What people see while a sweep runs: plain lines, a live Rich view, or nothing. Always on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from kpad_bench.plan import Boot, Trial

if TYPE_CHECKING:
    from rich.console import Console

Style = Literal["auto", "rich", "plain", "none"]


class Progress:
    """Says nothing; the base of the others and the one of ``--progress none``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, n_trials: int, left: Mapping[str, int], where: str, *, is_most: bool = False) -> None:
        """A run begins: trials in the plan, those left by model, results folder.

        ``is_most``: fewer trials may do.
        """

    def revise(self, n_trials: int, left: Mapping[str, int]) -> None:
        """Other numbers of trials than at the start: rounds that are not needed, blocks measured again."""

    def booting(self, boot: Boot) -> None:
        """A server is being started."""

    def stage(self, stage: str) -> None:
        """What the server that is being started is at: loading weights, capturing graphs, ..."""

    def warming(self, trial: Trial) -> None:
        """Warm-up prompts are being sent."""

    def passing(self, trial: Trial) -> None:
        """The measured pass begins."""

    def tick(self, output_tok_per_s: float | None, n_ended: int, n_prompts: int, n_failed: int = 0) -> None:
        """News from a pass in progress: mean speed since its start, None while no token has come."""

    def ended(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """A trial has its row."""

    def note(self, message: str) -> None:
        """Something people should know."""

    def close(self) -> None:
        """The run is over, well or not."""


class Estimate:
    """Time left, from the trials of this run alone: what a trial of each model took, boots and all.

    A model of which none has ended yet takes as long as the mean of those that have.
    """

    def __init__(self) -> None:
        self.n_total, self.n_models_left = 0, Counter[str]()
        self._since = time.monotonic()
        self._took: defaultdict[str, float] = defaultdict(float)
        self._n_ended = Counter[str]()

    @property
    def n_left(self) -> int:
        """Trials still to be measured."""
        return self.n_models_left.total()

    def start(self, n_trials: int, left: Mapping[str, int]) -> None:
        """A run of ``n_trials`` begins, of which these are left, by model."""
        self._since = time.monotonic()
        self.revise(n_trials, left)

    def revise(self, n_trials: int, left: Mapping[str, int]) -> None:
        """The run has ``n_trials`` by now, and these of them are still to be measured."""
        self.n_total, self.n_models_left = n_trials, Counter(left)

    def ended(self, model: str) -> None:
        """One more trial has ended."""
        now = time.monotonic()
        self._took[model] += now - self._since
        self._since = now
        self._n_ended[model] += 1
        self.n_models_left[model] -= 1

    def left(self) -> str:
        """Like ``4 min left``; empty before the first trial ended."""
        if not self._n_ended:
            return ""
        mean_s = sum(self._took.values()) / self._n_ended.total()
        seconds = sum(
            n * (self._took[model] / self._n_ended[model] if self._n_ended[model] else mean_s)
            for model, n in self.n_models_left.items()
        )
        return f"{seconds:.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"


def outcome(row: Mapping[str, Any]) -> str:
    """One line for one trial: its speed, or why it has none."""
    speed = row.get("output_tok_per_s")
    if row["status"] == "ok" and speed is not None:
        length = row.get("acceptance_length")
        return f"ok      {speed:9.1f} tok/s" + ("" if length is None else f", {length:.2f} tokens per step")
    return f"{row['status']:<7} {row.get('reason')}: {row.get('detail')}"


class PlainProgress(Progress):
    """One line per event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.estimate = Estimate()

    def note(self, message: str) -> None:
        """One line."""
        self.stream.write(f"{message}\n")
        self.stream.flush()

    def start(self, n_trials: int, left: Mapping[str, int], where: str, *, is_most: bool = False) -> None:
        """Says what is to be done and where rows go."""
        self.estimate.start(n_trials, left)
        n_done = n_trials - self.estimate.n_left
        resumed = f", {n_done} of them done before" if n_done else ""
        self.note(f"{'up to ' if is_most else ''}{n_trials} trials{resumed}; rows go to {where}")

    def revise(self, n_trials: int, left: Mapping[str, int]) -> None:
        """Only the estimate changes."""
        self.estimate.revise(n_trials, left)

    def booting(self, boot: Boot) -> None:
        """One line."""
        self.note(f"boot    {boot.model} {boot.arm_at_k}")

    def ended(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """One line with the outcome."""
        self.estimate.ended(trial.cell.model)
        done = self.estimate.n_total - self.estimate.n_left
        cell = trial.cell
        where = f"{cell.model} {cell.corpus} {cell.arm_at_k}"
        where += f" in {slot}" if (slot := row.get("slot")) else ""
        self.note(
            f"[{done}/{self.estimate.n_total}] {where:<40} {outcome(row)}  {self.estimate.left()}".rstrip()
        )


class RichProgress(PlainProgress):
    """A live line under the log of ended trials.

    Trials done, current cell, arm and K, what a booting server is at, tok/s so far, requests done, failed
    requests, time left. The share of FULL graphs is that of the ended trials of the same arm and K: asking
    a server in the middle of a pass would disturb what is measured.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console  # noqa: PLC0415 only on a terminal
        from rich.live import Live  # noqa: PLC0415

        super().__init__()
        self.console = console or Console(stderr=True)
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.now = ""
        self.full_shares: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.live.start()

    def note(self, message: str) -> None:
        """One line above the live one."""
        self.live.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def booting(self, boot: Boot) -> None:
        """The live line says what boots."""
        self._show(f"booting {boot.model} {boot.arm_at_k}")

    def stage(self, stage: str) -> None:
        """The live line says how far."""
        self._show(self.now, stage)

    def warming(self, trial: Trial) -> None:
        """The live line says what warms up."""
        self._show(f"warming up {trial.cell.arm_at_k} on {trial.cell.corpus}")

    def passing(self, trial: Trial) -> None:
        """The live line says what is measured."""
        cell = trial.cell
        shares = self.full_shares[cell.model, cell.arm_at_k]
        full = f"  FULL {100 * sum(shares) / len(shares):.0f} %" if shares else ""
        self._show(f"{cell.model} {cell.corpus} {cell.arm_at_k}{full}")

    def tick(self, output_tok_per_s: float | None, n_ended: int, n_prompts: int, n_failed: int = 0) -> None:
        """Speed, requests and errors so far."""
        speed = [] if output_tok_per_s is None else [f"{output_tok_per_s:.0f} tok/s"]
        failed = [f"{n_failed} failed"] if n_failed else []
        self._show(self.now, *speed, f"{n_ended}/{n_prompts} requests", *failed)

    def ended(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """One line with the outcome, and its share of FULL graphs for the passes to come."""
        share = row.get("full_share_decode")
        if share is not None:
            self.full_shares[trial.cell.model, trial.cell.arm_at_k].append(share)
        super().ended(trial, row)

    def _show(self, now: str, *news: str) -> None:
        from rich.text import Text  # noqa: PLC0415

        self.now = now
        done = self.estimate.n_total - self.estimate.n_left
        parts = [f"{done}/{self.estimate.n_total} trials", now, *news, self.estimate.left()]
        self.live.update(Text("  ".join(part for part in parts if part), overflow="ellipsis", no_wrap=True))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.live.stop()


def make_progress(style: Style) -> Progress:
    """The view asked for; ``auto`` is rich on a terminal that can move its cursor, plain elsewhere."""
    if style == "auto":
        can_redraw = sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")
        style = "rich" if can_redraw else "plain"
    if style == "none":
        return Progress()
    return RichProgress() if style == "rich" else PlainProgress()
