"""Doctor on GPUs: count, kind, driver, persistence, power, clocks, and memory that somebody else holds.

What NVML says comes in as data; nothing here asks it but ``Gpus.here``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kpad_bench import gpu
from kpad_bench.config import ModelEntry, Resolved
from kpad_bench.doctor_finding import Check, Finding, failure, ok, run, warning
from kpad_bench.gpu import GIB, VLLM_UTILIZATION, Device, Holder
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.slots import VISIBLE, devices_of, views

#: What ``nightly`` waits for is no reason for it to end: the name of this line.
MEMORY = "gpu memory"
#: Oldest driver branch for a major version of CUDA (NVIDIA, CUDA Compatibility).
DRIVER_FOR_CUDA = {12: 525, 13: 580}
#: Reasons that slow a GPU down whatever it does.
_BAD_THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this host. ``environ``: what servers inherit."""

    devices: Sequence[Device] = ()
    holders: Sequence[Holder] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    has_nvml: bool = True
    has_bindings: bool = True
    torch_cuda: str | None = None

    @classmethod
    def here(cls, environ: Mapping[str, str], torch_cuda: str | None) -> Gpus:
        """As NVML has them now."""
        devices = gpu.devices()
        return cls(
            devices=devices,
            holders=gpu.holders(one.index for one in devices),
            environ=environ,
            has_nvml=gpu.available(),
            has_bindings=importlib.util.find_spec("pynvml") is not None,
            torch_cuda=torch_cuda,
        )


def checks(resolved: Resolved, here: Callable[[], Gpus]) -> list[Check]:
    """All of this subject; one line where a sweep needs no GPU, or where there is none."""
    if resolved.config.server.platform != "cuda":
        return [Check("gpus", lambda: [ok("gpus", "none needed (server.platform: cpu)")])]
    return [Check("gpus", lambda: run(_of_gpus(resolved, here())))]


def _of_gpus(resolved: Resolved, found: Gpus) -> list[Check]:
    if not found.devices:
        return [Check("gpus", lambda: [_none(resolved, found)])]
    used = devices_of(resolved, found.devices, found.environ)
    return [
        Check("gpus", lambda: _count(resolved, found, used)),
        Check("driver", lambda: _driver(found)),
        Check("gpu persistence", lambda: _persistence(used)),
        Check("gpu power", lambda: _power(used)),
        Check("gpu clocks", lambda: _clocks(used)),
        Check(MEMORY, lambda: _memory(resolved, used, found.holders)),
        Check("gpu room", lambda: _room(resolved, found)),
    ]


def weights_bytes(entry: ModelEntry) -> float | None:
    """About how many bytes the weights take: one a parameter for FP8 and mixtures of experts, else two."""
    if entry.size_b is None:
        return None
    return entry.size_b * 1e9 * (1 if entry.kind in ("fp8", "moe") else 2)


def _widest(resolved: Resolved) -> tuple[str, int]:
    """The model on the most GPUs."""
    tag = max(resolved.models, key=lambda name: resolved.models[name].tensor_parallel)
    return tag, resolved.models[tag].tensor_parallel


def _none(resolved: Resolved, here: Gpus) -> Finding:
    tag, n_gpus = _widest(resolved)
    if not here.has_bindings:
        why, way = "the package nvidia-ml-py is not installed", "pip install nvidia-ml-py"
    elif not here.has_nvml:
        why = "NVML does not answer: no NVIDIA driver is loaded"
        way = "run this where nvidia-smi lists GPUs (in a container: docker run --gpus all)"
    else:
        why, way = "the driver has no GPU", "see nvidia-smi and dmesg"
    return failure(
        "gpus",
        f"none found, {tag} needs {n_gpus} (tensor_parallel); {why}",
        f"{way}; without a GPU: --config quickstart",
    )


def _count(resolved: Resolved, here: Gpus, used: Sequence[Device]) -> Iterator[Finding]:
    name, config = "gpus", resolved.config
    there = {one.index for one in here.devices}
    missing = sorted({index for slot in config.slots for index in slot.gpus} - there)
    seen = [(gpu.visible(one.setting, here.devices), one) for one in views(resolved, here.environ)]
    short = [] if config.slots else [(found, one) for found, one in seen if len(found) < one.n_gpus]
    if missing:
        yield failure(
            name,
            f"slots name GPU {format_cpu_list(set(missing))}, this host has {format_cpu_list(there)}",
            "correct slots.*.gpus",
        )
    elif short:
        found, one = max(short, key=lambda pair: pair[1].n_gpus)
        limited = "" if one.setting is None else f" ({VISIBLE}={one.setting})"
        yield failure(
            name,
            f"{len(found)} to be seen{limited}, {one.model} needs {one.n_gpus} (tensor_parallel)",
            "lower tensor_parallel in define_models, take the model out, or use another host",
        )
    else:
        most = _widest(resolved)[1]
        yield ok(name, f"{len(here.devices)} x {here.devices[0].name}, {most} needed at most")
    kinds = sorted({one.name for one in used})
    if len(kinds) > 1:
        yield warning(name, f"of several kinds: {', '.join(kinds)}", f"choose some with {VISIBLE}")


def _driver(here: Gpus) -> Iterator[Finding]:
    driver, name = here.devices[0].driver, "driver"
    if driver is None:
        yield ok(name, "NVML does not say")
        return
    branch, cuda = driver.partition(".")[0], (here.torch_cuda or "").partition(".")[0]
    oldest = DRIVER_FOR_CUDA.get(int(cuda)) if cuda.isdecimal() else None
    if oldest is not None and branch.isdecimal() and int(branch) < oldest:
        yield failure(
            name,
            f"{driver}, torch was built for CUDA {here.torch_cuda}, which needs {oldest}",
            f"install driver {oldest} or newer, or a build of vLLM for an older CUDA",
        )
    else:
        yield ok(name, driver + (f", torch for CUDA {here.torch_cuda}" if here.torch_cuda else ""))


def _persistence(used: Sequence[Device]) -> Iterator[Finding]:
    off = _numbers(one for one in used if one.persistence is False)
    if off:
        yield warning(
            "gpu persistence",
            f"off on GPU {off}: the driver unloads between servers, and boots take longer",
            "sudo nvidia-smi -pm 1",
        )
    else:
        is_told = all(one.persistence for one in used)
        yield ok("gpu persistence", "on" if is_told else "NVML does not say")


def _power(used: Sequence[Device]) -> Iterator[Finding]:
    name = "gpu power"
    capped = [one for one in used if (one.power_limit_w or 0) < (one.power_default_w or 0)]
    if capped:
        one = capped[0]
        yield warning(
            name,
            f"GPU {_numbers(capped)} capped at {one.power_limit_w:g} W, the default is "
            f"{one.power_default_w:g} W",
            f"sudo nvidia-smi -pl {one.power_default_w:g}, if the cap is not meant",
        )
    else:
        limits = sorted({f"{one.power_limit_w:g} W" for one in used if one.power_limit_w is not None})
        yield ok(name, f"limit {', '.join(limits)}" if limits else "NVML does not say")


def _clocks(used: Sequence[Device]) -> Iterator[Finding]:
    name = "gpu clocks"
    slowed = [one for one in used if set(one.throttle or ()) & set(_BAD_THROTTLE)]
    if slowed:
        reasons = sorted({reason for one in slowed for reason in one.throttle or ()})
        yield warning(
            name,
            f"GPU {_numbers(slowed)} is slowed down now ({', '.join(reasons)})",
            "look at temperature, cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        )
    locks = {(one.clock_locked, one.locked_mhz) for one in used}
    if len(locks) > 1:
        yield warning(
            name,
            f"not the same on all GPUs: {gpu.clock_policy(used)}",
            "sudo nvidia-smi -lgc MHZ for all of them, or -rgc for none",
        )
    elif not slowed:
        yield ok(name, gpu.clock_policy(used) or "NVML does not say")


def _memory(resolved: Resolved, used: Sequence[Device], holders: Sequence[Holder]) -> Iterator[Finding]:
    share = resolved.config.server.gpu_memory_utilization or VLLM_UTILIZATION
    n_short = 0
    for one in used:
        if one.memory_total is None or one.memory_free is None:
            continue
        if one.memory_free < share * one.memory_total:
            n_short += 1
            yield failure(
                MEMORY,
                f"GPU {one.index}: {one.memory_free / GIB:.1f} of {one.memory_total / GIB:.1f} GiB free, "
                f"servers take {share:g} of it; held by {_who(one, holders)}",
                "let them end or stop them; if nobody holds it, see nvidia-smi and fuser -v /dev/nvidia*",
            )
    if n_short:
        return
    held = [one for one in used if any(holder.gpu_index == one.index for holder in holders)]
    if held:
        who = "; ".join(f"GPU {one.index}: {_who(one, holders)}" for one in held)
        yield warning(
            MEMORY, f"enough is free, but others are there: {who}", "what they run shows in every figure"
        )
    else:
        told = [one for one in used if one.memory_free is not None]
        yield ok(MEMORY, f"free on GPU {_numbers(told)}" if told else "NVML does not say")


def _room(resolved: Resolved, here: Gpus) -> Iterator[Finding]:
    """Whether weights can fit at all."""
    share = resolved.config.server.gpu_memory_utilization or VLLM_UTILIZATION
    total = min((one.memory_total for one in here.devices if one.memory_total), default=None)
    tight = []
    for tag, entry in resolved.models.items():
        weights = weights_bytes(entry)
        if total and weights and weights / entry.tensor_parallel > share * total:
            each = weights / entry.tensor_parallel / GIB
            tight.append(f"{tag} (about {each:.0f} GiB of weights on each of {entry.tensor_parallel})")
    if tight:
        yield warning(
            "gpu room",
            f"too little memory, by size_b: {', '.join(tight)}; a GPU gives "
            f"{share * (total or 0) / GIB:.0f} GiB",
            "raise tensor_parallel, or take the model out",
        )
    elif total:
        yield ok("gpu room", f"the weights fit, by size_b, into {share:g} of {total / GIB:.0f} GiB a GPU")


def _who(device: Device, holders: Sequence[Holder]) -> str:
    mine = [one for one in holders if one.gpu_index == device.index]
    shown = [
        f"{one.name} (pid {one.pid}"
        + (f", {one.memory_bytes / GIB:.1f} GiB)" if one.memory_bytes is not None else ")")
        for one in mine
    ]
    return ", ".join(shown) or "nobody that NVML knows"


def _numbers(devices: Sequence[Device] | Iterator[Device]) -> str:
    return format_cpu_list({one.index for one in devices})
