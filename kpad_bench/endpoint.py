"""A server that answers the OpenAI API: how it is reached, what is asked, what it says when it refuses.

One place for the HTTP client's settings. Knows nothing of load, passes or timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from kpad_bench.config import Load
from kpad_bench.errors import ServerError
from kpad_bench.prompt import Prompt
from kpad_bench.stream import error_text

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
MAX_ERROR_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Target:
    """A server: over its Unix socket when ``uds`` is set (then only the path of the URL counts)."""

    base_url: str
    model: str
    uds: str | None = None
    endpoint: str = CHAT


def request_body(target: Target, prompt: Prompt, load: Load) -> bytes:
    """The JSON body of one request. Sampling is stated, so that no model default can come in."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": load.max_tokens,
        "temperature": load.temperature,
        "seed": load.seed,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if target.endpoint == COMPLETIONS:
        body["prompt"] = prompt.text if prompt.system is None else f"{prompt.system}\n\n{prompt.text}"
    else:
        body["messages"] = prompt.messages()
    return msgspec.json.encode(body)


def session(target: Target, timeout_s: float | None = None) -> aiohttp.ClientSession:
    """A client without limits, proxies, cookies or decompression; its caller keeps the time by default."""
    connector = aiohttp.UnixConnector(target.uds, limit=0) if target.uds else aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
    )


async def refusal_text(response: aiohttp.ClientResponse) -> str:
    """The server's own words in an answer that is not 200, from its first bytes."""
    body = b""
    while len(body) < MAX_ERROR_BYTES and (piece := await response.content.readany()):
        body += piece
    text = body[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return error_text(text)
    return error_text(answer.get("error", answer) if isinstance(answer, dict) else answer)


async def post_json(target: Target, path: str, body: Any, timeout_s: float = 60.0) -> Any:
    """The JSON answer to a POST; None for an empty one. Raises ServerError(``control``) otherwise."""
    try:
        async with (
            session(target, timeout_s) as http,
            http.post(
                target.base_url.rstrip("/") + path, data=msgspec.json.encode(body), headers=HEADERS
            ) as response,
        ):
            answer = await response.read()
            if response.status != 200:
                raise ServerError(
                    "control", f"{path} answered {response.status}: {error_text(answer.decode())}"
                )
            return msgspec.json.decode(answer) if answer.strip() else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise ServerError("control", f"{path}: {type(error).__name__}: {error}") from error
