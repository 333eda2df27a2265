"""What NVML says of this host's GPUs: kind, clocks, power, memory, throttling, and who holds them.

Works without NVML, without its Python bindings and without a GPU: then there is nothing to tell. A
function that a GPU or a driver does not have tells nothing either. Knows no server and no trial.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Reasons for which clocks are lower than they could be (nvml.h, nvmlClocksEventReason*), under the names of
#: ``nvidia-smi --query-gpu=clocks_event_reasons.*``. Left out: gpu_idle and applications_clocks_setting,
#: which slow nothing down that is meant to be fast.
SLOWING = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
GIB = 2**30
#: What vLLM takes of a GPU where nobody says (0.25.1 and 0.32.0).
VLLM_UTILIZATION = 0.9
#: nvml.h: NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_CLOCK_ID_*
_SM, _MEMORY, _CORE, _TARGET, _DEFAULT = 1, 2, 0, 1, 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU now. Memory in bytes, as NVML counts it: what the driver keeps for itself is used."""

    index: int
    uuid: str
    name: str
    memory_total: int | None = None
    memory_free: int | None = None
    driver: str | None = None
    persistence: bool | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    #: clocks have been set to one value; None: NVML does not say
    clock_locked: bool | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    #: since the driver was loaded
    energy_j: float | None = None
    #: of ``SLOWING``
    throttle: tuple[str, ...] | None = None
    #: what they have been set to
    locked_mhz: int | None = None

    @property
    def memory_used(self) -> int | None:
        """Bytes that are not free."""
        if self.memory_total is None or self.memory_free is None:
            return None
        return self.memory_total - self.memory_free


@dataclass(frozen=True, slots=True)
class Holder:
    """A process with memory on a GPU. ``pid`` is NVML's: in a container it may be one of the host."""

    pid: int
    name: str
    memory_bytes: int | None
    gpu_index: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What changes while a GPU works, at one moment; None where NVML does not say."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] | None = None
    memory_used: int | None = None


class Nvml:
    """NVML's bindings, initialised; an error of theirs is None."""

    def __init__(self, bindings: Any) -> None:
        self.bindings = bindings

    def ask(self, function: str, *arguments: Any) -> Any:
        """What a function answers. None where it is missing, not supported or fails."""
        call = getattr(self.bindings, function, None)
        if call is None:
            return None
        try:
            found = call(*arguments)
        except self.bindings.NVMLError as error:
            _log.debug("%s: %s", function, error)
            return None
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def handles(self) -> list[tuple[int, Any]]:
        """Every GPU that answers, with its index."""
        found = ((index, self._handle(index)) for index in range(self.ask("nvmlDeviceGetCount") or 0))
        return [(index, handle) for index, handle in found if handle is not None]

    def _handle(self, index: int) -> Any:
        return self.ask("nvmlDeviceGetHandleByIndex", index)

    def moment(self, handle: Any) -> Moment:
        """What one GPU does now."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        return Moment(
            sm_clock_mhz=self.ask("nvmlDeviceGetClockInfo", handle, _SM),
            memory_clock_mhz=self.ask("nvmlDeviceGetClockInfo", handle, _MEMORY),
            power_w=_thousandth(self.ask("nvmlDeviceGetPowerUsage", handle)),
            energy_j=_thousandth(self.ask("nvmlDeviceGetTotalEnergyConsumption", handle)),
            temperature_c=self.ask("nvmlDeviceGetTemperature", handle, _CORE),
            throttle=self.throttle(handle),
            memory_used=None if memory is None else int(memory.used),
        )

    def throttle(self, handle: Any) -> tuple[str, ...] | None:
        """Why its clocks are lower than they could be."""
        mask = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if mask is None:  # its name before driver 535
            mask = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if mask is None else tuple(name for name, bit in SLOWING.items() if mask & bit)

    def device(self, index: int, handle: Any, driver: str | None) -> Device:
        """All of one GPU."""
        now, memory = self.moment(handle), self.ask("nvmlDeviceGetMemoryInfo", handle)
        persistence = self.ask("nvmlDeviceGetPersistenceMode", handle)
        is_locked, locked_mhz = self._lock(handle)
        return Device(
            index=index,
            uuid=self.ask("nvmlDeviceGetUUID", handle) or "",
            name=self.ask("nvmlDeviceGetName", handle) or "",
            memory_total=None if memory is None else int(memory.total),
            memory_free=None if memory is None else int(memory.free),
            driver=driver,
            persistence=None if persistence is None else bool(persistence),
            power_limit_w=_thousandth(self.ask("nvmlDeviceGetPowerManagementLimit", handle)),
            power_default_w=_thousandth(self.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
            clock_locked=is_locked,
            sm_clock_mhz=now.sm_clock_mhz,
            sm_clock_max_mhz=self.ask("nvmlDeviceGetMaxClockInfo", handle, _SM),
            temperature_c=now.temperature_c,
            power_w=now.power_w,
            energy_j=now.energy_j,
            throttle=now.throttle,
            locked_mhz=locked_mhz,
        )

    def _lock(self, handle: Any) -> tuple[bool | None, int | None]:
        """Whether somebody has set the clocks, and to how many MHz.

        NVML sets a lock and has no function that reads one. It is seen where the driver tells a range of
        one value (``nvmlDeviceGetCurrentClockFreqs``), or application clocks that are not the default ones.
        """
        told = self.ask("nvmlDeviceGetCurrentClockFreqs", handle) or ""
        pairs = (part.partition("=") for part in told.replace(";", ",").split(","))
        freqs = {name.strip(): int(value) for name, _, value in pairs if value.strip().isdecimal()}
        low, high = freqs.get("nvclockmin"), freqs.get("nvclockmax")
        target = self.ask("nvmlDeviceGetClock", handle, _SM, _TARGET)
        default = self.ask("nvmlDeviceGetClock", handle, _SM, _DEFAULT)
        if high is not None and low == high:
            return True, high
        if target and default and target != default:
            return True, int(target)
        return (None if low is None and target is None else False), None

    def holders(self, index: int, handle: Any) -> list[Holder]:
        """Processes with memory on one GPU, by pid."""
        found: dict[int, int | None] = {}
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for one in self.ask(function, handle) or []:
                found[one.pid] = one.usedGpuMemory
        return [Holder(pid, self._name(pid), memory, index) for pid, memory in sorted(found.items())]

    def _name(self, pid: int) -> str:
        told = self.ask("nvmlSystemGetProcessName", pid)
        if told:
            return str(told).split()[0].rpartition("/")[2] or str(told)
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm,
        ):
            return comm.read().strip()
        return "unknown"


def connect() -> Nvml | None:
    """NVML, initialised; None where there are no bindings, no library or no driver."""
    try:
        bindings = importlib.import_module("pynvml")
        bindings.nvmlInit()
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 what the bindings raise is known only when they are there
        _log.debug("nvmlInit: %s", error)
        return None
    return Nvml(bindings)


def available() -> bool:
    """Whether NVML answers on this host."""
    return connect() is not None


def devices() -> list[Device]:
    """The GPUs of this host in NVML's order, that of their PCI addresses; none without NVML."""
    nvml = connect()
    if nvml is None:
        return []
    driver = nvml.ask("nvmlSystemGetDriverVersion")
    return [nvml.device(index, handle, driver) for index, handle in nvml.handles()]


def holders(indices: Iterable[int]) -> list[Holder]:
    """Processes with memory on these GPUs; none without NVML, or where it may not tell."""
    nvml, wanted = connect(), set(indices)
    if nvml is None:
        return []
    return [one for index, handle in nvml.handles() if index in wanted for one in nvml.holders(index, handle)]


def memory_used(indices: Iterable[int]) -> dict[int, int]:
    """Bytes in use on these GPUs, by index; a GPU that does not tell is left out."""
    nvml, wanted = connect(), set(indices)
    if nvml is None:
        return {}
    found = {
        index: nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        for index, handle in nvml.handles()
        if index in wanted
    }
    return {index: int(memory.used) for index, memory in found.items() if memory is not None}


def server_gpus(env: Mapping[str, str], n_gpus: int) -> tuple[int, ...]:
    """Indices of the GPUs that a server of this environment uses: the first ``n_gpus`` it can see."""
    return tuple(visible(env.get("CUDA_VISIBLE_DEVICES"), devices())[:n_gpus])


def visible(setting: str | None, found: Sequence[Device]) -> list[int]:
    """Indices of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; all of them for None.

    As CUDA reads it: indices, or starts of UUIDs; the list ends before the first entry that is no GPU. With
    GPUs of several kinds CUDA's own order is NVML's only under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. A MIG slice
    (``MIG-...``) is no GPU here.
    """
    if setting is None:
        return [one.index for one in found]
    chosen: list[int] = []
    for entry in setting.split(","):
        name = entry.strip()
        fits = [one.index for one in found if _is_named(one, name)]
        if len(fits) != 1:
            break
        chosen += fits
    return chosen


def clock_policy(found: Sequence[Device]) -> str | None:
    """How the clocks of these GPUs are set, and their power limits; None where there are no GPUs.

    As ``default, 1000 W`` or ``locked 1410 MHz, 700 W``; those of GPUs that differ are listed.
    """
    policies = sorted({_policy(one) for one in found})
    return " | ".join(policies) or None


def _policy(one: Device) -> str:
    clocks = f"locked {one.locked_mhz} MHz" if one.clock_locked else "default"
    return clocks if one.power_limit_w is None else f"{clocks}, {one.power_limit_w:g} W"


def _is_named(one: Device, name: str) -> bool:
    if name.isdecimal():
        return int(name) == one.index
    return name.startswith("GPU-") and one.uuid.startswith(name)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
