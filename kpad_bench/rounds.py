"""When a (model, corpus) has rounds enough, and what is left to measure: from a plan and its rows alone.

Pure: the same rows give the same answer, so that a resumed run decides as an undisturbed one would.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kpad_bench.design import Design
from kpad_bench.plan import Block, Plan, Trial
from kpad_bench.schema import OK
from kpad_bench.stats import decide

#: What a trial says of itself; of interest here are status, reason, output_tok_per_s and full_share_decode.
Row = Mapping[str, Any]
#: (model, corpus): what a best K is chosen for.
Place = tuple[str, str]

#: Reasons that come back however often a trial is tried: its K does not fit, its server cannot start, its
#: prompts are refused. All others may pass: somebody else's memory, a kill, a stall, a slow or busy host.
LASTING = frozenset(
    (
        *("kv_none", "kv_too_small", "oom", "capture_oom"),
        *("config_error", "plugin_error", "runner_refused", "launcher_error"),
        *("model_missing", "gated"),
        *("invalid_workload", "all_requests_refused"),
    )
)
NOTHING_TO_COMPARE = "nothing to compare"


class Ending(NamedTuple):
    """The last round that is measured of one (model, corpus), and why there is no further one."""

    round: int
    why: str


@dataclass(frozen=True)
class Rule:
    """When rounds end: the design, the families of padded arms to decide, and what makes a K eligible."""

    design: Design
    families: tuple[str, ...]
    least_full_share: float


def ending_of(rounds: Sequence[Sequence[Trial]], rows: Mapping[str, Row], rule: Rule) -> Ending | None:
    """Where the rounds of one (model, corpus) end; None where the next one is to be measured.

    ``rounds``: the planned trials of each. A round counts once all of its trials have a row; the first
    round after which every family's decision is made is the last.
    """
    if not rule.design.is_adaptive:
        return None
    for number, trials in enumerate(rounds, start=1):
        if any(trial.trial_id not in rows for trial in trials):
            return None
        if number >= rule.design.least:
            whys = {family: _why(rounds[:number], rows, rule, family) for family in rule.families}
            if all(whys.values()):
                return Ending(number, _told(whys))
    return None


def _why(rounds: Sequence[Sequence[Trial]], rows: Mapping[str, Row], rule: Rule, family: str) -> str | None:
    """Why one family needs no further round, as ``stats.decide`` says; None: it does."""
    speeds: list[dict[int, float]] = []
    left_out: set[int] = set()
    for trials in rounds:
        found: dict[int, list[float]] = {}
        for trial in trials:
            row, k = rows[trial.trial_id], trial.cell.k
            speed = _speed(row)
            if trial.cell.arm != family or k is None or speed is None:
                continue
            found.setdefault(k, []).append(speed)
            share = row.get("full_share_decode")
            if share is not None and share < rule.least_full_share:
                left_out.add(k)
        speeds.append({k: math.fsum(values) / len(values) for k, values in found.items()})
    eligible = [{k: speed for k, speed in row.items() if k not in left_out} for row in speeds]
    if len({k for row in eligible for k in row}) < 2:
        return NOTHING_TO_COMPARE
    return decide(eligible, rule.design).stop


def _speed(row: Row) -> float | None:
    """What counts as a throughput: of an ok trial, and a number. A column that is missing is null."""
    speed = row.get("output_tok_per_s")
    return speed if row["status"] == OK and speed and math.isfinite(speed) else None


def _told(whys: Mapping[str, str | None]) -> str:
    if len(set(whys.values())) == 1:
        return str(next(iter(whys.values())))
    return ", ".join(f"{family} {why}" for family, why in whys.items()) or NOTHING_TO_COMPARE


class Left(NamedTuple):
    """What is left of a block. ``retaken``: those of ``trials`` that were ok, and are measured again.

    ``is_probe``: the rest of the block is whole; what failed is tried by itself.
    """

    trials: tuple[Trial, ...]
    retaken: tuple[Trial, ...] = ()
    is_probe: bool = False


def left_of(
    trials: Sequence[Trial], rows: Mapping[str, Row], earlier: Mapping[str, Collection[str]], is_whole: bool
) -> Left:
    """What is left of the trials of one block.

    ``is_whole``: trials of a block stand next to each other or do not count, so that a block with a gap
    is measured again. A trial that failed for a lasting reason, or for the reason of an ``earlier``
    attempt (trial_id -> reasons) again, is no gap: its K is not in that round.
    """
    ok: list[Trial] = []
    bad: list[Trial] = []
    for trial in trials:
        (ok if rows.get(trial.trial_id, {}).get("status") == OK else bad).append(trial)
    if not (is_whole and ok and bad):
        return Left(tuple(bad))
    if all(_lasts(trial, rows, earlier) for trial in bad):
        return Left(tuple(bad), is_probe=True)
    return Left(tuple(trials), retaken=tuple(ok))


def _lasts(trial: Trial, rows: Mapping[str, Row], earlier: Mapping[str, Collection[str]]) -> bool:
    reason = rows.get(trial.trial_id, {}).get("reason")
    return reason is not None and (reason in LASTING or reason in earlier.get(trial.trial_id, ()))


class Outlook:
    """What is left of a plan. Its owner keeps ``rows`` (trial_id -> row that counts) up to date.

    ``has_hosts``: a block that is resumed may go to another host, so that even a single round's is whole.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Mapping[str, Row],
        earlier: Mapping[str, Collection[str]],
        rule: Rule,
        *,
        has_hosts: bool = False,
    ) -> None:
        self.plan, self.rows, self.earlier, self.rule = plan, rows, earlier, rule
        self.has_hosts = has_hosts
        self.rounds: dict[Place, list[list[Trial]]] = {}
        for block in plan.blocks:
            for trial in () if block.is_sentinel else block.trials():
                rounds = self.rounds.setdefault(_place(trial), [])
                rounds += [[] for _ in range(trial.round - len(rounds))]
                rounds[trial.round - 1].append(trial)
        self.endings: dict[Place, Ending | None] = {}
        #: Those that need no further round for a reason that is not in these rows.
        self.settled: dict[Place, Ending] = {}
        self._look(self.rounds)

    def needed(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those of the trials that belong to a round which is measured; sentinels always do."""
        return [trial for trial in trials if trial.is_sentinel or not self._is_over(trial)]

    def left(self, block: Block) -> Left:
        """What is left of one block."""
        is_whole = (self.has_hosts or self.plan.design.most > 1) and not block.is_sentinel
        return left_of(self.needed(block.trials()), self.rows, self.earlier, is_whole)

    def n_left(self, blocks: Iterable[Block]) -> int:
        """Trials that these blocks still take, were no further (model, corpus) to end."""
        return self.models_left(blocks).total()

    def models_left(self, blocks: Iterable[Block]) -> Counter[str]:
        """The same, apart by model."""
        return Counter(trial.cell.model for block in blocks for trial in self.left(block).trials)

    def not_ok(self) -> list[Trial]:
        """Needed trials whose row is not ok."""
        needed = self.needed(self.plan.trials())
        return [t for t in needed if self.rows.get(t.trial_id, {}).get("status", OK) != OK]

    def close(self, block: Block) -> list[tuple[Place, Ending, int]]:
        """Look again, after a block, at what it was about: what has just ended, and the trials it spares."""
        before = dict(self.endings)
        places = list(dict.fromkeys(_place(trial) for trial in block.trials() if not trial.is_sentinel))
        self._look(places)
        ended = []
        for place in places:
            ending = self.endings[place]
            if ending is not None and ending != before[place]:
                ended.append((place, ending, sum(map(len, self.rounds[place][ending.round :]))))
        return ended

    def settle(self, settled: Mapping[Place, Ending]) -> None:
        """Take from elsewhere, like other nights, what needs no further round than its own does."""
        self.settled = dict(settled)
        self._look(self.rounds)

    def _look(self, places: Iterable[Place]) -> None:
        for place in places:
            ending = ending_of(self.rounds[place], self.rows, self.rule)
            self.endings[place] = ending or self.settled.get(place)

    def _is_over(self, trial: Trial) -> bool:
        ending = self.endings[_place(trial)]
        return ending is not None and trial.round > ending.round


def _place(trial: Trial) -> Place:
    return trial.cell.model, trial.cell.corpus
