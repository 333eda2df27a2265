"""Boots that are tried again, and boots that are spared, by the cause of the failure.

Somebody else's memory and a taken address pass; a wrong flag does not. What is tried how often is the
configuration's (``retry``). Every earlier attempt is told in the row that comes of it.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kpad_bench import server
from kpad_bench.config import RetryRule
from kpad_bench.errors import ServerError
from kpad_bench.launch import Launch
from kpad_bench.server import Server

#: Causes that come back with the same command on the same host, so that one boot of a run finds out for all.
SAME_EVERY_TIME = frozenset(
    ("config_error", "launcher_error", "plugin_error", "runner_refused", "model_missing", "gated")
)
#: vLLM's words: ``Free memory on device cuda:0 (3.1/178.0 GiB) ... utilization (0.85, 151.3 GiB)``.
_WANTED = re.compile(r"on device \D*(?P<device>\d+) .*\([\d.]+, (?P<gib>[\d.]+) GiB\)")
GIB = 2**30


def why_busy(launch: Launch, error: ServerError) -> str | None:
    """Why a GPU still has too little memory, and who holds it; None: it has enough, or nobody can tell."""
    found = _WANTED.search(error.detail)
    gpu = _nvml()
    if found is None or gpu is None:
        return None
    visible = launch.full_env().get("CUDA_VISIBLE_DEVICES", "").split(",")
    place = int(found["device"])
    name = visible[place].strip() if visible != [""] and place < len(visible) else str(place)
    device = next((one for one in gpu.devices() if name in (str(one.index), one.uuid)), None)
    wanted = float(found["gib"]) * GIB
    if device is None or device.memory_free is None or device.memory_free >= wanted:
        return None
    holders = (
        ", ".join(f"{one.name} (pid {one.pid})" for one in gpu.holders([device.index])) or "nobody known"
    )
    free = device.memory_free / GIB
    return f"GPU {device.index} has {free:.1f} GiB free, {found['gib']} are needed; held by {holders}"


def _nvml() -> Any:
    """The module that asks NVML; None where it cannot be loaded."""
    try:
        return importlib.import_module("kpad_bench.gpu")
    except ImportError:
        return None


@dataclass
class Booter:
    """Boots servers for one run, and remembers which commands cannot work.

    ``wait`` and ``why_busy`` are there for tests: the clock, and what NVML says of a failure by memory.
    """

    rules: Mapping[str, RetryRule] = field(default_factory=dict)
    wait: Callable[[float], None] = time.sleep
    why_busy: Callable[[Launch, ServerError], str | None] = why_busy
    _hopeless: dict[tuple[Any, ...], ServerError] = field(default_factory=dict)

    def boot(
        self,
        launches: Sequence[Launch],
        say: Callable[[str], None],
        watch: Callable[[str], None] | None = None,
    ) -> list[Server | ServerError]:
        """``server.boot_all``, with further attempts where the cause of a failure allows them.

        ``earlier`` of what comes back tells of the attempts before, ``n_boots`` how many there were in all:
        0 for a command that has failed in this run for a reason that lasts, and was not started again.
        """
        found: list[Server | ServerError | None] = [self._spared(launch) for launch in launches]
        with contextlib.ExitStack() as up:
            fresh = [place for place, one in enumerate(found) if one is None]
            for place, one in zip(fresh, _boot(up, [launches[place] for place in fresh], watch), strict=True):
                if isinstance(one, ServerError):
                    found[place] = self._again(up, launches[place], one, say, watch)
                else:
                    found[place] = one
            up.pop_all()
        return [one for one in found if one is not None]

    def _again(
        self,
        up: contextlib.ExitStack,
        launch: Launch,
        error: ServerError,
        say: Callable[[str], None],
        watch: Callable[[str], None] | None,
    ) -> Server | ServerError:
        """What comes of the attempts after the first."""
        earlier: list[str] = []
        n_boots = 1
        while (rule := self.rules.get(error.cause)) and len(earlier) + 1 < rule.attempts:
            told = f"attempt {len(earlier) + 1} of {rule.attempts}: {error.cause}: {error.detail}"
            busy = self._wait(launch, error, rule, say)
            if busy is not None:
                earlier.append(f"{told}; not tried again after {rule.wait_s:g} s: {busy}")
                continue
            earlier.append(told)
            n_boots += 1
            (one,) = _boot(up, [launch], watch)
            if not isinstance(one, ServerError):
                one.earlier, one.n_boots = tuple(earlier), n_boots
                return one
            error = one
        if error.cause in SAME_EVERY_TIME:
            self._hopeless[_command(launch)] = error
        error.earlier, error.n_boots = tuple(earlier), n_boots
        return error

    def _wait(
        self, launch: Launch, error: ServerError, rule: RetryRule, say: Callable[[str], None]
    ) -> str | None:
        """Wait; then why there is no point in a boot, None where there may be."""
        say(f"{error.cause}: {error.detail}; trying again in {rule.wait_s:g} s")
        self.wait(rule.wait_s)
        return self.why_busy(launch, error) if error.cause == "gpu_busy" else None

    def _spared(self, launch: Launch) -> ServerError | None:
        """The failure of a command that is not started again; None for one that may work."""
        before = self._hopeless.get(_command(launch))
        if before is None:
            return None
        text = f"not booted, the same command has failed in this run: {before.detail}"
        error = ServerError(before.cause, text, argv=before.argv, log_path=before.log_path)
        error.n_boots = 0
        return error


def _boot(
    up: contextlib.ExitStack, launches: Sequence[Launch], watch: Callable[[str], None] | None
) -> list[Server | ServerError]:
    found = server.boot_all(launches, watch)
    for one in found:
        if not isinstance(one, ServerError):
            up.callback(one.stop)
    return found


def _command(launch: Launch) -> tuple[Any, ...]:
    """What makes two boots the same: everything but the name that the server goes by."""
    argv = tuple(part for part in launch.argv if part != launch.served_name)
    return argv, tuple(sorted(launch.env.items())), launch.optional_args
