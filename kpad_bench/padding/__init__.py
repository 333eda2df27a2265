"""K-pad: the vLLM plugin that pads every suffix draft to exactly K tokens, and counts what ran.

Loaded by vLLM in each of its processes (entry point ``kpad`` of ``vllm.general_plugins``; set
``VLLM_PLUGINS=kpad``). It pads only where ``VLLM_SUFFIX_PAD_UNIFORM=1`` is set; counters and cache
control are there in every arm. Needs vLLM and the standard library, nothing of the rest of this
package.

What a free slot holds is ``KPAD_PAD_ID`` (``auto`` by default; see ``pads.choose_pad_token``).
A draft of a structured-output request is cut by vLLM's scheduler where the grammar refuses it, pads
first: such a step is ragged, and right.

Two methods are added to vLLM's workers, to be called through ``/collective_rpc``:

``kpad_status``
    the marker of the worker, what it pads, versions and step counters since the boot.
``kpad_empty_cache``
    replaces the suffix cache by an empty one, so that the next pass starts cold.

Knows vLLM 0.25.1 (CUDA) and 0.32.0 (CPU); another signature of the functions it wraps is refused
when the worker starts, because a silently unpadded server would be measured as a padded one.
"""

from __future__ import annotations

MARKER = "kpad/1"
PAD_VARIABLE = "VLLM_SUFFIX_PAD_UNIFORM"
#: auto, last, -1 or a token id. Not a VLLM_ name: vLLM warns of those it does not know.
PAD_ID_VARIABLE = "KPAD_PAD_ID"


def register() -> None:
    """Entry point: add the worker methods now, wrap runner and proposer when a worker starts."""
    from kpad_bench.padding.patch import install  # noqa: PLC0415 vLLM is only there inside its processes

    install()
