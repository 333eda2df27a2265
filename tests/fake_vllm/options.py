"""vLLM's command line and environment, as far as the fake cares. Unknown flags are ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What the server was asked to be. ``k`` is None without speculation."""

    argv: tuple[str, ...]
    model: str
    served_name: str
    uds: str | None
    host: str
    port: int
    max_model_len: int
    max_num_seqs: int
    k: int | None
    is_eager: bool
    dtype: str
    pads: bool
    plugins: tuple[str, ...]
    is_dev_mode: bool


def flags(argv: Sequence[str]) -> dict[str, str]:
    """``--flag value``, ``--flag=value`` and bare ``--flag`` (empty text); the last one wins."""
    found: dict[str, str] = {}
    for index, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, has_equals, value = word.partition("=")
        if not has_equals and index + 1 < len(argv) and not argv[index + 1].startswith("--"):
            value = argv[index + 1]
        found[name] = value
    return found


def parse(argv: Sequence[str]) -> Options:
    """Read the command line and the variables of the plugin."""
    given = flags(argv)
    speculative = json.loads(given.get("--speculative-config") or "{}")
    k = speculative.get("num_speculative_tokens")
    model = given.get("--model", "some/model")
    return Options(
        argv=tuple(argv),
        model=model,
        served_name=given.get("--served-model-name") or model,
        uds=given.get("--uds"),
        host=given.get("--host") or "127.0.0.1",
        port=int(given.get("--port", "8000")),
        max_model_len=int(given.get("--max-model-len", "2048")),
        max_num_seqs=int(given.get("--max-num-seqs", "256")),
        k=k,
        is_eager="--enforce-eager" in given,
        dtype=given.get("--dtype", "bfloat16"),
        pads=k is not None and os.environ.get("VLLM_SUFFIX_PAD_UNIFORM") == "1",
        # Not stripped: vLLM compares the entries as they are.
        plugins=tuple(os.environ.get("VLLM_PLUGINS", "").split(",")),
        is_dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
    )
