"""How far a server has come that is not up yet, read from its log. Pure: text in, a word for people out."""

from __future__ import annotations

import re
from collections import deque

#: What a line of vLLM 0.25.1 or 0.32.0 says has begun; the last line that says anything counts.
_STAGES = (
    ("starting the engine", r"Initializing a V1 LLM engine"),
    ("loading weights", r"Starting to load model|Loading safetensors checkpoint shards"),
    ("profiling memory", r"Model loading took|Loading weights took"),
    (
        "compiling",
        r"Using cache directory: .*torch\.compile|Dynamo bytecode|Compiling a graph|for the compilation",
    ),
    ("filling the KV cache's room", r"KV cache size: "),
    ("capturing graphs", r"Capturing CUDA graphs"),
    ("starting the API", r"init engine \(profile|Starting vLLM|Started server process"),
)
_STAGE = re.compile("|".join(f"(?P<s{place}>{pattern})" for place, (_, pattern) in enumerate(_STAGES)))
#: tqdm's share of a stage, behind its name on the same line
_SHARE = re.compile(r"[^\r\n]*?: +(?P<share>\d{1,3})%(?: Completed )?\|")


def stage(log: str) -> str | None:
    """What the server is at, with the share done where the log shows one; None before its first stage."""
    last = next(iter(deque(_STAGE.finditer(log), maxlen=1)), None)
    if last is None or last.lastgroup is None:
        return None
    name = _STAGES[int(last.lastgroup[1:])][0]
    share = _SHARE.match(log, last.end())
    return name if share is None else f"{name} {share['share']} %"
