"""Doubts that travel with a row: pure, from the configuration and from what was measured.

A doubt is neither a failure nor a verdict. It says what a reader has to know beside the number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpad_bench.capture import DEFAULT_CEILING_TOKENS
from kpad_bench.config import VLLM_SUFFIX_DEFAULTS, Arm, Server

#: Prompts of a pass share template and lead-in with each other; more than that was there before it.
MOST_PREFIX_HITS = 0.5
#: Padded decode steps that are not uniform: near max_model_len vLLM drafts for nobody.
LEAST_UNIFORM = 0.95
#: Share of steps without a graph from which they are worth a word.
MOST_WITHOUT_GRAPH = 0.05


def plan_doubts(arm: Arm, k: int | None, server: Server, concurrency: int) -> list[str]:
    """What is doubtful before anything ran."""
    return [*_tree_doubts(arm, k), *_ceiling_doubts(arm, k, server, concurrency)]


def _tree_doubts(arm: Arm, k: int | None) -> list[str]:
    depth = int({**VLLM_SUFFIX_DEFAULTS, **arm.suffix}["suffix_decoding_max_tree_depth"])
    if k is None or k <= depth // 2:
        return []
    return [
        f"k {k}: a tree of depth {depth} caps drafts near {depth // 2} tokens when match and draft share it; "
        "a larger suffix_decoding_max_tree_depth lifts that"
    ]


def _ceiling_doubts(arm: Arm, k: int | None, server: Server, concurrency: int) -> list[str]:
    width = concurrency * (1 + (k or 0))
    mode = arm.cudagraph_mode or server.cudagraph_mode
    if mode is None or server.capture_sizes == "common" or width <= DEFAULT_CEILING_TOKENS:
        return []
    return [
        f"k {k}: decode steps of up to {width} tokens, vLLM's own list may end at {DEFAULT_CEILING_TOKENS}: "
        "above it no graph is replayed; capture_sizes: common covers them"
    ]


def row_doubts(arm: Arm, server: Server, columns: Mapping[str, Any], resolved_mode: str | None) -> list[str]:
    """What the measured columns make doubtful. ``resolved_mode``: the graph mode the server runs."""
    found = [_prefix_doubt(columns), _uniform_doubt(arm, columns), _mode_doubt(arm, server, resolved_mode)]
    found += [_graph_doubt(columns), _version_doubt(server, columns)]
    return [doubt for doubt in found if doubt is not None]


def _prefix_doubt(columns: Mapping[str, Any]) -> str | None:
    hits, tokens = columns.get("prefix_hits") or 0, columns.get("input_tokens") or 0
    if not hits > MOST_PREFIX_HITS * tokens > 0:
        return None
    return f"{hits} of {tokens} prompt tokens came from the prefix cache: the server has seen these prompts"


def _uniform_doubt(arm: Arm, columns: Mapping[str, Any]) -> str | None:
    share = columns.get("uniform_share_decode")
    if not arm.pad or share is None or share >= LEAST_UNIFORM:
        return None
    return (
        f"only {share:.1%} of decode-only steps were uniform: requests near max_model_len, or trimmed drafts"
    )


def _mode_doubt(arm: Arm, server: Server, resolved_mode: str | None) -> str | None:
    asked = arm.cudagraph_mode or server.cudagraph_mode
    if asked is None or resolved_mode is None or resolved_mode == asked:
        return None
    return f"asked for cudagraph_mode {asked}, the server runs {resolved_mode}"


def _graph_doubt(columns: Mapping[str, Any]) -> str | None:
    share = columns.get("none_share")
    if share is None or share <= MOST_WITHOUT_GRAPH:
        return None
    return f"{share:.1%} of steps replayed no graph: above the captured sizes, or eager"


def _version_doubt(server: Server, columns: Mapping[str, Any]) -> str | None:
    version = columns.get("vllm_version")
    if version in (None, server.vllm_version):
        return None
    return f"vLLM is {version}, the configuration is for {server.vllm_version}"
