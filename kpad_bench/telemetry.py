"""What the GPUs of a server did during a pass, once a second, and whether that pass can be compared.

A thread asks NVML; nothing here runs where no GPU is to be watched. The columns are pure functions of the
samples. Does not judge: a throttled or disturbed trial is flagged, not refused.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kpad_bench import gpu
from kpad_bench.config import Thresholds
from kpad_bench.gpu import GIB, Moment

PERIOD_S = 1.0
#: A driver in trouble may not answer for minutes; a trial does not wait for it.
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """All watched GPUs at one moment of the monotonic clock."""

    at_ns: int
    gpus: tuple[Moment, ...]


@dataclass
class Watch:
    """Samples GPUs from ``__enter__`` to ``__exit__``: at both ends, and every ``period_s`` between.

    Every question to NVML is asked by a thread of its own: one that is not answered holds up nobody.
    ``is_silent``: the last one was not answered in time.
    """

    indices: Sequence[int]
    period_s: float = PERIOD_S
    answer_s: float = ANSWER_S
    clock_ns: Callable[[], int] = time.monotonic_ns
    samples: list[Sample] = field(default_factory=list)
    is_silent: bool = False
    _begun: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self.indices:
            self._thread = threading.Thread(target=self._watch, name="gpu telemetry", daemon=True)
            self._thread.start()
            self.is_silent = not self._begun.wait(self.answer_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(0 if self.is_silent else self.answer_s)
            self.is_silent = self._thread.is_alive()

    def _watch(self) -> None:
        try:
            nvml = gpu.connect()
            handles = {} if nvml is None else dict(nvml.handles())
            watched = [handles[index] for index in self.indices if index in handles]
            while nvml is not None and watched:
                is_last = self._over.is_set()
                moments = tuple(nvml.moment(handle) for handle in watched)
                self.samples.append(Sample(self.clock_ns(), moments))
                if is_last and len(self.samples) > 1:
                    return
                self._begun.set()
                self._over.wait(self.period_s)
        finally:
            self._begun.set()


def gpu_columns(samples: Sequence[Sample], start_ns: int, end_ns: int) -> dict[str, Any]:
    """Columns of a pass from the samples around it; those within it count, or all where none is."""
    inside = [one for one in samples if start_ns <= one.at_ns <= end_ns] or list(samples)
    if not inside:
        return {}
    power_w = [_sum(moment.power_w for moment in one.gpus) for one in inside]
    throttle = throttle_shares(samples, start_ns, end_ns)
    used = _known(moment.memory_used for one in inside for moment in one.gpus)
    temperatures = _known(moment.temperature_c for one in inside for moment in one.gpus)
    return {
        "gpu_samples": len(inside),
        **_spread("gpu_clock_mhz", [moment.sm_clock_mhz for one in inside for moment in one.gpus]),
        **_spread("gpu_memory_clock_mhz", [moment.memory_clock_mhz for one in inside for moment in one.gpus]),
        "gpu_power_w_mean": _mean(power_w),
        "gpu_energy_j": energy_j(samples, start_ns, end_ns, _mean(power_w)),
        "gpu_temperature_c_max": float(max(temperatures)) if temperatures else None,
        "gpu_memory_gib_max": max(used) / GIB if used else None,
        "throttle_reasons": None if throttle is None else sorted(throttle),
    }


def throttle_shares(samples: Sequence[Sample], start_ns: int, end_ns: int) -> dict[str, float] | None:
    """Reason -> share of the samples in which it held some GPU back; None where NVML does not tell."""
    inside = [one for one in samples if start_ns <= one.at_ns <= end_ns] or list(samples)
    told = [[moment.throttle for moment in one.gpus if moment.throttle is not None] for one in inside]
    told = [each for each in told if each]
    if not told:
        return None
    reasons = sorted({reason for each in told for one in each for reason in one})
    return {
        reason: sum(any(reason in one for one in each) for each in told) / len(told) for reason in reasons
    }


def energy_j(
    samples: Sequence[Sample], start_ns: int, end_ns: int, power_w: float | None = None
) -> float | None:
    """Joules of all GPUs from start to end: by their counters, each taken as linear between two samples.

    Where a GPU has no counter, mean power over the time between.
    """
    if not samples or end_ns <= start_ns:
        return None
    total_j = 0.0
    for place in range(len(samples[0].gpus)):
        known = [(one.at_ns, one.gpus[place].energy_j) for one in samples]
        points = [(at_ns, joules) for at_ns, joules in known if joules is not None]
        is_rising = all(old[1] <= new[1] for old, new in itertools.pairwise(points))
        if len(points) < 2 or not is_rising:  # a counter that falls was reset with the driver
            return None if power_w is None else power_w * (end_ns - start_ns) / 1e9
        total_j += _at(points, end_ns) - _at(points, start_ns)
    return total_j


def flags(
    columns: Mapping[str, Any], throttle: Mapping[str, float] | None, thresholds: Thresholds
) -> tuple[dict[str, Any], list[str]]:
    """Columns ``throttled`` and ``disturbed``, null where nobody knows; and what they rest on, in words."""
    slow = {
        reason: share for reason, share in (throttle or {}).items() if reason in thresholds.throttle_reasons
    }
    others, limit = columns.get("other_cpu_share"), thresholds.other_cpu_share
    found = {
        "throttled": None if throttle is None else bool(slow),
        "disturbed": None if others is None else others > limit,
    }
    warnings = []
    if slow:
        shown = ", ".join(f"{reason} in {share:.0%} of the samples" for reason, share in slow.items())
        warnings.append(f"throttled: GPU clocks were held back in the pass ({shown})")
    if found["disturbed"]:
        warnings.append(
            f"disturbed: other processes kept {others:.2f} CPUs busy in the pass, above "
            f"thresholds.other_cpu_share {limit:g}"
        )
    return found, warnings


def _spread(name: str, values: Sequence[int | None]) -> dict[str, float | None]:
    known = _known(values)
    if not known:
        return {f"{name}_min": None, f"{name}_mean": None, f"{name}_max": None}
    return {
        f"{name}_min": float(min(known)),
        f"{name}_mean": sum(known) / len(known),
        f"{name}_max": float(max(known)),
    }


def _known(values: Iterator[int | None] | Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _sum(values: Iterator[float | None]) -> float | None:
    """None where one of them is."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) if known and len(known) == len(every) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _at(points: Sequence[tuple[int, float]], at_ns: int) -> float:
    """A counter between its readings; outside them the nearest one."""
    if at_ns <= points[0][0]:
        return points[0][1]
    for (old_ns, old), (new_ns, new) in itertools.pairwise(points):
        if at_ns <= new_ns:
            return old + (new - old) * (at_ns - old_ns) / (new_ns - old_ns)
    return points[-1][1]
