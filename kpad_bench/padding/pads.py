"""The padding rule and the choice of the pad: lists in, lists out. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALWAYS_REJECTED = -1


class PadToken(NamedTuple):
    """What stands in a free slot: a fixed id, or (None) the request's last sampled token; and why."""

    fixed: int | None
    reason: str


class PadTokenRefused(ValueError):
    """A pad token that this model or platform cannot take."""


def choose_pad_token(policy: str, vocab_size: int, platform: str) -> PadToken:
    """The pad for a policy: ``auto``, ``last``, ``-1`` or a token id.

    Any id of the vocabulary leaves the output distribution unchanged, but may be accepted by chance
    (``pad_hits``). ``auto`` is ``last``: it is in every vocabulary and never the end-of-sequence token
    of a request that goes on. ``-1`` means "always reject" to vLLM's CUDA kernels (0.25.1, 0.32.0); the
    CPU build accepts it at temperature > 0. Raises PadTokenRefused.
    """
    if policy == "auto":
        return PadToken(None, "auto: the last sampled token, in the vocabulary and as published")
    if policy == "last":
        return PadToken(None, "last: the last sampled token, as published")
    try:
        token = int(policy)
    except ValueError:
        raise PadTokenRefused(f"pad token {policy!r}: allowed: auto, last, -1 or a token id") from None
    if token == ALWAYS_REJECTED and platform == "cuda":
        return PadToken(token, "-1: always rejected on CUDA")
    if token == ALWAYS_REJECTED:
        raise PadTokenRefused("pad token -1: the CPU build accepts it; use auto, last or a token id")
    if not 0 <= token < vocab_size:
        raise PadTokenRefused(f"pad token {token}: outside the vocabulary of {vocab_size}; use auto or last")
    return PadToken(token, f"{token}: a fixed id")


def pad_drafts(
    drafts: Sequence[list[int]],
    sampled_token_ids: Sequence[Sequence[int]],
    k: int,
    room: Sequence[int],
    fixed: int | None = None,
) -> list[list[int]]:
    """Every draft of a decoding request, filled up to exactly ``k`` tokens.

    drafts, sampled_token_ids: one list per request of the batch, token ids. A request without
    sampled ids is in the middle of its prompt and stays ``[]``. An empty draft is padded too: one
    unpadded request makes the whole step ragged.
    room: tokens each request may still draft before ``max_model_len``; pads never go past it.
    fixed: the pad; None is the request's last sampled token.

    Verification keeps the output distribution whatever stands in a draft.
    """
    padded = []
    for draft, sampled, left in zip(drafts, sampled_token_ids, room, strict=True):
        missing = (k if left > k else left) - len(draft)
        if missing > 0 and sampled:
            padded.append(draft + [sampled[-1] if fixed is None else fixed] * missing)
        else:
            padded.append(draft)
    return padded
