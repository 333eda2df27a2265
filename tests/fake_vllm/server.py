"""The HTTP side: vLLM's endpoints, and the scripted faults of answers and metrics."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from aiohttp import web

from fake_vllm import logs, metrics
from fake_vllm.boot import address_of
from fake_vllm.engine import DEAD, NUM_BLOCKS, Engine, EngineError, Request
from fake_vllm.intake import NO_TEMPLATE, Refused, read_prompt, read_request, token_ids
from fake_vllm.options import Options
from fake_vllm.script import Script, record_call
from fake_vllm.stream import Answer, Tokens, error, event


def serve(
    listener: socket.socket, options: Options, told: Script, k: int | None, child: subprocess.Popen[bytes]
) -> None:
    """Answer until killed."""
    asyncio.run(Server(options, told, k, child).run(listener))


class Server:
    """One server process; ``child`` is its engine core."""

    def __init__(self, options: Options, told: Script, k: int | None, child: subprocess.Popen[bytes]) -> None:
        self.options, self.told, self.child = options, told, child
        self.engine = Engine(k, options.pads, options.max_num_seqs, told.step_s)
        self.name = told.wrong_model_name or options.served_name
        self.n_received = 0
        self.n_scrapes = 0
        self.is_core_lost = False

    async def run(self, listener: socket.socket) -> None:
        """Serve for ever, and notice when the core dies."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.check_core)
        # Cancelling the handler is how a client that goes away aborts its request.
        runner = web.AppRunner(self.app(), handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener, backlog=2048).start()
        logs.started(address_of(listener))
        await self.engine.run()

    def app(self) -> web.Application:
        """Routes; those of the development mode only with it, as in vLLM."""
        app = web.Application(middlewares=[access_log], client_max_size=2**26)
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/tokenize", self.tokenize)
        if self.options.is_dev_mode:
            app.router.add_post("/collective_rpc", self.collective_rpc)
            app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        return app

    def check_core(self) -> None:
        """SIGCHLD: a dead core is a dead engine."""
        if self.child.poll() is not None and not self.engine.is_dead and not self.is_core_lost:
            self.fail_engine()

    def fail_engine(self) -> None:
        """All requests fail from here on; the API lives on."""
        text = f"Engine core proc EngineCore (pid {self.child.pid}) died unexpectedly."
        logs.api("core_client.py:655", text, "ERROR")
        self.engine.die()

    async def health(self, _request: web.Request) -> web.Response:
        """200, or 503 with a dead core; scripted otherwise."""
        if self.told.health_hang:
            await asyncio.Event().wait()
        is_well = not self.engine.is_dead and not self.is_unavailable()
        return web.Response(status=self.told.health_status if is_well else 503)

    def is_unavailable(self) -> bool:
        """Whether requests get 503 by now."""
        first = self.told.unavailable_after_requests
        return first is not None and self.n_received >= first

    async def version(self, _request: web.Request) -> web.Response:
        """Answers even with a dead core."""
        return web.json_response({"version": "0.32.0"})

    async def models(self, _request: web.Request) -> web.Response:
        """The one served name."""
        card = {"id": self.name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        card |= {"root": self.options.model, "parent": None, "max_model_len": self.options.max_model_len}
        return web.json_response({"object": "list", "data": [card | {"permission": []}]})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text, with the scripted lies."""
        if self.told.no_metrics:
            return web.json_response({"detail": "Not Found"}, status=404)
        self.n_scrapes += 1
        extra = self.told.counter_off_by * self.n_scrapes
        if self.told.metrics_backwards:
            extra += max(0, 100_000_000 - 1_000_000 * self.n_scrapes)
        text = metrics.render(self.engine, self.name, extra)
        if self.told.cut_metrics:
            text = text[: text.index("vllm:generation_tokens_total{") + 40]
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        """Repeated prompts miss from here on."""
        record_call("/reset_prefix_cache")
        self.engine.prefix_cache.clear()
        return web.json_response({"success": True})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        """The two methods of the kpad plugin, if it is loaded; anything else is unknown to the worker."""
        method = (await request.json()).get("method")
        answers = {"kpad_status": self.kpad_status, "kpad_empty_cache": self.kpad_empty_cache}
        has_plugin = "kpad" in self.options.plugins and not self.told.no_plugin
        if self.engine.is_dead:
            return web.json_response(error(DEAD, 500), status=500)
        if method not in answers or not has_plugin:
            why = f"Call to collective_rpc method failed: 'CPUWorker' object has no attribute '{method}'"
            return web.json_response(error(why, 500), status=500)
        return web.json_response({"results": answers[method]()})

    def kpad_status(self) -> list[dict[str, Any]]:
        """One answer per rank; the last rank's counters are the first one's."""
        engine, n = self.engine, self.engine.count
        same = ("steps", "decode_steps", "uniform_decode_steps", "decode_requests", "real_draft_tokens")
        counters = {name: n[name] for name in (*same, "pad_tokens")}
        counters |= {"mode_full": 0, "mode_piecewise": 0, "mode_none": n["steps"], "full_decode_steps": 0}
        counters |= {"graph_padding_tokens": 0, "pad_hits": 0}
        status = {"marker": "kpad/1", "pid": self.child.pid, "runner": "v1", "platform": "cpu"}
        status |= {"has_graphs": False, "cudagraph_mode": None, "capture_sizes": []}
        status |= {"num_gpu_blocks": NUM_BLOCKS, "pads": engine.pads, "k": engine.k}
        status |= {"cached_requests": None if engine.k is None else engine.n_cached}
        status |= {"vllm_version": "0.32.0", "torch_version": "2.13.0+cpu", "arctic_version": "0.3.0"}
        ranks = range(self.told.rank_count)
        return [{**status, "rank": rank, "is_output_rank": rank == 0, "counters": counters} for rank in ranks]

    def kpad_empty_cache(self) -> list[dict[str, Any]]:
        """Forget the learned responses; there is nothing to empty without speculation."""
        record_call("kpad_empty_cache")
        before, self.engine.n_cached = self.engine.n_cached, 0
        answer: dict[str, Any] = {"emptied": True, "cached_requests": before}
        answer["active_requests"] = len(self.engine.running)
        if self.engine.k is None:
            answer = {"emptied": False, "cached_requests": None, "active_requests": None}
        return [answer] * self.told.rank_count

    async def tokenize(self, request: web.Request) -> web.Response:
        """One token per word; the length of a templated prompt by the same rule as an answer's usage."""
        body = await request.json()
        if self.told.no_tokenize or (self.told.no_chat_template and "messages" in body):
            return web.json_response({"detail": "Not Found"}, status=404)
        ids = token_ids(*read_prompt(body, is_chat="messages" in body))
        answer = {"count": len(ids), "max_model_len": self.options.max_model_len}
        return web.json_response(answer | {"tokens": ids, "token_strs": None})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        return await self.generate(request, is_chat=True)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """``/v1/completions``."""
        return await self.generate(request, is_chat=False)

    async def generate(self, http: web.Request, *, is_chat: bool) -> web.StreamResponse:
        """One request, from its JSON to its answer."""
        body = await http.json()
        self.n_received += 1
        number = self.n_received
        if number == self.told.die_after_requests:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            no_template = NO_TEMPLATE if self.told.no_chat_template and is_chat else None
            if refusal := self.told.error_400_all or no_template:
                raise Refused(error(refusal, 400))
            request = read_request(body, self.name, self.options, self.told.tokens, is_chat=is_chat)
            request.loop_words = self.told.loop_words
            record_call(http.path, request.prompt)
            if self.is_unavailable():
                raise Refused(error("Service unavailable", 503))
            self.engine.add(request)
            if number == self.told.lose_core_after_requests:
                self.is_core_lost = True
                self.child.kill()
            if number == self.told.die_core_after_requests:
                # The request is in, and fails in mid-stream.
                self.child.kill()
                self.fail_engine()
        except Refused as refusal:
            return web.json_response(refusal.body, status=refusal.body["error"]["code"])
        except EngineError as death:
            return web.json_response(error(str(death), 500), status=500)
        try:
            if body.get("stream"):
                return await self.stream(http, self.answer(request, body, is_chat), number)
            answer = self.answer(request, body, is_chat)
            return await self.whole(replace(answer, tokens=self.tokens(body, number)))
        finally:
            self.engine.abort(request)

    def answer(self, request: Request, body: dict[str, Any], is_chat: bool) -> Answer:
        """The shapes that were asked for, less what the script leaves out."""
        asked = body.get("stream_options") or {}
        has_usage = bool(asked.get("include_usage")) and not self.told.no_usage
        continuous = has_usage and bool(asked.get("continuous_usage_stats"))
        return Answer(
            request=request,
            model=self.name,
            is_chat=is_chat,
            is_reasoning=self.told.reasoning,
            has_usage=has_usage,
            has_continuous_usage=continuous and not self.told.no_continuous_usage,
        )

    def tokens(self, body: dict[str, Any], number: int) -> Tokens | None:
        """Ids and log-probabilities, where both were asked for."""
        told = self.told
        if not (body.get("return_token_ids") and body.get("logprobs")):
            return None
        is_meant = not told.fault_requests or number in told.fault_requests
        wrong_at = told.wrong_token_at if is_meant else None
        return Tokens(told.token_gap, told.logprob_off, wrong_at, told.is_own_choice)

    async def whole(self, answer: Answer) -> web.Response:
        """An answer in one piece."""
        try:
            async for _ in self.pieces(answer.request):
                pass
        except EngineError as death:
            return web.json_response(error(str(death), 500), status=500)
        return web.json_response(answer.body())

    async def stream(self, http: web.Request, answer: Answer, number: int) -> web.StreamResponse:
        """An answer as server-sent events."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        words, n_sent = answer.request.words(), 0
        try:
            if answer.is_chat:
                await response.write(event(answer.role_chunk()))
            await self.fault(http, response, number, 0)
            async for n_new in self.pieces(answer.request):
                n_sent += n_new
                text = "".join(words[n_sent - n_new : n_sent])
                await response.write(event(answer.token_chunk(text, n_sent)))
                await self.fault(http, response, number, n_sent)
            if answer.has_usage:
                await response.write(event(answer.usage_chunk()))
        except EngineError as failure:
            await response.write(event(error(str(failure), 500)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def pieces(self, request: Request) -> AsyncIterator[int]:
        """New tokens of each chunk: one chunk per step, or the scripted sizes."""
        n_sent = n_held = n_chunks = 0
        sizes = self.told.tokens_per_chunk
        while n_sent < request.n_tokens:
            n_new = await request.outputs.get()
            if self.is_core_lost:
                await asyncio.Event().wait()
            if n_new is None:
                raise EngineError(DEAD)
            n_held += n_new
            while n_held:
                size = sizes[n_chunks % len(sizes)] if sizes else n_held
                if n_held < size and n_sent + n_held < request.n_tokens:
                    break
                size = min(size, n_held)
                n_sent, n_held, n_chunks = n_sent + size, n_held - size, n_chunks + 1
                yield size

    async def fault(self, http: web.Request, response: web.StreamResponse, number: int, n_sent: int) -> None:
        """The scripted end of a stream, when enough tokens went out."""
        told = self.told
        if told.fault_requests and number not in told.fault_requests:
            return
        if told.stream_error_after_tokens is not None and n_sent >= told.stream_error_after_tokens:
            raise EngineError("Internal server error")
        if told.drop_connection_after_tokens is not None and n_sent >= told.drop_connection_after_tokens:
            await drop(http)
        if told.stall_after_tokens is not None and n_sent >= told.stall_after_tokens:
            while told.ping_s is not None:
                await response.write(b": ping\n\n")
                await asyncio.sleep(told.ping_s)
            await asyncio.Event().wait()


async def drop(http: web.Request) -> None:
    """Cut the connection, once the system has taken what was written."""
    assert http.transport is not None
    while http.transport.get_write_buffer_size():  # noqa: ASYNC110 a transport has no event for this
        await asyncio.sleep(0)
    http.transport.abort()
    await asyncio.Event().wait()  # until the lost connection cancels this handler


@web.middleware
async def access_log(request: web.Request, handler: Any) -> web.StreamResponse:
    """uvicorn's line, and FastAPI's body where there is no such path."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as refusal:
        if refusal.status != 404:
            raise
        response = web.json_response({"detail": "Not Found"}, status=404)
    told = f'"{request.method} {request.path_qs} HTTP/1.1" {response.status} {response.reason}'
    logs.say(f"INFO:      - {told}")
    return response
