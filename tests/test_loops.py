"""Answers that end in a loop, by the ids of their last tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.loops import END_CHARS, WINDOW, is_loop, long_answers, loop_share, period, text_end
from kpad_bench.stream import PassTrace, RequestTrace

FRESH = list(range(10_000, 11_000))


def answer(index: int, n_tokens: int, text: str = "", error: str | None = None) -> RequestTrace:
    """A finished request with so many output tokens."""
    trace = RequestTrace(index, f"p{index}", "00", 0, 1)
    trace.completion_tokens, trace.text, trace.error_kind = n_tokens, text, error
    return trace


def passed(*requests: RequestTrace) -> PassTrace:
    return PassTrace(list(requests), len(requests), 2, "/v1/completions", 0, 1)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([], 0), ([7], 1), ([7, 7, 7], 1), ([1, 2, 1, 2, 1], 2), ([1, 2, 3], 3), ([1, 2, 1, 1, 2], 3)],
)
def test_the_period_may_end_in_mid_turn(tokens: list[int], expected: int) -> None:
    """The least shift under which a list is its own beginning."""
    assert period(tokens) == expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_the_period_is_the_least_shift_that_fits(tokens: list[int]) -> None:
    """As trying every shift would find it."""
    shifts = (p for p in range(1, len(tokens) + 1) if tokens[p:] == tokens[: len(tokens) - p])
    assert period(tokens) == next(shifts)


CASES = {
    "one token for ever": ([5] * 300, True),
    "a sentence of 63 tokens": (list(range(63)) * 6, True),
    "a paragraph of 64 tokens": (list(range(64)) * 6, False),
    "a loop after a fresh start": (FRESH + [1, 2, 3] * 90, True),
    "a loop of 255 tokens": (FRESH + [1] * 255, False),
    "a loop that ended": ([1, 2, 3] * 300 + [9], False),
    "one slip in it": ([1, 2] * 100 + [7] + [1, 2] * 60, False),
    "no loop": (FRESH, False),
    "few tokens as they are long": ([5] * 24, True),
    "few tokens, three turns": ([1, 2, 3, 4] * 3, False),
    "nothing": ([], False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_is_the_last_256_tokens_with_a_period_under_64(case: str) -> None:
    """Where the tokenizer gives fewer, all of them, four turns at least."""
    tokens, expected = CASES[case]
    assert is_loop(tokens) is expected


def test_the_share_is_of_output_tokens() -> None:
    """600 of 1,000 output tokens are in the request that loops; failed ones do not count at all."""
    trace = passed(answer(0, 600), answer(1, 300), answer(2, 100), answer(3, 900, error="cut"))
    assert [one.index for one in long_answers(trace)] == [0, 1]
    assert loop_share(trace, {0: [1, 2] * 200, 1: FRESH}) == 0.6
    assert loop_share(trace, {0: FRESH, 1: FRESH}) == 0.0


def test_a_share_that_is_not_known_is_null() -> None:
    """The end of a long answer is missing, or nothing came out; short answers need no asking."""
    assert loop_share(passed(answer(0, 600), answer(1, 300)), {0: FRESH}) is None
    assert loop_share(passed(answer(0, 600, error="cut")), {}) is None
    assert loop_share(passed(), {}) is None
    assert loop_share(passed(answer(0, WINDOW - 1)), {}) == 0.0


def test_the_end_of_a_text_can_be_sent() -> None:
    """No more than is needed, and no half of a surrogate pair."""
    assert text_end(answer(0, 300, "x" * 5_000 + "\ud83d")) == "x" * (END_CHARS - 1) + "?"
    assert text_end(answer(0, 300, "short")) == "short"
