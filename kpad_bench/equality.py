"""Is padded output the same as unpadded output? Token sequences in, findings out.

Greedy answers of two arms to the same prompts are compared token by token, beside what unpadded arms
differ by among themselves (the noise floor). Knows no server, no file and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: The published gate for two arms on the same text: largest absolute difference of a token's
#: log-probability, and largest relative difference of a prompt's perplexity.
GATE_LOGPROB, GATE_PERPLEXITY = 0.5, 0.1
#: A near tie is never narrower than this. bfloat16 logits between 16 and 32 come in steps of 0.125, so
#: one step on either side is 0.25; float32 sums that are ordered differently stay far below 0.001.
NEAR_TIE = {"float32": 0.001}
NEAR_TIE_DEFAULT = 0.25
#: ... and never wider than two logits can move towards each other within the gate.
NEAR_TIE_MOST = 2 * GATE_LOGPROB
#: What the difference of two log-probabilities of one row is rounded by. A token that stands further
#: behind its own arm's best one is not that arm's argmax; a step of the logits itself is far larger.
ROUNDING = 1e-4
#: Chance of finding that some padded arm diverges more often when none does (shared by all of them).
ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer. ``tops``: for each token the arm's likeliest ids with natural log-probabilities.

    ``logprobs[i]`` and ``tops[i]`` are given the prompt and this answer's first i tokens.
    """

    prompt_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tops: tuple[Mapping[int, float], ...]

    def behind(self, position: int, token_id: int) -> float | None:
        """How much less likely (natural log) a token is than this arm's best one; None: not among its top."""
        top = self.tops[position]
        return max(top.values()) - top[token_id] if token_id in top else None

    def gap(self, position: int) -> float:
        """Distance of the two likeliest tokens: of their logits as of their log-probabilities."""
        best = sorted(self.tops[position].values(), reverse=True)
        return best[0] - best[1] if len(best) > 1 else math.inf


class Divergence(NamedTuple):
    """The first position at which two answers to a prompt differ. A token is None where an answer had ended.

    ``gap``: top-2 gap of the base arm there. ``behind``: how far the other arm's token stands behind the
    base arm's best one, None when it is not among its top or an answer had ended. ``own_behind``: how far
    it stands behind the best one of its own arm: above 0 it is no greedy choice at all.
    """

    prompt_id: str
    position: int
    base_token: int | None
    other_token: int | None
    gap: float | None
    behind: float | None
    own_behind: float | None

    def is_benign(self, near_tie: float) -> bool:
        """A near tie fell the other way: the other token is as good as the base arm's within ``near_tie``."""
        return self.behind is not None and self.behind <= near_tie + ROUNDING


class Slip(NamedTuple):
    """A token that is not the likeliest one of the arm that wrote it, and by how much; None: not near it."""

    prompt_id: str
    position: int
    token: int
    best_token: int
    behind: float | None


class Worst(NamedTuple):
    """The largest of something, and where. ``position`` is None for a whole prompt."""

    value: float = 0.0
    prompt_id: str | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm's answers against another's, prompt by prompt. ``n_tokens``: on texts both have."""

    base: str
    other: str
    n_prompts: int
    n_tokens: int
    divergences: tuple[Divergence, ...]
    max_dlogprob: Worst
    max_dperplexity: Worst

    @property
    def n_equal(self) -> int:
        """Prompts with the same tokens to the end."""
        return self.n_prompts - len(self.divergences)

    def suspicious(self, near_tie: float) -> list[Divergence]:
        """Divergences that no near tie explains."""
        return [found for found in self.divergences if not found.is_benign(near_tie)]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a padded arm is held to. ``must_be_exact``: this platform computes every arm alike."""

    near_tie: float
    must_be_exact: bool
    alpha: float = ALPHA


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a padded arm's comparison comes to; no reason means it cannot be told from noise."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    p_value: float | None = None


def first_divergence(base: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first difference; where one is the beginning of the other, its length. None: equal."""
    for position, (left, right) in enumerate(zip(base, other, strict=False)):
        if left != right:
            return position
    return None if len(base) == len(other) else min(len(base), len(other))


def compare(base_name: str, base: Sequence[Answer], other_name: str, other: Sequence[Answer]) -> Comparison:
    """Compare by prompt id, in the order of ``base``. Raises ValueError when the prompts are not the same."""
    by_id = {answer.prompt_id: answer for answer in other}
    if len(by_id) != len(other) or sorted(by_id) != sorted(answer.prompt_id for answer in base):
        raise ValueError(f"{base_name} and {other_name} answered different prompts")
    divergences, n_tokens = [], 0
    logprob = perplexity = Worst()
    for left in base:
        right = by_id[left.prompt_id]
        position = first_divergence(left.token_ids, right.token_ids)
        n_common = len(left.token_ids) if position is None else position
        n_tokens += n_common
        if position is not None:
            divergences.append(_divergence(left, right, position))
        if n_common:
            logprob = max(logprob, _logprob_difference(left, right, n_common), key=lambda w: w.value)
            perplexity = max(perplexity, _perplexity_difference(left, right, n_common), key=lambda w: w.value)
    return Comparison(base_name, other_name, len(base), n_tokens, tuple(divergences), logprob, perplexity)


def _divergence(base: Answer, other: Answer, position: int) -> Divergence:
    ours = base.token_ids[position] if position < len(base.token_ids) else None
    theirs = other.token_ids[position] if position < len(other.token_ids) else None
    return Divergence(
        prompt_id=base.prompt_id,
        position=position,
        base_token=ours,
        other_token=theirs,
        gap=None if ours is None else base.gap(position),
        behind=None if ours is None or theirs is None else base.behind(position, theirs),
        own_behind=None if theirs is None else other.behind(position, theirs),
    )


def _logprob_difference(base: Answer, other: Answer, n_common: int) -> Worst:
    pairs = zip(base.logprobs[:n_common], other.logprobs[:n_common], strict=True)
    value, position = max((abs(ours - theirs), -index) for index, (ours, theirs) in enumerate(pairs))
    return Worst(value, base.prompt_id, -position)


def _perplexity_difference(base: Answer, other: Answer, n_common: int) -> Worst:
    """Relative difference of exp(-mean log-probability) on the text both have."""
    rise = math.fsum(base.logprobs[:n_common]) - math.fsum(other.logprobs[:n_common])
    return Worst(abs(math.expm1(rise / n_common)), base.prompt_id)


def slips(answers: Sequence[Answer]) -> Iterator[Slip]:
    """Tokens that are not their own arm's argmax: greedy decoding has none, whatever the noise."""
    for answer in answers:
        for position, token in enumerate(answer.token_ids):
            behind = answer.behind(position, token)
            if behind is None or behind > ROUNDING:
                top = answer.tops[position]
                yield Slip(answer.prompt_id, position, token, max(top, key=lambda t: top[t]), behind)


def near_tie_limit(floor: Sequence[Comparison], dtype: str | None) -> float:
    """Up to where a divergence is a near tie: the widest one between unpadded arms, within bounds."""
    seen = [found.behind for one in floor for found in one.divergences if found.behind is not None]
    return min(max([NEAR_TIE.get(dtype or "", NEAR_TIE_DEFAULT), *seen]), NEAR_TIE_MOST)


def judge(
    padded: Comparison, padded_slips: Sequence[Slip], floor: Sequence[Comparison], rule: Rule
) -> Judgement:
    """Can this padded arm be told from the noise between unpadded arms?

    The rate is tested against the noisier of the floor's comparisons. Answers of several arms to one
    prompt are not independent, so the p-value is an approximation.
    """
    reasons: dict[str, str] = {}
    if padded_slips:
        reasons["not_greedy"] = f"{len(padded_slips)} tokens are not the likeliest ones of the arm itself"
    suspicious = padded.suspicious(rule.near_tie)
    if suspicious:
        reasons["suspicious_divergence"] = (
            f"{len(suspicious)} prompts diverge where the unpadded arm was sure (near tie: {rule.near_tie:g})"
        )
    noisiest = max(floor, key=lambda one: len(one.divergences) / max(1, one.n_prompts))
    if padded.divergences and rule.must_be_exact and not noisiest.divergences:
        reasons["not_exact"] = (
            f"{len(padded.divergences)} of {padded.n_prompts} prompts diverge, "
            "and none between unpadded arms, which compute alike here"
        )
    p_value = more_often(
        len(padded.divergences), padded.n_prompts, len(noisiest.divergences), noisiest.n_prompts
    )
    if p_value < rule.alpha:
        reasons["diverges_more_often"] = (
            f"{len(padded.divergences)} of {padded.n_prompts} prompts diverge, "
            f"{len(noisiest.divergences)} of {noisiest.n_prompts} between unpadded arms "
            f"(one-sided Fisher p = {p_value:.2g}, alpha {rule.alpha:.2g})"
        )
    reasons |= dict(_gate(padded, floor))
    return Judgement(reasons, p_value)


def _gate(padded: Comparison, floor: Sequence[Comparison]) -> Iterator[tuple[str, str]]:
    """What exceeds the published gate, and what unpadded arms differ by."""
    for name, what, gate in (
        ("max_dlogprob", "log-probability", GATE_LOGPROB),
        ("max_dperplexity", "relative perplexity", GATE_PERPLEXITY),
    ):
        worst: Worst = getattr(padded, name)
        noise = max(getattr(one, name).value for one in floor)
        if worst.value > gate and worst.value > noise:
            yield (
                f"{name}_above_gate",
                f"{what} differs by {worst.value:.3g} on the same text (gate {gate:g}, floor {noise:.3g})",
            )


def more_often(n_hits: int, n: int, n_base_hits: int, n_base: int) -> float:
    """One-sided Fisher exact p-value: as many hits or more in the first sample, given the total of both."""
    n_total = n_hits + n_base_hits
    ways = math.comb(n + n_base, n_total)
    most = min(n, n_total)
    return sum(math.comb(n, i) * math.comb(n_base, n_total - i) for i in range(n_hits, most + 1)) / ways
