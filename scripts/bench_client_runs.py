"""The clients that ``bench_client.py`` compares, each in a process of its own.

    python scripts/bench_client_runs.py ours|request-function|tool [CPU]

Reads one JSON job per line from stdin and answers each with one JSON line. ``ours`` has loaded what a
sweep loads, ``request-function`` is vLLM's alone in the loop that its tool runs it in, ``tool`` is the
whole of ``vllm bench serve``. CPU seconds are of the process; those of imports do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONCURRENCY = 32
PATH = "/v1/chat/completions"
Run = Callable[[dict[str, Any]], dict[str, Any]]


def rss_mb(name: str) -> float:
    """``VmRSS`` now, or ``VmHWM``, the highest so far, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def ours() -> Run:
    """This project's pass."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import kpad_bench.sweep  # noqa: F401, PLC0415 what the process of a sweep holds
    from kpad_bench.config import Load  # noqa: PLC0415
    from kpad_bench.drive import Limits, Target, run, run_pass  # noqa: PLC0415
    from kpad_bench.metrics import tpot_s, ttft_s  # noqa: PLC0415
    from kpad_bench.prompt import Prompt, prompt_sha256  # noqa: PLC0415

    def drive(job: dict[str, Any]) -> dict[str, Any]:
        texts = job["prompts"]
        prompts = [Prompt(f"p{i}", text, None, prompt_sha256(text)) for i, text in enumerate(texts)]
        load = Load(
            concurrency=CONCURRENCY, n_prompts=len(texts), max_tokens=job["max_tokens"], temperature=0
        )
        trace = run(run_pass(Target(job["url"], "fast"), prompts, load, Limits()))
        return {
            "pass_cpu_s": trace.client_cpu_s,
            "n_chunks": sum(request.n_chunks for request in trace.requests),
            "tokens": sum(request.completion_tokens or 0 for request in trace.requests),
            "ttft_s": [ttft_s(request) for request in trace.requests],
            "tpot_s": [tpot_s(request) for request in trace.requests],
        }

    return drive


def request_function() -> Run:
    """vLLM's request function, with the session, semaphore and event loop of its tool."""
    import aiohttp  # noqa: PLC0415
    from vllm.benchmarks.lib import endpoint_request_func as theirs  # noqa: PLC0415

    async def drive(job: dict[str, Any]) -> list[Any]:
        connector = aiohttp.TCPConnector(limit=CONCURRENCY, limit_per_host=CONCURRENCY, ssl=False)
        places = asyncio.Semaphore(CONCURRENCY)
        async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:

            async def one(text: str) -> Any:
                async with places:
                    asked = theirs.RequestFuncInput(
                        prompt=text, api_url=job["url"] + PATH, prompt_len=1, output_len=job["max_tokens"],
                        model="fast", extra_body={"temperature": 0},
                    )  # fmt: skip
                    return await theirs.async_request_openai_chat_completions(asked, session)

            return list(await asyncio.gather(*(asyncio.create_task(one(text)) for text in job["prompts"])))

    def run(job: dict[str, Any]) -> dict[str, Any]:
        gc.collect()
        gc.freeze()
        cpu_s = time.process_time()
        outputs = asyncio.run(drive(job))
        return {
            "pass_cpu_s": time.process_time() - cpu_s,
            "n_chunks": sum(len(output.itl) + 1 for output in outputs),
            "tokens": sum(output.output_tokens for output in outputs),
            "ttft_s": [output.ttft for output in outputs],
            "tpot_s": [(output.latency - output.ttft) / (output.output_tokens - 1) for output in outputs],
        }

    return run


def tool() -> Run:
    """``vllm bench serve`` from its arguments to its result file."""
    from vllm.benchmarks.serve import add_cli_args, main  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parser = FlexibleArgumentParser()
    add_cli_args(parser)

    def run(job: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            data = Path(folder, "prompts.jsonl")
            data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in job["prompts"]))
            flags = {
                "backend": "openai-chat", "endpoint": PATH, "base-url": job["url"], "model": "fast",
                "dataset-name": "custom", "dataset-path": str(data), "num-prompts": len(job["prompts"]),
                "max-concurrency": CONCURRENCY, "ready-check-timeout-sec": 0, "temperature": 0,
                "result-dir": folder, "result-filename": "found.json",
            }  # fmt: skip
            switches = "disable-shuffle skip-tokenizer-init disable-tqdm save-result save-detailed"
            argv = [f"--{name}={value}" for name, value in flags.items()]
            main(parser.parse_args([*argv, *(f"--{name}" for name in switches.split())]))
            found = json.loads(Path(folder, "found.json").read_text())
        both = zip(found["itls"], found["output_lens"], strict=True)
        return {
            "n_chunks": sum(len(gaps) + 1 for gaps in found["itls"]),
            "tokens": found["total_output_tokens"],
            "ttft_s": found["ttfts"],
            "tpot_s": [sum(gaps) / (n_tokens - 1) for gaps, n_tokens in both],
        }

    return run


CLIENTS: dict[str, Callable[[], Run]] = {"ours": ours, "request-function": request_function, "tool": tool}


def main() -> None:
    """Answer jobs until stdin ends."""
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    run = CLIENTS[sys.argv[1]]()
    for line in sys.stdin:
        start_mb, cpu_s = rss_mb("VmRSS"), time.process_time()
        found = run(json.loads(line))
        found |= {"cpu_s": time.process_time() - cpu_s, "rss_mb": start_mb, "rss_peak_mb": rss_mb("VmHWM")}
        print(json.dumps(found), file=answers, flush=True)
    os._exit(0)  # torch's extensions have much to say at a normal exit


if __name__ == "__main__":
    main()
