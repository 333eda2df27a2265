"""How long a plan takes: by kind of host, from what was measured there, in hours and hours of GPUs."""

from __future__ import annotations

import json

import pytest
from conftest import Lab

from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.dryrun import describe
from kpad_bench.dryrun_hosts import ANY_HOST, host_times, measured_rows
from kpad_bench.nightly_times import MARGIN
from kpad_bench.plan import make_plan

NIGHTLY = "nightly-dgx-b200"


def row(model="Qwen2.5-7B-Instruct", boot_s=60.0, duration_s=100.0, **more):
    """A trial as far as it tells of time."""
    host = {"gpu_name": "NVIDIA B200", "gpu_count": 8, "cpu_model": "Some CPU"}
    times = {"boot_s": boot_s, "duration_s": duration_s}
    return {"status": "ok", "model": model, "corpus": "mbpp", **times, **host, **more}


@pytest.fixture(scope="module")
def nightly():
    """The shipped night, and one of its blocks for a model on one GPU and one for a model on eight."""
    resolved = load_sweep(find_config(NIGHTLY))
    plan = make_plan(resolved, {})
    by_model = {block.boots[0].model: block for block in plan.blocks if not block.is_sentinel}
    return resolved, by_model["Qwen2.5-7B-Instruct"], by_model["DeepSeek-R1"]


def test_measured_boots_and_passes_are_hours_of_a_kind_of_host(nightly):
    """Six boots of a minute, 42 passes of 100 s with their warm-ups, on the GPUs that the model takes."""
    resolved, small, _ = nightly
    (found,) = host_times(resolved, [small], [row(), row(status="failed", duration_s=1e6)])
    assert (found.host, found.n_trials) == ("8 x NVIDIA B200", 1)
    n = len(small.trials())
    assert n == 42
    passes_s = n * (100 * (1 + 32 / 256) + 5)
    assert found.hours == pytest.approx(MARGIN * (6 * 60 + passes_s) / 3600)
    n_gpus = resolved.models["Qwen2.5-7B-Instruct"].tensor_parallel
    assert found.gpu_hours == pytest.approx(n_gpus * found.hours)


def test_kinds_of_hosts_stand_apart_and_gpus_count_by_model(nightly):
    """A host that is twice as fast takes half of the time; eight GPUs are eight times the GPU-hours."""
    resolved, small, large = nightly
    rows = [
        row(),
        row("DeepSeek-R1"),
        row(gpu_name="NVIDIA H200", boot_s=120.0, duration_s=200.0),
        row(gpu_name=None, gpu_count=None),
    ]
    found = {one.host: one for one in host_times(resolved, [small], rows)}
    assert list(found) == ["8 x NVIDIA B200", "8 x NVIDIA H200", "Some CPU"]
    assert found["8 x NVIDIA H200"].hours > 1.8 * found["8 x NVIDIA B200"].hours
    (one,) = host_times(resolved, [large], rows[:2])
    assert resolved.models["DeepSeek-R1"].tensor_parallel == 8
    assert one.gpu_hours == pytest.approx(8 * one.hours)


def test_without_a_measurement_estimates_are_called_so(nightly):
    """Nothing measured, or nothing that was ok."""
    resolved, small, _ = nightly
    (found,) = host_times(resolved, [small], [row(status="invalid")])
    assert (found.host, found.n_trials) == (ANY_HOST, 0)
    text = describe(resolved, None, "table")
    assert "any host (nothing measured yet: estimates): " in text
    assert "GPU-hours" in text


def test_a_dry_run_learns_from_the_runs_of_its_sweep(lab: Lab):
    """Real rows of fakes: their host is named, and seconds of boots and passes become hours."""
    resolved = load_sweep(lab.config_path())
    assert ANY_HOST in describe(resolved, None, "table", lab.out)
    assert lab.sweep() == 0
    (measured,) = measured_rows(lab.out / "lab")
    assert f"{measured['cpu_model']} (from 1 measured trial): 0.0 h" in describe(
        resolved, None, "table", lab.out
    )
    (host,) = json.loads(describe(resolved, None, "json", lab.out))["hosts"]
    assert host["host"] == measured["cpu_model"]
    assert host["gpu_hours"] == 0
    assert 0 < host["hours"] == host["least"]["hours"] < 0.1
