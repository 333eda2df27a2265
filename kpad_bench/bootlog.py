"""Why a server died, read from its log. Pure: text in, cause out.

vLLM's last line ("Engine core initialization failed. See root cause above.") is never the cause, and
a healthy log holds scary words; so only a dead server's log is asked, and only for lines that end an
exception or an argument error.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

#: cause -> what shows it. Order matters: the first cause whose pattern is found wins. The texts are
#: those of vLLM 0.25.1 and 0.32.0.
CAUSES: tuple[tuple[str, str], ...] = (
    ("address_in_use", r"Address already in use|\[Errno 98\]"),
    ("plugin_error", r"UnknownVllm|kpad does not know this vLLM|PadTokenRefused"),
    ("launcher_error", r"No module named '?vllm(\.|'|$)|PackageNotFoundError|can't open file"),
    ("gated", r"GatedRepoError|gated repo"),
    ("model_missing", r"RepositoryNotFoundError|LocalEntryNotFoundError|OfflineModeIsEnabled"),
    ("model_missing", r"is not a local folder|Cannot find the requested files|Repo id must be"),
    ("model_missing", r"No such file or directory: .*config\.json"),
    ("gpu_busy", r"[Ff]ree memory on device .*less than desired|Available memory on node .* is less than"),
    ("kv_none", r"No available memory for the cache blocks|num_gpu_blocks=0"),
    ("kv_too_small", r"estimated maximum model length|larger than the available KV cache memory"),
    ("kv_too_small", r"larger than the maximum number of tokens that can be stored"),
    ("runner_refused", r"async scheduling is only supported|does not support async scheduling"),
    ("runner_refused", r"Async scheduling .* not (yet )?(supported|compatible)|V2_MODEL_RUNNER|Runner V2"),
    ("illegal_access", r"illegal memory access"),
    ("oom", r"OutOfMemoryError|CUDA out of memory|MemoryError|Cannot allocate memory"),
    ("config_error", r"Value error,|\[type=\w+, input_"),
    ("config_error", r"validation errors? for|error: (argument|unrecognized|ambiguous|the following)"),
)
_PREFIX = re.compile(r"^\([^)]*pid=\d+\) ?(?:(?:ERROR|WARNING|INFO|CRITICAL) \S+ \S+ \[[^\]]+\] ?)?")
_GENERIC = re.compile(r"Engine core initialization failed|See root cause above|EngineDeadError|leaked ")
_EXCEPTION = re.compile(r"^\s*(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|UnknownVllm|Refused|Interrupt)\b.*")
#: argparse, the interpreter, pydantic's indented reason, and an assertion's text
_OTHER = re.compile(
    r"error: (argument|unrecognized|ambiguous|the following)|: No module named|can't open file"
    r"|Error while finding module|^  Value error,|^  .*\[type=\w+, input_|^ERROR: +\[Errno 98\]"
    r"|num_gpu_blocks=0\b"
)
#: Frames of the plugin's start. (Its wrappers are in every traceback of the engine, so they say nothing.)
_PLUGIN_START = re.compile(r"padding/\w+\.py\", line \d+, in (register|install|wrap_engine|check_signature)")
#: What stands in a log once there is room for the KV cache: an out-of-memory after it is not the weights'.
_AFTER_KV = re.compile(r"KV cache size: |Capturing CUDA graphs|warming up sampler")
#: The last line of a boot. What stands above it did not keep the server from serving.
_STARTED = "Application startup complete"
#: Causes that a server which has served can still die of.
SERVING_CAUSES = frozenset(("plugin_error", "illegal_access", "oom"))
_MAX_LEN = re.compile(r"estimated maximum model length is (\d+)")


class Cause(NamedTuple):
    """The class of a death, and the log line that shows it."""

    cause: str
    detail: str


def classify(log: str, returncode: int | None, *, is_ready: bool = False) -> Cause:
    """Class and line for a server that died (or, with ``returncode`` None, that is being given up).

    ``is_ready``: it had answered before it died. A death by signal that the log does not explain is
    ``server_killed`` with the signal's name; a death after ready without one is ``engine_died``.
    """
    if is_ready:
        log = log.rpartition(_STARTED)[2]
    lines = [_PREFIX.sub("", line).rstrip() for line in re.split(r"[\r\n]+", log)]
    shown = _root_line(lines)
    evidence = _evidence(lines)
    if shown is not None and any(_PLUGIN_START.search(line) for line in lines):
        return Cause("plugin_error", shown)
    for cause, pattern in CAUSES:
        if is_ready and cause not in SERVING_CAUSES:
            continue
        found = next((line for line in evidence if re.search(pattern, line)), None)
        if found is not None:
            is_capture = cause == "oom" and not is_ready and any(_AFTER_KV.search(line) for line in lines)
            return Cause("capture_oom" if is_capture else cause, found.strip() + _way_out(cause, found))
    if returncode is not None and returncode < 0:
        return Cause("server_killed", f"killed by {_signal_name(-returncode)}")
    if is_ready:
        left = f"exit status {returncode}" if returncode is not None else f"last line: {last_line(log)}"
        return Cause("engine_died", shown or left)
    return Cause("unknown", shown or f"exit status {returncode} and nothing in the log that explains it")


def _way_out(cause: str, line: str) -> str:
    """What to change, where the line itself says how far; else nothing."""
    found = _MAX_LEN.search(line) if cause == "kv_too_small" else None
    return "" if found is None else f" (way out: server.max_model_len of at most {found[1]}, or more memory)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _evidence(lines: list[str]) -> list[str]:
    """Lines that end an exception, an argparse error, or pydantic's indented reason; newest first."""
    kept = []
    for line in lines:
        if _GENERIC.search(line):
            continue
        if _EXCEPTION.match(line) or _OTHER.search(line):
            kept.append(line)
    return kept[::-1]


def _root_line(lines: list[str]) -> str | None:
    """The last exception line that is not a generic one."""
    found = [line.strip() for line in lines if _EXCEPTION.match(line) and not _GENERIC.search(line)]
    return found[-1] if found else None


def last_line(log: str) -> str:
    """The last line with text in it; for ``boot_timeout``, where there is no exception to show."""
    lines = [_PREFIX.sub("", line).strip() for line in re.split(r"[\r\n]+", log)]
    return next((line for line in reversed(lines) if line), "nothing was logged")


def attention_backend(log: str) -> str | None:
    """The attention backend as the server's log names it; None when it does not.

    Both versions: ``Using FLASH_ATTN attention backend out of potential backends: [...].`` when vLLM
    chose, ``Using AttentionBackendEnum.FLASH_ATTN backend.`` when it was told.
    """
    found = re.search(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend\b", log)
    return None if found is None else found[1]


def graph_downgrade(log: str) -> str | None:
    """The line that says a requested graph mode was lowered, if any.

    Wordings: ``...; setting cudagraph_mode=PIECEWISE``, ``Setting cudagraph_mode to NONE.``,
    ``Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE``.
    """
    found = re.search(
        r"[^\r\n]*(setting cudagraph_mode=|Setting cudagraph_mode to |Overriding cudagraph_mode )[^\r\n]*",
        log,
    )
    return None if found is None else _PREFIX.sub("", found[0]).strip()
