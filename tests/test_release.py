"""Memory of GPUs that is not back after a server: the next cell is not started."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from conftest import Lab
from fake_nvml import NOT_SUPPORTED, NVMLError, install, memory, process
from fake_vllm.client import group_members

from kpad_bench import release, server
from kpad_bench.errors import EXIT_HOST, GpuNotReleased, HostError
from kpad_bench.release import POLL_S, WAIT_S, GpuMemory


def gpus_with(*used: Callable[[], float], **more: Any) -> list[dict[str, Any]]:
    """One GPU for each function, with so many GiB in use."""
    return [fake_nvml.gpu(nvmlDeviceGetMemoryInfo=lambda one=one: memory(one()), **more) for one in used]


def test_memory_that_is_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits; what the driver keeps is no leak."""
    levels = iter([2.0, 2.9])
    waits: list[float] = []
    install(monkeypatch, *gpus_with(lambda: next(levels)))
    GpuMemory.now([0], waits.append).require_back()
    assert waits == []


def test_memory_that_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waited for, with pauses."""
    levels = iter([2.0, 152.0, 80.0, 2.0])
    waits: list[float] = []
    install(monkeypatch, *gpus_with(lambda: next(levels)))
    GpuMemory.now([0], waits.append).require_back()
    assert waits == [POLL_S, POLL_S]


def test_memory_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded; each GPU with its GiB and its holders."""
    used = [2.0, 3.0, 5.0]
    waits: list[float] = []
    held = gpus_with(lambda: used[0], lambda: used[1], lambda: used[2])
    held[0]["nvmlDeviceGetComputeRunningProcesses"] = [process(4242, 150), process(4243, None)]
    install(monkeypatch, *held, names={4242: "VLLM::EngineCore", 4243: "/opt/bin/train --x"})
    before = GpuMemory.now([0, 1, 2], waits.append)
    used[0], used[1] = 152.0, 5.5
    with pytest.raises(GpuNotReleased) as caught:
        before.require_back()
    text = str(caught.value)
    assert text.startswith(f"gpu_not_released: {WAIT_S:g} s after a server ended, ")
    assert (
        "GPU 0 has 150.0 GiB more in use, held by VLLM::EngineCore (pid 4242, 150.0 GiB), train (pid 4243)"
        in text
    )
    assert "GPU 1 has 2.5 GiB more in use, held by no process that NVML names" in text
    assert "GPU 2" not in text
    assert sum(waits) == WAIT_S
    assert (caught.value.cause, caught.value.exit_code) == ("gpu_not_released", EXIT_HOST)


@pytest.mark.parametrize("known", ["no nvml", "no memory figure", "no gpu of it"])
def test_what_nobody_can_tell_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, known: str) -> None:
    """Null is no leak."""
    waits: list[float] = []
    if known == "no nvml":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        install(monkeypatch, fake_nvml.gpu(nvmlDeviceGetMemoryInfo=NVMLError(NOT_SUPPORTED)))
    GpuMemory.now([] if known == "no gpu of it" else [0], waits.append).require_back()
    assert waits == []


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for memory."""
    monkeypatch.setattr(release, "POLL_S", 0.001)
    monkeypatch.setattr(release, "WAIT_S", 0.01)


@pytest.mark.usefixtures("at_once")
def test_the_next_cell_is_not_started(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial that was measured is kept, the GPU named; with the memory back the run goes on."""
    leak = 150.0

    def used() -> float:
        return 2.0 + (leak if lab.boots() else 0.0)

    install(monkeypatch, *gpus_with(lambda: 100.0, used))
    lab.set(arms=["van", "suf@4"], k=[4])
    lab.set(server={"platform": "cuda", "env": {**lab.config["server"]["env"], "CUDA_VISIBLE_DEVICES": "1"}})
    with pytest.raises(GpuNotReleased, match=r"GPU 1 has 150\.0 GiB more in use"):
        lab.sweep()
    assert len(lab.boots()) == 1
    assert [row["status"] for row in lab.rows()] == ["ok"]
    assert lab.living() == {}
    leak = 0.0
    assert lab.sweep() == 0
    assert [row["status"] for row in lab.rows()] == ["ok", "ok"]


@pytest.mark.usefixtures("at_once")
def test_a_boot_that_fails_and_leaves_memory(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed trial has its row before the sweep ends."""
    install(monkeypatch, *gpus_with(lambda: 90.0 if lab.boots() else 2.0))
    lab.tell(boot_fail={"log": "torch.OutOfMemoryError: CUDA out of memory", "rc": 1})
    lab.set(arms=["van", "suf@4"], k=[4], server={"platform": "cuda"})
    with pytest.raises(GpuNotReleased):
        lab.sweep()
    assert len(lab.boots()) == 1
    assert [row["status"] for row in lab.rows()] == ["failed"]


@pytest.mark.usefixtures("at_once")
def test_a_sweep_on_the_cpu_asks_for_no_gpu(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others do on GPUs of the host is nothing to it."""
    install(monkeypatch, *gpus_with(lambda: 90.0 if lab.boots() else 2.0))
    assert lab.sweep() == 0
    assert lab.row()["gpu_indices"] is None


def test_a_core_that_outlives_its_api_is_gone_before_memory_is_asked_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API process is killed, the core ignores TERM and holds memory: the teardown ends it."""

    def used() -> float:
        alive = [pid for boot in lab.boots() for pid in group_members(boot["pid"])]
        return 152.0 if alive else 2.0

    install(monkeypatch, *gpus_with(used))
    lab.tell(({"k": None}, {"die_after_requests": 4, "leave_core": True}))
    lab.set(arms=["van", "suf@4"], k=[4], server={"platform": "cuda"})
    assert lab.sweep() == 3
    by_arm = {row["arm"]: row for row in lab.rows()}
    assert (by_arm["van"]["status"], by_arm["suf"]["status"]) == ("failed", "ok")
    assert len(lab.boots()) == 2


def test_the_exit_code_of_the_command(lab: Lab) -> None:
    """4, with one line on stderr: real processes, and bindings of NVML that tell of a leak."""
    folder = lab.path / "bindings"
    folder.mkdir()
    boots = f"{lab.script_path}.boots"
    (folder / "pynvml.py").write_text(BINDINGS.format(tests=str(Path(__file__).parent), boots=boots))
    (folder / "sitecustomize.py").write_text(
        "try:\n    from kpad_bench import release\n    release.WAIT_S = release.POLL_S = 0.01\n"
        "except ImportError:\n    pass\n"
    )
    lab.set(arms=["van", "suf@4"], k=[4], server={"platform": "cuda"})
    code, errors = lab.finish(PYTHONPATH=str(folder))
    assert code == 4, errors
    assert re.search(
        r"^kpad-bench: gpu_not_released: .*GPU 0 has 150\.0 GiB more in use", errors, re.MULTILINE
    )
    assert [row["status"] for row in lab.rows()] == ["ok"]


BINDINGS = """\
import pathlib, sys
sys.path.insert(0, {tests!r})
import fake_nvml
def used():
    return fake_nvml.memory(152 if pathlib.Path({boots!r}).exists() else 2)
sys.modules[__name__] = fake_nvml.FakeNvml(fake_nvml.gpu(nvmlDeviceGetMemoryInfo=used))
"""


def test_a_socket_that_stays_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be removed may answer in the name of a server that is gone."""
    spawn, kept = server._spawn, []

    def spawned(argv: Any, env: Any, launch: Any, folder: Path, *more: Any) -> Any:
        kept.append(folder)
        other = folder / "other"  # the keeper removes its own folder too
        other.mkdir()
        return spawn(argv, env, launch, other, *more)

    with monkeypatch.context() as patched:
        patched.setattr(server, "_spawn", spawned)
        patched.setattr(server.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(HostError, match="socket"):
            lab.sweep()
    (folder,) = kept
    assert (folder / "s").exists()
    assert [row["status"] for row in lab.rows()] == ["ok"]
    shutil.rmtree(folder)
