"""The padding rule itself: lists in, lists out. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence


def pad_drafts(
    drafts: Sequence[list[int]],
    sampled_token_ids: Sequence[Sequence[int]],
    k: int,
    room: Sequence[int],
) -> list[list[int]]:
    """Every draft of a decoding request, filled up to exactly ``k`` tokens.

    drafts, sampled_token_ids: one list per request of the batch, token ids. A request without
    sampled ids is in the middle of its prompt and stays ``[]``. An empty draft is padded too: one
    unpadded request makes the whole step ragged.
    room: tokens each request may still draft before ``max_model_len``; pads never go past it.

    The pad is the last sampled token of the request, as in the published fork: it is in the
    vocabulary by construction, and verification keeps the output distribution whatever stands there.
    """
    padded = []
    for draft, sampled, left in zip(drafts, sampled_token_ids, room, strict=True):
        missing = min(k, left) - len(draft)
        padded.append(draft + [sampled[-1]] * missing if sampled and missing > 0 else draft)
    return padded
