"""The simulation of the decision: that it runs, and what counts as a broken promise."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent / "scripts"


def test_the_simulation_runs_and_counts_what_it_promises(tmp_path):
    """Two cells a row, of two cells' leads: all tables are there, and it ends in 0 or 5."""
    leads = tmp_path / "leads.csv"
    speeds = {("m", "a"): (100, 90, 80, 70), ("m", "b"): (80, 90, 100, 110)}
    lines = [
        f"{m},{c},{k},{v}" for (m, c), vs in speeds.items() for k, v in zip((4, 6, 8, 12), vs, strict=True)
    ]
    leads.write_text("\n".join(["model,corpus,k,output_tok_per_s", *lines]))
    command = [sys.executable, SCRIPTS / "simulate.py", "--cells", "2", "--leads", leads, "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, 5), done.stderr
    assert done.stdout.count("| established | two tied |") == 6
    assert "| 4 | tied noisier | adaptive(3..8) |" in done.stdout
    assert re.search(r"^\| 1 % \| 2 \| 37\.5 \| 100\.0 \|", done.stdout, re.MULTILINE), done.stdout


def test_a_promise_allows_for_what_chance_does_to_a_share(monkeypatch):
    """Three standard errors beyond it, and no more."""
    monkeypatch.syspath_prepend(SCRIPTS)
    promise = importlib.import_module("simulate_measures").Promise(0, 5)
    assert promise.kept(50, 1000)
    assert promise.kept(70, 1000)
    assert not promise.kept(76, 1000)
