"""Experiment design: the order of rounds is balanced, sentinels are spread, rounds are written one way."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.design import Design, in_round, read_rounds, sentinel_places

NO_ROUNDS = (-1, True, 3.0, None, "", "3..", "..8", "3...8", "3-8", "three", " 3", "\u0663", [3], "3..8..9")
N_ITEMS = st.integers(1, 9)


@given(n=N_ITEMS, n_rounds=st.integers(1, 20))
def test_each_item_stands_in_each_place_equally_often(n, n_rounds):
    """Over any first rounds, give or take one; a round holds each item once."""
    orders = [in_round(range(n), number) for number in range(1, n_rounds + 1)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    counts = Counter((place, item) for order in orders for place, item in enumerate(order))
    times = [counts[place, item] for place in range(n) for item in range(n)]
    assert max(times) - min(times) <= 1


@given(n=N_ITEMS)
def test_each_item_follows_each_other_equally_often(n):
    """Over as many rounds as items, twice as many where that number is odd: once, or twice."""
    n_rounds = n if n % 2 == 0 else 2 * n
    orders = [in_round(range(n), number) for number in range(1, n_rounds + 1)]
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert len(pairs) == n * (n - 1)
    assert set(pairs.values()) <= {n_rounds // n}


@pytest.mark.parametrize("n", [4, 5, 6, 7])
@pytest.mark.parametrize("n_rounds", range(1, 9))
def test_a_steady_drift_inside_rounds_nearly_cancels(n, n_rounds):
    """The mean places of two items are never further apart than in a rotation, and after each second round
    they are equal, or within one place for an odd number of items.
    """

    def spread(orders):
        means = [sum(order.index(item) for order in orders) / n_rounds for item in range(n)]
        return max(means) - min(means)

    found = spread([in_round(range(n), number) for number in range(1, n_rounds + 1)])
    rotated = spread([[(place + turn) % n for place in range(n)] for turn in range(n_rounds)])
    assert found <= rotated
    if n_rounds % 2 == 0:
        assert found <= (1 if n % 2 else 0)


@given(certain=st.integers(1, 60), more=st.integers(0, 60), times=st.integers(1, 12))
def test_sentinels_stand_at_both_ends_and_evenly_between(certain, more, times):
    """Gaps over the blocks that are measured for certain differ by one at most; none twice in one place."""
    places = sentinel_places(certain, certain + more, times)
    assert places[0] == 0
    assert len(places) == len(set(places)) <= times
    if times > 1:
        assert places[-1] == certain + more
        assert len(places) == min(times, len(places))
        gaps = [b - a for a, b in zip([*places[:-1]], [*places[1:-1], certain], strict=True)]
        assert all(gap >= 0 for gap in gaps)
        if times <= certain:
            assert len(places) == times
            assert max(gaps) - min(gaps) <= 1


def test_without_a_sentinel_there_is_no_place():
    """Zero times is nowhere; once is at the start."""
    assert sentinel_places(4, 4, 0) == []
    assert sentinel_places(4, 4, 1) == [0]
    assert sentinel_places(6, 16, 3) == [0, 3, 16]


@given(least=st.integers(2, 1000), more=st.integers(0, 500))
def test_a_design_reads_back(least, more):
    """As configured, and as rows and manifests have it."""
    design = Design(least, min(1000, least + more))
    assert read_rounds(design.as_given()) == design
    assert Design.parse(str(design)) == design


@pytest.mark.parametrize(
    ("value", "design"),
    [(1, (1, 1)), ("7", (7, 7)), ("2..3", (2, 3)), ("4..4", (4, 4)), (Design(2, 5), (2, 5))],
)
def test_rounds_are_a_number_or_a_range(value, design):
    """Text from the command line, numbers from YAML."""
    assert read_rounds(value) == design


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "1 to 1000 rounds"), (1001, "1 to 1000 rounds"), ("3..1001", "1 to 1000 rounds"),
        ("8..3", "the least comes first: write 3..8"), ("0..2", "one round has no interval"),
        ("1..2", "one round has no interval"),
        *((value, "a number of rounds such as 3, or the least") for value in NO_ROUNDS),
    ],
)  # fmt: skip
def test_other_rounds_are_refused(value, said):
    """With what is allowed."""
    with pytest.raises(ValueError, match=said):
        read_rounds(value)
