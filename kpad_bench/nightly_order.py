"""What a night measures: the stalest models that fit its time, then what is still undecided.

A block is taken only where it can be finished in time, and only as a whole. Docs: docs/decisions/0013.
Starts nothing and reads no file; the clock is given to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from kpad_bench.agenda import Agenda
from kpad_bench.nightly_times import Times
from kpad_bench.plan import Block, Plan
from kpad_bench.rounds import Ending, Outlook, Place
from kpad_bench.schema import MUST_MATCH, OK

Row = Mapping[str, Any]


class LeftOut(NamedTuple):
    """A model of which a night has not measured every round that it is due, and what was missing."""

    model: str
    n_rounds: int
    n_due: int
    need_s: float
    left_s: float
    last_ok: datetime | None


def last_ok(rows: Iterable[Row], facts: Mapping[str, Any]) -> dict[str, datetime]:
    """When each model was last measured well on a host like this: model -> start of that trial.

    Sentinels do not count: they are measured every night.
    """
    known = [name for name in MUST_MATCH if name != "vllm_version" or facts.get(name) is not None]
    found: dict[str, datetime] = {}
    for row in rows:
        if row["status"] != OK or row.get("is_sentinel") or row.get("started_at") is None:
            continue
        if all(row.get(name) == facts.get(name) for name in known):
            found[row["model"]] = max(row["started_at"], found.get(row["model"], row["started_at"]))
    return found


def stalest_first(models: Sequence[str], seen: Mapping[str, datetime]) -> list[str]:
    """Models never measured in the order they are given, then those measured longest ago."""
    never = [model for model in models if model not in seen]
    return never + sorted((model for model in models if model in seen), key=lambda model: seen[model])


class NightAgenda(Agenda):
    """The blocks of one night, until ``clock`` says ``until``.

    ``former``: rows of earlier runs of the sweep. ``settled``: asked between blocks which places need no
    further round, and why, for reasons that lie in other nights.
    """

    is_whole = False

    def __init__(
        self,
        until: float,
        times: Times,
        former: Sequence[Row] = (),
        settled: Callable[[], Mapping[Place, str]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.until, self.times, self.former = until, times, former
        self.settled, self.clock = settled, clock

    def begin(self, plan: Plan, outlook: Outlook, facts: Mapping[str, Any]) -> None:
        """Order the models, and learn from earlier runs how long they take."""
        super().begin(plan, outlook, facts)
        cells = {trial.cell.cell_id for trial in plan.trials()}
        self.times.learn(row for row in self.former if row.get("cell_id") in cells)
        rounds = [block for block in plan.blocks if not block.is_sentinel]
        self.last_ok = last_ok(self.former, facts)
        self.models = stalest_first(list(dict.fromkeys(map(_model, rounds))), self.last_ok)
        self.due = {model: [b for b in rounds if _model(b) == model] for model in self.models}
        self.begun = {_model(b) for b in rounds if any(t.trial_id in outlook.rows for t in b.trials())}
        self._sentinels = [block for block in plan.blocks if block.is_sentinel]
        self._overtaken: set[str] = set()
        self._began_at = self._since = self.clock()
        self._measuring: list[str] = []

    def ahead(self) -> Sequence[Block]:
        """The blocks that are certain by now; whether further rounds follow is seen later."""
        chosen = self._choose()
        return [*chosen, *(self._open_sentinels() if chosen else [])]

    def take(self) -> Block | None:
        """The next block that fits, after learning from the one before."""
        self._learn()
        block = self._next()
        if block is not None:
            self.taken.append(block)
            if not block.is_sentinel:
                self.begun.add(_model(block))
            self._measuring = [trial.trial_id for trial in self.outlook.left(block).trials]
            self._since = self.clock()
        return block

    def left_out(self) -> list[LeftOut]:
        """The models that were not measured as they are due, in order; none where all were."""
        found = []
        for model in self.models:
            missing = self._missing(model)
            if missing:
                n_due = self.plan.design.least
                n_rounds = n_due - len({block.round for block in missing})
                need_s = sum(map(self._block_s, missing))
                found.append(LeftOut(model, n_rounds, n_due, need_s, self._left_s(), self.last_ok.get(model)))
        return found

    def undecided(self) -> list[Place]:
        """Places of models that were measured tonight, of which a further round would have been measured."""
        blocks = [block for model in self.models if model in self.begun for block in self._further(model)]
        trials = [trial for block in blocks for trial in self.outlook.left(block).trials]
        return list(dict.fromkeys((trial.cell.model, trial.cell.corpus) for trial in trials))

    def _learn(self) -> None:
        rows = [self.outlook.rows[name] for name in self._measuring if name in self.outlook.rows]
        if rows:
            self.times.learn_block(rows, self.clock() - self._since)
        self._measuring = []

    def _next(self) -> Block | None:
        chosen = self._choose()
        if not chosen and self.begun:
            self.outlook.settle({p: Ending(self._n_measured(p), why) for p, why in self.settled().items()})
            chosen = self._first_further()
        sentinel = self._due_sentinel(chosen)
        return sentinel or next(iter(chosen), None)

    def _n_measured(self, place: Place) -> int:
        rounds = self.outlook.rounds.get(place, [])
        return max(
            (n for n, r in enumerate(rounds, 1) if any(t.trial_id in self.outlook.rows for t in r)), default=0
        )

    def _choose(self) -> list[Block]:
        """The rounds that every model is due, in order: all of a model's or none.

        Only of the model that comes first, and of one that was begun, as many as fit.
        """
        left_s, chosen = self._left_s(), list[Block]()
        for model in self.models:
            blocks = [block for block in self._open(model) if block.round <= self.plan.design.least]
            fitting = self._fitting(blocks, left_s)
            may_be_cut = model in self.begun or not (chosen or self.begun)
            if may_be_cut or len(fitting) == len(blocks):
                chosen += fitting
                left_s -= sum(map(self._block_s, fitting))
        return chosen

    def _fitting(self, blocks: Sequence[Block], left_s: float) -> list[Block]:
        fitting = []
        for block in blocks:
            left_s -= self._block_s(block)
            if left_s < 0:
                break
            fitting.append(block)
        return fitting

    def _first_further(self) -> list[Block]:
        """The earliest further round, of the stalest model, that fits."""
        further = [block for model in self.models if model in self.begun for block in self._further(model)]
        left_s = self._left_s()
        for block in sorted(further, key=lambda block: block.round):
            if self._block_s(block) <= left_s:
                return [block]
        return []

    def _further(self, model: str) -> list[Block]:
        """Rounds beyond those that are due; none before these are measured."""
        return [] if self._missing(model) else self._open(model)

    def _missing(self, model: str) -> list[Block]:
        """The blocks that are due and lack a row, whatever it says."""
        due = [block for block in self.due[model] if block.round <= self.plan.design.least]
        return [b for b in due if any(t.trial_id not in self.outlook.rows for t in b.trials())]

    def _open(self, model: str) -> list[Block]:
        """The blocks of a model that were not taken and have something left, in the plan's order."""
        return [b for b in self.due[model] if b not in self.taken and self.outlook.left(b).trials]

    def _open_sentinels(self) -> list[Block]:
        gone = {*self._overtaken, *(block.block_id for block in self.taken)}
        return [b for b in self._sentinels if b.block_id not in gone and self.outlook.left(b).trials]

    def _due_sentinel(self, chosen: Sequence[Block]) -> Block | None:
        """The sentinel whose time has come: the first at the start, the last at the end, others between.

        One that the next has overtaken is dropped. A night without any other block has none.
        """
        if not (chosen or self.begun):
            return None
        n, due = len(self._sentinels), list[Block]()
        took_s, left_s = self.clock() - self._began_at, sum(map(self._block_s, chosen))
        share = took_s / max(took_s + left_s, 1e-9)
        for block in self._open_sentinels():
            turn = self._sentinels.index(block)
            is_last = n > 1 and turn == n - 1
            if not chosen if is_last else share >= turn / max(n - 1, 1):
                due.append(block)
        self._overtaken |= {block.block_id for block in due[:-1]}
        return due[-1] if due else None

    def _left_s(self) -> float:
        """Seconds for blocks, without those that the sentinels to come will take."""
        return self.until - self.clock() - sum(map(self._block_s, self._open_sentinels()))

    def _block_s(self, block: Block) -> float:
        return self.times.block_s(block, self.outlook.left(block).trials)


def _model(block: Block) -> str:
    return block.boots[0].model
