"""GPUs as NVML tells of them; what it does not tell is null, and nothing of it is ever an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fake_nvml
import pytest
from fake_nvml import GIB, GPU_IS_LOST, LIBRARY_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, NVMLError, install

from kpad_bench import gpu

UUIDS = ("GPU-aaaa1111-01", "GPU-aaaa2222-02", "GPU-bbbb3333-03")


def test_one_gpu(monkeypatch):
    """Watts, joules, bytes; the reasons by name."""
    install(monkeypatch, fake_nvml.gpu(nvmlDeviceGetCurrentClocksEventReasons=0x1 | 0x2 | 0x4 | 0x40))
    assert gpu.available()
    (found,) = gpu.devices()
    assert found == gpu.Device(
        index=0,
        uuid="GPU-0a1b2c3d-0000",
        name="NVIDIA B200",
        memory_total=180 * GIB,
        memory_free=178 * GIB,
        driver="580.65",
        persistence=True,
        power_limit_w=1000.0,
        power_default_w=1000.0,
        clock_locked=False,
        sm_clock_mhz=1965,
        sm_clock_max_mhz=1965,
        temperature_c=51,
        power_w=640.0,
        energy_j=5000.0,
        throttle=("sw_power_cap", "hw_thermal_slowdown"),
    )
    assert found.memory_used == 2 * GIB


def test_without_bindings(monkeypatch):
    """nvidia-ml-py is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (gpu.available(), gpu.devices(), gpu.holders([0])) == (False, [], [])
    assert gpu.server_gpus({}, 8) == ()


def test_without_a_driver(monkeypatch):
    """The bindings are there, the library is not."""
    install(monkeypatch, init=NVMLError(LIBRARY_NOT_FOUND))
    assert (gpu.available(), gpu.devices(), gpu.holders([0])) == (False, [], [])


def test_without_a_gpu(monkeypatch):
    """A driver and no device."""
    install(monkeypatch)
    assert (gpu.available(), gpu.devices()) == (True, [])


def test_the_bindings_that_are_installed_are_asked_without_a_gpu():
    """On a machine without a driver the real bindings are loaded, refuse, and nothing is told."""
    pytest.importorskip("pynvml")
    if gpu.available():
        pytest.skip("there is an NVIDIA driver here")
    assert gpu.devices() == []


def test_every_function_unsupported(monkeypatch):
    """A GPU that answers nothing but its name is still one."""
    silent = {name: NVMLError(NOT_SUPPORTED) for name in fake_nvml.gpu() if name != "nvmlDeviceGetName"}
    install(monkeypatch, fake_nvml.gpu(**silent))
    assert gpu.devices() == [gpu.Device(index=0, uuid="", name="NVIDIA B200", driver="580.65")]
    assert gpu.devices()[0].memory_used is None
    assert gpu.holders([0]) == []


def test_functions_that_older_bindings_do_not_have(monkeypatch):
    """Throttling under its old name, text as bytes."""
    old = fake_nvml.gpu(nvmlDeviceGetName=b"NVIDIA A100", nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    del old["nvmlDeviceGetCurrentClocksEventReasons"], old["nvmlDeviceGetCurrentClockFreqs"]
    install(monkeypatch, old)
    (found,) = gpu.devices()
    assert (found.name, found.throttle) == ("NVIDIA A100", ("sw_thermal_slowdown",))


def test_a_gpu_that_fell_off_the_bus(monkeypatch):
    """The others keep their index."""
    install(monkeypatch, fake_nvml.gpu(lost=True), fake_nvml.gpu(nvmlDeviceGetUUID=NVMLError(GPU_IS_LOST)))
    assert [(one.index, one.uuid) for one in gpu.devices()] == [(1, "")]


def test_holders(monkeypatch):
    """Compute and graphics, each process once; a name from NVML, else from this host, else none."""
    compute = [fake_nvml.process(os.getpid(), 1.5), fake_nvml.process(7, None)]
    graphics = [fake_nvml.process(os.getpid(), 1.5), fake_nvml.process(2**22 + 1, 0.5)]
    one = fake_nvml.gpu(
        nvmlDeviceGetComputeRunningProcesses=compute, nvmlDeviceGetGraphicsRunningProcesses=graphics
    )
    other = fake_nvml.gpu(nvmlDeviceGetComputeRunningProcesses=[fake_nvml.process(9, 1)])
    install(monkeypatch, one, other, names={7: "/usr/bin/python3 -m x"})
    name = Path("/proc/self/comm").read_text().strip()
    assert gpu.holders([0]) == [
        gpu.Holder(7, "python3", None, 0),
        gpu.Holder(os.getpid(), name, int(1.5 * GIB), 0),
        gpu.Holder(2**22 + 1, "unknown", GIB // 2, 0),
    ]
    assert [one.gpu_index for one in gpu.holders([1])] == [1]


def test_holders_that_nobody_may_see(monkeypatch):
    """No permission is nobody."""
    hidden = NVMLError(NO_PERMISSION)
    install(monkeypatch, fake_nvml.gpu(nvmlDeviceGetComputeRunningProcesses=hidden))
    assert gpu.holders([0]) == []


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("0,7,1", [0]),
        ("GPU-bbbb", [2]),
        ("GPU-bbbb3333-03,1", [2, 1]),
        ("GPU-aaaa,2", []),
        ("MIG-aaaa1111-01", []),
    ],
    ids=[
        *("unset", "none", "minus one", "indices", "blanks", "ends at what is not there"),
        *("start of a uuid", "uuid and index", "two of that start", "slice"),
    ],
)
def test_cuda_visible_devices(monkeypatch, setting, found):
    """As CUDA reads it."""
    install(monkeypatch, *(fake_nvml.gpu(nvmlDeviceGetUUID=uuid) for uuid in UUIDS))
    assert gpu.visible(setting, gpu.devices()) == found


def test_gpus_of_a_server(monkeypatch):
    """The first of those it can see, as many as it takes."""
    install(monkeypatch, *(fake_nvml.gpu(nvmlDeviceGetUUID=uuid) for uuid in UUIDS))
    assert gpu.server_gpus({"CUDA_VISIBLE_DEVICES": "2,1,0"}, 2) == (2, 1)
    assert gpu.server_gpus({}, 1) == (0,)
    assert gpu.server_gpus({"CUDA_VISIBLE_DEVICES": "1"}, 8) == (1,)


@pytest.mark.parametrize(
    ("changes", "policy", "is_locked"),
    [
        ({}, "default, 1000 W", False),
        ({"nvmlDeviceGetPowerManagementLimit": 700_000}, "default, 700 W", False),
        ({"nvmlDeviceGetClock": {(1, 1): 1410, (1, 2): 1965}}, "locked 1410 MHz, 1000 W", True),
        (
            {"nvmlDeviceGetCurrentClockFreqs": "nvclock=1500, nvclockmin=1500, nvclockmax=1500, memclock=9"},
            "locked 1500 MHz, 1000 W",
            True,
        ),
        (
            {"nvmlDeviceGetCurrentClockFreqs": "nvclock=1500, nvclockmin=345, nvclockmax=1965"},
            "default, 1000 W",
            False,
        ),
        (
            {
                "nvmlDeviceGetClock": NVMLError(NOT_SUPPORTED),
                "nvmlDeviceGetPowerManagementLimit": NVMLError(NOT_SUPPORTED),
            },
            "default",
            None,
        ),
    ],
    ids=["as delivered", "capped", "application clocks", "locked", "a range", "not told"],
)
def test_clock_policy(monkeypatch, changes, policy, is_locked):
    """Clocks and power limit in one line."""
    install(monkeypatch, fake_nvml.gpu(**changes))
    found = gpu.devices()
    assert gpu.clock_policy(found) == policy
    assert found[0].clock_locked is is_locked


def test_clock_policy_of_several_gpus(monkeypatch):
    """One line for all that are alike, one for each that is not; none without a GPU."""
    capped = fake_nvml.gpu(nvmlDeviceGetPowerManagementLimit=700_000)
    install(monkeypatch, fake_nvml.gpu(), capped, fake_nvml.gpu())
    assert gpu.clock_policy(gpu.devices()) == "default, 1000 W | default, 700 W"
    assert gpu.clock_policy([]) is None


def test_the_bindings_are_loaded_when_asked_for():
    """Nothing that imports the module pays for them."""
    code = "import sys, kpad_bench.gpu; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
