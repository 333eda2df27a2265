"""Which blocks a night takes, on a clock that stands still between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from test_plan import DIGESTS, resolved

from kpad_bench.config import ModelEntry, Sentinel
from kpad_bench.design import Design
from kpad_bench.nightly_order import NightAgenda, last_ok, stalest_first
from kpad_bench.nightly_times import AROUND_S, MARGIN, Times
from kpad_bench.plan import make_plan
from kpad_bench.rounds import Outlook, Rule

FACTS = {"vllm_version": "1", "driver": "d", "gpu_name": "g", "cpu_model": "c", "clock_policy": None}
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MODELS = {
    name: ModelEntry(hf_id=f"org/{name}", family="f", boot_estimate_s=100) for name in ("one", "two", "three")
}
#: Two boots at 100 s and four passes of 50 s of a block with two corpora, van and kpad@4.
BOOT_S, PASS_S = 100.0, 50.0
BLOCK_S = 2 * BOOT_S + 4 * PASS_S
SPEEDS = {None: 500.0, 4: 1000.0, 8: 1000.0}


def former(resolved_sweep, model, at, **changes):
    """The row of an earlier trial of a model."""
    cell = next(c for c in make_plan(resolved_sweep, DIGESTS).cells if c.model == model)
    row = {
        "model": model, "corpus": cell.corpus, "cell_id": cell.cell_id, "status": "ok", "started_at": at,
        "boot_s": BOOT_S, "duration_s": PASS_S, "is_sentinel": False,
    }  # fmt: skip
    return {**row, **FACTS, **changes}


class Night:
    """A night on a scripted clock; every trial is ok and takes as long as it is told."""

    def __init__(self, budget_s, *rows, changes=None, settled=dict, speeds=None, started=None):
        base = {"models": MODELS, "k": (4,), "isolation": "reset", "rounds": Design(2, 4)}
        self.resolved = resolved(**{**base, **(changes or {})})
        self.plan = make_plan(self.resolved, DIGESTS)
        self.rows, self.now = dict(started or {}), 1000.0
        config = self.resolved.config
        self.outlook = Outlook(self.plan, self.rows, {}, Rule(config.rounds, ("kpad",), 0.9))
        former_rows = [former(self.resolved, *row[:2], **(row[2] if row[2:] else {})) for row in rows]
        self.times = Times(self.resolved)
        self.agenda = NightAgenda(
            self.now + budget_s, self.times, former_rows, settled, clock=lambda: self.now
        )
        self.agenda.begin(self.plan, self.outlook, FACTS)
        self.took = []
        self.speeds = speeds or SPEEDS

    def run(self, boot_s=BOOT_S, pass_s=PASS_S):
        """Measure what it takes; the ids of the blocks in order."""
        while (block := self.agenda.take()) is not None:
            self.took.append(block.block_id)
            trials = self.outlook.left(block).trials
            for trial in trials:
                boot = next(boot for boot in block.boots if trial in boot.trials)
                speed = self.speeds[trial.cell.k] * (1 + trial.round % 2 / 500)
                self.rows[trial.trial_id] = {
                    "status": "ok", "reason": None, "output_tok_per_s": speed, "full_share_decode": None,
                    "model": trial.cell.model, "corpus": trial.cell.corpus, "boot_id": boot.boot_id,
                    "boot_s": boot_s, "duration_s": pass_s,
                }  # fmt: skip
                self.now += pass_s
            self.now += boot_s * len({t.cell.arm for t in trials})
            self.outlook.close(block)
        return self.took


def test_stalest_first_is_never_measured_then_longest_ago():
    """Models without a trial keep their order; the others come by their last one."""
    seen = {"b": NOON, "c": NOON - timedelta(days=2)}
    assert stalest_first(["a", "b", "c", "d"], seen) == ["a", "d", "c", "b"]


@pytest.mark.parametrize(
    "change", [{"status": "failed"}, {"driver": "other"}, {"is_sentinel": True}, {"started_at": None}]
)
def test_only_good_trials_on_a_host_like_this_make_a_model_fresh(change):
    """What failed, ran under another driver, or was a sentinel does not count."""
    row = {"model": "m", "status": "ok", "started_at": NOON, "is_sentinel": False, **FACTS}
    assert last_ok([row], FACTS) == {"m": NOON}
    assert last_ok([row, {**row, "started_at": NOON - timedelta(days=1)}], FACTS) == {"m": NOON}
    assert last_ok([{**row, **change}], FACTS) == {}


def test_the_stalest_models_that_fit_have_all_their_rounds():
    """Room for two models: the one never measured, then the one measured longest ago; the third is told."""
    room = 4 * MARGIN * BLOCK_S + 8 * AROUND_S * MARGIN * 4
    night = Night(room, ("one", NOON), ("three", NOON - timedelta(days=3)), ("two", NOON - timedelta(days=5)))
    assert night.run()[:4] == ["r1.two", "r2.two", "r1.three", "r2.three"]
    (left,) = night.agenda.left_out()
    assert (left.model, left.n_rounds, left.n_due, left.last_ok) == ("one", 0, 2, NOON)
    assert left.need_s > left.left_s


def test_a_model_of_which_not_all_rounds_fit_waits_but_the_first_is_measured_as_far_as_it_goes():
    """Room for one block: one round of the stalest model, and no other model is begun."""
    night = Night(BLOCK_S * MARGIN * 1.6, ("two", NOON), ("one", NOON - timedelta(1)), ("three", NOON))
    assert night.run() == ["r1.one"]
    assert [(o.model, o.n_rounds) for o in night.agenda.left_out()] == [("one", 1), ("two", 0), ("three", 0)]


def test_a_smaller_model_is_taken_where_the_next_does_not_fit():
    """The one whose passes take ten times as long is left out, and what comes after it fits."""
    slow = {"duration_s": 10 * PASS_S}
    days = [NOON - timedelta(days=n) for n in (3, 2, 1)]
    night = Night(5 * MARGIN * (BLOCK_S + 100), ("one", days[0]), ("two", days[1], slow), ("three", days[2]))
    assert [block for block in night.run() if block.startswith(("r1", "r2"))] == [
        "r1.one", "r2.one", "r1.three", "r2.three",
    ]  # fmt: skip
    assert [out.model for out in night.agenda.left_out()] == ["two"]


def test_no_block_is_begun_that_cannot_finish_by_what_this_night_has_taken():
    """Boots that take ten times their estimate end the night after the block that showed it."""
    night = Night(4 * MARGIN * BLOCK_S, ("one", NOON), ("two", NOON), ("three", NOON))
    night.run(boot_s=10 * BOOT_S)
    assert len(night.took) == 1


def test_nothing_fits_nothing_is_measured():
    """A budget below one block takes none, no sentinel either, and says what is missing."""
    sentinel = Sentinel(model="one", corpus="mbpp", arm="kpad@4", times=3)
    night = Night(10, changes={"sentinel": sentinel})
    assert night.run() == []
    assert [out.model for out in night.agenda.left_out()] == ["one", "two", "three"]


def test_undecided_places_get_further_rounds_while_there_is_time():
    """Two Ks alike: rounds after the least, of all models, the lower round first; to the plan's last."""
    changes = {"models": {name: MODELS[name] for name in ("one", "two")}, "k": (4, 8)}
    speeds = {None: 500.0, 4: 1000.0, 8: 1003.0}
    night = Night(1e6, changes=changes, speeds=speeds)
    took = night.run()
    assert took[:4] == ["r1.one", "r2.one", "r1.two", "r2.two"]
    assert took[4:6] == ["r3.one", "r3.two"]
    assert night.agenda.left_out() == []


def test_other_nights_may_settle_a_place():
    """A model whose places are established over nights gets no further round; half-settled, half of one."""
    changes = {"models": {name: MODELS[name] for name in ("one", "two")}, "k": (4, 8)}
    speeds = {None: 500.0, 4: 1000.0, 8: 1003.0}
    known = {
        ("one", "humaneval"): "established",
        ("one", "mbpp"): "established",
        ("two", "mbpp"): "established",
    }
    night = Night(1e6, changes=changes, speeds=speeds, settled=lambda: known)
    assert night.run()[4:5] == ["r3.two"]
    corpora = {t.cell.corpus for t in night.plan.trials() if t.round == 3 and t.trial_id in night.rows}
    assert corpora == {"humaneval"}


def test_a_fixed_number_of_rounds_has_no_further_ones():
    """One round asked for is one round, however much time is left."""
    night = Night(1e6, changes={"rounds": Design(1, 1)})
    assert night.run() == ["r1.one", "r1.two", "r1.three"]
    assert night.agenda.undecided() == []


def test_sentinels_stand_at_the_start_between_and_at_the_end():
    """Three of them around what is measured; the last is the last thing a night does."""
    sentinel = Sentinel(model="one", corpus="mbpp", arm="kpad@4", times=3)
    night = Night(6 * BLOCK_S, changes={"sentinel": sentinel, "rounds": Design(1, 1)})
    took = night.run()
    places = [place for place, block in enumerate(took) if block.startswith("s")]
    assert [took[place][:2] for place in places] == ["s1", "s2", "s3"]
    assert places[0] == 0
    assert places[-1] == len(took) - 1
    assert 0 < places[1] < places[-1]


def test_a_night_that_goes_on_finishes_what_it_began_first():
    """The model with rows in the run comes before a staler one that was not begun, as far as it goes."""
    first = Night(1e6, changes={"rounds": Design(2, 2)})
    block = first.agenda.take()
    started = {t.trial_id: {"status": "ok", "reason": None} for t in block.trials()}
    again = Night(BLOCK_S * MARGIN * 1.6, changes={"rounds": Design(2, 2)}, started=started)
    assert again.run() == ["r2.one"]


def test_what_is_ahead_is_what_will_be_taken():
    """The forecast at the start names the certain blocks in order; taken ones stay in the count."""
    night = Night(1e6, changes={"rounds": Design(2, 2)})
    ahead = [block.block_id for block in night.agenda.ahead()]
    assert night.run() == ahead
    assert [block.block_id for block in night.agenda.blocks()] == ahead


def test_times_come_from_measured_boots_and_passes_else_from_the_entries():
    """A model's boots and the passes of its corpus; a margin on top; failed trials teach nothing."""
    night = Night(1e6)
    block = next(b for b in night.plan.blocks if b.block_id == "r1.one")
    guess_s = night.times.block_s(block, block.trials())
    cell = block.trials()[0].cell
    row = {"model": "one", "corpus": cell.corpus, "boot_s": 7.0, "duration_s": 3.0, "boot_id": "b"}
    night.times.learn([{**row, "status": "failed", "duration_s": 900.0}])
    assert night.times.block_s(block, block.trials()) == guess_s
    night.times.learn([{**row, "status": "ok"}])
    known_s = night.times.block_s(block, block.trials())
    assert known_s < guess_s
    night.times.learn_block([{**row, "status": "ok"}], took_s=7.0 + 3.0 + 2.0)
    assert night.times.block_s(block, block.trials()) == pytest.approx(MARGIN * (2 * 7.0 + 4 * (3.0 + 2.0)))
