"""Steps as vLLM's API process hears of them: a stat logger, for servers whose worker cannot be counted.

Loaded by vLLM in its API process (entry point ``kpad`` of ``vllm.stat_logger_plugins``). It keeps plain
integers and shows them on ``/metrics`` as ``kpad:front_*_total``, so that their window is that of vLLM's
own counters. The worker's tally (``tally.py``) knows more and is used where there is one; this is what
vLLM's V2 runner has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import StatLoggerBase

from kpad_bench.padding.tally import FrontTally

PREFIX = "kpad:front_"


class StepLogger(StatLoggerBase, Collector):  # type: ignore[misc] # vLLM ships no types here
    """vLLM's hook: told of every step of one engine, and a source of samples for ``/metrics``."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.engine = str(engine_index)
        self.tally = FrontTally()
        REGISTRY.register(self)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """One step's statistics; None for what vLLM has nothing to say about."""
        if iteration_stats is None:
            return
        graph = getattr(scheduler_stats, "cudagraph_stats", None)
        self.tally.step(
            len(iteration_stats.time_to_first_tokens_iter),
            iteration_stats.inter_token_latencies_iter,
            None if graph is None else graph.runtime_mode,
        )

    def log_engine_initialized(self) -> None:
        """Nothing to say at the start."""

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The families come and go with what was counted, so none is announced."""
        return iter(())

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts as Prometheus counters, labelled with the engine as vLLM labels its own."""
        for name, count in self.tally.read().items():
            family = CounterMetricFamily(f"{PREFIX}{name}", "Counted by kpad.", labels=["engine"])
            family.add_metric([self.engine], count)
            yield family
