"""Cache control and counters on one real padded server: what a reset undoes, and vLLM's own table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kpad_bench.argv import served_name, server_argv, server_env
from kpad_bench.config import Arm, Load, ModelEntry
from kpad_bench.config import Server as ServerConfig
from kpad_bench.corpus import freeze, open_frozen
from kpad_bench.counters import Deltas
from kpad_bench.drive import Limits, run, run_pass
from kpad_bench.graphs import graph_table, steps_by_mode
from kpad_bench.launch import Launch
from kpad_bench.metrics import acceptance_length
from kpad_bench.models import fetch, models_dir
from kpad_bench.prompt import Prompt
from kpad_bench.reading import deltas_of, read
from kpad_bench.server import Server, boot
from kpad_bench.steps import StepDeltas, step_columns
from kpad_bench.trial import target_of

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(900)]

K, TABLE_WAIT_S = 8, 60
LOAD = Load(concurrency=4, n_prompts=8, n_warmup=2, max_tokens=64, temperature=0.0)
ARM = Arm(speculation="suffix", k=K, pad=True)
CONFIG = ServerConfig(
    vllm_version="0.32.0", platform="cpu", max_model_len=1024, max_num_seqs=8, dtype="float32",
    extra_args=("--enforce-eager", "--cudagraph-metrics"),
    env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOG_STATS_INTERVAL": "1"},
)  # fmt: skip


@dataclass
class Passed:
    """One pass: what the server and the plugin counted in it."""

    deltas: Deltas
    steps: StepDeltas
    texts: list[str]


@dataclass
class Engine:
    """A server after its passes."""

    server: Server
    passes: dict[str, Passed] = field(default_factory=dict)

    def drive(self, name: str, prompts: tuple[Prompt, ...]) -> None:
        """One pass, counted."""
        before = read(self.server)
        trace = run(run_pass(target_of(self.server), prompts, LOAD, Limits()))
        deltas, steps = deltas_of(before, read(self.server))
        assert steps is not None
        assert all(request.is_ok for request in trace.requests)
        self.passes[name] = Passed(deltas, steps, [request.text for request in trace.requests])

    def acceptance(self, name: str) -> float:
        """Acceptance length of a pass."""
        found = acceptance_length(self.passes[name].deltas)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Cold pass, the same after emptying both caches, and the same again without."""
    fetch("smollm2-135m", print)
    home: Path = tmp_path_factory.mktemp("engine")
    freeze("humaneval-a", None, home)
    prompts = open_frozen("humaneval-a", home).measured[: LOAD.n_prompts]
    entry = ModelEntry(local="smollm2-135m", family="SmolLM2")
    launch = Launch(
        argv=server_argv("real", entry, ARM, K, CONFIG), env=server_env(entry, ARM, CONFIG),
        served_name=served_name("real"), log_path=home / "server.log", models_dir=models_dir(),
        boot_timeout_s=300,
    )  # fmt: skip
    server = boot(launch)
    try:
        found = Engine(server)
        found.drive("cold", prompts)
        emptied = server.endpoint.worker_call("kpad_empty_cache")
        assert emptied is not None
        assert [answer["emptied"] for answer in emptied] == [True]
        assert server.endpoint.reset_prefix_cache()
        found.drive("reset", prompts)
        found.drive("warm", prompts)
        yield found
    finally:
        server.stop()


def test_a_pass_after_a_reset_is_as_cold_as_the_first(engine: Engine) -> None:
    """Acceptance length within 2 %, no prefix hits, the same text."""
    assert engine.acceptance("reset") == pytest.approx(engine.acceptance("cold"), rel=0.02)
    assert engine.passes["reset"].deltas.prefix_hits == 0
    assert engine.passes["reset"].texts == engine.passes["cold"].texts


def test_a_pass_without_a_reset_is_not_cold(engine: Engine) -> None:
    """The suffix tree remembers the answers and the prefix cache the prompts."""
    assert engine.acceptance("warm") > 1.2 * engine.acceptance("cold")
    assert (engine.passes["warm"].deltas.prefix_hits or 0) > 0
    assert engine.passes["warm"].texts == engine.passes["cold"].texts


def test_the_plugin_counts_the_steps_that_vllm_s_own_table_counts(engine: Engine) -> None:
    """All tables of the log add up to the steps since the boot; dummy runs are in neither."""
    deadline = time.monotonic() + TABLE_WAIT_S
    status = engine.server.endpoint.worker_call("kpad_status")
    assert status is not None
    steps = status[0]["counters"]["steps"]
    while (table := graph_table(engine.server.log_text())) is None or sum(table.values()) < steps:
        assert time.monotonic() < deadline, f"the table shows {table}, the plugin counted {steps}"
        time.sleep(0.1)
    assert steps_by_mode(table) == {"NONE": steps}


def test_decode_steps_are_uniform_and_timed(engine: Engine) -> None:
    """Above 95 % of decode-only steps have 1+K tokens per request; nearly all are timed."""
    for passed in engine.passes.values():
        columns = step_columns(passed.steps)
        assert isinstance(columns["uniform_share_decode"], float)
        assert columns["uniform_share_decode"] > 0.95
        assert isinstance(columns["step_time_mean"], float)
        assert 0 < columns["step_time_mean"] < 60
        assert passed.steps.timed_decode_steps is not None
        assert passed.steps.decode_steps is not None
        assert passed.steps.timed_decode_steps >= 0.9 * passed.steps.decode_steps
