"""Doubts that travel with a row, one by one."""

from __future__ import annotations

import pytest

from kpad_bench.config import Arm, Server
from kpad_bench.configfile import load_arms
from kpad_bench.doubts import plan_doubts, row_doubts

ARMS = load_arms()
SERVER = Server(vllm_version="0.32.0", max_model_len=4096, cudagraph_mode="FULL_AND_PIECEWISE")
CLEAN = {
    "prefix_hits": 30, "input_tokens": 100, "uniform_share_decode": 1.0, "none_share": 0.0,
    "vllm_version": "0.32.0",
}  # fmt: skip


def test_a_k_above_half_the_tree_depth_is_said() -> None:
    """The tree caps match and draft together; a deeper tree does not."""
    assert plan_doubts(ARMS["kpad"], 12, SERVER, 32) == plan_doubts(ARMS["van"], None, SERVER, 32) == []
    assert "caps drafts near 12 tokens" in plan_doubts(ARMS["suf"], 32, SERVER, 1)[0]
    deep = Arm(speculation="suffix", k=32, suffix={"suffix_decoding_max_tree_depth": 64})
    assert plan_doubts(deep, 32, SERVER, 1) == []


def test_a_k_above_what_vllm_captures_is_said() -> None:
    """K=12 at concurrency 64 is 832 tokens: beyond vLLM's own list, within the common one."""
    own = SERVER.model_copy(update={"capture_sizes": "vllm"})
    assert "up to 832 tokens" in plan_doubts(ARMS["kpad"], 12, own, 64)[0]
    assert plan_doubts(ARMS["kpad"], 12, own, 32) == []
    assert plan_doubts(ARMS["kpad"], 12, SERVER, 64) == []
    assert plan_doubts(ARMS["kpad"], 12, own.model_copy(update={"cudagraph_mode": None}), 64) == []


@pytest.mark.parametrize(
    ("changes", "mode", "said"),
    [
        ({"prefix_hits": 51}, None, "51 of 100 prompt tokens came from the prefix cache"),
        ({"uniform_share_decode": 0.9}, None, "only 90.0% of decode-only steps were uniform"),
        ({}, "PIECEWISE", "asked for cudagraph_mode FULL_AND_PIECEWISE, the server runs PIECEWISE"),
        ({"none_share": 0.2}, None, "20.0% of steps replayed no graph"),
        ({"vllm_version": "0.25.1"}, None, "vLLM is 0.25.1, the configuration is for 0.32.0"),
    ],
)
def test_each_doubt_is_told_alone(changes: dict[str, object], mode: str | None, said: str) -> None:
    """One change, one doubt."""
    (doubt,) = row_doubts(ARMS["kpad"], SERVER, CLEAN | changes, mode)
    assert said in doubt


def test_a_clean_row_has_none_and_what_is_not_known_is_not_doubted() -> None:
    """Nulls are not measured, so nothing follows from them."""
    assert row_doubts(ARMS["kpad"], SERVER, CLEAN, "FULL_AND_PIECEWISE") == []
    assert row_doubts(ARMS["kpad"], SERVER, dict.fromkeys(CLEAN), None) == []


def test_unpadded_steps_need_not_be_uniform() -> None:
    """Ragged steps are what unpadded suffix decoding does."""
    assert row_doubts(ARMS["suf"], SERVER, CLEAN | {"uniform_share_decode": 0.0}, None) == []
