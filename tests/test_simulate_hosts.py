"""The simulation of many hosts: never under the bound, every block once, failures cost what they cost."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
BLOCKS = [3.0, 1.0, 2.0, 2.0, 1.0, 3.0]


@pytest.fixture
def script(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("simulate_hosts")


@pytest.mark.parametrize(("n_hosts", "hours"), [(1, 12.0), (2, 7.0), (3, 6.0), (6, 3.0), (64, 3.0)])
def test_blocks_go_to_whoever_is_free(script, n_hosts, hours):
    """In the plan's order; more hosts than blocks wait for the longest."""
    found = script.simulate(BLOCKS, n_hosts, script.seeded(1), math.inf, 0.0)
    assert found == (hours, 0.0, 0)
    assert found.makespan_h >= script.bound_h(BLOCKS, n_hosts)


@pytest.mark.parametrize("n_hosts", [1, 2, 64])
def test_a_failure_costs_its_block_and_the_repair(script, n_hosts):
    """All work is done, however often hosts fail, and never sooner than without failures on one host."""
    for seed in range(50):
        found = script.simulate(BLOCKS, n_hosts, script.seeded(seed), 4.0, 1.0)
        assert found.makespan_h >= script.bound_h(BLOCKS, n_hosts)
        if n_hosts == 1:
            assert found.makespan_h == pytest.approx(sum(BLOCKS) + found.lost_h + found.n_failures * 1.0)
        assert (found.n_failures == 0) == (found.lost_h == 0)


def test_the_table_is_of_the_plan_that_is_named():
    """As docs/scale.md shows it."""
    argv = [sys.executable, str(SCRIPTS / "simulate_hosts.py"), "--seeds", "3"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nightly-dgx-b200: 36 blocks, ")
    assert [line.split(" |")[0] for line in done.stdout.splitlines()[-3:]] == ["| 1", "| 4", "| 64"]
