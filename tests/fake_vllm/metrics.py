"""``/metrics`` in the text and number format of vLLM 0.32's Prometheus client (read from a real dump)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from fake_vllm.engine import BLOCK_SIZE, NUM_BLOCKS, Engine

STARTED_S = time.time()
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
STEP_BUCKETS = tuple(2.0**power for power in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
SECOND_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 80.0)


def number(value: float) -> str:
    """Go's float format, as the client writes it: exponents from a million on."""
    text = repr(float(value))
    n_whole = text.find(".")
    if value <= 0 or n_whole <= 6 or "e" in text:
        return text
    digits = f"{text[0]}.{text[1:n_whole]}{text[n_whole + 1 :]}".rstrip("0.")
    return f"{digits}e+0{n_whole - 1}"


class Exposition:
    """Collects the lines of one scrape."""

    def __init__(self, model_name: str) -> None:
        self.labels = {"engine": "0", "model_name": model_name}
        self.lines: list[str] = []

    def sample(self, name: str, value: float, labels: Mapping[str, str] = {}) -> None:
        """One line; labels in order of name, as in a real dump."""
        inside = ",".join(f'{key}="{text}"' for key, text in sorted({**self.labels, **labels}.items()))
        self.lines.append(f"{name}{{{inside}}} {number(value)}")

    def head(self, name: str, kind: str, doc: str) -> None:
        """HELP and TYPE."""
        self.lines += [f"# HELP {name} {doc}", f"# TYPE {name} {kind}"]

    def gauge(self, name: str, value: float, doc: str) -> None:
        """A gauge with one series."""
        self.head(name, "gauge", doc)
        self.sample(name, value)

    def counter(self, name: str, values: Mapping[str, float] | float, doc: str, label: str = "") -> None:
        """A counter, one series or one by ``label``, with its ``_created`` twin."""
        series = values if isinstance(values, Mapping) else {"": values}
        self.head(f"{name}_total", "counter", doc)
        for key, value in series.items():
            self.sample(f"{name}_total", value, {label: key} if label else {})
        self.head(f"{name}_created", "gauge", doc)
        for key in series:
            self.sample(f"{name}_created", STARTED_S, {label: key} if label else {})

    def histogram(self, name: str, values: Iterable[float], bounds: tuple[float, ...], doc: str) -> None:
        """A histogram with cumulative buckets and its ``_created`` twin."""
        seen = list(values)
        self.head(name, "histogram", doc)
        for bound in bounds:
            self.sample(f"{name}_bucket", sum(value <= bound for value in seen), {"le": str(bound)})
        self.sample(f"{name}_bucket", len(seen), {"le": "+Inf"})
        self.sample(f"{name}_count", len(seen))
        self.sample(f"{name}_sum", sum(seen))
        self.head(f"{name}_created", "gauge", doc)
        self.sample(f"{name}_created", STARTED_S)


def render(engine: Engine, model_name: str, extra_tokens: int = 0) -> str:
    """The body of one scrape. ``extra_tokens``: by how much the generation counter lies."""
    out, count = Exposition(model_name), engine.count
    out.lines += ["# HELP process_open_fds Number of open file descriptors.", "# TYPE process_open_fds gauge"]
    out.lines += ["process_open_fds 34.0"]
    if engine.k is not None:
        _speculation(out, engine, engine.k)
    out.gauge("vllm:num_requests_running", len(engine.running), "Number of requests in execution batches.")
    out.gauge("vllm:num_requests_waiting", len(engine.waiting), "Number of requests waiting.")
    out.counter("vllm:prefix_cache_queries", count["prompt_tokens"], "Prefix cache queries, in tokens.")
    out.counter("vllm:prefix_cache_hits", count["prefix_hits"], "Prefix cache hits, in tokens.")
    out.counter("vllm:num_preemptions", 0, "Cumulative number of preemption from the engine.")
    out.counter("vllm:prompt_tokens", count["prompt_tokens"], "Number of prefill tokens processed.")
    made = count["generation_tokens"] + extra_tokens
    out.counter("vllm:generation_tokens", made, "Number of generation tokens processed.")
    success = {reason: engine.finished[reason] for reason in FINISH_REASONS}
    out.counter("vllm:request_success", success, "Count of processed requests.", "finished_reason")
    out.histogram("vllm:iteration_tokens_total", engine.step_sizes, STEP_BUCKETS, "Tokens per engine_step.")
    out.histogram("vllm:time_to_first_token_seconds", engine.ttft_s, SECOND_BUCKETS, "Time to first token.")
    out.histogram("vllm:inter_token_latency_seconds", engine.itl_s, SECOND_BUCKETS, "Inter-token latency.")
    _cache_config(out)
    return "\n".join(out.lines) + "\n"


def _speculation(out: Exposition, engine: Engine, k: int) -> None:
    name, count = "vllm:spec_decode_num", engine.count
    out.counter(f"{name}_drafts", count["drafts"], "Number of spec decoding drafts.")
    out.counter(f"{name}_draft_tokens", count["draft_tokens"], "Number of draft tokens.")
    out.counter(f"{name}_accepted_tokens", count["accepted_tokens"], "Number of accepted tokens.")
    by_position = {str(position): engine.accepted_at[position] for position in range(k)}
    doc = "Accepted tokens per draft position."
    out.counter(f"{name}_accepted_tokens_per_pos", by_position, doc, "position")


def _cache_config(out: Exposition) -> None:
    name = "vllm:cache_config_info"
    out.head(name, "gauge", "Information of the LLMEngine CacheConfig")
    labels = {
        "block_size": str(BLOCK_SIZE),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(NUM_BLOCKS),
        "num_gpu_blocks_override": "None",
    }
    # As in a real dump, this one has no model_name.
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    out.lines.append(f"{name}{{{inside}}} 1.0")
