"""What a booting server is at, from its log."""

from __future__ import annotations

import pytest

from kpad_bench.bootstage import stage

CORE = "(EngineCore pid=7) INFO 12-04 22:01:02 "
LINES = (
    ("[core.py:105] Initializing a V1 LLM engine (v0.32.0) with config: model='m'", "starting the engine"),
    ("[gpu_model_runner.py:3] Starting to load model m...", "loading weights"),
    ("Loading safetensors checkpoint shards:  25% Completed | 1/4", "loading weights 25 %"),
    ("[gpu_model_runner.py:5] Model loading took 0.25 GiB memory and 1.2 seconds", "profiling memory"),
    ("[backends.py:1] Dynamo bytecode transform time: 3.41 s", "compiling"),
    ("[cpu_model_runner.py:87] Warming up model for the compilation...", "compiling"),
    ("[kv_cache_utils.py:1] GPU KV cache size: 1,234 tokens", "filling the KV cache's room"),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/9", "capturing graphs 0 %"),
    ("[core.py:403] init engine (profile, create kv cache, warmup model) took 9.12 s", "starting the API"),
)


@pytest.mark.parametrize(("line", "said"), LINES)
def test_a_line_of_vllm_s_log_is_a_stage(line, said):
    """Each stage by the line that vLLM prints when it begins."""
    assert stage(f"{CORE}{line}\n") == said


def test_the_last_stage_counts_and_its_newest_share():
    """tqdm redraws with carriage returns; lines that say nothing of a stage change nothing."""
    log = "".join(f"{CORE}{line}\n" for line, _ in LINES[:7])
    log += "".join(
        f"\rCapturing CUDA graphs (decode, FULL):  {share}%|##   | {share}/100" for share in (8, 40)
    )
    assert stage(log) == "capturing graphs 40 %"
    assert stage(f"{log}\n{CORE}[x.py:1] something else: 99 %\n") == "capturing graphs 40 %"


def test_no_stage_before_the_first():
    """An empty log, and one of other lines."""
    assert stage("") is None
    assert stage("INFO 12-04 [__init__.py:1] Automatically detected platform cpu.\n") is None
