"""What the GPUs of a server did during a pass, once a second, and whether that pass can be compared.

A thread asks NVML; nothing here runs where no GPU is to be watched. The columns are pure functions of the
samples. Does not judge: a throttled or disturbed trial is flagged, not refused.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

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


class Span(Protocol):
    """A pass, as times of the monotonic clock."""

    @property
    def start_ns(self) -> int:
        """First request out."""

    @property
    def end_ns(self) -> int:
        """Last answer in."""


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


def gpu_columns(watch: Watch, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Columns of a pass from the samples around it; those within it count, or all where none is."""
    samples = list(watch.samples)
    inside = _inside(samples, start_ns, end_ns)
    if not inside:
        return {"gpu_indices": list(watch.indices) or None}
    every = [moment for one in inside for moment in one.gpus]
    used = [moment.memory_used for moment in every if moment.memory_used is not None]
    temperatures = [moment.temperature_c for moment in every if moment.temperature_c is not None]
    power_w = _mean([_sum([moment.power_w for moment in one.gpus]) for one in inside])
    throttle = throttle_shares(samples, start_ns, end_ns)
    return {
        "gpu_indices": list(watch.indices),
        "gpu_samples": len(inside),
        **_spread("gpu_clock_mhz", [moment.sm_clock_mhz for moment in every]),
        **_spread("gpu_memory_clock_mhz", [moment.memory_clock_mhz for moment in every]),
        "gpu_power_w_mean": power_w,
        "gpu_energy_j": energy_j(samples, start_ns, end_ns, power_w),
        "gpu_temperature_c_max": float(max(temperatures)) if temperatures else None,
        "gpu_memory_gib_max": max(used) / GIB if used else None,
        "throttle_reasons": None if throttle is None else list(throttle),
    }


def throttle_shares(samples: Sequence[Sample], start_ns: int, end_ns: int) -> dict[str, float] | None:
    """Reason -> share of the samples in which it held some GPU back; None where NVML does not tell."""
    moments = [one.gpus for one in _inside(samples, start_ns, end_ns)]
    told = [[one.throttle for one in each if one.throttle is not None] for each in moments]
    told = [each for each in told if each]
    if not told:
        return None
    reasons = sorted({reason for each in told for one in each for reason in one})
    return {name: sum(any(name in one for one in each) for each in told) / len(told) for name in reasons}


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


def flagged(columns: Mapping[str, Any], watch: Watch, trace: Span, thresholds: Thresholds) -> dict[str, Any]:
    """``throttled`` and ``disturbed``, null where nobody knows; ``warnings`` with what they rest on."""
    throttle = throttle_shares(list(watch.samples), trace.start_ns, trace.end_ns)
    slow = {name: share for name, share in (throttle or {}).items() if name in thresholds.throttle_reasons}
    others, limit = columns.get("other_cpu_share"), thresholds.other_cpu_share
    is_disturbed = None if others is None else others > limit
    warnings = list(columns.get("warnings") or [])
    if slow:
        shown = ", ".join(f"{name} in {share:.0%} of the samples" for name, share in slow.items())
        warnings.append(f"throttled: GPU clocks were held back in the pass ({shown})")
    if is_disturbed:
        warnings.append(
            f"disturbed: other processes kept {others:.2f} CPUs busy in the pass, above "
            f"thresholds.other_cpu_share {limit:g}"
        )
    if watch.is_silent:
        warnings.append(f"NVML did not answer within {watch.answer_s:g} s: GPU columns are null or of a part")
    return {
        "throttled": None if throttle is None else bool(slow),
        "disturbed": is_disturbed,
        "warnings": warnings,
    }


def _inside(samples: Sequence[Sample], start_ns: int, end_ns: int) -> list[Sample]:
    return [one for one in samples if start_ns <= one.at_ns <= end_ns] or list(samples)


def _spread(name: str, values: Sequence[int | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    if not known:
        return {f"{name}_min": None, f"{name}_mean": None, f"{name}_max": None}
    return {
        f"{name}_min": float(min(known)),
        f"{name}_mean": sum(known) / len(known),
        f"{name}_max": float(max(known)),
    }


def _sum(values: Sequence[float | None]) -> float | None:
    """None where one of them is."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


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
