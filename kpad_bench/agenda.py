"""Which block a run takes next: all of the plan's in its order, unless a night brings an agenda of its own.

Knows plans and what is left of them. Starts nothing, reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kpad_bench.plan import Block, Plan
from kpad_bench.rounds import Outlook


class Agenda:
    """Every block of the plan, in its order. One agenda serves one run."""

    #: Whether it comes to the end of the plan, so that what is not ok by then is worth another go.
    is_whole = True

    def begin(self, plan: Plan, outlook: Outlook, facts: Mapping[str, Any]) -> None:
        """The run begins: its plan, what is left of it, and what holds for this host."""
        self.plan, self.outlook, self.facts = plan, outlook, facts
        self.taken: list[Block] = []

    def ahead(self) -> Sequence[Block]:
        """The blocks still to come, in order, as far as anybody knows by now."""
        return self.plan.blocks[len(self.taken) :]

    def blocks(self) -> Sequence[Block]:
        """The blocks of this run: those that were taken, and those ahead."""
        return [*self.taken, *self.ahead()]

    def take(self) -> Block | None:
        """The next block, which the run measures before it asks again; None: there is none."""
        block = next(iter(self.ahead()), None)
        if block is not None:
            self.taken.append(block)
        return block
