"""NVML's Python bindings as a module object: GPUs with scripted values and errors, for sys.modules."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

GIB = 2**30
#: nvml.h
NOT_SUPPORTED, NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 12, 13, 15


class NVMLError(Exception):
    """An error of the library, by its number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def gpu(**changes: Any) -> dict[str, Any]:
    """What one GPU answers, by function; a value that is an exception is raised, a callable is called."""
    return {
        "nvmlDeviceGetName": "NVIDIA B200",
        "nvmlDeviceGetUUID": "GPU-0a1b2c3d-0000",
        "nvmlDeviceGetMemoryInfo": memory(2),
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetPowerManagementLimit": 1_000_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 1_000_000,
        "nvmlDeviceGetPowerUsage": 640_000,
        "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
        "nvmlDeviceGetClockInfo": {1: 1965, 2: 3996},
        "nvmlDeviceGetMaxClockInfo": {1: 1965, 2: 3996},
        "nvmlDeviceGetClock": {(1, 1): 1965, (1, 2): 1965},
        "nvmlDeviceGetTemperature": 51,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetCurrentClockFreqs": NVMLError(NOT_SUPPORTED),
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        **changes,
    }


def memory(used_gib: float, total_gib: float = 180) -> SimpleNamespace:
    """What nvmlDeviceGetMemoryInfo gives."""
    used, total = int(used_gib * GIB), int(total_gib * GIB)
    return SimpleNamespace(used=used, total=total, free=total - used)


def process(pid: int, gib: float | None) -> SimpleNamespace:
    """One entry of nvmlDeviceGet*RunningProcesses."""
    return SimpleNamespace(pid=pid, usedGpuMemory=None if gib is None else int(gib * GIB))


class FakeNvml(ModuleType):
    """``pynvml`` with these GPUs. ``calls`` holds every question and the thread that asked it."""

    NVMLError = NVMLError

    def __init__(self, *gpus: dict[str, Any], init: Exception | None = None, names: Any = None) -> None:
        super().__init__("pynvml")
        self.gpus, self.init, self.names = list(gpus), init, names or {}
        self.is_up = False
        self.calls: list[tuple[str, threading.Thread]] = []

    def nvmlInit(self) -> None:  # noqa: N802 NVML's name
        if self.init is not None:
            raise self.init
        self.is_up = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or not self._is_known(name):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, threading.current_thread()))
            if not self.is_up:
                raise NVMLError(1)
            return self._answer(name, arguments)

        return call

    def _is_known(self, name: str) -> bool:
        return name.startswith("nvmlSystem") or not self.gpus or name in NOT_OF_ONE or name in self.gpus[0]

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlDeviceGetCount":
            return len(self.gpus)
        if name == "nvmlDeviceGetHandleByIndex":
            if self.gpus[arguments[0]].get("lost"):
                raise NVMLError(GPU_IS_LOST)
            return arguments[0]
        if name == "nvmlSystemGetDriverVersion":
            return "580.65"
        if name == "nvmlSystemGetProcessName":
            return self._value(self.names.get(arguments[0], NVMLError(6)))
        found = self._value(self.gpus[arguments[0]][name])
        more = arguments[1:]
        return found[more[0] if len(more) == 1 else more] if isinstance(found, dict) else found

    @staticmethod
    def _value(value: Any) -> Any:
        if callable(value):
            value = value()
        if isinstance(value, Exception):
            raise value
        return value


NOT_OF_ONE = ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")


def install(monkeypatch: pytest.MonkeyPatch, *gpus: dict[str, Any], **options: Any) -> FakeNvml:
    """Put a host with these GPUs behind ``import pynvml``."""
    fake = FakeNvml(*gpus, **options)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
