"""CPU lists in taskset's notation. Pure."""

from __future__ import annotations

from kpad_bench.errors import UsageError

#: More than any kernel knows (CONFIG_NR_CPUS is at most 8192): a slip of the finger, not a CPU.
MOST_CPUS = 8192


def parse_cpu_list(text: str, where: str) -> set[int]:
    """``0-2,8`` -> {0, 1, 2, 8}. Raises UsageError naming ``where``."""
    cpus: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        is_range = low.isdecimal() and (high.isdecimal() if dash else True)
        if not is_range or not int(low) <= int(high or low) < MOST_CPUS:
            raise UsageError(f"{where}: {text!r}: not a CPU list; write it like 0-47,56-103")
        cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def format_cpu_list(cpus: set[int]) -> str:
    """{0, 1, 2, 8} -> ``0-2,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
