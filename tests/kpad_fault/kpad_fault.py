"""A vLLM plugin for tests alone: a rejection sampler that now and then accepts a token it must reject.

Loaded with ``VLLM_PLUGINS=kpad,kpad_fault`` by a server that finds this folder on its PYTHONPATH (the
entry point is in the .dist-info beside this file). Every ``KPAD_FAULT_EVERY``-th verification, the
first request whose draft was cut short gets the rejected draft token too, and what follows it.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def register() -> None:
    """Wrap ``rejection_sample``, which vLLM 0.25.1 and 0.32.0 look up in their module at each step."""
    from vllm.v1.sample import rejection_sampler  # only inside vLLM's processes

    if not hasattr(rejection_sampler.rejection_sample, "__wrapped__"):
        every = int(os.environ.get("KPAD_FAULT_EVERY", "20"))
        rejection_sampler.rejection_sample = faulty(rejection_sampler.rejection_sample, every)


def faulty(original: Any, every: int) -> Any:
    """The sampler with its fault in every ``every``-th call."""
    n_calls = 0

    @functools.wraps(original)
    def rejection_sample(
        draft_token_ids: Any, num_draft_tokens: Any, max_spec_len: Any, *rest: Any, **named: Any
    ) -> Any:
        nonlocal n_calls
        output = original(draft_token_ids, num_draft_tokens, max_spec_len, *rest, **named)
        n_calls += 1
        if n_calls % every == 0:
            target_logits, bonus = rest[2], rest[3]
            accept_one_more(output, draft_token_ids, num_draft_tokens, target_logits, bonus)
        return output

    return rejection_sample


def accept_one_more(output: Any, drafts: Any, lengths: list[int], target_logits: Any, bonus: Any) -> None:
    """Change the row of the first request that has a rejected draft token. -1 is an empty place."""
    start = 0
    for row, length in enumerate(lengths):
        n_accepted = int((output[row] >= 0).sum()) - 1
        if 0 <= n_accepted < length:
            rejected = start + n_accepted
            output[row, n_accepted] = drafts[rejected]
            is_last = n_accepted + 1 == length
            output[row, n_accepted + 1] = bonus[row, 0] if is_last else target_logits[rejected + 1].argmax()
            return
        start += length
