"""Comparison of token sequences, near ties, the noise floor, and what may be concluded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kpad_bench.equality import (
    NEAR_TIE_DEFAULT,
    NEAR_TIE_MOST,
    Answer,
    Rule,
    compare,
    first_divergence,
    judge,
    more_often,
    near_tie_limit,
    slips,
)

EXACT, NOISY = Rule(0.001, must_be_exact=True), Rule(0.25, must_be_exact=False)
#: Far from every other token.
SURE = 5.0


def answer(prompt_id="p", ids=(1, 2, 3), gap=SURE, logprob=-0.1, top=None) -> Answer:
    """Each token is its arm's likeliest, token 99 is ``gap`` behind it; ``top`` replaces that at places."""
    tops = [{token: logprob, 99: logprob - gap} for token in ids]
    for position, other in (top or {}).items():
        tops[position] = other
    logprobs = [found.get(token, -9.0) for found, token in zip(tops, ids, strict=True)]
    return Answer(prompt_id, tuple(ids), tuple(logprobs), tuple(tops))


def many(n: int, n_other: int = 0, **changes) -> list[Answer]:
    """n answers, in the last ``n_other`` of which a near tie fell the other way at the second token."""
    tie = {1: {2: -0.8, 99: -0.85}}
    fallen = {1: {99: -0.8, 2: -0.85}}
    same = [answer(f"p{i}", top=tie, **changes) for i in range(n - n_other)]
    return same + [answer(f"p{i}", (1, 99, 7), top=fallen, **changes) for i in range(n - n_other, n)]


def against(base: list[Answer], other: list[Answer]):
    return compare("suf@8", base, "kpad@8", other)


@pytest.mark.parametrize(
    ("base", "other", "expected"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((), (), None),
        ((1, 2, 3), (1, 9, 3), 1),
        ((1, 2), (1, 2, 3), 2),  # one went on
        ((1, 2, 3), (1, 2), 2),  # one ended early
        ((), (1,), 0),
    ],
)
def test_first_divergence(base, other, expected):
    """The first index that differs; the shorter length where one is the beginning of the other."""
    assert first_divergence(base, other) == expected


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_first_divergence_is_where_the_common_beginning_ends(base, other):
    """Everything before it is equal, nothing beyond it is claimed, and the order of the two is irrelevant."""
    position = first_divergence(base, other)
    assert position == first_divergence(other, base)
    assert (position is None) == (base == other)
    if position is not None:
        assert base[:position] == other[:position]
        assert base[: position + 1] != other[: position + 1]


def test_equal_answers_are_equal_whatever_the_order():
    """Prompts are matched by id, not by place: the same arm in another order has no divergence."""
    base = [answer("a"), answer("b", (4, 5))]
    found = compare("suf@8", base, "suf@8 again", base[::-1])
    assert (found.n_prompts, found.n_equal, found.n_tokens) == (2, 2, 5)
    assert found.max_dlogprob.value == found.max_dperplexity.value == 0


def test_other_prompts_are_refused():
    """Two arms that did not answer the same prompts cannot be compared."""
    with pytest.raises(ValueError, match="different prompts"):
        against([answer("a")], [answer("b")])
    with pytest.raises(ValueError, match="different prompts"):
        against([answer("a"), answer("b")], [answer("a"), answer("a")])


def test_a_divergence_tells_where_and_how_sure_the_base_was():
    """Position, both tokens, the base arm's top-2 gap, and how far behind its best the other token stands."""
    base = answer(ids=(1, 2, 3), top={1: {2: -0.8, 99: -0.9, 4: -3.0}})
    other = answer(ids=(1, 4, 3), top={1: {2: -0.7, 4: -2.7}})
    (found,) = against([base], [other]).divergences
    assert (found.prompt_id, found.position, found.base_token, found.other_token) == ("p", 1, 2, 4)
    assert found.gap == pytest.approx(0.1)
    assert found.behind == pytest.approx(2.2)
    assert found.own_behind == pytest.approx(2.0)


def test_a_narrow_gap_excuses_only_the_runner_up():
    """Two tokens nearly tied do not make a third one benign, nor one outside the top."""
    tie = {1: {2: -0.8, 99: -0.81, 4: -4.0}}
    base = answer(top=tie)
    for token, is_benign in ((99, True), (4, False), (5, False)):
        (found,) = against([base], [answer(ids=(1, token, 3))]).divergences
        assert found.gap == pytest.approx(0.01)
        assert found.is_benign(0.25) is is_benign


def test_rounding_does_not_turn_a_near_tie_into_a_divergence():
    """Two bfloat16 steps of a logit are 0.25; as a difference of log-probabilities they may be a bit more."""
    base = answer(top={1: {2: -0.8, 99: -1.0500002}})
    (found,) = against([base], [answer(ids=(1, 99, 3))]).divergences
    assert found.is_benign(0.25)


def test_an_answer_that_ends_early_is_no_near_tie():
    """Where one answer had ended there is no token to compare: suspicious at any limit."""
    for base, other in (((1, 2, 3), (1, 2)), ((1, 2), (1, 2, 3))):
        (found,) = against([answer(ids=base)], [answer(ids=other)]).divergences
        assert found.position == 2
        assert not found.is_benign(math.inf)


def test_differences_are_taken_on_the_common_text_alone():
    """Log-probabilities behind the divergence are of other texts and do not count."""
    base = answer(ids=(1, 2, 3), logprob=-0.1)
    other = answer(ids=(1, 9, 3), logprob=-0.3)
    found = against([base], [other])
    assert found.n_tokens == 1
    assert found.max_dlogprob.value == pytest.approx(0.2)
    assert (found.max_dlogprob.prompt_id, found.max_dlogprob.position) == ("p", 0)
    assert found.max_dperplexity.value == pytest.approx(math.exp(0.2) - 1)


def test_a_divergence_at_the_first_token_leaves_nothing_to_compare():
    """No common text: no difference of log-probabilities, and no division by zero."""
    found = against([answer(ids=(1,))], [answer(ids=(2,))])
    assert (found.n_tokens, found.max_dlogprob.value, found.max_dperplexity.value) == (0, 0.0, 0.0)


def test_a_token_that_is_not_its_own_argmax_is_a_slip():
    """A wrongly accepted draft token shows in its own arm, without any other arm to compare with."""
    wrong = answer(ids=(1, 7, 3), top={1: {2: -0.1, 7: -6.0}})
    unseen = answer("q", ids=(1, 7, 3), top={1: {2: -0.1, 4: -3.0}})
    found = list(slips([answer(), wrong, unseen]))
    assert [(s.prompt_id, s.position, s.token, s.best_token) for s in found] == [
        ("p", 1, 7, 2),
        ("q", 1, 7, 2),
    ]
    assert found[0].behind == pytest.approx(5.9)
    assert found[1].behind is None


def test_a_tie_is_no_slip():
    """Two equally likely tokens: either is the argmax."""
    assert list(slips([answer(top={1: {2: -0.7, 99: -0.7}})])) == []


def test_the_near_tie_limit_is_calibrated_within_bounds():
    """The widest divergence between unpadded arms, at least the step of the type, at most twice the gate."""
    exact = against(many(4), many(4))
    assert near_tie_limit([exact], "bfloat16") == NEAR_TIE_DEFAULT
    assert near_tie_limit([exact], None) == NEAR_TIE_DEFAULT
    assert near_tie_limit([exact], "float32") == 0.001
    wide = against([answer(top={1: {2: -0.8, 99: -1.2}})], [answer(ids=(1, 99, 3))])
    assert near_tie_limit([exact, wide], "bfloat16") == pytest.approx(0.4)
    broken = against([answer(top={1: {2: -0.1, 99: -7.0}})], [answer(ids=(1, 99, 3))])
    assert near_tie_limit([broken], "bfloat16") == NEAR_TIE_MOST


def test_identical_outputs_pass_on_both_kinds_of_platform():
    """No divergence: cannot be told from noise, p = 1."""
    same = against(many(8), many(8))
    for rule in (EXACT, NOISY):
        assert judge(same, [], [same], rule) == type(judge(same, [], [same], rule))({}, 1.0)


def test_one_benign_divergence_fails_where_all_else_is_exact():
    """float32 on the CPU: unpadded arms are identical, so any padded divergence is a failure."""
    floor, padded = against(many(8), many(8)), against(many(8), many(8, 1))
    assert set(judge(padded, [], [floor], Rule(0.25, must_be_exact=True)).reasons) == {"not_exact"}
    assert judge(padded, [], [floor], NOISY).reasons == {}


def test_near_ties_as_often_as_in_the_floor_are_noise():
    """Diverging like unpadded arms do passes, diverging far more often does not, benign or not."""
    floor = against(many(32), many(32, 6))
    assert judge(against(many(32), many(32, 9)), [], [floor], NOISY).reasons == {}
    often = judge(against(many(32), many(32, 20)), [], [floor], NOISY)
    assert set(often.reasons) == {"diverges_more_often"}
    assert often.p_value is not None
    assert often.p_value < 0.001


def test_the_noisier_floor_counts():
    """A repeated boot may be quieter than another arm: padding is held to the noisier of the two."""
    quiet, noisy = against(many(32), many(32)), against(many(32), many(32, 14))
    padded = against(many(32), many(32, 16))
    assert "diverges_more_often" in judge(padded, [], [quiet], NOISY).reasons
    assert judge(padded, [], [quiet, noisy], NOISY).reasons == {}


def test_one_divergence_where_the_base_was_sure_is_enough():
    """A suspicious divergence fails whatever the rates are."""
    floor = against(many(32), many(32, 30))
    other = [*many(31), answer("p31", ids=(1, 2, 50), top={1: {2: -0.8, 99: -0.85}})]
    assert set(judge(against(many(32), other), [], [floor], NOISY).reasons) == {"suspicious_divergence"}


def test_a_slip_fails_even_without_a_divergence():
    """An arm that does not follow its own argmax is wrong, however equal its text is."""
    wrong = answer(top={1: {5: -0.1, 2: -3.0}})
    same = against([wrong], [wrong])
    assert set(judge(same, list(slips([wrong])), [same], NOISY).reasons) == {"not_greedy"}


def test_the_published_gate_counts_beyond_the_floor():
    """0.5 in log-probability and 0.1 in perplexity: exceeding both the gate and the floor fails."""
    base, far = [answer(logprob=-0.1)], [answer(logprob=-0.9)]
    quiet, noisy = against(base, base), against(base, [answer(logprob=-1.1)])
    reasons = judge(against(base, far), [], [quiet], NOISY).reasons
    assert set(reasons) == {"max_dlogprob_above_gate", "max_dperplexity_above_gate"}
    assert judge(against(base, far), [], [quiet, noisy], NOISY).reasons == {}


@given(st.integers(0, 12), st.integers(0, 12))
def test_more_often_is_fishers_exact_test(n_hits, n_base_hits):
    """The same p-value as scipy's one-sided Fisher test."""
    table = [[n_hits, 12 - n_hits], [n_base_hits, 12 - n_base_hits]]
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert more_often(n_hits, 12, n_base_hits, 12) == pytest.approx(expected)
