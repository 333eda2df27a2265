"""When rounds are enough and what is left of a block, from rows alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan import the_plan

from kpad_bench.design import Design
from kpad_bench.rounds import LASTING, NOTHING_TO_COMPARE, Ending, Left, Outlook, Rule, ending_of, left_of
from kpad_bench.stats import ESTABLISHED, FUTILE, LIMIT

DESIGN = Design(3, 8)
RULE = Rule(DESIGN, ("kpad",), 0.9)
#: K=4 far ahead; noise of 0.2 %.
CLEAR = [{4: 1200.0 * (1 + n % 3 / 500), 8: 1000.0 * (1 + n % 2 / 500)} for n in range(8)]
EQUAL = [{4: 1000.0 * (1 + n % 3 / 500), 8: 1000.0 * (1 + n % 2 / 400)} for n in range(8)]


def planned(**changes):
    """A plan of van and kpad at 4 and 8 on one corpus, 3..8 rounds."""
    return the_plan(**{"rounds": DESIGN, "corpora": ("humaneval",), "k": (4, 8), **changes})


def row(speed=None, status="ok", reason=None, full=None):
    return {"status": status, "reason": reason, "output_tok_per_s": speed, "full_share_decode": full}


def rows_of(plan, speeds, **more):
    """Ok rows of the rounds that ``speeds`` has (K -> tok/s); van is at 500."""
    return {
        trial.trial_id: row(speeds[trial.round - 1].get(trial.cell.k, 500.0), **more)
        for trial in plan.trials()
        if trial.round <= len(speeds)
    }


def by_round(plan):
    return [[t for t in plan.trials() if t.round == n] for n in range(1, plan.design.most + 1)]


def ending(plan, rows, rule=RULE):
    return ending_of(by_round(plan), rows, rule)


# --- when rounds are enough


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        (CLEAR[:2], None),
        (CLEAR[:3], Ending(3, ESTABLISHED)),
        (CLEAR, Ending(3, ESTABLISHED)),
        (EQUAL[:3], None),
        (EQUAL[:4], Ending(4, FUTILE)),
        (EQUAL, Ending(4, FUTILE)),
    ],
)
def test_rounds_end_when_the_decision_is_made(speeds, expected):
    """Never before the least; where it ended once it stays ended, whatever later rounds say."""
    plan = planned()
    assert ending(plan, rows_of(plan, speeds)) == expected


def test_the_limit_ends_what_nothing_else_ends():
    """A lead that may still be established by more rounds, when there are none."""
    plan = planned(rounds=Design(2, 3))
    rule = Rule(Design(2, 3), ("kpad",), 0.9)
    assert ending(plan, rows_of(plan, EQUAL[:2]), rule) is None
    assert ending(plan, rows_of(plan, EQUAL[:3]), rule) == Ending(3, LIMIT)


def test_a_fixed_design_never_ends_early():
    """Three rounds are three, however clear the first two are."""
    plan = planned(rounds=3)
    assert ending(plan, rows_of(plan, CLEAR[:3]), Rule(Design(3, 3), ("kpad",), 0.9)) is None


def test_an_unfinished_round_does_not_count():
    """Its trials without a row may still come; nor does any after it."""
    plan = planned()
    rows = rows_of(plan, CLEAR[:4])
    gone = next(trial for trial in plan.trials() if trial.round == 3)
    del rows[gone.trial_id]
    assert ending(plan, rows) is None


def test_a_round_without_one_k_is_finished_and_not_complete():
    """A failed trial leaves its round out of the decision: one more is needed."""
    plan = planned()
    rows = rows_of(plan, CLEAR[:4])
    failed = next(t for t in plan.trials() if t.round == 2 and t.cell.k == 8)
    rows[failed.trial_id] = row(status="failed", reason="engine_died")
    assert ending(plan, rows) == Ending(4, ESTABLISHED)


@pytest.mark.parametrize("bad", [row(status="failed", reason="kv_none"), row(2000.0, full=0.4)])
def test_a_k_that_is_not_eligible_is_not_waited_for(bad):
    """One that never boots, or never has FULL graphs: the others are decided, as in the best-K table."""
    plan = planned(k=(4, 8, 12))
    rows = rows_of(plan, [{**speeds, 12: 1.0} for speeds in CLEAR[:3]])
    rows |= {t.trial_id: bad for t in plan.trials() if t.cell.k == 12 and t.trial_id in rows}
    assert ending(plan, rows) == Ending(3, ESTABLISHED)


@pytest.mark.parametrize("arms", [("van",), ("van", "kpad@8")])
def test_with_nothing_to_compare_the_least_rounds_are_enough(arms):
    """No padded arm, or one K of it."""
    plan = planned(arms=arms, k=(4,))
    rule = Rule(DESIGN, ("kpad",) if len(arms) > 1 else (), 0.9)
    assert ending(plan, rows_of(plan, CLEAR[:2]), rule) is None
    assert ending(plan, rows_of(plan, CLEAR[:3]), rule) == Ending(3, NOTHING_TO_COMPARE)


def test_every_family_has_to_be_decided():
    """kpad is clear after three rounds and kfill is not: the round with both ends it, and says both."""
    plan = planned(arms=("kpad", "kfill"))
    rule = Rule(DESIGN, ("kpad", "kfill"), 0.9)
    rows = {
        t.trial_id: row((CLEAR if t.cell.arm == "kpad" else EQUAL)[t.round - 1][t.cell.k])
        for t in plan.trials()
    }
    assert ending(plan, rows, rule) == Ending(4, f"kpad {ESTABLISHED}, kfill {FUTILE}")


def test_repeats_of_a_boot_are_averaged():
    """They are one value: two that differ widely make no variation between rounds."""
    plan = planned(repeats=2)
    rows = {
        t.trial_id: row(CLEAR[t.round - 1].get(t.cell.k, 500.0) * (1.2 if t.repeat == 1 else 0.8))
        for t in plan.trials()
    }
    assert ending(plan, rows) == Ending(3, ESTABLISHED)


# --- what is left of a block


PLAN = planned(rounds=2)
BLOCK = PLAN.blocks[0]
ONE, TWO, THREE = tuple(BLOCK.trials())
OK, GONE = row(1000.0), None


def failed(reason, status="failed"):
    return row(status=status, reason=reason)


@pytest.mark.parametrize(
    ("states", "trials", "retaken", "is_probe"),
    [
        ((OK, OK, OK), "", "", False),
        ((GONE, GONE, GONE), "123", "", False),
        ((OK, GONE, GONE), "123", "1", False),
        ((OK, GONE, OK), "123", "13", False),
        ((failed("stalled"), failed("stalled"), failed("kv_none")), "123", "", False),
        *(((OK, failed(reason), OK), "2", "", True) for reason in sorted(LASTING)),
        *(
            ((OK, failed(reason), OK), "123", "13", False)
            for reason in ("gpu_busy", "address_in_use", "engine_died", "server_killed", "stalled")
        ),
        *(((OK, failed(r), OK), "123", "13", False) for r in ("boot_timeout", "server_died", "unknown")),
        ((OK, failed("client_bound", "invalid"), OK), "123", "13", False),
        ((OK, failed("invalid_workload", "invalid"), OK), "2", "", True),
        ((OK, failed("kv_none"), failed("stalled")), "123", "1", False),
        ((OK, failed("kv_none"), GONE), "123", "1", False),
        ((OK, failed("kv_none"), failed("oom")), "23", "", True),
    ],
)
def test_a_block_with_a_gap_is_measured_again(states, trials, retaken, is_probe):
    """Whole blocks stay; what failed for a lasting reason is no gap; all else is."""
    rows = {t.trial_id: s for t, s in zip(BLOCK.trials(), states, strict=True) if s}
    left = left_of((ONE, TWO, THREE), rows, {}, is_whole=True)
    named = {"1": ONE, "2": TWO, "3": THREE}
    assert left == Left(tuple(map(named.get, trials)), tuple(map(named.get, retaken)), is_probe)


def test_a_reason_that_came_twice_lasts():
    """A block is not measured again for ever because one of its trials dies in the same way each time."""
    rows = {ONE.trial_id: OK, TWO.trial_id: failed("engine_died"), THREE.trial_id: OK}
    again = left_of((ONE, TWO, THREE), rows, {TWO.trial_id: {"stalled"}}, is_whole=True)
    assert again.retaken == (ONE, THREE)
    left = left_of((ONE, TWO, THREE), rows, {TWO.trial_id: {"engine_died"}}, is_whole=True)
    assert left == Left((TWO,), (), is_probe=True)


def test_trial_by_trial_nothing_is_measured_again():
    """Where one round is planned nothing is established, and a whole block would cost hours."""
    rows = {ONE.trial_id: OK, TWO.trial_id: failed("stalled")}
    assert left_of((ONE, TWO, THREE), rows, {}, is_whole=False) == Left((TWO, THREE))
    single = Outlook(planned(rounds=1), {}, {}, RULE)
    trials = list(single.plan.trials())
    single.rows[trials[0].trial_id] = OK
    assert single.left(single.plan.blocks[0]) == Left(tuple(trials[1:]))


# --- a whole plan


def measured(outlook, speed):
    """Run a plan on paper: rows by block, in order, as a sweep does. What was measured, and what was told."""
    order, told = [], []
    for block in outlook.plan.blocks:
        for trial in outlook.left(block).trials:
            outlook.rows[trial.trial_id] = row(speed(trial))
            order.append(trial)
        told += [(place[1], end) for place, end, _ in outlook.close(block)]
    return order, told


def speed_of(trial):
    """humaneval is clear, mbpp is tied."""
    speeds = CLEAR if trial.cell.corpus == "humaneval" else EQUAL
    return speeds[(trial.round - 1) % 8].get(trial.cell.k, 500.0)


@pytest.mark.parametrize("isolation", ["boot", "reset"])
def test_decided_corpora_are_left_out_of_later_rounds(isolation):
    """With reset the others go on in boots of fewer trials; nothing of a decided corpus is a gap."""
    plan = planned(corpora=("humaneval", "mbpp"), isolation=isolation)
    outlook = Outlook(plan, {}, {}, RULE)
    order, told = measured(outlook, speed_of)
    assert told == [("humaneval", Ending(3, ESTABLISHED)), ("mbpp", Ending(4, FUTILE))]
    rounds = {(t.cell.corpus, t.round) for t in order}
    assert rounds == {("humaneval", n) for n in (1, 2, 3)} | {("mbpp", n) for n in (1, 2, 3, 4)}
    assert outlook.n_left(plan.blocks) == 0
    assert outlook.not_ok() == []
    assert len(outlook.needed(plan.trials())) == len(order) == 3 * (3 + 4)


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_resumed_run_ends_like_an_undisturbed_one(data):
    """Stopped after any trial, its rows in any order, it ends in the same rounds for the same reasons."""
    plan = planned(corpora=("humaneval", "mbpp"), isolation="reset")
    whole = Outlook(plan, {}, {}, RULE)
    order, _ = measured(whole, speed_of)
    n = data.draw(st.integers(0, len(order)))
    kept = data.draw(st.permutations([trial.trial_id for trial in order[:n]]))
    resumed = Outlook(plan, {trial_id: whole.rows[trial_id] for trial_id in kept}, {}, RULE)
    again, _ = measured(resumed, speed_of)
    assert resumed.endings == whole.endings
    assert resumed.rows == whole.rows
    # Only the block that was interrupted is measured a second time.
    twice = {trial.round for trial in again if trial.trial_id in kept}
    assert len(twice) <= 1


def test_sentinels_decide_nothing_and_are_always_needed():
    """However the rounds go, each of them is measured, alone, and its failure takes no block with it."""
    sentinel = {"model": "tiny", "corpus": "humaneval", "arm": "kpad@8", "times": 3}
    plan = planned(sentinel=sentinel)
    outlook = Outlook(plan, {}, {}, RULE)
    order, told = measured(outlook, lambda t: 1.0 if t.is_sentinel else speed_of(t))
    assert [trial.round for trial in order if trial.is_sentinel] == [1, 2, 3]
    assert order[-1].is_sentinel
    assert told == [("humaneval", Ending(3, ESTABLISHED))]
    last = order[-1]
    outlook.rows[last.trial_id] = failed("stalled")
    assert outlook.n_left(plan.blocks) == 1
    assert outlook.not_ok() == [last]
