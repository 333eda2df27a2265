"""Reading one streamed answer: any split of its bytes, and every way in which it can be wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.sse import EventReader
from kpad_bench.stream import RawStream, RequestTrace, read_trace

DONE = b"data: [DONE]\n\n"


def sse(*events):
    """Events as a server sends them: one ``data`` line each."""
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def chunk(text=None, tokens=None, finish=None, **delta):
    """One chat chunk; usage is cumulative and absent without tokens."""
    if text is not None:
        delta["content"] = text
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice], "usage": usage(tokens)}


def usage(tokens, prompt=7):
    """A usage object, or null."""
    return None if tokens is None else {"prompt_tokens": prompt, "completion_tokens": tokens}


def last_usage(tokens):
    """The chunk that carries usage alone."""
    return {"object": "chat.completion.chunk", "choices": [], "usage": usage(tokens)}


def read(*pieces, kind=None, message=None):
    """The trace of pieces that arrive at 10, 20, 30 ... ns."""
    arrivals = [10 * (i + 1) for i in range(len(pieces))]
    raw = RawStream(0, "p0", "00", 5, 10 * len(pieces) + 5, arrivals, list(pieces), kind, message)
    return read_trace(raw)


SEVERAL = (
    sse(chunk("", 0, role="assistant")),
    sse(chunk("a", 1)),
    sse(chunk("b", 2)),
    sse(chunk("", 5)),
    sse(chunk("f", 6)),
    sse(chunk("ghij", 10, "length")),
    sse(last_usage(10)),
    DONE,
)


def test_tokens_come_from_usage_not_from_chunks():
    """Ten tokens in five chunks are ten tokens; a chunk without text bears tokens when usage rose."""
    trace = read(*SEVERAL)
    assert trace.error is None
    assert (trace.prompt_tokens, trace.completion_tokens, trace.tokens_source) == (7, 10, "usage")
    assert list(trace.token_ns) == [20, 30, 40, 50, 60]
    assert list(trace.token_counts) == [1, 2, 5, 6, 10]
    assert (trace.first_token_ns, trace.end_ns, trace.n_chunks) == (20, 60, 5)
    assert (trace.finish_reason, trace.text) == ("length", "abfghij")


def split(data, cuts):
    """The bytes cut at these places."""
    places = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def at_one_moment(pieces):
    """The trace of pieces that all arrive at the same time."""
    return read_trace(RawStream(0, "p0", "00", 5, 99, [9] * len(pieces), list(pieces)))


DIALECTS = {
    "lf": b"".join(SEVERAL),
    "crlf": b"".join(SEVERAL).replace(b"\n", b"\r\n"),
    "cr": b"".join(SEVERAL).replace(b"\n", b"\r"),
    "bom": b"\xef\xbb\xbf" + b"".join(SEVERAL),
    "comments and fields": b": ping\n\n"
    + b"".join(SEVERAL).replace(b"data:", b"id: 3\n: hm\nevent: x\ndata:"),
    "no space": b"".join(SEVERAL).replace(b"data: ", b"data:"),
    "multi-line data": b"".join(SEVERAL).replace(b', "usage"', b',\ndata: "usage"'),
    "empty lines": b"\n\n\n" + b"".join(SEVERAL).replace(b"\n\n", b"\n\n\n\n\n"),
    "trailing data": b"".join(SEVERAL) + sse(chunk("late", 11)) + b"data: {",
}


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_any_split_of_the_bytes_gives_the_same_trace(dialect, data):
    """Where the network cuts the bytes is irrelevant, in every dialect of server-sent events."""
    stream = DIALECTS[dialect]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert at_one_moment(split(stream, cuts)) == at_one_moment(SEVERAL)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_byte_at_a_time_gives_the_same_trace(dialect):
    """The extreme of splitting: every byte arrives alone."""
    stream = DIALECTS[dialect]
    assert at_one_moment(split(stream, range(1, len(stream)))) == at_one_moment(SEVERAL)


def test_an_event_arrives_with_the_byte_that_ends_it():
    """A chunk cut in the middle is dated by its second half; two chunks in one piece by the same time."""
    first, second = sse(chunk("a", 1)), sse(chunk("b", 2), chunk("c", 3, "stop"))
    trace = read(first[:30], first[30:], second, DONE)
    assert list(trace.token_ns) == [20, 30, 30]


def test_an_event_without_its_empty_line_never_was():
    """What the server did not finish is not read, as the specification says."""
    reader = EventReader()
    assert reader.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert reader.feed(b"\n") == [b"2"]


DEFECTS = {
    "usage nowhere": ((sse(chunk("a"), chunk("b", finish="stop")), DONE), "no_usage", None),
    "usage falls": ((sse(chunk("a", 3), chunk("b", 2)), DONE), "usage_decreased", 3),
    "last usage falls": ((sse(chunk("a", 3, "stop"), last_usage(1)), DONE), "usage_decreased", 3),
    "usage per chunk": (
        (sse(chunk("a", 1), chunk("b", 1, "stop"), last_usage(2)), DONE),
        "usage_not_cumulative",
        1,
    ),
    "error after tokens": (
        (sse(chunk("a", 1), chunk("b", 2)), sse({"error": {"message": "engine stopped", "code": 500}}), DONE),
        "server_error",
        2,
    ),
    "error before tokens": ((sse({"error": "engine stopped"}), DONE), "server_error", None),
    "error of older servers": (
        (sse({"object": "error", "message": "engine stopped"}),),
        "server_error",
        None,
    ),
    "cut": ((sse(chunk("a", 1), chunk("b", 2)),), "cut", 2),
    "cut within an event": ((sse(chunk("a", 1)), sse(chunk("b", 2, "stop"))[:-20]), "cut", 1),
    "nothing at all": ((), "cut", None),
    "no stream": ((b'{"choices": []}',), "cut", None),
    "not JSON": ((sse(chunk("a", 1)), b"data: {oops\n\n", DONE), "bad_event", 1),
    "other JSON": ((b'data: {"choices": 3}\n\n', DONE), "bad_event", None),
    "not UTF-8": ((b'data: {"choices": [{"text": "\xff"}]}\n\n', DONE), "bad_event", None),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defective_stream_is_a_failed_request(defect):
    """Each defect fails the request with its kind and keeps the tokens that had come."""
    pieces, kind, tokens = DEFECTS[defect]
    trace = read(*pieces)
    assert (trace.is_ok, trace.error_kind, trace.completion_tokens) == (False, kind, tokens)


def test_an_error_event_keeps_the_servers_text():
    """The text of the error is in the trace even though [DONE] follows."""
    pieces, _, _ = DEFECTS["error after tokens"]
    trace = read(*pieces)
    assert trace.error == "server_error: engine stopped"
    assert trace.text == "ab"


def test_a_null_error_is_none():
    """Some servers send the key in every chunk."""
    trace = read(sse(chunk("a", 1, "stop") | {"error": None}), DONE)
    assert trace.is_ok


def test_usage_at_the_end_only():
    """Without usage on the chunks text bears tokens, and how many came when is not known."""
    trace = read(sse(chunk("a")), sse(chunk("")), sse(chunk("b", finish="stop")), sse(last_usage(4)), DONE)
    assert trace.is_ok
    assert (trace.completion_tokens, list(trace.token_ns), list(trace.token_counts)) == (4, [10, 30], [])


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_alone_is_a_normal_success(key):
    """All tokens in reasoning deltas: TTFT and length count them, finish_reason length is no failure."""
    chunks = [chunk(tokens=i + 1, **{key: "hm "}) for i in range(6)]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    trace = read(sse(chunk("", 0, role="assistant")), *(sse(c) for c in chunks), sse(last_usage(6)), DONE)
    assert trace.is_ok
    assert (trace.first_token_ns, trace.completion_tokens, trace.reasoning_chars) == (20, 6, 18)
    assert (trace.text, trace.finish_reason) == ("hm " * 6, "length")


def test_completions_have_their_text_in_the_choice():
    """The same rules hold for /v1/completions."""
    choice = {"index": 0, "text": "hi", "finish_reason": "stop"}
    trace = read(sse({"choices": [choice], "usage": usage(2)}), sse(last_usage(2)), DONE)
    assert (trace.is_ok, trace.text, list(trace.token_counts)) == (True, "hi", [2])


def test_escaped_lone_surrogates_are_text():
    """JSON may escape half a character; that is no reason to lose the request."""
    trace = read(sse(chunk("x", 1, "stop")).replace(b'"x"', rb'"\ud83d"'), DONE)
    assert (trace.is_ok, trace.text) == (True, "\ud83d")


def test_failure_of_the_transport_counts_until_done():
    """A connection lost before [DONE] fails the request, one lost after it does not."""
    pieces = sse(chunk("a", 1, "stop"), last_usage(1))
    assert read(pieces, kind="cut", message="reset").error == "cut: reset"
    assert read(pieces, DONE, kind="cut", message="reset").is_ok


def test_a_refusal_has_no_stream():
    """A request that got no answer keeps the kind and text it was driven with."""
    trace = read(kind="http_400", message="too long")
    assert trace.error == "http_400: too long"
    assert (trace.first_token_ns, trace.n_chunks, trace.tokens_source) == (None, 0, None)


def test_a_clean_end_without_done_is_an_end():
    """Servers that close after finish_reason and usage have said all there is."""
    assert read(sse(chunk("a", 1, "stop"), last_usage(1))).is_ok


def test_traces_are_small():
    """A trace has slots: a pass holds thousands."""
    assert not hasattr(RequestTrace(0, "p", "0", 0, 0), "__dict__")
    assert dataclasses.is_dataclass(RequestTrace)
