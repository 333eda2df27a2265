"""Log lines in the shapes of vLLM 0.32 (read from a real boot), with invented values."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from fake_vllm.engine import BLOCK_SIZE, NUM_BLOCKS
from fake_vllm.options import Options

ROUTES = (
    ("/health", "GET"),
    ("/version", "GET"),
    ("/metrics", "GET"),
    ("/v1/models", "GET"),
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
)


def say(text: str) -> None:
    """Write at once, past Python's buffer: signal handlers log too, in the middle of another line's write."""
    os.write(1, f"{text}\n".encode())


def flood(n_mib: int) -> None:
    """So many MiB, in lines of 128 bytes."""
    for number in range(n_mib * 128):
        text = line("EngineCore", "cuda_graph.py:9", f"flood {number}").ljust(127) + "\n"
        block = memoryview(text.encode() * 64)
        while block:
            block = block[os.write(1, block) :]


def line(who: str, where: str, text: str, level: str = "INFO", pid: int | None = None) -> str:
    """One line of vLLM's logger; the stamp is local and has no year."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    return f"({who} pid={pid or os.getpid()}) {level} {stamp} [{where}] {text}"


def api(where: str, text: str, level: str = "INFO") -> None:
    """A line of the API process."""
    say(line("APIServer", where, text, level))


def banner(options: Options) -> None:
    """The first lines of a boot."""
    say("Triton is installed, but doesn't include CPU backend. Disabling Triton.")
    api("api_utils.py:347", "  █▄█▀ █     █     █     █  version 0.32.0")
    api("api_utils.py:347", f"   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀  model   {options.model}")
    shown = {"model": options.model, "max_model_len": options.max_model_len, "uds": options.uds}
    api("api_utils.py:286", f"non-default args: {shown}")
    # A healthy log holds this too.
    warning = "Found ulimit of 1024 and failed to automatically increase with error current limit exceeds"
    warning += " maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`"
    api("system_utils.py:255", warning, "WARNING")
    api("model.py:733", "Resolved architecture: LlamaForCausalLM")
    api("model.py:2152", f"Using max model len {options.max_model_len}")


def engine_lines(options: Options, k: int | None) -> Iterator[tuple[str, str]]:
    """(where, text) of what the engine core says while it starts. ``k``: what it really runs with."""
    spec = None if k is None else f"SpeculativeConfig(method='suffix', model=None, num_spec_tokens={k})"
    config = f"model='{options.model}', speculative_config={spec}, tokenizer='{options.model}'"
    config += f", dtype=torch.{options.dtype}, max_seq_len={options.max_model_len}, tensor_parallel_size=1"
    config += f", enforce_eager={options.is_eager}, device_config=cpu, seed=0"
    yield "core.py:133", f"Initializing a V1 LLM engine (v0.32.0) with config: {config}"
    backends = "Using CPU_ATTN attention backend out of potential backends: ['CPU_ATTN']."
    yield "cpu.py:112", backends
    yield "default_loader.py:501", "Loading weights took 0.31 seconds"
    n_tokens = NUM_BLOCKS * BLOCK_SIZE
    size = f"CPU KV cache size: {n_tokens:,} tokens, Maximum concurrency for {options.max_model_len:,} tokens"
    yield "kv_cache_utils.py:2327", f"{size} per request: {n_tokens / options.max_model_len:.2f}x"
    yield "core.py:402", "init engine (profile, create kv cache, warmup model) took 0.42 s"


def engine(options: Options, k: int | None, core_pid: int) -> None:
    """What the engine core says while it starts; printed on its behalf."""
    for where, text in engine_lines(options, k):
        say(line("EngineCore", where, text, pid=core_pid))


def started(address: str) -> None:
    """The last lines of a boot."""
    api("entry.py:136", "Supported tasks: ['generate']")
    api("entry.py:140", f"Starting vLLM server on {address}")
    api("launcher.py:186", "Available routes are:")
    for path, method in ROUTES:
        api("launcher.py:195", f"Route: {path}, Methods: {method}")
    say(f"INFO:     Started server process [{os.getpid()}]")
    say("INFO:     Waiting for application startup.")
    say("INFO:     Application startup complete.")


def stopping(core_pid: int) -> None:
    """What SIGTERM brings."""
    api("launcher.py:254", "[shutdown] API server: shutdown triggered")
    api("core_client.py:772", "[shutdown] MPClient: stopping engine manager")
    text = f"[shutdown] Process manager: force killing remaining process EngineCore pid {core_pid}"
    api("utils.py:653", text, "WARNING")
