"""A server that answers the OpenAI API: how it is reached, what is asked, what it says when it refuses.

The connections of the load generator are here. They do per piece of an answer what cannot wait, and no
more: date it, find out whether the answer is over, keep it. Knows nothing of load or passes.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import MutableSequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from kpad_bench.config import Load
from kpad_bench.errors import ServerError
from kpad_bench.http1 import ResponseReader, post_request
from kpad_bench.prompt import Prompt
from kpad_bench.stream import error_text

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_ERROR_BYTES = 16384
#: What vLLM and transformers say of a model without a chat template, lower case.
NO_TEMPLATE = "chat template"


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


class Reply:
    """What has come of one answer. Times are ns of the monotonic clock.

    ``heard_ns``: when the server was last heard of, headers included; 0 when it was not.
    """

    __slots__ = ("arrivals_ns", "heard_ns", "pieces", "reader")

    def __init__(self, arrivals_ns: MutableSequence[int], pieces: list[bytes]) -> None:
        self.arrivals_ns, self.pieces = arrivals_ns, pieces
        self.heard_ns = 0
        self.reader = ResponseReader()


class Lost(Exception):
    """The connection ended, or spoke no HTTP, before the answer was over."""


class Connection(asyncio.Protocol):
    """A kept connection, for one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._end: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, reply: Reply) -> None:
        """Send a request and take its answer to the end. Raises Lost."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Lost("the server has closed the connection")
        self._reply, self._end = reply, asyncio.get_running_loop().create_future()
        try:
            transport.write(request)
            await self._end
        finally:
            self._reply = self._end = None
            if not (reply.reader.is_done and reply.reader.keeps_open):
                self.close()

    def close(self) -> None:
        """Close it now, whatever is on its way."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop's."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The loop's: bytes have come. The hot path of a pass."""
        now_ns = time.monotonic_ns()
        reply = self._reply
        if reply is None:  # nothing was asked
            self.close()
            return
        reply.heard_ns = now_ns
        reader = reply.reader
        try:
            body = reader.feed(data)
        except ValueError as error:
            self._finish(Lost(str(error)))
            return
        if body:
            reply.arrivals_ns.append(now_ns)
            reply.pieces.append(body)
        if reader.is_done:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The loop's: no more will come."""
        self._transport = None
        if self._reply is not None:
            self._reply.reader.feed_eof()
            why = "the server closed the connection" if exc is None else f"{type(exc).__name__}: {exc}"
            self._finish(None if self._reply.reader.is_done else Lost(why))

    def _finish(self, error: Lost | None) -> None:
        if self._end is None or self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)


async def connect(target: Target) -> Connection:
    """A new connection. Raises OSError."""
    loop = asyncio.get_running_loop()
    if target.uds is not None:
        return (await loop.create_unix_connection(Connection, target.uds))[1]
    url = urlsplit(target.base_url)
    is_tls = url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    return (await loop.create_connection(Connection, url.hostname or "", port, ssl=is_tls or None))[1]


def refusal_text(body: bytes) -> str:
    """The server's own words in an answer that is not 200; at most 500 characters."""
    text = body[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return error_text(text)
    return error_text(answer.get("error", answer) if isinstance(answer, dict) else answer)


async def post_json(target: Target, path: str, body: Any, timeout_s: float = 60.0) -> Any:
    """The JSON answer to a POST; None for an empty one. Raises ServerError(``control``) otherwise."""
    reply = Reply(array("q"), [])
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect(target)
            try:
                await connection.exchange(
                    post_request(target.base_url, path, msgspec.json.encode(body)), reply
                )
            finally:
                connection.close()
        answer = b"".join(reply.pieces)
        if reply.reader.status != 200:
            raise ServerError("control", f"{path} answered {reply.reader.status}: {refusal_text(answer)}")
        return msgspec.json.decode(answer) if answer.strip() else None
    except (Lost, OSError, TimeoutError, ValueError) as error:
        raise ServerError("control", f"{path}: {type(error).__name__}: {error}") from error


async def with_endpoint(target: Target, endpoint: Literal["chat", "completions", "auto"]) -> Target:
    """The target at the endpoint a load asks for; ``auto``: completions if there is no chat template.

    That is found out by asking for one token, once; any other refusal is left for the pass to meet.
    """
    if endpoint == "auto":
        body = {"model": target.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        try:
            await post_json(target, CHAT, body)
        except ServerError as error:
            has_template = "answered 400" not in error.detail or NO_TEMPLATE not in error.detail.lower()
            endpoint = "chat" if has_template else "completions"
    return replace(target, endpoint=COMPLETIONS if endpoint == "completions" else CHAT)
