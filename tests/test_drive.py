"""The load generator against a scripted server in the same process, over a Unix socket."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time

import pytest
from aiohttp import web

from kpad_bench import drive
from kpad_bench.config import Load
from kpad_bench.drive import Limits, Target, post_json, run, run_pass, with_endpoint
from kpad_bench.endpoint import CHAT, COMPLETIONS, request_body
from kpad_bench.errors import ServerError
from kpad_bench.flight import Flight
from kpad_bench.prompt import Prompt, prompt_sha256
from kpad_bench.spool import Spool
from kpad_bench.stream import RawStream, pass_doubts

PATIENT = Limits(idle_timeout_s=60, stalled_s=60)
NO_TEMPLATE = "default chat template is no longer allowed, so you must provide a chat template"


def prompts(*texts):
    """Prompts with these texts, which tell the server what to do."""
    return [Prompt(f"p{i}", text, None, prompt_sha256(text)) for i, text in enumerate(texts)]


def load(concurrency, **more):
    """A greedy load."""
    return Load(concurrency=concurrency, n_prompts=1, max_tokens=16, temperature=0, **more)


def event(tokens, finish=None):
    """A chunk that has brought ``tokens`` tokens so far."""
    choice = {"index": 0, "delta": {"content": f"t{tokens} "}, "finish_reason": finish}
    usage = {"prompt_tokens": 3, "completion_tokens": tokens}
    return b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"


class Server:
    """Answers each request as its prompt says: ``ok N``, ``cut``, ``error``, ``400``, ``hang``, ..."""

    def __init__(self, path):
        self.path = str(path)
        self.bodies = []
        self.connections = []
        self.n_open = self.most_open = 0
        self.gathered = asyncio.Event()
        self.released = asyncio.Event()
        self.gather = 1
        self.gc_was_enabled = set()

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post(CHAT, self.completions)
        app.router.add_post(COMPLETIONS, self.completions)
        app.router.add_post("/echo", self.echo)
        self.runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await self.runner.setup()
        await web.UnixSite(self.runner, self.path).start()
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    @property
    def target(self):
        return Target("http://localhost", "m", self.path)

    def texts(self):
        return [
            body["messages"][-1]["content"] if "messages" in body else body["prompt"] for body in self.bodies
        ]

    async def echo(self, request):
        body = await request.text()
        return web.Response(text="" if body == "null" else body, status=500 if body == '"no"' else 200)

    async def completions(self, request):
        self.bodies.append(await request.json())
        if request.transport not in self.connections:
            self.connections.append(request.transport)
        self.gc_was_enabled.add(gc.isenabled())
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        if self.n_open == self.gather:
            self.gathered.set()
        try:
            verb, *words = self.texts()[-1].lower().split()
            return await getattr(self, f"do_{verb}")(request, *words)
        finally:
            self.n_open -= 1

    async def stream(self, request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def do_ok(self, request, n="3"):
        response = await self.stream(request)
        for tokens in range(1, int(n) + 1):
            await response.write(event(tokens, "stop" if tokens == int(n) else None))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def do_short(self, request):
        """Two tokens and the reason ``length``, as a server that ran into its context."""
        response = await self.stream(request)
        await response.write(event(2, "length") + b"data: [DONE]\n\n")
        return response

    async def do_bye(self, request):
        """Answer, and close the connection behind it."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Connection": "close"})
        await response.prepare(request)
        await response.write(event(1, "stop") + b"data: [DONE]\n\n")
        return response

    async def do_garble(self, request):
        """Speak something else than HTTP."""
        request.transport.write(b"220 smtp.example ESMTP\r\n\r\n")
        await asyncio.Event().wait()

    async def do_no_template(self, request):
        return web.json_response({"error": {"message": NO_TEMPLATE, "code": 400}}, status=400)

    async def do_hi(self, request):
        """The probe."""
        return await self.probed(request)

    async def do_wait(self, request):
        """Two events, then nothing until the test lets go, then the rest."""
        response = await self.stream(request)
        for tokens in range(1, 400):
            await response.write(event(tokens))
        await self.released.wait()
        await response.write(event(400, "stop") + b"data: [DONE]\n\n")
        return response

    async def do_together(self, request):
        """Answer once ``gather`` requests are open, and then all of them."""
        gathered = self.gathered
        await gathered.wait()
        if gathered is self.gathered:
            self.gathered = asyncio.Event()
        return await self.do_ok(request)

    async def do_cut(self, request):
        response = await self.stream(request)
        await response.write(event(1) + event(2))
        request.transport.close()
        return response

    async def do_error(self, request):
        response = await self.stream(request)
        await response.write(event(1))
        await response.write(
            b'data: {"error": {"message": "engine stopped", "code": 500}}\n\ndata: [DONE]\n\n'
        )
        return response

    async def do_refuse(self, request, status):
        return web.json_response(
            {"error": {"message": "context length is 512", "code": 400}}, status=int(status)
        )

    async def do_release(self, request):
        self.released.set()
        return await self.do_ok(request)

    async def do_refuse_in_text(self, request):
        return web.Response(text="<h1>no</h1>", status=502)

    async def do_hang(self, request):
        response = await self.stream(request)
        await response.write(event(1))
        await asyncio.Event().wait()

    async def do_ping(self, request):
        """A role, one token, then for ever bytes without a token: comments, roles, the same usage."""
        response = await self.stream(request)
        await response.write(event(1))
        empty = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        for chunk in itertools.cycle([{}, empty, empty | {"usage": {"completion_tokens": 1}}]):
            await response.write(f": ping\n\ndata: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(0.02)

    async def do_slow(self, request):
        """Tokens that come one by one, each well before the patience of the test is over."""
        response = await self.stream(request)
        for tokens in range(1, 13):
            await response.write(event(tokens, "stop" if tokens == 12 else None))
            await asyncio.sleep(0.1)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def do_ignore(self, request):
        await asyncio.Event().wait()

    async def do_drop(self, request, n_times):
        """Close the connection without a byte, for the first n_times that this prompt comes."""
        if self.texts().count(f"drop {n_times}") <= int(n_times):
            request.transport.close()
        return await self.do_ok(request)

    async def do_die(self, request):
        """Stop listening, and drop every connection."""
        for site in list(self.runner.sites):
            await site.stop()
        for connection in self.runner.server.connections:
            connection.transport.abort()


def driven(tmp_path, texts, concurrency=2, limits=PATIENT, **more):
    """The trace of a pass over these texts, and the server that it met."""

    async def main():
        async with Server(tmp_path / "s") as server:
            server.gather = concurrency
            trace = await run_pass(server.target, prompts(*texts), load(concurrency), limits, **more)
            return trace, server

    return run(main())


def kinds(trace):
    """Error kinds by request."""
    return [request.error_kind for request in trace.requests]


def test_tokens_and_order_are_exact(tmp_path):
    """Prompts go out in order, once each, and every token is counted."""
    texts = [f"ok {n}" for n in range(1, 31)]
    trace, server = driven(tmp_path, texts, concurrency=1)
    assert server.texts() == texts
    assert kinds(trace) == [None] * 30
    assert [request.completion_tokens for request in trace.requests] == list(range(1, 31))
    assert [request.prompt_id for request in trace.requests] == [f"p{i}" for i in range(30)]
    assert (trace.n_prompts, trace.concurrency, trace.stopped_early, trace.n_retries) == (30, 1, None, 0)


def test_concurrency_is_neither_more_nor_less(tmp_path):
    """The server waits until four requests are open: they come, and a fifth never does."""
    trace, server = driven(tmp_path, ["together"] * 20, concurrency=4)
    assert kinds(trace) == [None] * 20
    assert server.most_open == 4
    assert len(trace.reissue_gaps_ns) == 16


def test_a_slot_keeps_its_connection(tmp_path):
    """Twenty requests in four slots come over four connections."""
    trace, server = driven(tmp_path, ["together"] * 20, concurrency=4)
    assert kinds(trace) == [None] * 20
    assert len(server.connections) == 4


def test_a_connection_that_the_server_ended_is_opened_anew(tmp_path):
    """That is no retry: the answer before it was whole."""
    trace, server = driven(tmp_path, ["ok", "bye", "ok", "ok"], concurrency=1)
    assert kinds(trace) == [None] * 4
    assert (trace.n_retries, len(server.connections)) == (0, 2)


def test_what_is_no_http_fails_its_request(tmp_path):
    """It is not sent twice: something did come back."""
    trace, server = driven(tmp_path, ["ok", "garble", "ok"], concurrency=1)
    assert kinds(trace) == [None, "connection", None]
    assert "220 smtp.example" in trace.requests[1].error
    assert (trace.n_retries, len(server.bodies)) == (0, 3)


def test_fillers_keep_the_slots_full(tmp_path):
    """Further prompts go out until the last measured one ends; open ones are cancelled and never counted."""
    fillers = prompts("ok 2", "hang", "release", *["hang"] * 50)
    trace, server = driven(tmp_path, ["ok", "wait", "ok"], concurrency=3, fillers=fillers)
    assert kinds(trace) == [None] * 3
    assert [request.completion_tokens for request in trace.requests] == [3, 400, 3]
    assert [filler.error_kind for filler in trace.fillers] == [None, "cancelled", None, "cancelled"]
    assert [filler.completion_tokens for filler in trace.fillers] == [2, 1, 3, 1]
    assert trace.end_ns == max(request.closed_ns for request in trace.requests)
    assert (trace.n_prompts, trace.ran_out_of_fillers, trace.stopped_early) == (3, False, None)
    assert server.most_open == 3
    assert pass_doubts(trace) == []


def test_too_few_fillers_are_told(tmp_path):
    """The slots go empty, and the row says so."""
    trace, _ = driven(tmp_path, ["ok", "wait"], concurrency=2, fillers=prompts("ok", "release"))
    assert kinds(trace) == [None, None]
    assert [filler.is_ok for filler in trace.fillers] == [True, True]
    assert pass_doubts(trace) == ["fillers ran out after 2, before the last measured request ended"]


def test_fillers_are_not_judged(tmp_path):
    """A filler that is refused says nothing of the pass; without prompts none is sent."""
    trace, _ = driven(tmp_path, ["ok", "wait"], fillers=prompts(*["refuse 400"] * 9, "release"))
    assert (kinds(trace), trace.stopped_early) == ([None, None], None)
    trace, server = driven(tmp_path, [], fillers=prompts("ok"))
    assert (trace.requests, trace.fillers, server.bodies) == ([], [], [])


def test_bytes_leave_the_memory_during_the_pass(tmp_path, monkeypatch):
    """What was moved out of an open and of a closed request is in their traces all the same."""
    monkeypatch.setattr(drive, "TICK_S", 0.001)
    monkeypatch.setattr(drive, "SPOOLED_PIECES", 0)
    monkeypatch.setattr(drive, "KEPT_PIECES", 0)
    moved = set()

    async def main():
        async with Server(tmp_path / "s") as server:

            class Watched(Spool):
                def put(self, raw, n_kept=0):
                    super().put(raw, n_kept)
                    assert not raw.pieces
                    moved.add(raw.index)
                    if moved == {0, 1}:
                        server.released.set()

            monkeypatch.setattr(drive, "Spool", Watched)
            return await run_pass(server.target, prompts("ok", "wait"), load(2), PATIENT)

    trace = run(main())
    assert [request.completion_tokens for request in trace.requests] == [3, 400]
    assert list(trace.requests[1].token_counts) == list(range(1, 401))
    assert list(trace.requests[1].token_ns) == sorted(trace.requests[1].token_ns)


def test_more_slots_than_prompts(tmp_path):
    """Slots without a prompt stay empty; a pass without prompts is over at once."""
    trace, _ = driven(tmp_path, ["ok", "ok"], concurrency=8)
    assert kinds(trace) == [None, None]
    trace, _ = driven(tmp_path, [])
    assert (trace.requests, trace.stopped_early) == ([], None)


def test_times_are_in_order(tmp_path):
    """Pass start, issue, tokens, close and pass end follow each other."""
    trace, _ = driven(tmp_path, ["ok 5"] * 6)
    for request in trace.requests:
        times = [trace.start_ns, request.start_ns, *request.token_ns, request.closed_ns, trace.end_ns]
        assert times == sorted(times)
    assert min(trace.reissue_gaps_ns) >= 0
    assert trace.client_cpu_s > 0


def test_request_says_all_that_matters(tmp_path):
    """Sampling and usage are asked for explicitly, and nothing else changes what is generated."""
    _, server = driven(tmp_path, ["ok"])
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "ok"}],
            "max_tokens": 16,
            "temperature": 0,
            "seed": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    ]


def test_system_message_and_completions():
    """A system message comes first; /v1/completions gets one text."""
    prompt = Prompt("p", "hi", "be brief", prompt_sha256("hi", "be brief"))
    chat = json.loads(request_body(Target("http://x", "m"), prompt, load(1)))
    assert [message["role"] for message in chat["messages"]] == ["system", "user"]
    completions = json.loads(request_body(Target("http://x", "m", endpoint=COMPLETIONS), prompt, load(1)))
    assert completions["prompt"] == "be brief\n\nhi"
    assert "messages" not in completions


def test_a_bad_stream_fails_its_request_alone(tmp_path):
    """A cut stream and an error event fail with what was said; their neighbours are ok."""
    trace, _ = driven(tmp_path, ["ok", "cut", "ok", "error", "ok"])
    assert kinds(trace) == [None, "cut", None, "server_error", None]
    assert trace.requests[1].completion_tokens == 2
    assert trace.requests[3].error == "server_error: engine stopped"
    assert (trace.stopped_early, trace.n_retries) == (None, 0)


def test_a_refused_request_keeps_the_servers_text(tmp_path):
    """A 400 is not tried again, and its text is in the trace, JSON or not."""
    trace, server = driven(tmp_path, ["ok", "refuse 400", "refuse_in_text", "ok"])
    assert kinds(trace) == [None, "http_400", "http_502", None]
    assert trace.requests[1].error == "http_400: context length is 512"
    assert trace.requests[2].error == "http_502: <h1>no</h1>"
    assert len(server.bodies) == 4


@pytest.mark.parametrize(("status", "reason"), [(400, "all_requests_refused"), (500, "all_requests_failed")])
def test_the_same_refusal_of_all_stops_the_pass(tmp_path, status, reason):
    """When the first requests all get the same error the rest is not sent."""
    trace, server = driven(tmp_path, [f"refuse {status}"] * 500, concurrency=4)
    assert trace.stopped_early.reason == reason
    assert "context length is 512" in trace.stopped_early.detail
    assert len(server.bodies) == len(trace.requests) < 14


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_few_bad_prompts_first_do_not_stop_the_pass(tmp_path, concurrency):
    """However few slots there are, seven refusals say nothing of the eighth prompt."""
    trace, _ = driven(tmp_path, [*["refuse 400"] * 7, "ok", "ok"], concurrency=concurrency)
    assert kinds(trace) == [*["http_400"] * 7, None, None]
    assert trace.stopped_early is None


def test_a_model_without_a_chat_template_names_the_way_out(tmp_path):
    """The same 400 of all stops the pass, and says which option is for such a model."""
    trace, server = driven(tmp_path, ["no_template"] * 20, concurrency=4)
    assert trace.stopped_early.reason == "all_requests_refused"
    assert NO_TEMPLATE in trace.stopped_early.detail
    assert "load.endpoint: completions, or auto" in trace.stopped_early.detail
    assert len(server.bodies) < 14


@pytest.mark.parametrize(
    ("asked", "refusal", "endpoint", "n_probes"),
    [
        ("chat", NO_TEMPLATE, CHAT, 0),
        ("completions", NO_TEMPLATE, COMPLETIONS, 0),
        ("auto", NO_TEMPLATE, COMPLETIONS, 1),
        ("auto", "As of transformers v4.44, Default Chat Template is no longer allowed", COMPLETIONS, 1),
        ("auto", "min_p is not supported with speculative decoding", CHAT, 1),
        ("auto", None, CHAT, 1),
    ],
)
def test_the_endpoint_is_probed_once_and_only_if_that_is_asked_for(
    tmp_path, asked, refusal, endpoint, n_probes
):
    """Completions take the place of chat for want of a template alone; the trace says which it was."""

    async def probed(request):
        if refusal is None:
            return web.json_response({"choices": []})
        return web.json_response({"error": {"message": refusal, "code": 400}}, status=400)

    async def main():
        async with Server(tmp_path / "s") as server:
            server.probed = probed
            target = await with_endpoint(server.target, asked)
            assert len(server.bodies) == n_probes
            return await run_pass(target, prompts("ok"), load(1), PATIENT)

    trace = run(main())
    assert (trace.endpoint, kinds(trace)) == (endpoint, [None])


def test_answers_that_the_server_shortened_are_told(tmp_path):
    """finish_reason length with fewer tokens than were asked for: the server's context was full."""
    trace, _ = driven(tmp_path, ["ok", "short", "ok 16", "short", "cut"])
    assert kinds(trace) == [None, None, None, None, "cut"]
    (doubt,) = pass_doubts(trace)
    assert doubt.startswith(
        "2 answers have finish_reason length and fewer tokens than max_tokens 16 (the first 2)"
    )


def test_different_refusals_do_not_stop_the_pass(tmp_path):
    """Two prompts that are refused for different reasons say nothing of the third."""
    trace, _ = driven(tmp_path, ["refuse 400", "refuse 404", "ok"])
    assert kinds(trace) == ["http_400", "http_404", None]
    assert trace.stopped_early is None


@pytest.mark.parametrize("silent", ["hang", "ignore", "ping"])
def test_a_stalled_request_fails_and_the_pass_goes_on(tmp_path, silent):
    """No token for the idle time, before or after the first one: that request has failed."""
    trace, _ = driven(tmp_path, [silent, *["ok"] * 5], limits=Limits(idle_timeout_s=0.5, stalled_s=60))
    assert kinds(trace) == ["stalled", *[None] * 5]
    assert trace.requests[0].completion_tokens == (None if silent == "ignore" else 1)
    assert trace.stopped_early is None


@pytest.mark.parametrize("silent", ["hang", "ping"])
def test_silence_of_all_stops_the_pass(tmp_path, silent):
    """When no token arrives any more the rest is not sent, whatever the idle time; a ping is no token."""
    trace, _ = driven(tmp_path, ["ok", *[silent] * 50], limits=Limits(idle_timeout_s=60, stalled_s=0.3))
    assert kinds(trace) == [None, "stalled", "stalled"]
    assert trace.stopped_early.reason == "stalled"


def test_slow_tokens_are_no_silence(tmp_path):
    """A request that takes longer than the patience is well as long as tokens come."""
    trace, _ = driven(tmp_path, ["slow", "slow"], limits=Limits(idle_timeout_s=1, stalled_s=1))
    assert kinds(trace) == [None, None]


def test_a_pass_ends_when_its_time_is_over(tmp_path):
    """Tokens still come, and the rest is not sent: what was open has failed, what was answered stands."""
    ends_ns = time.monotonic_ns() + 300_000_000
    limits = Limits(idle_timeout_s=60, stalled_s=60, ends_ns=ends_ns)
    trace, _ = driven(tmp_path, ["ok", *["slow"] * 50], concurrency=1, limits=limits)
    assert kinds(trace) == [None, "deadline"]
    assert trace.stopped_early.reason == "deadline"
    assert "1 of 51 requests answered; raise thresholds.trial_deadline_s" in trace.stopped_early.detail
    assert trace.end_ns >= ends_ns


def test_no_server_at_all(tmp_path):
    """A socket that is not there fails the open requests and stops the pass."""
    target = Target("http://localhost", "m", str(tmp_path / "nobody"))
    trace = run(run_pass(target, prompts(*["ok"] * 500), load(3), PATIENT))
    assert trace.stopped_early.reason == "server_died"
    assert set(kinds(trace)) == {"connection"}
    assert len(trace.requests) <= 3


def test_a_server_that_dies_under_load(tmp_path):
    """Its open requests fail, the rest is not sent."""
    trace, _ = driven(tmp_path, ["ok", "ok", "hang", "die", *["ok"] * 500])
    assert kinds(trace)[:3] == [None, None, "cut"]
    assert set(kinds(trace)[3:]) == {"connection"}
    assert trace.stopped_early.reason == "server_died"
    assert len(trace.requests) <= 6


def test_a_connection_lost_before_any_byte_is_tried_once_more(tmp_path):
    """Once lost it is sent again, twice lost it has failed; the pass goes on."""
    trace, server = driven(tmp_path, ["ok", "drop 1", "drop 2", "ok"], concurrency=1)
    assert kinds(trace) == [None, None, "connection", None]
    assert trace.n_retries == 2
    assert len(server.bodies) == 6


def test_cancelling_closes_all_connections(tmp_path):
    """The cancellation comes out, and the server sees every connection go."""

    async def main():
        async with Server(tmp_path / "s") as server:
            server.gather = 3
            running = asyncio.create_task(run_pass(server.target, prompts(*["hang"] * 9), load(3), PATIENT))
            await server.gathered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            async with asyncio.timeout(30):
                while server.runner.server.connections:  # noqa: ASYNC110 aiohttp has no event for it
                    await asyncio.sleep(0)
            assert gc.isenabled()

    run(main())


def test_garbage_is_collected_after_the_pass(tmp_path):
    """The collector rests during the pass and works again afterwards."""
    assert gc.isenabled()
    _, server = driven(tmp_path, ["ok"])
    assert server.gc_was_enabled == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_progress_is_told(tmp_path, monkeypatch):
    """The callback hears of open and finished requests while the pass runs."""
    monkeypatch.setattr(drive, "TICKS_PER_PROGRESS", 1)
    heard = []

    async def main():
        async with Server(tmp_path / "s") as server:

            def on_progress(progress):
                heard.append(progress)
                if progress.n_done == 1:
                    server.gathered.set()

            server.gather = 3
            await run_pass(server.target, prompts("ok", "together"), load(1), PATIENT, on_progress)

    run(main())
    assert heard[-1].n_done == 1
    assert heard[-1].n_open == 1
    assert heard[-1].output_tokens >= 1
    assert heard[-1].output_tok_per_s > 0


TEXT = b'data: {"choices":[{"text":" a"}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


@pytest.mark.parametrize(
    ("looks", "tokens", "news_ns"),
    [
        ([[]], 0, 0),
        ([[b": ping\n\n", ROLE, b"data: [DONE]\n\n"]], 0, 0),
        ([[event(5), b":", b":", b":"]], 5, 1),
        ([[event(5)], [b":"] * 9], 5, 1),
        ([[event(5)], [b":", event(6), b":"]], 6, 3),
        ([[event(5)], [event(5), event(5)]], 5, 1),
        ([[event(3) + event(7)]], 7, 1),
        ([[event(3), event(9, "length"), b"data: [DONE]\n\n"]], 9, 2),
        ([[event(3)], [event(9)[:30], event(9)[30:].partition(b"completion")[0]]], 3, 1),
        ([[b'data: {"usage":{"completion_tokens":12}}\n\n']], 12, 1),
        ([[TEXT], [TEXT, b":"]], 0, 2),
        ([[event(1)], [TEXT]], 1, 1),
    ],
)
def test_news_of_a_stream_are_its_tokens(looks, tokens, news_ns):
    """Usage that rose, or text where the server tells no usage; nothing else that comes, however often."""

    async def main():
        flight = Flight(RawStream(0, "p0", "00", 0))
        for pieces in looks:
            for piece in pieces:
                flight.raw.pieces.append(piece)
                flight.raw.arrivals_ns.append(len(flight.raw.arrivals_ns) + 1)
            flight.look()
        return flight

    flight = run(main())
    assert (flight.count_tokens(), flight.news_ns()) == (tokens, news_ns)


def test_what_waits_in_the_spool_is_not_looked_at_twice():
    """Only the newest pieces are in memory; those that left it had their look, or are too old to matter."""

    async def main():
        flight = Flight(RawStream(0, "p0", "00", 0))
        flight.raw.arrivals_ns.extend([1, 2, 3])
        flight.raw.pieces.append(event(4))
        flight.look()
        return flight

    flight = run(main())
    assert (flight.output_tokens, flight.news_ns()) == (4, 3)


@pytest.mark.parametrize(("tokens", "elapsed_s", "speed"), [(0, 1.0, None), (0, 0.0, None), (30, 2.0, 15.0)])
def test_speed_so_far_is_none_before_the_first_token(tokens, elapsed_s, speed):
    """Not measured is not zero."""
    assert drive.Progress(0, 0, 1, tokens, elapsed_s).output_tok_per_s == speed


def test_a_bug_in_the_callback_is_not_lost(tmp_path, monkeypatch):
    """An exception in the monitor ends the pass, whatever is open."""
    monkeypatch.setattr(drive, "TICKS_PER_PROGRESS", 1)
    with pytest.raises(ExceptionGroup) as raised:
        driven(tmp_path, ["hang"], on_progress=lambda _: 1 // 0)
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]


def test_the_control_calls(tmp_path):
    """JSON, None for an empty answer, ServerError for anything else."""

    async def main():
        async with Server(tmp_path / "s") as server:
            assert await post_json(server.target, "/echo", {"a": [1]}) == {"a": [1]}
            assert await post_json(server.target, "/echo", None) is None
            with pytest.raises(ServerError, match="control: /echo answered 500"):
                await post_json(server.target, "/echo", "no")
        with pytest.raises(ServerError, match="control: /echo"):
            await post_json(server.target, "/echo", {})

    run(main())
