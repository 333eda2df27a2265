"""One row of the best-K table: which Ks may win, what was decided among them, and the gains over baselines.

Takes a cell laid out as blocks x arms; the choice itself is ``stats.decide``'s. Knows no rows and no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kpad_bench import stats
from kpad_bench.blocks import ArmAtK, Cell, Mask, Values, complete, mean, present
from kpad_bench.errors import DataError
from kpad_bench.schema import BEST_K, names
from kpad_bench.stats import Decision, Design, Gain

#: Least share of decode-only steps in FULL graphs for a padded K to count as padded.
FULL_SHARE_MIN = 0.9
#: Arms a gain is stated against. Their steps need not be in FULL graphs: that is what padding is for.
VAN, SUF, PUBLISHED_SUF_K = "van", "suf", 32
BASELINES = (VAN, SUF)
#: No speculation on the runner and scheduling that speculation uses: what R compares step times with.
STEP_BASELINE = "van-v1"
#: Why an adaptive design ended that was neither decided nor at its last round.
BUDGET = "budget"


class Choice(NamedTuple):
    """A decision among the Ks of one family, and what it rests on."""

    cell: Cell
    eligible: list[ArmAtK]
    decision: Decision
    #: The blocks behind its figures: those that hold every K, where there are two.
    used: Mask
    #: Whether each of several nights was one value per K.
    is_by_night: bool
    #: What the trials say of their design, read; None: nothing, or the unit is the night.
    design: Design | None
    #: The same in their words.
    designs: frozenset[str | None]
    steady_best_k: int | None

    @property
    def best(self) -> ArmAtK:
        """The arm that won."""
        return next(arm for arm in self.eligible if arm.k == self.decision.best_k)

    @property
    def is_established(self) -> bool:
        """Whether the tie set is one K, measured, and the steady window does not say another."""
        return self.decision.is_established and self.steady_best_k in (None, self.decision.best_k)


class Versus(NamedTuple):
    """The gain of the best K over one baseline."""

    base: ArmAtK
    gain: Gain
    #: The blocks that hold both; none: they were measured apart.
    common: Mask


class Row(NamedTuple):
    """The figures of one row, and what its footnotes are made from."""

    record: dict[str, Any]
    left_out: dict[int, str]
    choice: Choice | None
    versus: list[Versus]
    #: Every arm that a figure may rest on: eligible ones, then baselines.
    arms: list[ArmAtK]


def best_row(cell: Cell, family: str) -> Row:
    """The row of one family of arms, without its names and its q value.

    Raises DataError where the trials name a design that is none.
    """
    members = [arm for arm in cell.arms if arm.name == family]
    left_out = {arm.k: why for arm in members if (why := why_not_eligible(arm))}
    eligible = [arm for arm in members if arm.k not in left_out]
    baselines = [arm for arm in cell.arms if arm.name in BASELINES and arm.name != family]
    speeds = {(arm.name, arm.k): arm.mean for arm in baselines}
    record: dict[str, Any] = dict.fromkeys(names(BEST_K))
    record |= {
        "n_trials": 0, "tie_set": [], "established": False, "regrets": [],
        "van_tok_per_s": speeds.get((VAN, 0)),
        "suf_tok_per_s": speeds.get((SUF, PUBLISHED_SUF_K)),
        "not_eligible": [f"{k}: {why}" for k, why in left_out.items()],
    }  # fmt: skip
    if not eligible:
        return Row(record, left_out, None, [], baselines)
    choice = choose(cell, eligible)
    versus = [over(choice, base) for base in baselines if base.n_ok]
    record |= _decided(choice) | _gains(versus) | _explained(choice)
    return Row(record, left_out, choice, versus, [*eligible, *baselines])


def why_not_eligible(arm: ArmAtK) -> str | None:
    """Why this K may not win; None: it may. Rows without a word about graphs, like a CSV's, are believed."""
    if not arm.n_ok:
        return arm.why_failed
    if arm.name in BASELINES:
        return None
    if arm.full_share is None and arm.unknown_shares:
        return f"full_share unknown ({', '.join(sorted(arm.unknown_shares))})"
    if arm.full_share is not None and arm.full_share < FULL_SHARE_MIN:
        return f"full_share {math.floor(arm.full_share * 100) / 100:.2f} < {FULL_SHARE_MIN}"
    return None


def choose(cell: Cell, eligible: list[ArmAtK]) -> Choice:
    """Decide among these Ks: by night where several nights have complete rounds, else by round."""
    whole, some = complete(eligible), present(eligible)
    nights = cell.nights_in(whole)
    is_by_night = len(nights) > 1
    if is_by_night:
        means = [cell.unit_means(arm.speed, whole).tolist() for arm in eligible]
        rounds = [
            dict(zip((arm.k for arm in eligible), row, strict=True)) for row in zip(*means, strict=True)
        ]
        used, design, designs = whole, None, frozenset[str | None]()
    else:
        # One complete round is no more than one trial of each K: then every value counts.
        mine = some & (cell.night_of == nights[0]) if whole.sum() > 1 else some
        used = whole if whole.sum() > 1 else some
        rounds = [
            {arm.k: float(arm.speed[block]) for arm in eligible if not math.isnan(arm.speed[block])}
            for block in np.flatnonzero(mine)
        ]
        designs = frozenset(text for night in cell.nights_in(mine) for text in cell.designs[night])
        design = _design(designs)
    decision = stats.decide(rounds, design)
    return Choice(
        cell, eligible, decision, used, is_by_night, design, designs, _steady_best(cell, eligible, used)
    )


def over(choice: Choice, base: ArmAtK) -> Versus:
    """The gain of the best K over a baseline, from the blocks that hold both, by night where several do.

    Where none does, the ratio of the means, without an interval.
    """
    found = paired(choice.cell, choice.best, base)
    if found.common.any():
        return found
    apart = stats.gain_pct(choice.decision.tok_per_s, base.mean or math.nan)
    return found._replace(gain=Gain(apart, None, None))


def paired(cell: Cell, arm: ArmAtK, base: ArmAtK) -> Versus:
    """The gain of one arm of a cell over another, in the same way."""
    common = arm.has & base.has
    if not common.any():
        return Versus(
            base, Gain(stats.gain_pct(arm.mean or math.nan, base.mean or math.nan), None, None), common
        )
    values, bases = (cell.unit_means(one.speed, common).tolist() for one in (arm, base))
    return Versus(base, stats.gain(list(zip(values, bases, strict=True))), common)


def _design(texts: frozenset[str | None]) -> Design | None:
    """The design that trials name; of several the one that has to be tested most strictly."""
    try:
        designs = [Design.parse(text) for text in texts if text is not None]
    except ValueError as error:
        raise DataError(f"column design: {error}") from error
    return max(designs, key=lambda design: (design.is_adaptive, design.most), default=None)


def _decided(choice: Choice) -> dict[str, Any]:
    decision, best = choice.decision, choice.best
    is_adaptive = choice.design is not None and choice.design.is_adaptive
    return {
        "best_k": decision.best_k,
        "output_tok_per_s": decision.tok_per_s,
        "ci_low": rounded(decision.ci_low),
        "ci_high": rounded(decision.ci_high),
        "n_trials": int(best.n_ok_by_block[choice.used].sum()),
        "n_rounds": decision.n_rounds,
        "runner_up_k": decision.runner_up_k,
        "margin_pct": rounded(decision.margin_pct),
        "tie_set": list(decision.tie_set),
        "tie_basis": decision.tie_basis,
        "established": choice.is_established,
        "relevant": decision.is_relevant,
        "p_value": decision.p_value,
        "cv_pct": rounded(decision.cv_pct),
        "detectable_pct": rounded(decision.detectable_pct),
        "stop_reason": (decision.stop or BUDGET) if is_adaptive else None,
        "pick_k": decision.pick_k,
        "regret_pct": rounded(decision.regret_pct),
        "regrets": [f"{k}: {round(pct, 3):g}" for k, pct in decision.regrets],
        "steady_best_k": choice.steady_best_k,
    }


def _gains(versus: Sequence[Versus]) -> dict[str, Any]:
    by_arm = {(one.base.name, one.base.k): one.gain for one in versus}
    best = max(versus, key=lambda one: one.base.mean or 0.0, default=None)
    record: dict[str, Any] = {}
    for name, gain in (
        ("vs_suf", by_arm.get((SUF, PUBLISHED_SUF_K))),
        ("vs_van", by_arm.get((VAN, 0))),
        ("vs_best_baseline", best.gain if best else None),
    ):
        for part, value in zip(("pct", "low_pct", "high_pct"), gain or (None,) * 3, strict=True):
            record[f"{name}_{part}"] = rounded(value)
    return record


def _explained(choice: Choice) -> dict[str, Any]:
    """What explains the throughput: tokens per request and step, and what a step costs."""
    best, cell = choice.best, choice.cell
    base = next((arm.step_time for arm in cell.arms if arm.name == STEP_BASELINE), best.step_time * math.nan)
    both = ~np.isnan(best.step_time) & ~np.isnan(base)
    ours, theirs = (mean(values[both] if both.any() else values) for values in (best.step_time, base))
    return {
        "acceptance_length": rounded(_by_unit(best.acceptance_length, cell, choice.used)),
        "step_time_ratio": rounded(ours / theirs) if ours is not None and theirs else None,
    }


def _steady_best(cell: Cell, eligible: Sequence[ArmAtK], used: Mask) -> int | None:
    if any(np.isnan(arm.steady[used & arm.has]).any() for arm in eligible):
        return None
    means = {arm.k: _by_unit(arm.steady, cell, used & arm.has) or 0.0 for arm in eligible}
    return min(means, key=lambda k: (-means[k], k))


def _by_unit(values: Values, cell: Cell, used: Mask) -> float | None:
    """Mean of what is known in these blocks, every unit of the decision weighing the same."""
    return mean(cell.unit_means(values, used & ~np.isnan(values)).tolist())


def rounded(value: float | None) -> float | None:
    """Without the digits that are only arithmetic: 10.000000000000009 is 10."""
    return None if value is None else round(value, 6)
