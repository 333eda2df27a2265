"""The padded engine on real servers: equal tokens in every arm, cache control, and the counters.

One boot for each server variant, each asked the same prompts at concurrency 8 and 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kpad_bench.answers import greedy_answers
from kpad_bench.argv import served_name, server_argv, server_env
from kpad_bench.config import Arm, Load, ModelEntry
from kpad_bench.config import Server as ServerConfig
from kpad_bench.configfile import load_arms
from kpad_bench.corpus import freeze, open_frozen
from kpad_bench.counters import Deltas
from kpad_bench.drive import Limits, run, run_pass
from kpad_bench.graphs import graph_table, steps_by_mode
from kpad_bench.launch import Launch
from kpad_bench.metrics import acceptance_length
from kpad_bench.models import fetch, models_dir
from kpad_bench.prompt import Prompt
from kpad_bench.reading import deltas_of, front_end_steps, read
from kpad_bench.server import Server, boot
from kpad_bench.steps import StepDeltas, step_columns, uniform_share_decode
from kpad_bench.trial import target_of

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(1500)]

TABLE_WAIT_S = 60
LOAD = Load(concurrency=8, n_prompts=8, n_warmup=0, max_tokens=32, temperature=0.0)
ENTRY = ModelEntry(local="smollm2-135m", family="SmolLM2")
CONFIG = ServerConfig(
    vllm_version="0.32.0", platform="cpu", max_model_len=1024, max_num_seqs=8, dtype="float32",
    extra_args=("--enforce-eager", "--cudagraph-metrics"),
    env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOG_STATS_INTERVAL": "1"},
)  # fmt: skip
VARIANTS = [("van", None), ("suf", 12), ("kpad", 4), ("kpad", 6), ("kpad", 8), ("kpad", 12), ("kfill", 8)]
PADDED = [variant for variant in VARIANTS if variant[0] in ("kpad", "kfill")]
CONCURRENCIES = (8, 1)
CHOICES = ["indeed", "never"]
#: One request at a time is slow: a few prompts show it.
N_ONE_BY_ONE = 4

Variant = tuple[str, int | None]
Ids = dict[str, tuple[int, ...]]


@dataclass
class Passed:
    """One pass: what the server and the plugin counted in it, and the texts."""

    deltas: Deltas
    steps: StepDeltas
    front: StepDeltas
    texts: list[str]

    @property
    def acceptance(self) -> float:
        """Acceptance length."""
        found = acceptance_length(self.deltas)
        assert found is not None
        return found


@dataclass
class Asked:
    """One server variant: token ids by concurrency, and the steps they took."""

    ids: dict[int, Ids] = field(default_factory=dict)
    steps: dict[int, StepDeltas] = field(default_factory=dict)


@dataclass
class Story:
    """All boots of the module."""

    asked: dict[Variant, Asked] = field(default_factory=dict)
    passes: dict[str, Passed] = field(default_factory=dict)
    chosen: str = ""
    to_the_limit: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    steps_since_boot: int = 0


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Boot every variant in turn; one of them also for the passes around a reset."""
    fetch("smollm2-135m", print)
    home: Path = tmp_path_factory.mktemp("engine")
    freeze("humaneval-a", None, home)
    prompts = open_frozen("humaneval-a", home).measured[: LOAD.n_prompts]
    found, arms = Story(), load_arms()
    for name, k in VARIANTS:
        for server in booted(home, name, k, arms[name]):
            found.asked[name, k] = ask(server, prompts)
            if (name, k) == ("kpad", 8):
                passes_around_a_reset(found, server, prompts)
                found.chosen = content(server, structured_outputs={"choice": CHOICES}, max_tokens=20)["text"]
                found.to_the_limit = content(server, max_tokens=CONFIG.max_model_len, ignore_eos=True)
    return found


def booted(home: Path, name: str, k: int | None, arm: Arm) -> Iterator[Server]:
    """A server, stopped afterwards whatever happens."""
    boot_id = f"{name}{k}"
    launch = Launch(
        argv=server_argv(boot_id, ENTRY, arm, k, CONFIG), env=server_env(ENTRY, arm, CONFIG),
        served_name=served_name(boot_id), log_path=home / f"{boot_id}.log", models_dir=models_dir(),
        boot_timeout_s=300,
    )  # fmt: skip
    server = boot(launch)
    try:
        yield server
    finally:
        server.stop()


def ask(server: Server, prompts: tuple[Prompt, ...]) -> Asked:
    """The same prompts at each concurrency, from empty caches."""
    asked = Asked()
    for concurrency in CONCURRENCIES:
        empty(server)
        before = read(server)
        some = prompts[:N_ONE_BY_ONE] if concurrency == 1 else prompts
        answers = run(greedy_answers(target_of(server), some, LOAD.max_tokens, concurrency))
        _, steps = deltas_of(before, read(server))
        assert steps is not None
        asked.ids[concurrency] = {answer.prompt_id: tuple(answer.token_ids) for answer in answers}
        asked.steps[concurrency] = steps
    return asked


def content(server: Server, **more: Any) -> dict[str, Any]:
    """One greedy answer: text, finish_reason and total tokens."""
    prompt = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
    body = {"model": server.launch.served_name, "messages": prompt, "temperature": 0, **more}
    status, data = server.endpoint.post("/v1/chat/completions", body, timeout_s=300)
    assert status == 200, data
    answer = json.loads(data)
    (choice,) = answer["choices"]
    return {
        "text": choice["message"]["content"],
        "finish_reason": choice["finish_reason"],
        "total_tokens": answer["usage"]["total_tokens"],
    }


def empty(server: Server) -> None:
    """Empty both caches."""
    assert server.endpoint.worker_call("kpad_empty_cache") is not None
    assert server.endpoint.reset_prefix_cache()


def passes_around_a_reset(story: Story, server: Server, prompts: tuple[Prompt, ...]) -> None:
    """A cold pass, the same after emptying the caches, the same again without; then vLLM's own table.

    One request at a time: side by side, what the tree knows at a step hangs on who was faster.
    """
    load = LOAD.model_copy(update={"concurrency": 1})
    for name in ("cold", "reset", "warm"):
        if name != "warm":
            empty(server)
        before = read(server)
        trace = run(run_pass(target_of(server), prompts, load, Limits()))
        after = read(server)
        deltas, steps = deltas_of(before, after)
        front = front_end_steps(before, after)
        assert steps is not None
        assert front is not None
        assert all(request.is_ok for request in trace.requests)
        story.passes[name] = Passed(deltas, steps, front, [request.text for request in trace.requests])
    status = server.endpoint.worker_call("kpad_status")
    assert status is not None
    story.steps_since_boot = status[0]["counters"]["steps"]
    deadline = time.monotonic() + TABLE_WAIT_S
    while sum((graph_table(server.log_text()) or {}).values()) < story.steps_since_boot:
        assert time.monotonic() < deadline, "vLLM's table of graph replays does not catch up"
        time.sleep(0.1)
    story.log = server.log_text()


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
@pytest.mark.parametrize("variant", VARIANTS[1:], ids=lambda variant: f"{variant[0]}@{variant[1]}")
def test_every_arm_writes_the_tokens_of_no_speculation(
    story: Story, variant: Variant, concurrency: int
) -> None:
    """Greedy in float32: the same ids, prompt by prompt, as van at the same concurrency and at 1."""
    found, plain = story.asked[variant].ids[concurrency], story.asked["van", None].ids
    assert found == plain[concurrency]
    assert {prompt_id: found[prompt_id] for prompt_id in plain[1]} == plain[1]
    assert len(plain[1]) == N_ONE_BY_ONE


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
@pytest.mark.parametrize("variant", PADDED, ids=lambda variant: f"{variant[0]}@{variant[1]}")
def test_padded_decode_steps_are_uniform(story: Story, variant: Variant, concurrency: int) -> None:
    """Above 95 % of the decode-only steps that vLLM scheduled hold exactly 1+K tokens per request."""
    share = uniform_share_decode(story.asked[variant].steps[concurrency])
    assert share is not None
    assert share > 0.95


def test_filled_slots_hold_more_real_drafts_than_padded_ones(story: Story) -> None:
    """kfill at the same K asks the tree for more before it pads."""
    fill, pad = story.asked["kfill", 8].steps[8], story.asked["kpad", 8].steps[8]
    assert (fill.real_draft_tokens or 0) > 1.2 * (pad.real_draft_tokens or 0)


def test_a_pass_after_a_reset_is_as_cold_as_the_first(story: Story) -> None:
    """Acceptance length within 2 %, no prefix hits, the same text."""
    cold, reset = story.passes["cold"], story.passes["reset"]
    assert reset.acceptance == pytest.approx(cold.acceptance, rel=0.02)
    assert reset.deltas.prefix_hits == 0
    assert reset.texts == cold.texts


def test_a_pass_without_a_reset_is_not_cold(story: Story) -> None:
    """The suffix tree remembers the answers and the prefix cache the prompts."""
    cold, warm = story.passes["cold"], story.passes["warm"]
    assert warm.acceptance > 1.2 * cold.acceptance
    assert (warm.deltas.prefix_hits or 0) > 0
    assert warm.texts == cold.texts


def test_the_plugin_counts_the_steps_that_vllm_s_own_table_counts(story: Story) -> None:
    """All tables of the log add up to the steps since the boot; dummy runs are in neither."""
    table = graph_table(story.log)
    assert table is not None
    assert steps_by_mode(table) == {"NONE": story.steps_since_boot}


def test_the_front_end_hears_of_the_steps_that_the_worker_counts(story: Story) -> None:
    """Two ways into vLLM, one answer: steps, decode-only steps, their requests and graph modes."""
    counted = ("steps", "decode_steps", "decode_requests", "mode_full", "mode_piecewise", "mode_none")
    for passed in story.passes.values():
        assert [getattr(passed.front, name) for name in counted] == [
            getattr(passed.steps, name) for name in counted
        ]


def test_decode_steps_are_timed(story: Story) -> None:
    """All but the last step of a request that is alone have a time; mean and median are of one size."""
    for passed in story.passes.values():
        columns = step_columns(passed.steps)
        mean, median = columns["step_time_mean"], columns["step_time_p50"]
        assert isinstance(mean, float)
        assert isinstance(median, float)
        assert 0.1 < mean / median < 10
        assert (passed.steps.timed_decode_steps or 0) >= (passed.steps.decode_steps or 0) - LOAD.n_prompts


def test_a_structured_answer_obeys_its_grammar_on_a_padded_server(story: Story) -> None:
    """The scheduler cuts drafts, pads too, where the grammar refuses them."""
    assert story.chosen in CHOICES


def test_a_request_up_to_the_context_limit_ends_well_on_a_padded_server(story: Story) -> None:
    """Pads never go past max_model_len: the answer fills the context and ends for its length."""
    assert story.to_the_limit["finish_reason"] == "length"
    assert story.to_the_limit["total_tokens"] == CONFIG.max_model_len
