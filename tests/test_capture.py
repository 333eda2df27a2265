"""Capture sizes: exact for every decode step, one ceiling for all arms, nothing that vLLM would drop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.capture import capture_sizes, common_ceiling


@pytest.mark.parametrize(
    ("concurrency", "ks", "ceiling"),
    [
        (32, [4, 6, 8, 12], 512),
        (32, [32], 32 * 33),
        (64, [4, 6, 8, 12], 64 * 13),
        (1, [], 512),
    ],
)
def test_ceiling_reaches_the_widest_decode_step_of_any_arm(
    concurrency: int, ks: list[int], ceiling: int
) -> None:
    """At least vLLM's default, and at least concurrency x (1 + largest K): 64 x 13 = 832 is above 512."""
    assert common_ceiling(concurrency, ks) == ceiling


def test_sizes_of_a_small_arm_are_the_expected_ones() -> None:
    """K=4 at concurrency 3 under a ceiling of 150: 5, 10, 15, then coarse multiples of 5."""
    assert capture_sizes(4, 3, 150) == [5, 10, 15, 80, 145, 150]


@given(
    k=st.one_of(st.none(), st.integers(1, 32)), concurrency=st.integers(1, 128), ceiling=st.integers(1, 2048)
)
def test_every_decode_step_has_a_graph_of_exactly_its_size(
    k: int | None, concurrency: int, ceiling: int
) -> None:
    """1 to concurrency requests x (1 + K) tokens are captured, all sizes are multiples, the top reaches."""
    sizes, query_len = capture_sizes(k, concurrency, ceiling), 1 + (k or 0)
    assert {query_len * n for n in range(1, concurrency + 1)} <= set(sizes)
    assert all(size % query_len == 0 for size in sizes)
    assert sizes == sorted(set(sizes))
    assert ceiling <= sizes[-1] < max(ceiling, concurrency * query_len) + query_len
