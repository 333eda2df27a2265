"""Prompts of several corpora side by side: what a mix takes of each, and what a sweep takes from which.

Pure: prompts and locks in, prompts out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from kpad_bench.corpus_manifest import Budget, Manifest
from kpad_bench.corpus_rules import MEASURED, MIX, PRIMING, WARMUP, Sample, fold, interleave
from kpad_bench.corpus_store import Lock, LockedBudget, LockedTokenizer
from kpad_bench.corpus_tokens import prompt_bytes
from kpad_bench.errors import HostError
from kpad_bench.prompt import Placed, Prompt


def mixed(manifest: Manifest, locks: Mapping[str, Lock], prompts: Mapping[str, Sequence[Placed]]) -> Sample:
    """Prompts that the members keep for mixes, by weight, each text once.

    Raises HostError when a member has too few for one round: never made up for by another.
    """
    limit_bytes = None if common_tokenizers(locks) else manifest.budget.limit_bytes
    n_read, n_repeated, n_long = 0, 0, 0
    kept: list[Placed] = []
    for theirs, ours in ((MIX, MEASURED), (WARMUP, WARMUP), (PRIMING, PRIMING)):
        pools = {name: [one.prompt for one in prompts[name] if one.role == theirs] for name in locks}
        once = without_repeats(pools)
        short = {
            name: [one for one in pool if limit_bytes is None or bytes_of(one) <= limit_bytes]
            for name, pool in once.items()
        }
        n_read += _total(pools)
        n_repeated += _total(pools) - _total(once)
        n_long += _total(once) - _total(short)
        chosen = interleave(short, manifest.members, lambda prompt: prompt.prompt_id)
        if ours == MEASURED and not chosen:
            sizes = ", ".join(f"{name} {len(pool)}" for name, pool in short.items())
            raise HostError(
                f"corpus {manifest.name} cannot be frozen: too few prompts for one round of profile "
                f"{manifest.profile}; there are {sizes}"
            )
        kept += [Placed(prompt, ours, prompt.prompt_id, prompt.sha256) for prompt in chosen]
    dropped = {"duplicate": n_repeated, "over_bytes": n_long}
    dropped["over_weight"] = n_read - len(kept) - n_repeated - n_long
    digests = {name: lock.digest for name, lock in locks.items()}
    return Sample(
        prompts=tuple(kept),
        n_read=n_read,
        dropped={reason: n for reason, n in sorted(dropped.items()) if n},
        n_surrogate_rows=0,
        rows_sha256=hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest(),
    )


def _total(pools: Mapping[str, Sequence[Prompt]]) -> int:
    return sum(map(len, pools.values()))


def bytes_of(prompt: Prompt) -> int:
    """Bytes of a prompt that a byte-level tokenizer sees."""
    return prompt_bytes(prompt.text, prompt.system)


def locked_budget(
    budget: Budget, prompts: Sequence[Prompt], tokenizers: Mapping[str, LockedTokenizer]
) -> LockedBudget:
    """A budget as a lock records it."""
    return LockedBudget(
        prompt_tokens=budget.prompt_tokens,
        largest_k=budget.largest_k,
        limit_tokens=budget.limit_tokens,
        limit_bytes=budget.limit_bytes,
        longest_bytes=max(bytes_of(prompt) for prompt in prompts),
        tokenizers=dict(tokenizers),
    )


def common_tokenizers(locks: Mapping[str, Lock]) -> dict[str, LockedTokenizer]:
    """Tokenizers that every one of these locks names, with the same hash."""
    named = [lock.budget.tokenizers for lock in locks.values()]
    found = {}
    for name, first in named[0].items():
        same = [one[name] for one in named if name in one and one[name].sha256 == first.sha256]
        if len(same) == len(named):
            longest = max(one.longest_tokens for one in same)
            found[name] = LockedTokenizer(sha256=first.sha256, longest_tokens=longest)
    return found


def without_repeats(pools: Mapping[str, Sequence[Prompt]]) -> dict[str, list[Prompt]]:
    """Each text in one pool alone (NFC, white space and case do not make another one), order kept.

    The prompt whose id has the lowest hash stays, so neither the order of the pools nor their size
    decides, and no pool is favoured.
    """
    owners: dict[str, tuple[bytes, str]] = {}
    folded = {name: [fold(prompt.text) for prompt in pool] for name, pool in pools.items()}
    for name, pool in pools.items():
        for text, prompt in zip(folded[name], pool, strict=True):
            claim = (hashlib.sha256(prompt.prompt_id.encode()).digest(), name)
            owners[text] = min(owners.get(text, claim), claim)
    return {
        name: [prompt for text, prompt in zip(folded[name], pool, strict=True) if owners[text][1] == name]
        for name, pool in pools.items()
    }
