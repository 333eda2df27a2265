"""Why a server died, from small invented logs in vLLM's own wording (0.25.1 and 0.32.0)."""

# ruff: noqa: E501 log lines are quoted whole

from __future__ import annotations

import signal

import pytest

from kpad_bench.bootlog import CAUSES, attention_backend, classify, graph_downgrade, last_line

CORE = "(EngineCore pid=12) ERROR 01-02 03:04:05 [core.py:1142] "
API = "(APIServer pid=7) "
#: The end of every failed boot, whatever went wrong. (multiprocessing's remarks may follow it.)
GENERIC = f"""\
{API}Traceback (most recent call last):
{API}  File "/env/vllm/v1/engine/utils.py", line 1200, in wait_for_engine_startup
{API}    raise RuntimeError(
{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
/env/lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 2 leaked \
shared_memory objects to clean up at shutdown
"""
HEALTHY = f"""\
{API}INFO 01-02 03:04:01 [api_utils.py:286] non-default args: {{'model': 'tiny'}}
{API}WARNING 01-02 03:04:01 [system_utils.py:255] Found ulimit of 1024 and failed to automatically increase with \
error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open \
files`. Consider increasing with ulimit -n
{API}ERROR 01-02 03:04:01 [__init__.py:64] Failed to load plugin other
{API}ERROR 01-02 03:04:01 [__init__.py:64] Traceback (most recent call last):
{API}ERROR 01-02 03:04:01 [__init__.py:64]   File "/env/vllm/plugins/__init__.py", line 60, in load_plugins_by_group
{API}ERROR 01-02 03:04:01 [__init__.py:64] ModuleNotFoundError: No module named 'vllm_other'
(EngineCore pid=12) WARNING 01-02 03:04:02 [cuda.py:1] Async scheduling not supported with suffix-based decoding
(EngineCore pid=12) INFO 01-02 03:04:03 [gpu.py:9] GPU KV cache size: 65,536 tokens
Capturing CUDA graphs (decode, FULL):   0%|          | 0/3\rCapturing CUDA graphs (decode, FULL): 100%|###| 3/3
{API}INFO:     Application startup complete.
"""


def core_died(last: str, above: str = "") -> str:
    """A log whose engine core ends in an exception, then everything that follows it."""
    trace = [
        "Traceback (most recent call last):",
        '  File "/env/vllm/v1/engine/core.py", line 9, in run',
        last,
    ]
    return above + "".join(f"{CORE}{line}\n" for line in trace) + GENERIC


def pydantic(reason: str) -> str:
    """A configuration that vLLM's own checks refuse."""
    lines = [
        "Traceback (most recent call last):",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
        f"  {reason}",
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
    ]
    return "".join(f"{API}{line}\n" for line in lines)


KV_NONE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine (this flag also controls CPU memory reservation on the CPU backend, despite its name)."
)
KV_SMALL = (
    "ValueError: To serve at least one request with the model's max seq len (16384), (2.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.5 GiB). Based on the available memory, the estimated "
    "maximum model length is 4096. Try increasing `gpu_memory_utilization`"
)
KV_SMALLER = (
    "ValueError: To serve at least one request with the model's max seq len (16384), (2.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.01 GiB). Try increasing `gpu_memory_utilization`"
)
GPU_BUSY = (
    "ValueError: Free memory on device cuda:0 (3.1/178.0 GiB) on startup is less than desired GPU memory utilization "
    "(0.85, 151.3 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
CPU_BUSY = (
    "ValueError: Available memory on node 0 (1.0/8.0 GiB) on startup is less than desired CPU memory utilization "
    "(0.9, 7.2 GiB). On the CPU backend"
)
CPU_KV = (
    "ValueError: Available memory on node 0 (0.5/8.0 GiB) on kv cache allocation is less than requested memory for kv "
    "(1.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by others."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 178 GiB"
SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering "
    "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
KV_LINE = "(EngineCore pid=12) INFO 01-02 03:04:03 [kv.py:1] GPU KV cache size: 65,536 tokens\n"
CAPTURING = "Capturing CUDA graphs (decode, FULL):  40%|####      | 2/5 [00:01<00:02]\r" * 3
ASYNC = (
    "Value error, Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash "
    "kind of speculative decoding [type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]"
)
V2 = (
    "Value error, Model Runner V2 does not yet support: speculative method 'suffix'. "
    "[type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]"
)
OTHER_VALUE = (
    "Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
    "[type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]"
)
OTHER_TYPE = "Input should be greater than 0 [type=greater_than, input_value=-1, input_type=int]"
ARGPARSE = """\
usage: api_server.py [-h] [--headless]
                     [--host HOST]
api_server.py: error: unrecognized arguments: --speculativ-config
"""
UNKNOWN_VLLM = (
    "kpad_bench.padding.patch.UnknownVllm: kpad does not know this vLLM: SuffixDecodingProposer.propose('self', "
    "'input_batch'), expected ('self', 'num_speculative_tokens')."
)
PAD_REFUSED = "kpad_bench.padding.pads.PadTokenRefused: pad token 'x': allowed: auto, last, -1 or a token id"
PLUGIN_RAISED = f"""\
{API}Traceback (most recent call last):
{API}  File "/env/vllm/plugins/__init__.py", line 85, in load_general_plugins
{API}    func()
{API}  File "/env/kpad_bench/padding/__init__.py", line 29, in register
{API}    install()
{API}ImportError: cannot import name 'WorkerBase' from 'vllm.v1.worker.worker_base'
"""
BOUND = f"{API}OSError: [Errno 98] Address already in use\n"
UVICORN = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use\n"
GATED = (
    "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/o/m.\n"
    "403 Client Error. (Request ID: x)\n"
)
NO_REPO = (
    f"{API}huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-2)\n\n"
    "Repository Not Found for url: https://huggingface.co/api/models/o/m.\n"
    f"{API}OSError: o/m is not a local folder and is not a valid model identifier listed on 'https://huggingface.co'\n"
)
OFFLINE = (
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
    "specified revision on the local disk and outgoing traffic has been disabled."
)
NO_FOLDER = (
    "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/models/absent'."
)
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
NO_VLLM = (
    "/env/bin/python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
)
NO_VLLM += "(ModuleNotFoundError: No module named 'vllm')\n"
NO_SCRIPT = "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm\n"

TABLE = [
    ("kv_none", core_died(KV_NONE), 1, "No available memory for the cache blocks"),
    ("kv_none", core_died("AssertionError: num_gpu_blocks=0"), 1, "num_gpu_blocks=0"),
    ("kv_too_small", core_died(KV_SMALL), 1, "estimated maximum model length is 4096"),
    ("kv_too_small", core_died(KV_SMALLER), 1, "larger than the available KV cache memory (0.01 GiB)"),
    ("gpu_busy", core_died(GPU_BUSY), 1, "3.1/178.0 GiB"),
    ("gpu_busy", core_died(CPU_BUSY), 1, "Available memory on node 0"),
    ("gpu_busy", core_died(CPU_KV), 1, "on kv cache allocation"),
    ("oom", core_died(OOM), 1, "Tried to allocate 2.00 GiB"),
    ("capture_oom", core_died(OOM, KV_LINE), 1, "Tried to allocate 2.00 GiB"),
    ("capture_oom", core_died(OOM, CAPTURING), 1, "Tried to allocate 2.00 GiB"),
    ("capture_oom", core_died(SAMPLER), 1, "warming up sampler with 256 dummy requests"),
    ("illegal_access", core_died(ILLEGAL, HEALTHY), 1, "illegal memory access"),
    ("runner_refused", pydantic(ASYNC), 1, "async scheduling is only supported with EAGLE"),
    ("runner_refused", pydantic(V2), 1, "Model Runner V2 does not yet support"),
    ("config_error", pydantic(OTHER_VALUE), 1, "Value error, User-specified max_model_len (99999)"),
    ("config_error", pydantic(OTHER_TYPE), 1, "Input should be greater than 0"),
    ("config_error", ARGPARSE, 2, "unrecognized arguments: --speculativ-config"),
    ("plugin_error", core_died(UNKNOWN_VLLM), 1, "kpad does not know this vLLM"),
    ("plugin_error", core_died(PAD_REFUSED), 1, "pad token 'x': allowed: auto"),
    ("plugin_error", PLUGIN_RAISED, 1, "cannot import name 'WorkerBase'"),
    ("address_in_use", BOUND, 1, "Address already in use"),
    ("address_in_use", UVICORN, 1, "address already in use"),
    ("gated", core_died("huggingface_hub.errors.GatedRepoError: 401 Client Error.") + GATED, 1, "gated"),
    ("model_missing", NO_REPO, 1, "RepositoryNotFoundError"),
    ("model_missing", core_died(OFFLINE), 1, "LocalEntryNotFoundError"),
    ("model_missing", core_died(NO_FOLDER), 1, "Repo id must be"),
    ("launcher_error", NO_VLLM, 1, "No module named 'vllm'"),
    ("launcher_error", "/env/bin/python: No module named vllm\n", 1, "No module named vllm"),
    ("launcher_error", NO_SCRIPT, 1, "PackageNotFoundError"),
    (
        "launcher_error",
        "python: can't open file '/x.py': [Errno 2] No such file or directory\n",
        2,
        "can't open",
    ),
]


@pytest.mark.parametrize(("cause", "log", "rc", "shown"), TABLE)
def test_each_cause_is_told_with_the_line_that_shows_it(cause, log, rc, shown):
    """Below a healthy beginning and above the generic end, the root cause is found."""
    for text in (log, HEALTHY.replace("GPU KV cache size", "x").replace("Capturing CUDA", "x") + log):
        found = classify(text, rc)
        assert found.cause == cause
        assert shown in found.detail
        assert "See root cause above" not in found.detail
        assert "\n" not in found.detail


def test_every_class_of_cause_has_a_log():
    """The table covers all the classes there are."""
    assert {cause for cause, _ in CAUSES} | {"capture_oom"} == {cause for cause, *_ in TABLE}


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_healthy_log_with_scary_words_explains_no_signal(is_ready):
    """Warnings about fds, another plugin's traceback and async scheduling are not why it was killed."""
    found = classify(HEALTHY, -signal.SIGKILL, is_ready=is_ready)
    assert found == ("server_killed", "killed by SIGKILL")


def test_a_signal_without_a_name_is_told_by_its_number():
    """Real-time signals have none."""
    assert classify("", -(signal.SIGRTMIN + 1)).detail == f"killed by signal {signal.SIGRTMIN + 1}"


def test_an_out_of_memory_while_serving_is_not_the_capture_s():
    """After ready the graphs stood: K and sizes are not to blame."""
    log = core_died(OOM, HEALTHY)
    assert classify(log, 1, is_ready=False).cause == "capture_oom"
    assert classify(log, 1, is_ready=True).cause == "oom"


REQUEST_FAULTS = f"""\
{API}ERROR 01-02 03:09:05 [serving.py:80] Error in preprocessing prompt inputs
{API}Traceback (most recent call last):
{API}  File "/env/vllm/entrypoints/openai/serving.py", line 9, in create
{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatCompletionRequest
  Value error, min_p is not supported [type=value_error, input_value=0.1, input_type=float]
{API}OSError: [Errno 98] Address already in use
"""


def test_what_a_serving_server_logged_before_it_was_killed_is_not_why():
    """Neither a fault above the line of readiness nor the refusal of one request ends a server: the signal did."""
    handled = f"{API}huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files\n"
    log = handled + HEALTHY + REQUEST_FAULTS
    assert classify(log, -signal.SIGKILL, is_ready=True) == ("server_killed", "killed by SIGKILL")
    assert classify(log + f"{CORE}{ILLEGAL}\n", 1, is_ready=True).cause == "illegal_access"


def test_a_context_that_does_not_fit_says_how_long_it_may_be():
    """One request does not fit: the estimated maximum length is the way out; without an estimate there is none."""
    found = classify(core_died(KV_SMALL), 1)
    assert found.cause == "kv_too_small"
    assert found.detail.endswith("(way out: server.max_model_len of at most 4096, or more memory)")
    assert "way out" not in classify(core_died(KV_SMALLER), 1).detail


def test_a_death_while_serving_that_is_in_no_class_shows_its_exception():
    """engine_died with the last exception that is not a generic one."""
    dead = f"{API}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    log = HEALTHY + f"{CORE}ZeroDivisionError: division by zero\n" + dead
    assert classify(log, 1, is_ready=True) == ("engine_died", "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("log", "rc", "shown"),
    [
        ("", 1, "exit status 1 and nothing in the log that explains it"),
        (GENERIC, 1, "exit status 1 and nothing in the log that explains it"),
        (core_died("ZeroDivisionError: division by zero"), 1, "ZeroDivisionError: division by zero"),
        ("starting\n", 0, "exit status 0 and nothing in the log that explains it"),
    ],
)
def test_what_is_in_no_class_is_unknown_and_shows_what_there_is(log, rc, shown):
    """The generic last line is never shown as the cause."""
    assert classify(log, rc) == ("unknown", shown)


def test_a_wrapped_step_in_a_traceback_does_not_blame_the_plugin():
    """The plugin wraps execute_model, so its frames are in the traceback of any fault of the engine."""
    frame = f'{CORE}  File "/env/kpad_bench/padding/patch.py", line 120, in execute_model\n'
    assert classify(frame + core_died(ILLEGAL), 1, is_ready=True).cause == "illegal_access"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "nothing was logged"),
        ("\n \r\n", "nothing was logged"),
        ("one\ntwo\n\n", "two"),
        (f"{API}INFO 01-02 03:04:05 [x.py:1] loading\n", "loading"),
        ("Loading shards:  10%\rLoading shards:  40%", "Loading shards:  40%"),
        ("Loading shards:  10%\r\n\r", "Loading shards:  10%"),
    ],
)
def test_the_last_line_is_what_a_slow_boot_was_at(log, line):
    """Progress bars return the carriage; empty ends are skipped; the logger's prefix is left out."""
    assert last_line(log) == line


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        (
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].",
            "FLASH_ATTN",
        ),
        ("Using CPU_ATTN attention backend out of potential backends: ['CPU_ATTN'].", "CPU_ATTN"),
        ("Using AttentionBackendEnum.FLASHINFER backend.", "FLASHINFER"),
        ("Using CUTLASS_MLA backend.", "CUTLASS_MLA"),
        ("Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", None),
        ("Using FLASH_ATTN MLA prefill backend.", None),
        ("Using Transformers modeling backend.", None),
        ("Please ensure you are using attention backends that support cudagraph", None),
        ("Triton is installed, but doesn't include CPU backend.", None),
        ("Using OOT custom backend for compilation.", None),
    ],
)
def test_the_attention_backend_is_the_one_of_the_decoder(line, backend):
    """Other backends (vision, prefill, compilation) are not meant."""
    log = f"(EngineCore pid=12) INFO 01-02 03:04:05 [cuda.py:507] {line}\n"
    assert attention_backend(HEALTHY + log) == backend


@pytest.mark.parametrize(
    "line",
    [
        "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend FlashInferBackend "
        "(support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE",
        "CUDAGraphMode.FULL is not supported with FlashInferBackend backend (support: AttentionCGSupport.NEVER); "
        "setting cudagraph_mode=NONE because attention is not compiled piecewise",
        "Piecewise compilation with empty splitting_ops does not contain piecewise cudagraph. Setting cudagraph_mode "
        "to NONE. Hint: If you are using attention backends that support cudagraph",
        "Dynamic speculative decoding changes the target verification length at runtime. Overriding cudagraph_mode "
        "from FULL_AND_PIECEWISE to PIECEWISE for reliability.",
    ],
)
def test_a_lowered_graph_mode_is_told_in_the_server_s_words(line):
    """The whole line without the logger's prefix."""
    assert (
        graph_downgrade(f"{HEALTHY}(Worker pid=3) WARNING 01-02 03:04:05 [c.py:1] {line}\r\n{HEALTHY}")
        == line
    )


def test_no_lowered_graph_mode_is_none():
    """A configuration dump that names the mode is no downgrade."""
    assert (
        graph_downgrade(HEALTHY + "config: {'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}")
        is None
    )
