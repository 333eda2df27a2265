"""What simulate.py looks at: shares of cells, and what is promised of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulate_cells import NOISES, Noise, remembering_drift, slow_boots

from kpad_bench.stats import Decision


class Promise(NamedTuple):
    """A share that has to lie between two percentages."""

    low: float
    high: float

    def kept(self, hits: int, n: int) -> bool:
        """Whether it does, give or take three standard errors of the simulation."""
        share = hits / n
        slack = 3 * math.sqrt(max(share * (1 - share), 1 / n) / n)
        return self.low / 100 - slack <= share <= self.high / 100 + slack

    def __str__(self) -> str:
        if self.low == 0:
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if self.high == 100 else f"{self.low:g}-{self.high:g}"


AT_MOST_5, AT_LEAST_95, AT_LEAST_93 = Promise(0, 5), Promise(95, 100), Promise(93, 100)
MEANS = Promise(93, 97)


class Measure(NamedTuple):
    """A share over cells of one truth. ``of`` gets the decisions of a column and the true log throughputs."""

    name: str
    truth: str
    of: Callable[[Sequence[Decision], dict[int, float]], bool | None]
    promise: Promise | None = None
    #: Noises of which it is promised; the others are reported.
    promised_of: tuple[Noise, ...] = NOISES


def established(decisions: Sequence[Decision], _: dict[int, float]) -> bool:
    """Some look established a K."""
    return any(d.is_established for d in decisions)


def best_is_tied(decisions: Sequence[Decision], truth: dict[int, float]) -> bool | None:
    """Every look had the true best in its tie set; None where none was measured."""
    looks = [d for d in decisions if d.tie_basis == "measured"]
    return all(max(truth, key=lambda k: truth[k]) in d.tie_set for d in looks) if looks else None


def mean_covered(decisions: Sequence[Decision], truth: dict[int, float]) -> bool | None:
    """The interval of the best K's throughput holds it; None with several looks, or without an interval."""
    if len(decisions) > 1 or decisions[0].ci_low is None or decisions[0].ci_high is None:
        return None
    return decisions[0].ci_low <= math.exp(truth[decisions[0].best_k]) <= decisions[0].ci_high


def lead_covered(decisions: Sequence[Decision], truth: dict[int, float]) -> bool | None:
    """Observed lead, give or take what would have excluded the runner-up, holds the true difference."""
    d = decisions[0]
    if len(decisions) > 1 or d.tie_basis != "measured":
        return None
    assert d.margin_pct is not None
    assert d.threshold_pct is not None
    assert d.runner_up_k is not None
    error = math.log1p(d.margin_pct / 100) - (truth[d.best_k] - truth[d.runner_up_k])
    return abs(error) <= math.log1p(d.threshold_pct / 100)


#: Noises of which intervals of means are promised. A night that drifts as a whole is in no interval of its
#: own rounds, and a K that was chosen for having had no slow boot does not know of them.
OF_MEANS = tuple(noise for noise in NOISES if noise not in (remembering_drift, slow_boots))
MEASURES = (
    Measure("established", "all tied", established, AT_MOST_5),
    Measure("established", "two tied", established, AT_MOST_5),
    Measure("true best in tie set", "lead 0.1 %", best_is_tied, AT_LEAST_95),
    Measure("true best in tie set", "lead 2 %", best_is_tied, AT_LEAST_95),
    Measure("interval of the best K", "all tied", mean_covered, MEANS, OF_MEANS),
    Measure("interval of the best K", "lead 2 %", mean_covered, MEANS, OF_MEANS),
    Measure("interval of the lead", "all tied", lead_covered, AT_LEAST_93),
    Measure("interval of the lead", "lead 2 %", lead_covered, AT_LEAST_93),
    Measure("established", "lead 2 %", established),
)
