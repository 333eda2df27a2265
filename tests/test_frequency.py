"""Frequencies of sampled tokens: equal laws pass, different ones are found, and the stated power is true."""

from __future__ import annotations

import random

import pytest

from kpad_bench.frequency import N_TOKENS, POWER, frequencies, is_different, least

LEVEL = 0.01


def drawn(seed: int, n: int, shift: float = 0.0) -> dict[str, list[list[int]]]:
    """n samples of one prompt: four tokens with 1/4 each, ``shift`` of the mass moved from two to two."""
    rng = random.Random(seed)
    weights = [0.25 + shift / 2] * 2 + [0.25 - shift / 2] * 2
    return {"p": [[0, *rng.choices(range(4), weights, k=N_TOKENS - 1)] for _ in range(n)]}


def test_the_same_law_is_not_told_apart():
    """Two arms that draw alike, other seeds: no position is below its share of the level."""
    tests = frequencies(drawn(1, 1000), drawn(2, 1000), LEVEL)
    assert [(one.position, one.n, one.n_bins) for one in tests] == [(1, 2000, 4), (2, 2000, 4), (3, 2000, 4)]
    assert not is_different(tests, LEVEL)


def test_another_law_is_told_apart():
    """A fifth of the mass elsewhere is found, with the place."""
    tests = frequencies(drawn(1, 1000), drawn(2, 1000, shift=0.2), LEVEL)
    assert is_different(tests, LEVEL)
    assert least(tests).prompt_id == "p"


def test_the_first_token_does_not_count():
    """It comes without a draft: arms that differ there alone are not told apart."""
    base, other = drawn(1, 500), drawn(1, 500)
    other["p"] = [[7, *ids[1:]] for ids in other["p"]]
    assert least(frequencies(base, other, LEVEL)).p_value == pytest.approx(1.0)


def test_a_difference_of_the_stated_size_is_found_as_often_as_stated():
    """Moving ``found_from`` of the mass is found in about POWER of the trials, at that position alone."""
    size = frequencies(drawn(1, 300), drawn(2, 300), LEVEL)[0].found_from
    assert size is not None
    assert 0.1 < size < 0.3
    found = [
        frequencies(drawn(2 * i, 300), drawn(2 * i + 1, 300, shift=size), LEVEL)[0].p_value < LEVEL / 3
        for i in range(200)
    ]
    assert sum(found) / len(found) > POWER - 0.07


def test_rare_tokens_are_one_bin():
    """Many tokens seen once or twice do not make a difference by themselves."""
    base = {"p": [[0, 100 + i, 1, 1] for i in range(60)]}
    other = {"p": [[0, 300 + i, 1, 1] for i in range(60)]}
    (first, *_) = frequencies(base, other, LEVEL)
    assert (first.n_bins, first.p_value, first.found_from) == (1, 1.0, None)


def test_an_answer_that_ended_is_a_token_of_its_own():
    """Ending earlier in one arm than in the other is a difference of frequencies."""
    base = {"p": [[0, 1, 2, 3]] * 50}
    other = {"p": [[0, 1]] * 50}
    tests = frequencies(base, other, LEVEL)
    assert [one.p_value < 1e-6 for one in tests] == [False, True, True]
