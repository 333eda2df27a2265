"""Which batch sizes CUDA graphs are captured for: pure arithmetic over K and concurrency.

vLLM's own list is made for any traffic; a benchmark at one concurrency knows its decode sizes exactly.
"""

from __future__ import annotations

#: vLLM's default ceiling below sm_100 (config/vllm.py, _set_cudagraph_sizes, 0.25.1 and 0.32.0), in tokens.
DEFAULT_CEILING_TOKENS = 512
#: Spacing of the sizes above the last decode size: admission steps, which mix prompts and decodes.
COARSE_STEP_TOKENS = 64


def common_ceiling(concurrency: int, ks: list[int]) -> int:
    """Tokens up to which every arm of a sweep captures, so that no arm's admission steps go eager alone.

    ks: every K of the sweep's speculating arms. A decode step has concurrency x (1 + K) tokens.
    """
    return max([DEFAULT_CEILING_TOKENS, *(concurrency * (1 + k) for k in ks)])


def capture_sizes(k: int | None, concurrency: int, ceiling: int) -> list[int]:
    """Sizes to capture, in tokens, ascending, for one arm.

    Exact multiples of 1 + K for 1 to ``concurrency`` requests, so that no decode step is padded to the
    next graph; above them coarse ones up to the first multiple that reaches ``ceiling``. All are
    multiples of 1 + K: vLLM rounds others up to one, and silently drops those that then exceed the
    largest (CompilationConfig.adjust_cudagraph_sizes_for_spec_decode).
    """
    query_len = 1 + (k or 0)
    exact = [query_len * n for n in range(1, concurrency + 1)]
    top = _round_up(max(ceiling, exact[-1]), query_len)
    coarse = [
        _round_up(size, query_len) for size in range(exact[-1] + COARSE_STEP_TOKENS, top, COARSE_STEP_TOKENS)
    ]
    return sorted({*exact, *coarse, top})


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
