"""Rounds, sentinels and whole blocks in a sweep: on paper, where no server runs, and on fake servers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from conftest import CORPORA, Lab, until

from kpad_bench import provenance, server, trial
from kpad_bench.errors import ServerError
from kpad_bench.plan import Trial
from kpad_bench.trial import TrialRunner

A, B = CORPORA
CLEAR = {4: 1200.0, 8: 1000.0}
TIED = {4: 1000.0, 8: 1000.0}
SENTINEL = {"model": "tiny", "corpus": A, "arm": "kpad@8", "times": 3}


class Interrupted(BaseException):
    """Ends a sweep like a kill: nothing catches it."""


class Paper:
    """Sweeps without servers: what boots and what is measured is noted, speeds and faults are told.

    Plan, rounds, rows and files are real.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.booted: list[str] = []
        self.measured: list[Trial] = []
        self.speeds: dict[str, Mapping[int, float]] = {A: CLEAR, B: CLEAR}
        self.fault: Callable[[Trial], str | None] = lambda _: None
        self.boot_fault: Callable[[str], str | None] = lambda _: None

    def boot(self, launch: Any) -> Any:
        argv = " ".join(launch.argv)
        self.booted.append(argv)
        if cause := self.boot_fault(argv):
            return ServerError(cause, "the line that shows it")

        class Server:
            is_dead, is_attached, earlier = False, False, ()

            def stop(self) -> None:
                """Nothing runs."""

        return Server()

    def measure(self, planned: Trial) -> tuple[dict[str, Any], list[Any], dict[str, bytes]]:
        """One trial: 0.1 % of noise by round, so that no two rounds are alike."""
        if (fault := self.fault(planned)) == "kill":
            raise Interrupted
        self.measured.append(planned)
        if fault is not None:
            return {"status": "failed", "reason": fault, "detail": "told"}, [], {}
        base = self.speeds[planned.cell.corpus].get(planned.cell.k or 0, 500.0)
        noise = 1 + ((planned.round * 7 + (planned.cell.k or 0)) % 5) / 1000
        return {"status": "ok", "output_tok_per_s": base * noise}, [], {}

    def take(self) -> list[tuple[int, str, str]]:
        """What was measured since the last time: round, corpus, arm."""
        found = [(t.round, t.cell.corpus, t.cell.arm_at_k) for t in self.measured if not t.is_sentinel]
        self.measured.clear()
        self.booted.clear()
        return found


@pytest.fixture
def paper(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """Van and kpad at 4 and 8, adaptive, isolation reset on two corpora, on paper."""
    made = Paper(lab)
    lab.set(arms=["van", "kpad"], k=[4, 8], corpora=[A, B], isolation="reset", rounds="3..8")
    monkeypatch.setattr(server, "boot_all", lambda launches, _: [made.boot(launch) for launch in launches])
    monkeypatch.setattr(trial, "server_columns", lambda _: {})
    monkeypatch.setattr(TrialRunner, "_measure", lambda _, planned, *more: made.measure(planned))
    facts = provenance.host_facts()
    monkeypatch.setattr(provenance, "host_facts", lambda: facts)
    return made


ROUND = [(corpus, arm) for corpus in (A, B) for arm in ("van", "kpad@4", "kpad@8")]


def killed_at(paper: Paper, n_done: int) -> None:
    """A sweep that is killed once so many trials are done."""
    numbers = iter(range(100))
    paper.fault = lambda _: "kill" if next(numbers) == n_done else None
    with pytest.raises(Interrupted):
        paper.lab.sweep()
    paper.fault = lambda _: None


def rounds_of(measured: list[tuple[int, str, str]], corpus: str) -> list[int]:
    """The rounds in which a corpus was measured."""
    return sorted({number for number, name, _ in measured if name == corpus})


# --- adaptive rounds


def test_rounds_stop_where_one_k_is_far_ahead(paper: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    """Three of eight rounds; what is left out is no failure, and running again finds nothing to do."""
    assert paper.lab.sweep() == 0
    assert len(paper.booted) == 3 * 3
    assert sorted(paper.take()) == sorted((n, *one) for n in (1, 2, 3) for one in ROUND)
    said = capsys.readouterr().err
    assert "up to 48 trials; rows go to" in said
    assert said.count("established after 3 rounds: 15 trials are not needed") == 2
    assert "[19/" not in said
    assert {row["design"] for row in paper.lab.rows()} == {"adaptive(3..8)"}
    assert len(paper.lab.rows()) == 18
    assert (paper.lab.run_path() / "trials.parquet").exists()
    assert paper.lab.sweep() == 0
    assert paper.take() == []
    assert "all 18 trials" in capsys.readouterr().err


def test_a_corpus_that_is_not_decided_goes_on_alone(paper: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    """The decided one is left out of the boots of later rounds; a tie without prospects ends as futile."""
    paper.speeds[B] = TIED
    assert paper.lab.sweep() == 0
    measured = paper.take()
    assert rounds_of(measured, A) == [1, 2, 3]
    assert rounds_of(measured, B) == [1, 2, 3, 4]
    assert f"tiny {B}: futile after 4 rounds: 12 trials are not needed" in capsys.readouterr().err


def test_rounds_go_to_the_limit(paper: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing established and nothing futile before the last; boots without a trial are not booted."""
    paper.lab.set(rounds="2..3")
    paper.speeds[B] = TIED
    assert paper.lab.sweep() == 0
    assert len(paper.booted) == 3 * 3
    assert rounds_of(paper.take(), B) == [1, 2, 3]
    said = capsys.readouterr().err
    assert f"tiny {B}: limit after 3 rounds\n" in said


def test_with_isolation_boot_each_corpus_ends_by_itself(paper: Paper) -> None:
    """A block is one corpus there."""
    paper.lab.set(isolation="boot")
    paper.speeds[B] = TIED
    assert paper.lab.sweep() == 0
    assert len(paper.booted) == 3 * (3 + 4)
    assert rounds_of(paper.take(), A) == [1, 2, 3]


def test_fixed_rounds_are_all_measured(paper: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    """However clear it is, and nothing is said of an end."""
    paper.lab.set(rounds=4)
    assert paper.lab.sweep() == 0
    assert len(paper.take()) == 4 * 6
    assert "established" not in capsys.readouterr().err
    assert {row["design"] for row in paper.lab.rows()} == {"fixed(4)"}


@pytest.mark.parametrize("at", [0, 7, 13, 18])
def test_a_killed_run_ends_in_the_same_rounds(paper: Paper, at: int) -> None:
    """Whatever the moment, the same trials have a row in the end, with the same numbers."""
    paper.speeds[B] = TIED
    killed_at(paper, at)
    assert paper.lab.sweep() == 0
    rows = {row["trial_id"]: row["output_tok_per_s"] for row in paper.lab.rows()}
    assert paper.lab.sweep(fresh=True) == 0
    assert rows == {row["trial_id"]: row["output_tok_per_s"] for row in paper.lab.rows()}


# --- whole blocks


def test_an_interrupted_block_is_measured_again_as_a_whole(
    paper: Paper, capsys: pytest.CaptureFixture[str]
) -> None:
    """That block alone; its finished rows are kept in superseded/, and count once."""
    killed_at(paper, 8)
    split = paper.take()[6:]
    assert [one[0] for one in split] == [2, 2]
    assert paper.lab.sweep() == 0
    again = paper.take()
    assert sorted(again) == sorted((n, *one) for n in (2, 3) for one in ROUND)
    ids = [row["trial_id"] for row in paper.lab.rows()]
    assert len(ids) == len(set(ids)) == 18
    assert sorted((r["round"], r["corpus"], r["status"]) for r in paper.lab.superseded()) == sorted(
        (2, corpus, "ok") for _, corpus, _ in split
    )
    said = capsys.readouterr().err
    assert f"block r2.tiny was not measured in one go: {len(split)} finished trials of it move to" in said
    assert "18 trials, 6 of them done before" not in said


def test_one_round_is_resumed_trial_by_trial(paper: Paper) -> None:
    """Nothing is established from one round; a whole block would cost hours."""
    paper.lab.set(rounds=1)
    killed_at(paper, 4)
    before = paper.take()
    assert len(before) == 4
    assert paper.lab.sweep() == 0
    assert sorted(before + paper.take()) == sorted((1, *one) for one in ROUND)
    assert paper.lab.superseded() == []


def test_a_passing_cause_takes_its_block_with_it(paper: Paper) -> None:
    """A stall in round 2 of 3: exit 3; the same command measures that block again and no other."""
    paper.lab.set(rounds=3)
    paper.fault = lambda t: "stalled" if (t.round, t.cell.k, t.cell.corpus) == (2, 8, B) else None
    assert paper.lab.sweep() == 3
    assert len(paper.take()) == 18
    paper.fault = lambda _: None
    assert paper.lab.sweep() == 0
    assert sorted(paper.take()) == sorted((2, *one) for one in ROUND)
    assert len(paper.lab.superseded()) == 6


def test_a_k_that_never_boots_takes_no_block_with_it(paper: Paper) -> None:
    """Each run of the same command boots that K once for every block, and measures nothing else again."""
    paper.lab.set(rounds=2)
    paper.boot_fault = lambda argv: "kv_none" if '"num_speculative_tokens":8' in argv else None
    assert paper.lab.sweep() == 3
    rest = [one for one in ROUND if one[1] != "kpad@8"]
    assert sorted(paper.take()) == sorted((n, *one) for n in (1, 2) for one in rest)
    for _ in range(2):
        assert paper.lab.sweep() == 3
        assert len(paper.booted) == 2
        assert paper.take() == []
    assert {row["status"] for row in paper.lab.superseded()} == {"failed"}


def test_what_comes_back_is_measured_beside_the_rest_of_its_block(paper: Paper) -> None:
    """The K boots after all: the others of its blocks are measured again next to it, each once."""
    paper.lab.set(rounds=2)
    paper.boot_fault = lambda argv: "kv_none" if '"num_speculative_tokens":8' in argv else None
    assert paper.lab.sweep() == 3
    paper.take()
    paper.boot_fault = lambda _: None
    assert paper.lab.sweep() == 0
    assert sorted(paper.take()) == sorted((n, *one) for n in (1, 2) for one in ROUND)
    assert len(paper.lab.rows()) == 12
    assert {row["status"] for row in paper.lab.rows()} == {"ok"}


def test_the_same_death_twice_is_lasting(paper: Paper) -> None:
    """An engine that dies in one trial every time costs its block one more measurement, not one a run."""
    paper.lab.set(rounds=2)
    paper.fault = lambda t: "engine_died" if (t.round, t.cell.k, t.cell.corpus) == (1, 4, A) else None
    assert paper.lab.sweep() == 3
    paper.take()
    assert paper.lab.sweep() == 3
    assert sorted(paper.take()) == sorted((1, *one) for one in ROUND)
    assert paper.lab.sweep() == 3
    assert paper.take() == [(1, A, "kpad@4")]


# --- sentinels


def test_sentinel_rows_stand_apart(paper: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    """At the start, in the middle of the rounds that are sure, and at the end, each in a boot of its own."""
    paper.lab.set(rounds="2..4", sentinel=SENTINEL)
    assert paper.lab.sweep() == 0
    rows = paper.lab.rows()
    sentinels = [row for row in rows if row["is_sentinel"]]
    assert {row["is_sentinel"] for row in rows} == {True, False}
    assert [row["round"] for row in sentinels] == [1, 2, 3]
    assert {(row["arm"], row["k"], row["corpus"], row["isolation"]) for row in sentinels} == {
        ("kpad", 8, A, "boot")
    }
    assert (
        len({row["block_id"] for row in sentinels} - {r["block_id"] for r in rows if not r["is_sentinel"]})
        == 3
    )
    order = [(row["is_sentinel"], row["round"]) for row in rows]
    assert order[0] == (True, 1)
    assert order[7] == (True, 2)
    assert order[-1] == (True, 3)
    assert paper.lab.sweep() == 0
    assert "all " in capsys.readouterr().err


def test_a_sentinel_that_failed_is_measured_again_alone(paper: Paper) -> None:
    """It is no part of a block."""
    paper.lab.set(rounds=2, sentinel=SENTINEL)
    paper.fault = lambda t: "stalled" if t.is_sentinel and t.round == 2 else None
    assert paper.lab.sweep() == 3
    paper.take()
    paper.fault = lambda _: None
    assert paper.lab.sweep() == 0
    assert len(paper.booted) == 1
    assert paper.take() == []


# --- on fake servers


def test_a_real_run_interrupted_in_a_block(lab: Lab) -> None:
    """TERM in round 2 of 2: its finished trial is measured again, those of the first round are not."""
    lab.set(arms=["van", "kpad"], k=[4], rounds=2)
    lab.tell(({"argv": "kpad-", "boot": 4}, {"stall_after_tokens": 1, "fault_requests": [5, 6]}))
    process = lab.command()
    until("fourth boot in its pass", lambda: len(lab.boots()) == 4 and _n_asked(lab) >= 6)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 130
    kept = {row["trial_id"]: row for row in lab.rows()}
    assert sorted(row["round"] for row in kept.values()) == [1, 1, 2]
    lab.tell()
    assert lab.sweep() == 0
    assert len(lab.boots()) == 6
    rows = {row["trial_id"]: row for row in lab.rows()}
    assert len(rows) == 4
    same = [name for name, row in kept.items() if rows[name] == row]
    assert sorted(kept[name]["round"] for name in same) == [1, 1]
    assert [row["round"] for row in lab.superseded()] == [2]


def _n_asked(lab: Lab) -> int:
    pid = lab.boots()[-1]["pid"]
    return sum(1 for call in lab.calls() if call["pid"] == pid and call["prompt"])


def test_a_real_adaptive_run_with_sentinels(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real boots, passes and rows, told speeds: two rounds of up to four, a sentinel at each end."""
    judge = TrialRunner._judge

    def told(self: TrialRunner, planned: Trial, *more: Any) -> dict[str, Any]:
        return judge(self, planned, *more) | {"output_tok_per_s": 1e3 * (planned.cell.k or 1) + planned.round}

    monkeypatch.setattr(TrialRunner, "_judge", told)
    lab.set(arms=["kpad"], k=[4, 8], rounds="2..4", sentinel={**SENTINEL, "times": 2})
    assert lab.sweep() == 0
    rows = lab.rows()
    assert [row["round"] for row in rows if not row["is_sentinel"]] == [1, 1, 2, 2]
    assert [row["is_sentinel"] for row in rows] == [True, False, False, False, False, True]
    assert {row["status"] for row in rows} == {"ok"}
    assert len(lab.boots()) == 6
