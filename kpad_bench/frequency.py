"""Do two arms draw the next token with the same frequencies? Sampled token ids in, p-values out.

For temperatures above 0, where two right answers differ and only their distribution can be compared.
The first token of an answer comes from the prompt's own step, without drafts: it says nothing about
padding and is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

#: Tokens of a sample. All but the first pass through verification.
N_TOKENS = 4
#: Tokens seen less often than this in both arms together are one bin: five expected in each arm.
FEWEST = 10
#: Chance with which a difference of the stated size is found.
POWER = 0.9

#: prompt id -> samples, each the first ids of one answer
Samples = Mapping[str, Sequence[Sequence[int]]]


class Frequencies(NamedTuple):
    """Chi-square test of homogeneity for one prompt and one position of the answer.

    ``found_from``: the total variation distance from which a difference is found with probability
    ``POWER`` at the level of this test; None where all samples are in one bin. It holds for every
    alternative, as Cohen's w is never below that distance.
    """

    prompt_id: str
    position: int
    n: int
    n_bins: int
    p_value: float
    found_from: float | None


def frequencies(base: Samples, other: Samples, level: float) -> list[Frequencies]:
    """Every prompt and position. ``level`` is shared by all of them (Bonferroni)."""
    tables = list(_tables(base, other))
    return [_test(*table, level / len(tables)) for table in tables]


def least(tests: Sequence[Frequencies]) -> Frequencies:
    """The one that looks least alike."""
    return min(tests, key=lambda one: one.p_value)


def is_different(tests: Sequence[Frequencies], level: float) -> bool:
    """Whether any of them is below its share of the level; False without any."""
    return any(one.p_value < level / len(tests) for one in tests)


def _tables(base: Samples, other: Samples) -> Iterator[tuple[str, int, list[int], list[int]]]:
    for prompt_id in base:
        for position in range(1, N_TOKENS):
            counts = [_count(samples[prompt_id], position) for samples in (base, other)]
            total = counts[0] + counts[1]
            bins = [token for token in total if total[token] >= FEWEST]
            ours, theirs = ([*(seen[t] for t in bins), _rest(seen, bins)] for seen in counts)
            yield prompt_id, position, ours, theirs


def _count(samples: Sequence[Sequence[int]], position: int) -> Counter[int]:
    """Tokens at a position; an answer that had ended there counts as -1."""
    return Counter(ids[position] if position < len(ids) else -1 for ids in samples)


def _rest(seen: Counter[int], bins: Sequence[int]) -> int:
    return seen.total() - sum(seen[token] for token in bins)


def _test(prompt_id: str, position: int, ours: list[int], theirs: list[int], level: float) -> Frequencies:
    from scipy import stats  # noqa: PLC0415 slow to import, and seldom needed

    n = sum(ours) + sum(theirs)
    columns = [pair for pair in zip(ours, theirs, strict=True) if any(pair)]
    if len(columns) < 2:
        return Frequencies(prompt_id, position, n, len(columns), 1.0, None)
    p_value = float(stats.chi2_contingency(list(zip(*columns, strict=True)), correction=False).pvalue)
    return Frequencies(prompt_id, position, n, len(columns), p_value, _found_from(n, len(columns) - 1, level))


def _found_from(n: int, degrees: int, level: float) -> float:
    """Cohen's w that the test finds with probability ``POWER``, by bisection."""
    from scipy import stats  # noqa: PLC0415

    critical = stats.chi2.isf(level, degrees)
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        is_found = stats.ncx2.sf(critical, degrees, max(n * middle * middle, 1e-12)) >= POWER
        low, high = (low, middle) if is_found else (middle, high)
    return high
