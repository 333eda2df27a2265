"""From a request's JSON to an engine request, or to the refusal vLLM would answer with."""

from __future__ import annotations

import zlib
from typing import Any

from fake_vllm.engine import Request, make_request
from fake_vllm.options import Options
from fake_vllm.stream import error

TEMPLATE_TOKENS = 5  #: what the invented chat template adds to each message
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat "
    "template if the tokenizer does not define one."
)


class Refused(Exception):
    """The request does not enter the engine; ``body`` is the answer."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body["error"]["message"])
        self.body = body


def read_request(
    body: dict[str, Any], name: str, options: Options, n_tokens: int | None, *, is_chat: bool
) -> Request:
    """Check in vLLM's order; a prompt has one token per word. Raises Refused."""
    if body.get("model") not in (None, "", name):
        text = f"The model `{body['model']}` does not exist. Valid aliases: {name}."
        raise Refused(error(text, 404, "model"))
    prompt, n_prompt = read_prompt(body, is_chat=is_chat)
    if n_prompt >= options.max_model_len:
        text = f"This model's maximum context length is {options.max_model_len} tokens. However, your prompt "
        text += f"contains {n_prompt} input tokens, which exceeds this limit even without any output tokens. "
        text += "Please reduce the length of the input prompt."
        raise Refused(error(text, 400, "input_tokens"))
    max_tokens = read_max_tokens(body, is_chat=is_chat)
    if options.k is not None and (body.get("min_p") or body.get("logit_bias")):
        text = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
        raise Refused(error(text, 400))
    # Like 0.32, which shortens silently where 0.25 refused.
    room = options.max_model_len - n_prompt
    max_tokens = room if max_tokens is None else min(max_tokens, room)
    if body.get("ignore_eos") and n_tokens is None:
        n_tokens = max_tokens
    return make_request(prompt, n_prompt, max_tokens, n_tokens)


def read_prompt(body: dict[str, Any], *, is_chat: bool) -> tuple[str, int]:
    """Text and length in tokens."""
    if is_chat:
        messages = body.get("messages") or []
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        # The role is a word of its own.
        n_prompt = len(prompt.split()) + (TEMPLATE_TOKENS - 1) * len(messages)
    else:
        prompt = str(body.get("prompt") or "")
        n_prompt = len(prompt.split())
    if not n_prompt:
        raise Refused(error("The prompt is empty: at least one input token is required.", 400))
    return prompt, n_prompt


def token_ids(prompt: str, n_tokens: int) -> list[int]:
    """An id for each word, the same wherever it stands, and zeros for what the template adds."""
    ids = [zlib.crc32(word.encode()) % 50_000 for word in prompt.split()]
    return ids + [0] * (n_tokens - len(ids))


def read_max_tokens(body: dict[str, Any], *, is_chat: bool) -> int | None:
    """None: as much as fits."""
    asked = body.get("max_tokens")
    if is_chat:
        asked = body.get("max_completion_tokens", asked)
    elif asked is None:
        asked = 16
    if asked is not None and asked < 1:
        raise Refused(error(f"max_tokens must be at least 1, got {asked}.", 400, "max_tokens"))
    return asked
