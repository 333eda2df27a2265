"""From the bytes of one streamed answer to its trace: what arrived when, and how it ended.

Sans-IO: never touches a socket, a clock or an event loop. ``drive`` stores bytes with their arrival
times during a pass and reads them here afterwards, so that parsing is no part of what is measured.
Times are integer ns of one monotonic clock, in arrays: a pass may hold millions.

Tokens are counted by the server's usage alone. A stream without it is a failed request (``no_usage``):
tokenising its text again would not give the count, as texts of tokens do not add up.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kpad_bench.sse import EventReader

DONE = b"[DONE]"


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None  # newer vLLM
    reasoning_content: str | None = None  # older vLLM


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


def decode_chunk(data: bytes) -> _Chunk:
    """One event as a typed chunk. Raises ValueError on what is no chunk (msgspec's errors are that)."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        # msgspec refuses escaped lone surrogates, which JSON permits and Python's reader takes.
        return msgspec.convert(json.loads(data), _Chunk)


def error_text(error: Any) -> str:
    """The message of an OpenAI-style error object, whatever its shape; at most 500 characters."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:500]


@dataclass(slots=True)
class RawStream:
    """One request as it was driven: the bytes of its answer, and the arrival of each piece.

    ``spooled``: where its first pieces wait outside memory, as (start, sizes); ``pieces`` are the others.
    ``error_kind`` is set when there is no answer to read to its end: ``http_<status>``,
    ``connection``, ``stalled``, ``deadline``, ``cut``; or ``cancelled``, of a filler that was still open at
    the end.
    """

    index: int
    prompt_id: str
    prompt_sha256: str
    start_ns: int
    closed_ns: int = 0
    arrivals_ns: MutableSequence[int] = field(default_factory=lambda: array("q"))
    pieces: list[bytes] = field(default_factory=list)
    error_kind: str | None = None
    error_message: str | None = None
    spooled: list[tuple[int, array[int]]] = field(default_factory=list)


@dataclass(slots=True)
class RequestTrace:
    """One request: one prompt and its stream.

    ``token_ns`` has the arrival of every token-bearing chunk and ``token_counts`` the output tokens
    up to and with it; ``token_counts`` is empty when usage did not come with the chunks.
    ``first_token_ns`` and ``end_ns`` (the last token) are None without tokens. Tokens of a failed
    request are what had arrived. ``text`` has reasoning and content as they came.
    """

    index: int
    prompt_id: str
    prompt_sha256: str
    start_ns: int
    closed_ns: int
    token_ns: MutableSequence[int] = field(default_factory=lambda: array("q"))
    token_counts: MutableSequence[int] = field(default_factory=lambda: array("q"))
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    reasoning_chars: int = 0
    text: str = ""
    error_kind: str | None = None
    error_message: str | None = None

    @property
    def is_ok(self) -> bool:
        """The request ended well, and its tokens are known."""
        return self.error_kind is None

    @property
    def error(self) -> str | None:
        """Kind and message; None when ok."""
        return None if self.error_kind is None else f"{self.error_kind}: {self.error_message}"

    @property
    def first_token_ns(self) -> int | None:
        """Arrival of the first token-bearing chunk."""
        return self.token_ns[0] if self.token_ns else None

    @property
    def end_ns(self) -> int | None:
        """Arrival of the last token-bearing chunk."""
        return self.token_ns[-1] if self.token_ns else None

    @property
    def n_chunks(self) -> int:
        """Token-bearing chunks, each of one or more tokens."""
        return len(self.token_ns)

    @property
    def tokens_source(self) -> str | None:
        """``usage``, or None when no token count came."""
        return None if self.completion_tokens is None else "usage"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a pass ended before its prompts did: a reason for scripts and a line for people."""

    reason: str
    detail: str


@dataclass(slots=True)
class PassTrace:
    """One pass of a cell's prompts, and what the client can say about itself.

    ``requests`` holds those that were issued, in order; ``n_prompts`` is how many there were to
    issue and ``max_tokens`` what each might answer. ``fillers`` are unmeasured requests that kept the
    slots full; ``ran_out_of_fillers`` when there were too few. ``end_ns`` is the end of the last of
    ``requests``. ``loop_lag_ns`` are samples of how late the event loop was, ``reissue_gaps_ns`` the
    times from the last byte of a slot's answer to its next request.
    """

    # No repr of what is long: on its way out asyncio.run has the result's made, twice (signal.py of 3.11).
    requests: list[RequestTrace] = field(repr=False)
    n_prompts: int
    concurrency: int
    endpoint: str
    start_ns: int
    end_ns: int
    client_cpu_s: float = 0.0
    loop_lag_ns: Sequence[int] = field(default=(), repr=False)
    reissue_gaps_ns: Sequence[int] = field(default=(), repr=False)
    n_retries: int = 0
    stopped_early: Stop | None = None
    max_tokens: int | None = None
    fillers: Sequence[RequestTrace] = field(default=(), repr=False)
    ran_out_of_fillers: bool = False


def pass_doubts(trace: PassTrace) -> list[str]:
    """What a reader has to know of a pass beside its numbers."""
    shortened = [
        request
        for request in trace.requests
        if request.is_ok and request.finish_reason == "length" and trace.max_tokens is not None
        if (request.completion_tokens or 0) < trace.max_tokens
    ]
    found = []
    if trace.n_retries:
        found.append(f"{trace.n_retries} requests were sent twice")
    if shortened:
        found.append(
            f"{len(shortened)} answers have finish_reason length and fewer tokens than max_tokens "
            f"{trace.max_tokens} (the first {shortened[0].completion_tokens}): the server shortened them to "
            "its context; lower max_tokens or raise max_model_len"
        )
    if trace.ran_out_of_fillers:
        found.append(f"fillers ran out after {len(trace.fillers)}, before the last measured request ended")
    return found


class CompletionStream:
    """One answer of ``/v1/chat/completions`` or ``/v1/completions``, fed event by event.

    A chunk bears tokens when the cumulative ``completion_tokens`` rose with it (its text may be
    empty); without usage on the chunks, when it has text. After the first error nothing counts.
    """

    def __init__(self, trace: RequestTrace) -> None:
        self.trace = trace
        self.is_done = False
        self._texts: list[str] = []
        self._has_continuous_usage = False

    def event(self, data: bytes, arrival_ns: int) -> None:
        """Take the data of one event."""
        if self.is_done or self.trace.error_kind is not None:
            return
        if data.strip() == DONE:
            self.is_done = True
            return
        try:
            chunk = decode_chunk(data)
        except ValueError as error:
            self._fail("bad_event", f"an event that is no completion chunk: {error}")
            return
        if chunk.error is not None or chunk.object == "error":
            self._fail("server_error", error_text(chunk.message if chunk.error is None else chunk.error))
            return
        has_text = self._take_choices(chunk.choices or [])
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self._take_usage(chunk.usage, chunk.usage.completion_tokens, bool(chunk.choices), arrival_ns)
        elif has_text and not self._has_continuous_usage:
            self.trace.token_ns.append(arrival_ns)

    def close(self, raw_kind: str | None = None, raw_message: str | None = None) -> RequestTrace:
        """The finished trace; the arguments say how the transport failed, if it did."""
        trace = self.trace
        if trace.is_ok and not self.is_done:
            if raw_kind is not None:
                self._fail(raw_kind, raw_message or "")
            elif trace.finish_reason is None:
                self._fail("cut", "the stream ended before [DONE] and without a finish_reason")
        if trace.is_ok and trace.completion_tokens is None:
            self._fail("no_usage", "the stream carried no usage, so its tokens are not known")
        if len(trace.token_counts) != len(trace.token_ns):
            trace.token_counts = array("q")
        trace.text = "".join(self._texts)
        return trace

    def _fail(self, kind: str, message: str) -> None:
        self.trace.error_kind, self.trace.error_message = kind, message

    def _take_choices(self, choices: list[_Choice]) -> bool:
        has_text = False
        for choice in choices:
            delta = choice.delta or _Delta()
            reasoning = delta.reasoning or delta.reasoning_content or ""
            text = reasoning + (delta.content or choice.text or "")
            if text:
                has_text = True
                self._texts.append(text)
                self.trace.reasoning_chars += len(reasoning)
            if choice.finish_reason is not None:
                self.trace.finish_reason = choice.finish_reason
        return has_text

    def _take_usage(self, usage: _Usage, tokens: int, has_choices: bool, arrival_ns: int) -> None:
        trace = self.trace
        before = trace.completion_tokens or 0
        if tokens < before:
            self._fail("usage_decreased", f"completion_tokens fell from {before} to {tokens}")
            return
        if not has_choices and self._has_continuous_usage and tokens != before:
            self._fail("usage_not_cumulative", f"the chunks counted {before} tokens, the last usage {tokens}")
            return
        self._has_continuous_usage |= has_choices
        if has_choices and tokens > before:
            trace.token_ns.append(arrival_ns)
            trace.token_counts.append(tokens)
        trace.completion_tokens = tokens
        if usage.prompt_tokens is not None:
            trace.prompt_tokens = usage.prompt_tokens


def read_trace(raw: RawStream) -> RequestTrace:
    """The trace of one driven request. An event arrives with the piece that completes it."""
    trace = RequestTrace(raw.index, raw.prompt_id, raw.prompt_sha256, raw.start_ns, raw.closed_ns)
    reader, stream = EventReader(), CompletionStream(trace)
    for arrival_ns, piece in zip(raw.arrivals_ns, raw.pieces, strict=True):
        for data in reader.feed(piece):
            stream.event(data, arrival_ns)
    return stream.close(raw.error_kind, raw.error_message)
