"""Whole nights on fake servers: twice in a row, within a budget, through faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from conftest import DEADLINE_S, Lab, until

from kpad_bench.cli_nightly import seconds
from kpad_bench.configfile import load_sweep
from kpad_bench.design import Design
from kpad_bench.errors import UsageError
from kpad_bench.host import results_lock
from kpad_bench.locks import ownership
from kpad_bench.nightly import Asked, Tools, night_sweep, run_nightly
from kpad_bench.nightly_wait import Clock
from kpad_bench.store import find_runs

NIGHT = datetime(2026, 12, 1, 20, tzinfo=UTC)
#: More than a block of the lab takes by its estimates, two boots of 100 s and two passes; less than two take.
ONE_BLOCK_S = 300.0
FAILURE = SimpleNamespace(name="disk", state="failure", found="1 GB free", fix="make room")
WARNING = SimpleNamespace(name="power cap", state="warning", found="300 W", fix=None)


class NightLab:
    """Nights of a lab on a clock that moves by 100 s with every trial that has its row."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.said, self.day = lab, [], 0
        self.folder = lab.out / "lab"
        lab.set(arms=["van", "kpad"], rounds=2, isolation="reset")
        lab.config["define_models"]["tiny"]["boot_estimate_s"] = 100

    def seconds(self) -> float:
        return 100.0 * sum(1 for _ in self.folder.glob("*/raw/*"))

    def asked(self, **changes) -> Asked:
        given = {"config": str(self.lab.config_path()), "out": self.lab.out, "progress": "plain", **changes}
        return Asked(**given)

    def night(self, *, is_same=False, tools=None, **changes):
        """One night, a day after the last unless it is the same."""
        self.day += not is_same
        given = {
            "say": self.said.append,
            "clock": Clock(self.seconds, lambda _: None),
            "now": lambda: NIGHT + timedelta(days=self.day),
            "gpu": None,
            "examine": lambda resolved, out: [],
            **(tools or {}),
        }
        return run_nightly(self.asked(**changes), Tools(**given))

    def runs(self):
        return find_runs(self.folder)

    def two_models(self) -> None:
        tiny = self.lab.config["define_models"]["tiny"]
        self.lab.config["define_models"] = {"tiny": tiny, "other": dict(tiny)}
        self.lab.set(models=["tiny", "other"])


@pytest.fixture
def nights(lab: Lab) -> NightLab:
    """A lab for nights: one model, one corpus, van and kpad@4, rounds 2 and on."""
    return NightLab(lab)


def test_the_second_night_is_compared_with_the_first(nights: NightLab) -> None:
    """Two nights: each a run of its own with its page; the second pools, compares and says with what."""
    first = nights.night()
    assert (first.exit_code, first.n_ok, first.not_ok, first.not_measured) == (0, 4, [], [])
    assert first.comparisons == ["with nothing: no earlier night has a comparable cell"]
    assert first.not_compared == [
        "2 cells, not measured before: tiny humaneval-a kpad@4, tiny humaneval-a van"
    ]
    second = nights.night()
    assert second.exit_code == 0
    one, two = nights.runs()
    assert second.run == str(two.path)
    assert second.comparisons[0].startswith(f"with {one.run_id}: 2 cells comparable; whole night ")
    assert second.not_compared == []
    assert second.table is not None
    assert "2 nights" in second.table
    assert {path.name for path in two.path.iterdir()} >= {
        "best_k.md", "best_k.csv", "best_k.json", "compare.md", "report.html", "summary.md", "summary.json",
    }  # fmt: skip
    record = json.loads((two.path / "summary.json").read_text())
    page = (two.path / "summary.md").read_text()
    assert record["text"] == page == (nights.folder / "summary.md").read_text()
    assert len(page.splitlines()) < 60


def test_a_later_night_says_what_is_not_comparable_and_why(nights: NightLab) -> None:
    """Another load on the second night: nothing to compare with, and the column that differs is named."""
    nights.night()
    nights.lab.set(load={"max_tokens": 20})
    second = nights.night()
    assert second.comparisons == ["with nothing: no earlier night has a comparable cell"]
    (why,) = second.not_compared
    assert why.startswith("2 cells, last measured in ")
    assert "with another max_tokens (24, now 20)" in why
    assert any("not pooled, they differ in max_tokens" in note for note in second.notes)


def test_a_budget_for_one_block(nights: NightLab) -> None:
    """One of two rounds is measured as a whole; the other is told as not measured, and that is no failure."""
    summary = nights.night(budget_s=ONE_BLOCK_S)
    assert (summary.exit_code, summary.n_ok, summary.not_ok) == (0, 2, [])
    assert [row["round"] for row in nights.lab.rows()] == [1, 1]
    (told,) = summary.not_measured
    assert told.startswith("tiny: 1 of 2 rounds: the rest takes about ")


def test_a_budget_for_nothing(nights: NightLab) -> None:
    """No block fits: nothing boots, exit 0, and the page says how much time it takes."""
    summary = nights.night(budget_s=60)
    assert (summary.exit_code, summary.n_ok, nights.lab.boots()) == (0, 0, [])
    assert "none of 2 rounds: the rest takes about 8 min, 60 s were left, never measured" in summary.page()


def test_the_stalest_model_comes_first(nights: NightLab) -> None:
    """Room for one model: each night takes the one that was measured longest ago."""
    nights.two_models()
    taken = []
    for _ in range(3):
        nights.night(budget_s=600)
        taken.append({row["model"] for row in nights.lab.rows()})
    assert taken == [{"tiny"}, {"other"}, {"tiny"}]


def test_failed_trials(nights: NightLab) -> None:
    """A boot that fails makes exit 3, a line with its reason, and results of the rest."""
    nights.lab.tell(({"k": 4}, {"boot_fail": {"log": "RuntimeError: no such thing"}}))
    summary = nights.night()
    assert summary.exit_code == 3
    assert len(summary.not_ok) == 2
    assert "kpad@4 round 1: failed, unknown: " in summary.not_ok[0]
    assert "no best-K table" in summary.page() or "no K eligible" in summary.page()


def test_doctor_finds_a_failure(nights: NightLab) -> None:
    """Exit 4 with the findings and the fix on the page, before anything boots; earlier nights stay."""
    summary = nights.night(tools={"examine": lambda resolved, out: [FAILURE, WARNING]})
    assert (summary.exit_code, nights.lab.boots(), nights.runs()) == (4, [], [])
    page = (nights.folder / "summary.md").read_text()
    assert "- failure: disk: 1 GB free. Fix: make room\n- warning: power cap: 300 W\n" in page
    assert "Not ready after 0 s" in page
    assert nights.night(tools={"examine": lambda resolved, out: [WARNING]}).exit_code == 0


def test_gpus_that_stay_taken(nights: NightLab) -> None:
    """Exit 4 after the wait, naming who holds them; a finding about GPUs alone does not end the wait."""
    nights.lab.set(server={"platform": "cuda"})
    gpu = SimpleNamespace(
        devices=lambda: [SimpleNamespace(index=0, uuid="u", memory_total=100 << 30, memory_free=1 << 30)],
        holders=lambda indices: [SimpleNamespace(pid=77, name="train", memory_bytes=99 << 30, gpu_index=0)],
    )
    passed = []
    clock = Clock(lambda: sum(passed), passed.append)
    held = SimpleNamespace(name="GPU memory", state="failure", found="held", fix=None)
    tools = {"gpu": gpu, "clock": clock, "examine": lambda resolved, out: [held]}
    summary = nights.night(tools=tools, gpu_wait_s=100)
    assert (summary.exit_code, summary.waited_s, nights.lab.boots()) == (4, 100, [])
    assert "GPU 0 is held by train (pid 77), 1.0 of 100.0 GiB free" in summary.page()
    assert len([text for text in nights.said if "waiting for GPUs" in text]) == 1


def test_an_interrupted_night_goes_on(nights: NightLab) -> None:
    """Interrupted after a block it ends with 130; the same command on the same night goes on in its run."""
    interrupted: list[float] = []

    def now() -> float:
        if nights.seconds() >= 200 and not interrupted:
            interrupted.append(nights.seconds())
            raise KeyboardInterrupt
        return nights.seconds()

    summary = nights.night(tools={"clock": Clock(now, lambda _: None)})
    assert (summary.exit_code, summary.n_ok) == (130, 2)
    (run,) = nights.runs()
    assert not (run.path / "summary.json").exists()
    again = nights.night(is_same=True)
    assert (again.exit_code, again.resumed, again.n_ok, len(nights.runs())) == (0, True, 4, 1)
    assert len(nights.lab.boots()) == 4


def test_a_night_after_one_whose_time_is_over_is_a_new_one(nights: NightLab) -> None:
    """What a night that was cut off has finished pools with the next; its run is not gone on with."""
    nights.lab.tell(({"argv": "kpad-", "boot": 3}, {"stall_after_tokens": 1}))
    process = command(nights)
    until("a boot of the second round", lambda: process.poll() is not None or len(nights.lab.boots()) == 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    until("nothing left", lambda: not nights.lab.living())
    nights.lab.tell()
    (killed,) = nights.runs()
    later = datetime.now(UTC) + timedelta(days=1)
    summary = nights.night(tools={"now": lambda: later})
    assert (summary.exit_code, summary.resumed, summary.n_ok) == (0, False, 4)
    assert len(nights.runs()) == 2
    assert summary.table is not None
    assert "2 nights" in summary.table
    assert summary.comparisons[0].startswith(f"with {killed.run_id}: 2 cells comparable")


def test_a_killed_night_goes_on_with_the_same_command(nights: NightLab) -> None:
    """kill -9 in a block, then the real command again: the same run, whole blocks, exit 0, page on stdout."""
    nights.lab.tell(({"argv": "kpad-", "boot": 3}, {"stall_after_tokens": 1}))
    process = command(nights)
    until("a boot of the second round", lambda: process.poll() is not None or len(nights.lab.boots()) == 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    until("nothing left", lambda: not nights.lab.living())
    process = command(nights)
    page, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert page.startswith("# Night of ")
    assert "It goes on with a night that was interrupted." in page
    (run,) = nights.runs()
    assert len(nights.lab.rows()) == 4
    assert json.loads((run.path / "summary.json").read_text())["exit_code"] == 0


def command(nights: NightLab) -> subprocess.Popen[str]:
    """The real command."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kpad_bench.cli", "nightly", "--config", str(nights.lab.config_path()),
         "--out", str(nights.lab.out), "--budget", "1h", "--progress", "plain"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "KPAD_BENCH_CORPORA": str(nights.lab.corpora)},
    )  # fmt: skip
    nights.lab.commands.append(process)
    return process


@pytest.mark.parametrize("what", ["night", "sweep"])
def test_one_at_a_time(nights: NightLab, what: str) -> None:
    """A night beside another one, or beside a sweep, ends with 4 and touches nothing of theirs."""
    nights.night()
    page = (nights.folder / "summary.md").read_text()
    mine = (
        ownership(nights.folder / ".nightly.lock", "x") if what == "night" else results_lock(nights.lab.out)
    )
    with mine:
        summary = nights.night()
    assert summary.exit_code == 4
    assert "in use by another kpad-bench" in summary.page()
    assert (nights.folder / "summary.md").read_text() == page
    assert len(nights.runs()) == 1


def test_a_sweep_and_a_night_keep_out_of_each_others_runs(nights: NightLab) -> None:
    """A sweep of the same plan starts a run of its own, and so does the next night."""
    nights.lab.set(rounds="2..8")
    nights.night(budget_s=ONE_BLOCK_S)
    assert nights.lab.sweep() == 0
    nights.night(budget_s=ONE_BLOCK_S)
    runs = nights.runs()
    assert len(runs) == 3
    assert [run.read_manifest()["night"] is None for run in runs] == [False, True, False]


def test_what_a_configuration_says_stands(lab: Lab) -> None:
    """Servers are shared and rounds go from 3 to 8 unless it says otherwise; one round stays one."""

    def night():
        config = night_sweep(load_sweep(lab.config_path())).config
        return config.isolation, config.rounds

    assert night() == ("reset", Design(3, 8))
    lab.set(isolation="boot", rounds=4)
    assert night() == ("boot", Design(4, 8))
    lab.set(rounds=1)
    assert night()[1] == Design(1, 1)
    lab.set(rounds="2..5")
    assert night()[1] == Design(2, 5)


@pytest.mark.parametrize(
    ("text", "expected"), [("10h", 36000), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1.5h", 5400)]
)
def test_spans(text: str, expected: float) -> None:
    """Hours, minutes and seconds, alone or together."""
    assert seconds("--budget", text) == expected


@pytest.mark.parametrize("text", ["", "10", "h", "10 h", "-1h", "1d", "30m1h"])
def test_no_spans(text: str) -> None:
    """Anything else is told with what is allowed."""
    with pytest.raises(UsageError, match="write it like 10h, 90m"):
        seconds("--budget", text)
