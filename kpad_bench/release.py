"""Whether the memory of GPUs is back after a server is gone. Asks NVML; without it there is nothing to prove.

A process that is gone may leave memory behind for a while, or for good (a driver in trouble, a helper that
left the server's session). The next server would find too little, or be measured beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kpad_bench import gpu
from kpad_bench.errors import GpuNotReleased
from kpad_bench.gpu import GIB

WAIT_S, POLL_S = 60.0, 0.5
#: What a driver may keep after the first use of a GPU. A server has many times that.
SLACK_GIB = 1.0


@dataclass(frozen=True)
class GpuMemory:
    """Bytes in use on GPUs before a server is booted; see ``require_back``."""

    before: Mapping[int, int]
    wait: Callable[[float], None] = time.sleep

    @classmethod
    def now(cls, indices: Iterable[int], wait: Callable[[float], None] = time.sleep) -> GpuMemory:
        """As it is now on these GPUs."""
        wanted = set(indices)
        return cls(gpu.memory_used(wanted) if wanted else {}, wait)

    def require_back(self) -> None:
        """Return as soon as no more is in use than before, give or take a GiB.

        Raises GpuNotReleased after ``WAIT_S``, with what is left on each GPU and who holds it.
        """
        for _ in range(round(WAIT_S / POLL_S)):
            if not self._left():
                return
            self.wait(POLL_S)
        if left := self._left():
            raise GpuNotReleased(_told(left))

    def _left(self) -> dict[int, float]:
        """GPU -> GiB more than before; a GPU that does not tell is left out."""
        if not self.before:
            return {}
        now = gpu.memory_used(self.before)
        more = {index: (now[index] - self.before[index]) / GIB for index in now if index in self.before}
        return {index: gib for index, gib in more.items() if gib > SLACK_GIB}


def _told(left: Mapping[int, float]) -> str:
    every = gpu.holders(left)
    lines = []
    for index, gib in sorted(left.items()):
        mine = [one for one in every if one.gpu_index == index]
        held = ", ".join(f"{one.name} (pid {one.pid}{_size(one.memory_bytes)})" for one in mine)
        lines.append(
            f"GPU {index} has {gib:.1f} GiB more in use, held by {held or 'no process that NVML names'}"
        )
    return (
        f"gpu_not_released: {WAIT_S:g} s after a server ended, {'; '.join(lines)}. End what holds it, or "
        "reset the GPU; then run the same command again: finished trials are kept"
    )


def _size(memory_bytes: int | None) -> str:
    return "" if memory_bytes is None else f", {memory_bytes / GIB:.1f} GiB"
