"""The real command, which ends itself by SIGKILL at one exact moment of one phase; for ``soak.py``.

    soak_target.py '{"phase": "load", "kind": "any", "skip": 0, "event": 9, "note": FILE}' -- sweep ...

A moment is a number of calls: within the chosen phase every call and return of a Python or C function counts
(``sys.setprofile``), so that it falls between any two steps of the harness, and the same number is the same
moment. With ``"kind": "system"`` only those count that ask the system for something (files, processes,
signals): they are few, and between them is where something could be lost. A phase that ends sooner is killed
at its end. ``{"count": FILE}`` kills nothing and says how many of both each phase has.

The phases: ``plan`` until the first boot; ``boot`` until the server is ready; ``ready`` until the measured
pass; ``load`` until its last prompt is issued; ``drain`` until its row is written; ``write`` from the making
of a temporary file until it has its name; ``compaction``; ``teardown``, the end of a server.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from kpad_bench import cli, drive, server, store, trial

PHASES = ("plan", "boot", "ready", "load", "drain", "write", "compaction", "teardown")
#: Where Python keeps the functions that ask the system for something.
SYSTEM = ("posix", "_posixsubprocess", "_io", "io")


class Watch:
    """Which phase the harness is in, how many calls it has taken, and the end of it all."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told, self.phase = told, ""
        self.n_events, self.is_armed = {"any": 0, "system": 0}, False
        self.n_seen: Counter[str] = Counter()
        self.counts: dict[str, list[dict[str, int]]] = {}

    def enter(self, phase: str) -> None:
        """The phase before is over, and this one begins."""
        self.leave()
        self.phase, self.n_events = phase, dict.fromkeys(self.n_events, 0)
        is_chosen = phase == self.told.get("phase") and self.n_seen[phase] == self.told["skip"]
        self.n_seen[phase] += 1
        self.is_armed = is_chosen
        if is_chosen or "count" in self.told:
            sys.setprofile(self._event)

    def leave(self) -> None:
        """The phase is over."""
        sys.setprofile(None)
        if self.is_armed:
            self._die("the end of the phase")
        if self.phase:
            self.counts.setdefault(self.phase, []).append(self.n_events)
        self.phase = ""

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        self.n_events["any"] += 1
        self.n_events["system"] += "c_" in event and getattr(argument, "__module__", "") in SYSTEM
        if self.is_armed and self.n_events[self.told["kind"]] >= self.told["event"]:
            name = getattr(argument, "__qualname__", "?") if "c_" in event else frame.f_code.co_qualname
            self._die(f"{event} {name}")

    def _die(self, where: str) -> None:
        Path(self.told["note"]).write_text(json.dumps({"phase": self.phase, "where": where}))
        os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> None:
        """At the end of a run that was not killed."""
        self.leave()
        if "count" in self.told:
            Path(self.told["count"]).write_text(json.dumps(self.counts))


def within(watch: Watch, phase: str, function: Callable[..., Any], after: str = "") -> Callable[..., Any]:
    """The function as a phase of its own; ``after``: the phase that begins when it is over."""

    @functools.wraps(function)
    def run(*args: Any, **more: Any) -> Any:
        watch.enter(phase)
        try:
            return function(*args, **more)
        finally:
            watch.leave()
            if after:
                watch.enter(after)

    return run


def install(watch: Watch) -> None:
    """Put the watch around what the phases are."""
    server.boot_all = within(watch, "boot", server.boot_all, after="ready")
    trial.TrialRunner._pass = within(watch, "load", trial.TrialRunner._pass)  # type: ignore[method-assign]
    drive._Pass._next = last_issued(watch, drive._Pass._next)  # type: ignore[method-assign]
    server.Server.stop = within(watch, "teardown", server.Server.stop)  # type: ignore[method-assign]
    store.RunFolder.compact = within(watch, "compaction", store.RunFolder.compact)  # type: ignore[method-assign]
    store.write_whole = writing(watch, store.write_whole)  # type: ignore[attr-defined]
    trial.settled = then_again(watch, "drain", trial.settled)  # type: ignore[attr-defined]


def last_issued(watch: Watch, function: Callable[..., Any]) -> Callable[..., Any]:
    """The drain begins when the last prompt of the measured pass is taken."""

    def run(driver: Any, queue: Any) -> Any:
        work = function(driver, queue)
        if watch.phase == "load" and len(driver.raws) + 1 >= driver.n_prompts:
            watch.enter("drain")
        return work

    return run


def then_again(watch: Watch, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A phase that goes on from this call until another one begins."""

    def run(*args: Any, **more: Any) -> Any:
        watch.enter(phase)
        return function(*args, **more)

    return run


def writing(watch: Watch, function: Callable[..., Any]) -> Callable[..., Any]:
    """A file's way to its name; inside of a compaction it belongs to that."""

    def run(*args: Any, **more: Any) -> Any:
        if watch.phase == "compaction":
            return function(*args, **more)
        before = watch.phase
        watch.enter("write")
        try:
            return function(*args, **more)
        finally:
            watch.leave()
            if before == "plan":
                watch.enter(before)

    return run


if __name__ == "__main__":
    watch = Watch(json.loads(sys.argv[1]))
    sys.argv[1:] = sys.argv[3:]
    install(watch)
    atexit.register(watch.save)
    watch.enter("plan")
    cli.main()
