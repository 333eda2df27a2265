"""Experiment design: how many rounds there are, in which order each runs, where the sentinels stand.

Pure. Knows no models, arms or throughputs; whether a cell has rounds enough is ``stats.decide``'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

#: A slip of the finger: a plan lists every round.
MOST_ROUNDS = 1000


class Design(NamedTuple):
    """How many rounds are planned: a fixed number, or as many as it takes between two numbers."""

    least: int
    most: int

    @property
    def is_adaptive(self) -> bool:
        """Whether a decision is taken after every round from ``least`` on."""
        return self.least < self.most

    def __str__(self) -> str:
        return f"adaptive({self.least}..{self.most})" if self.is_adaptive else f"fixed({self.most})"

    def as_given(self) -> int | str:
        """As a configuration has it: ``3`` or ``3..8``."""
        return f"{self.least}..{self.most}" if self.is_adaptive else self.most

    @classmethod
    def parse(cls, text: str) -> Design:
        """The design of which ``text`` is the string; raises ValueError for anything else."""
        found = re.fullmatch(r"fixed\((\d+)\)|adaptive\((\d+)\.\.(\d+)\)", text)
        numbers = [int(group) for group in found.groups() if group] if found else []
        if not numbers or numbers[0] < 1 or numbers != sorted(set(numbers)):
            raise ValueError(f"{text!r} is no design: it looks like fixed(3) or adaptive(3..8)")
        return cls(numbers[0], numbers[-1])


def read_rounds(value: Any) -> Design:
    """The design that ``3``, ``"3"`` or ``"3..8"`` asks for. Raises ValueError that says what is allowed."""
    if isinstance(value, Design):
        return value
    found = re.fullmatch(r"(\d{1,6})(?:\.\.(\d{1,6}))?", str(value), re.ASCII)
    if found is None:
        raise ValueError("allowed: a number of rounds such as 3, or the least and the most such as 3..8")
    least, most = int(found[1]), int(found[2] or found[1])
    if most > MOST_ROUNDS or most < 1:
        raise ValueError(f"allowed: 1 to {MOST_ROUNDS} rounds")
    if least > most:
        raise ValueError(f"the least comes first: write {most}..{least}")
    if found[2] and least < 2:
        raise ValueError("the least must be 2 or more: one round has no interval to decide from")
    return Design(least, most)


def in_round(items: Sequence[T], number: int) -> list[T]:
    """The order of one round (1-based), balanced over rounds as in a Williams design.

    Over any first rounds each item stands in each place equally often, give or take one. Over
    ``len(items)`` rounds (twice as many for an odd number of items) each item also follows each other
    equally often (Williams 1949, Aust. J. Sci. Res. A 2, 149). Each second round is, as nearly as can be,
    the mirror image of the one before, so that a steady drift inside rounds cancels in pairs of them.
    """
    n = len(items)
    turn, cycle = (number - 1) % n, (number - 1) // n
    shift = turn // 2 + (turn % 2) * ((n + 1) // 2)
    zigzag = [place // 2 if place % 2 == 0 else n - 1 - place // 2 for place in range(n)]
    order = [items[(place + shift) % n] for place in zigzag]
    return order[::-1] if n % 2 and cycle % 2 else order


def sentinel_places(n_certain: int, n_blocks: int, times: int) -> list[int]:
    """Before which blocks (0-based; ``n_blocks``: after the last) a sentinel stands, each place once.

    The first at the start, the last at the end, the others evenly over the ``n_certain`` blocks that are
    measured however the rounds go.
    """
    if not times:
        return []
    inner = [round(turn * n_certain / (times - 1)) for turn in range(1, times - 1)]
    return sorted({0, *inner, *([n_blocks] if times > 1 else [])})
