"""What the fake does beyond answering well: read from the JSON file named in ``FAKE_VLLM_SCRIPT``.

``{"default": {KEY: VALUE, ...}, "rules": [{"if": {...}, "then": {KEY: VALUE, ...}}, ...]}``. The keys are the
fields of ``Script``; every rule that holds is laid over the default, in order. ``if`` may have

- ``argv``: a text within the command line (words joined by one space);
- ``k``: num_speculative_tokens, null for none;  ``pads``: whether this arm pads;
- ``boot``: n, for the nth boot of this script that fits the rest of the ``if`` (1-based).

Every boot is a line of the file ``<script>.boots``: ``{"argv": ..., "k": ..., "pads": ..., "pid": ..., "env":
{...}}``. Every request for tokens, and every emptying of a cache, is a line of ``<script>.calls``:
``{"pid": ..., "path": ..., "prompt": ...}``; a call without a prompt has null there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_vllm.options import Options

VARIABLE = "FAKE_VLLM_SCRIPT"


@dataclass(frozen=True)
class Script:
    """Behaviour of one boot. Request numbers are 1-based and count every POST that asks for tokens."""

    # the boot
    boot_delay_s: float = 0.0
    boot_fail: dict[str, Any] | None = None  #: {"log": text, "rc": 1}
    boot_hang: bool = False
    boot_log: tuple[str, ...] = ()  #: further lines of the log
    log_mib: int = 0  #: so many MiB of one line again and again, before it is ready
    wrong_model_name: str | None = None
    health_status: int = 200
    health_hang: bool = False  #: /health takes the request and never answers
    leave_core: bool = False
    ignore_term: bool = False
    core_cpus: tuple[int, ...] = ()  #: the core moves to these CPUs
    # death: SIGKILL as request N arrives
    die_after_requests: int | None = None
    die_core_after_requests: int | None = None
    lose_core_after_requests: int | None = None  #: the core dies, and the API does not notice: /health is 200
    unavailable_after_requests: int | None = None  #: request N and those after it get 503, as does /health
    # the plugin
    no_plugin: bool = False
    rank_count: int = 1
    k_ignored: bool = False  #: the engine runs with K=4, whatever was asked for
    # answers
    error_400_all: str | None = None
    no_chat_template: bool = False  #: every chat is refused, as for a base model
    stream_error_after_tokens: int | None = None
    drop_connection_after_tokens: int | None = None
    stall_after_tokens: int | None = None
    ping_s: float | None = None  #: a stalled stream sends comments, so often
    fault_requests: tuple[int, ...] = ()  #: only these requests meet the three above; empty is all
    no_usage: bool = False
    no_continuous_usage: bool = False
    reasoning: bool = False
    tokens: int | None = None  #: tokens of every answer, within max_tokens
    tokens_per_chunk: tuple[int, ...] = ()  #: sizes of the chunks, cycled; empty is one chunk per step
    loop_words: int | None = None  #: every answer repeats its first so many words
    no_tokenize: bool = False
    step_s: float = 0.0
    # tokens and log-probabilities of answers in one piece
    wrong_token_at: int | None = None  #: from this token on the answer is another one (also: fault_requests)
    is_own_choice: bool = True  #: the wrong token is the likeliest one of this server, not a slip
    token_gap: float = 4.0  #: how far the second best token is behind the best one
    logprob_off: float = 0.0  #: added to every log-probability
    # metrics
    no_metrics: bool = False
    cut_metrics: bool = False
    metrics_backwards: bool = False
    counter_off_by: int = 0  #: each scrape adds this to the generation tokens


def load(options: Options) -> Script:
    """The script of this boot, which is recorded beside it. Without the variable: all defaults."""
    name = os.environ.get(VARIABLE)
    if not name:
        return Script()
    path = Path(name)
    document = json.loads(path.read_text())
    if unknown := set(document) - {"default", "rules"}:
        raise SystemExit(f"{path}: unknown keys {sorted(unknown)}")
    boots = record_boot(path.with_name(path.name + ".boots"), options)
    values: dict[str, Any] = dict(document.get("default", {}))
    for rule in document.get("rules", ()):
        if holds(rule["if"], boots):
            values |= rule["then"]
    values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Script(**values)


def record_boot(path: Path, options: Options) -> list[dict[str, Any]]:
    """Append this boot; all boots so far, this one last."""
    boot = {"argv": " ".join(options.argv), "k": options.k, "pads": options.pads, "pid": os.getpid()}
    boot["env"] = dict(os.environ)
    with path.open("a+") as file:
        file.write(json.dumps(boot) + "\n")
        file.flush()
        file.seek(0)
        return [json.loads(line) for line in file]


def record_call(path: str, prompt: str | None = None) -> None:
    """Append one call; nothing without a script."""
    if name := os.environ.get(VARIABLE):
        with Path(f"{name}.calls").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), "path": path, "prompt": prompt}) + "\n")


def holds(condition: dict[str, Any], boots: list[dict[str, Any]]) -> bool:
    """Whether a rule's ``if`` holds for the last of the boots."""
    if unknown := set(condition) - {"argv", "k", "pads", "boot"}:
        raise SystemExit(f"unknown conditions {sorted(unknown)}")

    def fits(boot: dict[str, Any]) -> bool:
        same = all(boot[key] == condition[key] for key in ("k", "pads") if key in condition)
        return same and condition.get("argv", "") in boot["argv"]

    nth = condition.get("boot")
    return fits(boots[-1]) and (nth is None or nth == sum(map(fits, boots)))
