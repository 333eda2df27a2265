"""What people see while a sweep runs: plain lines, a live Rich view, or nothing. Always on stderr."""

from __future__ import annotations

import os
import sys
import time
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

    def start(self, n_trials: int, n_done: int, where: str, *, is_most: bool = False) -> None:
        """A run begins: trials in the plan, trials done before, results folder.

        ``is_most``: fewer trials may do.
        """

    def revise(self, n_trials: int, n_left: int) -> None:
        """Other numbers of trials than at the start: rounds that are not needed, blocks measured again."""

    def booting(self, boot: Boot) -> None:
        """A server is being started."""

    def warming(self, trial: Trial) -> None:
        """Warm-up prompts are being sent."""

    def passing(self, trial: Trial) -> None:
        """The measured pass begins."""

    def tick(self, output_tok_per_s: float | None, n_ended: int, n_prompts: int) -> None:
        """News from a pass in progress: mean speed since its start, None while no token has come."""

    def ended(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """A trial has its row."""

    def note(self, message: str) -> None:
        """Something people should know."""

    def close(self) -> None:
        """The run is over, well or not."""


class Estimate:
    """Time left, from the trials of this run alone: mean time per trial times trials left."""

    def __init__(self) -> None:
        self.started, self.n_left, self.n_ended, self.n_total = time.monotonic(), 0, 0, 0

    def start(self, n_trials: int, n_done: int) -> None:
        """A run of ``n_trials`` begins with ``n_done`` of them done before."""
        self.started = time.monotonic()
        self.n_total, self.n_left = n_trials, n_trials - n_done

    def revise(self, n_trials: int, n_left: int) -> None:
        """The run has ``n_trials`` by now, ``n_left`` of them still to be measured."""
        self.n_total, self.n_left = n_trials, n_left

    def ended(self) -> None:
        """One more trial has ended."""
        self.n_ended += 1
        self.n_left -= 1

    def left(self) -> str:
        """Like ``4 min left``; empty before the first trial ended."""
        if not self.n_ended:
            return ""
        seconds = (time.monotonic() - self.started) / self.n_ended * self.n_left
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

    def start(self, n_trials: int, n_done: int, where: str, *, is_most: bool = False) -> None:
        """Says what is to be done and where rows go."""
        self.estimate.start(n_trials, n_done)
        resumed = f", {n_done} of them done before" if n_done else ""
        self.note(f"{'up to ' if is_most else ''}{n_trials} trials{resumed}; rows go to {where}")

    def revise(self, n_trials: int, n_left: int) -> None:
        """Only the estimate changes."""
        self.estimate.revise(n_trials, n_left)

    def booting(self, boot: Boot) -> None:
        """One line."""
        self.note(f"boot    {boot.model} {boot.arm_at_k}")

    def ended(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """One line with the outcome."""
        self.estimate.ended()
        done = self.estimate.n_total - self.estimate.n_left
        cell = trial.cell
        where = f"{cell.model} {cell.corpus} {cell.arm_at_k}"
        self.note(
            f"[{done}/{self.estimate.n_total}] {where:<40} {outcome(row)}  {self.estimate.left()}".rstrip()
        )


class RichProgress(PlainProgress):
    """A live line under the log of ended trials: cells done, current cell, tok/s so far, time left."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console  # noqa: PLC0415 only on a terminal
        from rich.live import Live  # noqa: PLC0415

        super().__init__()
        self.console = console or Console(stderr=True)
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.now, self.speed = "", ""
        self.live.start()

    def note(self, message: str) -> None:
        """One line above the live one."""
        self.live.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def booting(self, boot: Boot) -> None:
        """The live line says what boots."""
        self._show(f"booting {boot.model} {boot.arm_at_k}")

    def warming(self, trial: Trial) -> None:
        """The live line says what warms up."""
        self._show(f"warming up {trial.cell.arm_at_k} on {trial.cell.corpus}")

    def passing(self, trial: Trial) -> None:
        """The live line says what is measured."""
        self._show(f"{trial.cell.model} {trial.cell.corpus} {trial.cell.arm_at_k}")

    def tick(self, output_tok_per_s: float | None, n_ended: int, n_prompts: int) -> None:
        """Speed and requests so far."""
        speed = "" if output_tok_per_s is None else f"  {output_tok_per_s:.0f} tok/s"
        self._show(self.now, f"{speed}  {n_ended}/{n_prompts} requests")

    def _show(self, now: str, speed: str = "") -> None:
        from rich.text import Text  # noqa: PLC0415

        self.now, self.speed = now, speed
        done = self.estimate.n_total - self.estimate.n_left
        line = f"{done}/{self.estimate.n_total} trials  {now}{speed}  {self.estimate.left()}"
        self.live.update(Text(line.rstrip(), overflow="ellipsis", no_wrap=True))

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
