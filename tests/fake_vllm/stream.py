"""The JSON of answers and SSE chunks, key by key as vLLM 0.32 writes them (read from a recorded stream)."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from fake_vllm.engine import WORDS, Request

FINGERPRINT = "vllm-0.32.0-0a1b2c3d"


def error(message: str, status: int, param: str | None = None) -> dict[str, Any]:
    """vLLM's error body."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
    kinds |= {503: "ServiceUnavailableError"}
    return {"error": {"message": message, "type": kinds[status], "param": param, "code": status}}


def event(data: dict[str, Any]) -> bytes:
    """One SSE event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True)
class Tokens:
    """Ids and log-probabilities of an answer in one piece: an id is the place of a word in ``WORDS``.

    The word after the right one, in a circle, is the second best everywhere. From ``wrong_at`` on it
    stands in the answer; ``is_own_choice`` makes it the best one there, as a near tie that fell the other
    way would.
    """

    gap: float
    logprob_off: float
    wrong_at: int | None
    is_own_choice: bool

    def write(self, words: list[str]) -> dict[str, Any]:
        """The keys ``token_ids`` and ``logprobs`` of a choice."""
        right = [WORDS.index(word.strip()) for word in words]
        steps = [self.step(position, token) for position, token in enumerate(right)]
        ids = [int(step["token"].removeprefix("token_id:")) for step in steps]
        return {"token_ids": ids, "logprobs": {"content": steps}}

    def step(self, position: int, right: int) -> dict[str, Any]:
        """One token as vLLM writes it with ``return_tokens_as_token_ids``."""
        second = (right + 1) % len(WORDS)
        is_wrong = self.wrong_at is not None and position >= self.wrong_at
        best, next_best = (second, right) if is_wrong and self.is_own_choice else (right, second)
        likely = {best: -0.1 + self.logprob_off, next_best: -0.1 + self.logprob_off - self.gap}
        top = [{"token": f"token_id:{i}", "logprob": value, "bytes": None} for i, value in likely.items()]
        chosen = second if is_wrong else right
        (entry,) = (one for one in top if one["token"] == f"token_id:{chosen}")
        return {**entry, "top_logprobs": top}


@dataclass(frozen=True)
class Answer:
    """Writes one request's chunks, or its whole body. ``is_chat`` picks the endpoint's shapes."""

    request: Request
    model: str
    is_chat: bool
    is_reasoning: bool = False
    has_usage: bool = False
    has_continuous_usage: bool = False
    tokens: Tokens | None = None  #: asked for with return_token_ids and logprobs
    answer_id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self, n_sent: int) -> dict[str, int]:
        """Cumulative."""
        n_prompt = self.request.n_prompt_tokens
        return {"prompt_tokens": n_prompt, "total_tokens": n_prompt + n_sent, "completion_tokens": n_sent}

    def head(self, kind: str) -> dict[str, Any]:
        """The keys every chunk and body begins with."""
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {
            "id": f"{prefix}-{self.answer_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def chunk(self, choice: dict[str, Any], n_sent: int) -> dict[str, Any]:
        """A chunk with one choice."""
        made = self.head("chat.completion.chunk" if self.is_chat else "text_completion")
        made["choices"] = [choice]
        if self.has_continuous_usage:
            made["usage"] = self.usage(n_sent)
            if self.is_chat:
                made["usage"]["completion_tokens_details"] = None
        return made

    def role_chunk(self) -> dict[str, Any]:
        """The first chunk of a chat: a role, no token."""
        delta = {"role": "assistant", "content": ""}
        made = self.chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}, 0)
        return made | {"prompt_token_ids": None, "prompt_text": None}

    def token_chunk(self, text: str, n_sent: int) -> dict[str, Any]:
        """A chunk with one or more tokens; the last one has the reason of the end."""
        is_last = n_sent == self.request.n_tokens
        reason = self.request.finish_reason if is_last else None
        if not self.is_chat:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
            choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
            return self.chunk(choice, n_sent)
        delta = {"reasoning" if self.is_reasoning else "content": text}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if is_last:
            choice["stop_reason"] = None
        return self.chunk({**choice, "token_ids": None}, n_sent)

    def usage_chunk(self) -> dict[str, Any]:
        """The final chunk of include_usage: no choices."""
        made = self.head("chat.completion.chunk" if self.is_chat else "text_completion")
        usage = self.usage(self.request.n_tokens)
        return made | {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}

    def body(self) -> dict[str, Any]:
        """The whole answer of a request without ``stream``."""
        text = "".join(self.request.words())
        choice: dict[str, Any] = {"index": 0}
        if self.is_chat:
            content, reasoning = (None, text) if self.is_reasoning else (text, None)
            choice["message"] = {"role": "assistant", "content": content, "reasoning": reasoning}
        else:
            choice["text"] = text
        end = {"logprobs": None, "finish_reason": self.request.finish_reason, "stop_reason": None}
        if self.tokens is not None:
            end |= self.tokens.write(self.request.words())
        made = self.head("chat.completion" if self.is_chat else "text_completion")
        usage = {**self.usage(self.request.n_tokens), "prompt_tokens_details": None}
        return made | {"choices": [choice | end], "system_fingerprint": FINGERPRINT, "usage": usage}
