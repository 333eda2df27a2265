"""How a server's command line and environment are written: pure, from configuration alone.

Knows vLLM's flags; never looks at a GPU, a file or a clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kpad_bench.config import VLLM_SUFFIX_DEFAULTS, Arm, ModelEntry, Resolved, Server
from kpad_bench.slotconfig import OF_A_SLOT

#: Stand-ins in an argv that only the boot can fill.
SOCKET, PORT, PYTHON, MODEL_DIR = "{socket}", "{port}", "{python}", "{models}"
#: Key of --speculative-config that lets vLLM choose K by batch size.
DYNAMIC_K = "num_speculative_tokens_per_batch_size"


def server_argv(
    boot_id: str, entry: ModelEntry, arm: Arm, k: int | None, server: Server, sizes: list[int] | None = None
) -> tuple[str, ...]:
    """The server's command line. ``{python}``, ``{models}`` and ``{socket}`` are filled at boot."""
    model = entry.hf_id or _local_model(entry.local or "")
    where = ("--uds", SOCKET) if server.port is None else ("--host", "127.0.0.1", "--port", PORT)
    revision = ("--revision", entry.revision) if entry.hf_id and entry.revision else ()
    return (
        *server.launcher, "--model", model, *revision,
        "--served-model-name", served_name(boot_id), *where,
        *server_flags(entry, arm, k, server, sizes),
    )  # fmt: skip


def served_name(boot_id: str) -> str:
    """The model name a boot answers to, so that an orphan with the same model is not mistaken for it."""
    return f"kpad-{boot_id}"


def server_flags(
    entry: ModelEntry, arm: Arm, k: int | None, server: Server, sizes: list[int] | None = None
) -> list[str]:
    """The flags that can change the number. ``sizes``: capture sizes in tokens; None leaves them to vLLM."""
    flags = [
        "--tensor-parallel-size",
        str(entry.tensor_parallel),
        "--max-model-len",
        str(server.max_model_len),
    ]
    flags += ["--generation-config", "vllm", "--seed", "0"]
    optional = {
        "--gpu-memory-utilization": server.gpu_memory_utilization,
        "--max-num-seqs": server.max_num_seqs,
        "--max-num-batched-tokens": server.max_num_batched_tokens,
        "--dtype": server.dtype,
    }
    for flag, value in optional.items():
        flags += [] if value is None else [flag, str(value)]
    if entry.trust_remote_code:
        flags.append("--trust-remote-code")
    mode = arm.cudagraph_mode or server.cudagraph_mode
    if mode is not None:
        graphs = {"cudagraph_mode": mode} | ({} if sizes is None else {"cudagraph_capture_sizes": sizes})
        flags += ["--compilation-config", _json(graphs)]
    if arm.speculation == "suffix":
        flags += [
            "--speculative-config",
            _json({"method": "suffix", "num_speculative_tokens": k, **arm.suffix}),
        ]
    return [*flags, *server.extra_args, *entry.extra_args, *entry.optional_args, *arm.extra_args]


def arm_env(arm: Arm) -> dict[str, str]:
    """Variables that make the arm what it is."""
    pads = {"VLLM_SUFFIX_PAD_UNIFORM": "1"} if arm.pad else {}
    if arm.pad and arm.pad_token != "auto":
        pads["KPAD_PAD_ID"] = str(arm.pad_token)
    return {**arm.env, **pads}


def server_env(entry: ModelEntry, arm: Arm, server: Server) -> dict[str, str]:
    """What the harness sets on top of the few variables a server inherits."""
    fixed = {
        "VLLM_PLUGINS": "kpad",
        "ARCTIC_INFERENCE_ENABLED": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # never a download in a timed boot: `models prefetch` comes before
        "TZ": "UTC",
    }
    return {**fixed, **server.env, **entry.env, **arm_env(arm)}


def suffix_settings(arm: Arm) -> dict[str, float | int | None]:
    """Suffix tree settings in force, as columns of the trials table; all None without speculation."""
    merged = {**VLLM_SUFFIX_DEFAULTS, **arm.suffix}
    none = arm.speculation == "none"
    return {
        name.replace("suffix_decoding_", "suffix_"): None if none else value for name, value in merged.items()
    }


def refusals(resolved: Resolved) -> Iterator[str]:
    """What is known not to work, each with its reason and the way out."""
    server = resolved.config.server
    yield from _slot_refusals(resolved)
    parts: list[ModelEntry | Arm] = [*resolved.models.values(), *resolved.arms.values()]
    for spec, arm in resolved.arms.items():
        if arm.pad and arm.pad_token == -1 and server.platform == "cpu":
            yield f"arms: {spec}: pad_token -1: vLLM's CPU build accepts it; use auto, last or a token id"
    texts = [*server.extra_args, *(text for part in parts for text in part.extra_args)]
    if any(DYNAMIC_K in text for text in texts):
        yield (
            f"extra_args: {DYNAMIC_K}: vLLM's dynamic K ends a suffix server at the first change of tier "
            "(an assertion in the proposer) and forces PIECEWISE graphs; name fixed Ks in k"
        )
    for env in (server.env, *(part.env for part in parts)):
        plugins = env.get("VLLM_PLUGINS", "kpad")
        if "kpad" not in plugins.split(",") or " " in plugins:
            yield (
                f"env: VLLM_PLUGINS: {plugins!r}: vLLM would not load kpad; leave it out, or write kpad and "
                "others with commas and without spaces"
            )


def _slot_refusals(resolved: Resolved) -> Iterator[str]:
    """Servers that no slot has room for, or that choose GPUs themselves."""
    slots = resolved.config.slots
    if not slots:
        return
    largest = max(slots, key=lambda slot: len(slot.gpus))
    for tag, entry in resolved.models.items():
        if not any(slot.fits(entry.tensor_parallel) for slot in slots):
            n = entry.tensor_parallel
            yield (
                f"slots: model {tag} needs {n} GPUs (tensor_parallel), the largest slot, {largest.name}, has "
                f"{len(largest.gpus)}: give it a slot of {n}, take the model out, or leave slots out"
            )
    parts: dict[str, ModelEntry | Arm] = {**resolved.models, **resolved.arms}
    for name, part in parts.items():
        if taken := [variable for variable in OF_A_SLOT if variable in part.env]:
            yield f"{name}: env.{taken[0]}: slots set it; name GPUs in slots.*.gpus"


def _local_model(local: str) -> str:
    return local if local.startswith("/") else f"{MODEL_DIR}/{local}"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
