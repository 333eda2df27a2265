"""Greedy answers of a running server, token by token, with what was likely at each step.

Not streamed and not timed. Log-probabilities come with the generation itself and not from a second,
teacher-forced request: a step's logits are those of the answer's own beginning (a draft token counts
only when all before it were accepted), so they are teacher-forced on this answer, and they are the very
numbers that decided. Asking again would compute them in another batch, by other kernels: on bfloat16
that is a second source of noise. Read in vLLM 0.25.1 and 0.32.0: v1/sample/rejection_sampler.py,
``_get_logprobs_tensors``, raw logits before any sampling setting.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kpad_bench.drive import Target, post_json
from kpad_bench.endpoint import CHAT
from kpad_bench.equality import Answer
from kpad_bench.errors import ServerError
from kpad_bench.frequency import N_TOKENS
from kpad_bench.prompt import Prompt
from kpad_bench.reading import Reading, deltas_of, has_graphs

#: Tokens asked for at each step: the best two, and enough to place another arm's choice.
N_TOP = 5
#: Of one whole answer, with all that waits before it on a slow host.
REQUEST_TIMEOUT_S = 1200.0
#: Share of decode-only steps that must be uniform in a padded arm: what the main job demands too.
UNIFORM_SHARE = 0.9
_ID = "token_id:"
#: Prompts that are sampled from at temperature 1.
N_SAMPLED_PROMPTS = 2


@dataclass(frozen=True, slots=True)
class Padding:
    """What the plugin says of one pass; None where it did not answer.

    Shares are of the decode-only steps: those in which every request held exactly 1+K tokens, and those
    that replayed a FULL graph (None without graphs).
    """

    pads: bool | None = None
    k: int | None = None
    n_workers: int = 0
    decode_steps: int | None = None
    uniform_share: float | None = None
    full_share: float | None = None
    real_draft_tokens: int | None = None
    pad_tokens: int | None = None
    pad_hits: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """One boot's answers to all prompts. ``identity``: hash of all that may change them."""

    name: str
    identity: str
    answers: tuple[Answer, ...]
    padding: Padding
    boot_s: float
    log: str
    vllm_version: str | None
    #: prompt id -> samples at temperature 1, each the first token ids of one answer
    samples: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)


async def greedy_answers(
    target: Target, prompts: Sequence[Prompt], max_tokens: int, concurrency: int
) -> tuple[Answer, ...]:
    """Every prompt once, in order, ``concurrency`` at a time. Raises ServerError at the first failure."""
    places = asyncio.Semaphore(concurrency)

    async def one(prompt: Prompt) -> Answer:
        async with places:
            body = greedy_body(target.model, prompt, max_tokens)
            return read_answer(prompt.prompt_id, await post_json(target, CHAT, body, REQUEST_TIMEOUT_S))

    return tuple(await asyncio.gather(*(one(prompt) for prompt in prompts)))


async def sampled_answers(
    target: Target, prompts: Sequence[Prompt], n_samples: int, concurrency: int
) -> dict[str, list[list[int]]]:
    """The first ids of ``n_samples`` answers at temperature 1 to each of the first prompts; seeds from 0."""
    places = asyncio.Semaphore(concurrency)

    async def one(prompt: Prompt, seed: int) -> list[int]:
        async with places:
            body = greedy_body(target.model, prompt, N_TOKENS) | {"temperature": 1.0, "seed": seed}
            answer = await post_json(target, CHAT, body, REQUEST_TIMEOUT_S)
            return list(read_answer(prompt.prompt_id, answer).token_ids)

    if not n_samples:
        return {}
    return {
        prompt.prompt_id: list(await asyncio.gather(*(one(prompt, seed) for seed in range(n_samples))))
        for prompt in prompts[:N_SAMPLED_PROMPTS]
    }


def greedy_body(model: str, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """The request: temperature 0, ids instead of texts."""
    return {
        "model": model,
        "messages": prompt.messages(),
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 0,
        "logprobs": True,
        "top_logprobs": N_TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def read_answer(prompt_id: str, body: Any) -> Answer:
    """An answer from the server's JSON. Raises ServerError when ids or log-probabilities are missing."""
    try:
        choice = body["choices"][0]
        token_ids = tuple(int(token) for token in choice["token_ids"])
        steps = choice["logprobs"]["content"]
        tops = tuple(
            {_token_id(seen): float(seen["logprob"]) for seen in (*step["top_logprobs"], step)}
            for step in steps
        )
        logprobs = tuple(top[token] for top, token in zip(tops, token_ids, strict=True))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerError(
            "control", f"the answer to {prompt_id} lacks token ids or log-probabilities ({error!r})"
        ) from None
    return Answer(prompt_id, token_ids, logprobs, tops)


def _token_id(seen: Mapping[str, Any]) -> int:
    return int(str(seen["token"]).removeprefix(_ID))


def padding_of(before: Reading, after: Reading) -> Padding:
    """What the plugin did in one pass, from two readings of its counters."""
    steps = deltas_of(before, after)[1]
    marked = [status for status in after.status or [] if status.get("marker")]
    if not marked or steps is None:
        return Padding(n_workers=len(marked))

    def share(n: int | None) -> float | None:
        return n / steps.decode_steps if n is not None and steps.decode_steps else None

    return Padding(
        pads=all(bool(status.get("pads")) for status in marked),
        k=marked[0].get("k"),
        n_workers=len(marked),
        decode_steps=steps.decode_steps,
        uniform_share=share(steps.uniform_decode_steps),
        full_share=share(steps.full_decode_steps) if has_graphs(marked) else None,
        real_draft_tokens=steps.real_draft_tokens,
        pad_tokens=steps.pad_tokens,
        pad_hits=steps.pad_hits,
    )


def doubts(padding: Padding, k: int | None, n_workers: int) -> Iterator[tuple[str, str]]:
    """Why a padded arm's equality would mean nothing: it was not padded."""
    why = None
    if padding.n_workers < n_workers or padding.pads is None:
        why = f"the plugin answered from {padding.n_workers} of {n_workers} workers"
    elif not padding.pads or padding.k != k:
        why = f"asked for padding to {k}, a worker says pads={padding.pads}, k={padding.k}"
    elif not padding.pad_tokens:
        why = "no pad went into a verification"
    elif (padding.uniform_share or 0.0) < UNIFORM_SHARE:
        why = (
            f"{padding.uniform_share or 0.0:.3f} of the decode-only steps are uniform, below {UNIFORM_SHARE}"
        )
    if why is not None:
        yield "padding_not_applied", why


def save(answered: Answered, path: Path) -> None:
    """Write one boot's answers whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(answered)), encoding="utf-8")
    os.replace(part, path)


def kept_answers(path: Path, identity: str) -> Answered | None:
    """Answers saved before; None when there are none, or they are of something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["identity"] != identity:
            return None
        answers = tuple(_answer(record) for record in data["answers"])
        return Answered(**(data | {"answers": answers, "padding": Padding(**data["padding"])}))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _answer(record: Mapping[str, Any]) -> Answer:
    tops = tuple({int(token): value for token, value in top.items()} for top in record["tops"])
    return Answer(record["prompt_id"], tuple(record["token_ids"]), tuple(record["logprobs"]), tops)
