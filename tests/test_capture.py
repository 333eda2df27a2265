"""Capture sizes: exact for every decode step, one ceiling for all arms, nothing that vLLM would drop."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.argv import DYNAMIC_K, arm_env
from kpad_bench.capture import capture_sizes, common_ceiling
from kpad_bench.config import Arm
from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.errors import UsageError
from kpad_bench.plan import make_plan


@pytest.mark.parametrize(
    ("concurrency", "ks", "ceiling"),
    [
        (32, [4, 6, 8, 12], 512),
        (32, [32], 32 * 33),
        (64, [4, 6, 8, 12], 64 * 13),
        (1, [], 512),
    ],
)
def test_ceiling_reaches_the_widest_decode_step_of_any_arm(
    concurrency: int, ks: list[int], ceiling: int
) -> None:
    """At least vLLM's default, and at least concurrency x (1 + largest K): 64 x 13 = 832 is above 512."""
    assert common_ceiling(concurrency, ks) == ceiling


def test_sizes_of_a_small_arm_are_the_expected_ones() -> None:
    """K=4 at concurrency 3 under a ceiling of 150: 5, 10, 15, then coarse multiples of 5."""
    assert capture_sizes(4, 3, 150) == [5, 10, 15, 80, 145, 150]


@given(
    k=st.one_of(st.none(), st.integers(1, 32)), concurrency=st.integers(1, 128), ceiling=st.integers(1, 2048)
)
def test_every_decode_step_has_a_graph_of_exactly_its_size(
    k: int | None, concurrency: int, ceiling: int
) -> None:
    """1 to concurrency requests x (1 + K) tokens are captured, all sizes are multiples, the top reaches."""
    sizes, query_len = capture_sizes(k, concurrency, ceiling), 1 + (k or 0)
    assert {query_len * n for n in range(1, concurrency + 1)} <= set(sizes)
    assert all(size % query_len == 0 for size in sizes)
    assert sizes == sorted(set(sizes))
    assert ceiling <= sizes[-1] < max(ceiling, concurrency * query_len) + query_len


NIGHTLY = find_config("nightly-dgx-b200")


def argv_of(arm: str, k: int | None, **changes: object) -> str:
    """The command line of one variant of the nightly, with changes of its configuration."""
    plan = make_plan(load_sweep(NIGHTLY, changes), {})
    boot = next(boot for _, boot in plan.boots() if (boot.arm, boot.k) == (arm, k))
    return " ".join(boot.argv)


def captured(argv: str) -> list[int]:
    """The capture sizes of a command line."""
    options = json.loads(argv.split("--compilation-config ")[1].split(" --", maxsplit=1)[0])
    return options["cudagraph_capture_sizes"]


def test_every_arm_of_the_nightly_captures_up_to_one_ceiling() -> None:
    """suf's 32 x 33 tokens is the widest decode step; no arm stops below it."""
    variants = [("van", None), ("suf", 32), ("kpad", 4), ("kpad", 6), ("kpad", 8), ("kpad", 12)]
    tops = {variant: captured(argv_of(*variant))[-1] for variant in variants}
    assert min(tops.values()) == 1056
    assert max(tops.values()) < 1056 + 13


def test_more_concurrency_than_vllm_captures_for_is_planned_for() -> None:
    """K=12 at concurrency 64 needs 832 tokens, above vLLM's 512: sized by the plan, not left to NONE."""
    argv = argv_of("kpad", 12, arms=["van", "kpad"], **{"load.concurrency": 64})
    assert 832 in captured(argv)


def test_the_published_list_is_left_to_vllm_when_asked() -> None:
    """capture_sizes: vllm states the mode alone."""
    argv = argv_of("kpad", 8, **{"server.capture_sizes": "vllm"})
    assert '--compilation-config {"cudagraph_mode":"FULL_AND_PIECEWISE"}' in argv


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"server.max_num_seqs": 16}, "max_num_seqs 16 is below the concurrency 32"),
        ({"server.max_num_batched_tokens": 1000}, "below a decode step of 32 x (1 + 32) = 1056 tokens"),
        ({"server.extra_args": [f'{{"{DYNAMIC_K}":[[1,4,8]]}}']}, "dynamic K ends a suffix server"),
        ({"server.env": {"VLLM_PLUGINS": ""}}, "VLLM_PLUGINS: '': vLLM would not load kpad"),
        ({"server.env": {"VLLM_PLUGINS": " kpad"}}, "without spaces"),
        ({"server.env": {"VLLM_PLUGINS": "a, kpad"}}, "without spaces"),
    ],
)  # fmt: skip
def test_what_is_known_not_to_work_is_refused_with_the_way_out(changes: dict[str, object], said: str) -> None:
    """Before anything boots."""
    with pytest.raises(UsageError) as caught:
        make_plan(load_sweep(NIGHTLY, changes), {})
    assert said in str(caught.value)


def test_an_always_rejected_pad_is_refused_on_the_cpu() -> None:
    """The CPU build accepts -1; on CUDA it is a legal policy."""
    arm = Arm(speculation="suffix", k=4, pad=True, pad_token=-1)
    resolved = load_sweep(find_config("quickstart")).model_copy(update={"arms": {"mine": arm}})
    with pytest.raises(UsageError, match="pad_token -1: vLLM's CPU build accepts it"):
        make_plan(resolved, {})
    night = load_sweep(NIGHTLY)
    config = night.config.model_copy(update={"arms": ("mine",), "sentinel": None})
    make_plan(night.model_copy(update={"config": config, "arms": {"mine": arm}}), {})


def test_a_pad_token_reaches_the_server_only_where_it_is_not_the_default() -> None:
    """KPAD_PAD_ID is set for last, -1 and ids."""
    assert "KPAD_PAD_ID" not in arm_env(Arm(speculation="suffix", k=4, pad=True))
    assert arm_env(Arm(speculation="suffix", k=4, pad=True, pad_token=7))["KPAD_PAD_ID"] == "7"
