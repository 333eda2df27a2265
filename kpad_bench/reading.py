"""What a server tells around a pass: counters, workers, CPU time, lengths; and the columns they fill."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpad_bench.affinity import Affinity
from kpad_bench.attached import AttachedServer
from kpad_bench.bootlog import attention_backend
from kpad_bench.cells import Cell
from kpad_bench.counters import Deltas, delta, parse_samples, snapshot
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.hostload import HostLoad, host_load, other_cpu_share
from kpad_bench.launch import shown_argv, shown_env
from kpad_bench.loops import EDGE, long_answers, text_end
from kpad_bench.metrics import sent_requests
from kpad_bench.prompt import Prompt
from kpad_bench.server import Server
from kpad_bench.steps import StepDeltas, front_end_deltas, step_deltas
from kpad_bench.stream import PassTrace
from kpad_bench.topology import numa_nodes

AnyServer = Server | AttachedServer
#: The server books a request's last tokens shortly after it has sent them.
SETTLE_S, TRY_S = 1.0, 0.05
#: Asking for the lengths of a pass's prompts may take this long: a hung API answers none of them.
LENGTHS_S = 120.0
#: Tokenising the ends of a pass's answers may take this long, milliseconds each. More is not worth a column.
ENDS_S = 5.0


@dataclass(frozen=True)
class Reading:
    """The server's counters and CPU seconds at one moment, and those of the host."""

    metrics: str | None
    status: list[dict[str, Any]] | None
    cpu_s: tuple[float, float] | None
    load: HostLoad | None = None


def read(server: AnyServer) -> Reading:
    """The server's counters now."""
    return Reading(
        metrics=server.endpoint.metrics(),
        status=server.endpoint.worker_call("kpad_status"),
        cpu_s=server.cpu_seconds(),
        load=host_load(),
    )


def settled(server: AnyServer, before: Reading, trace: PassTrace) -> Reading:
    """The counters once the server has booked every token that arrived, fillers' too; in the end what is."""
    expected = sum(request.completion_tokens or 0 for request in sent_requests(trace))
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = read(server)
        tokens = delta(snapshot(before.metrics), snapshot(after.metrics)).generation_tokens
        if tokens is None or tokens >= expected or time.monotonic() > deadline:
            return after
        time.sleep(TRY_S)


def deltas_of(before: Reading, after: Reading) -> tuple[Deltas, StepDeltas | None]:
    """What rose between two readings."""
    deltas = delta(snapshot(before.metrics), snapshot(after.metrics))
    if before.status is None or after.status is None:
        return deltas, None
    return deltas, step_deltas(before.status, after.status)


def front_end_steps(before: Reading, after: Reading) -> StepDeltas | None:
    """Steps as the API process heard of them: what there is where no worker counts."""
    return front_end_deltas(parse_samples(before.metrics or ""), parse_samples(after.metrics or ""))


def text_ends(server: AnyServer, trace: PassTrace) -> dict[int, list[int]]:
    """Token ids of the end of every long answer by the server's own tokenizer: request index -> ids.

    Asked after the pass, one answer after the other; what is not told within ``ENDS_S`` is left out.
    """
    ends: dict[int, list[int]] = {}
    deadline = time.monotonic() + ENDS_S
    for request in long_answers(trace):
        left_s = deadline - time.monotonic()
        ids = server.endpoint.token_ids(text_end(request), left_s) if left_s > 0 else None
        if ids is None:  # one missing answer leaves the share unknown
            break
        ends[request.index] = ids[:-EDGE]
    return ends


def has_graphs(status: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the platform replays CUDA graphs; None when no worker has said."""
    return bool(status[0].get("has_graphs")) if status else None


def status_columns(status: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns that the workers' status fills."""
    if not status:
        return {}
    first = status[0]
    return {
        "capture_sizes": first.get("capture_sizes") or None,
        "runner": first.get("runner"),
        "num_gpu_blocks": first.get("num_gpu_blocks"),
        "vllm_version": first.get("vllm_version"),
        "vllm_commit": first.get("vllm_commit"),
        "torch_version": first.get("torch_version"),
        "cuda_version": first.get("cuda_version"),
        "arctic_version": first.get("arctic_version"),
    }


def cpu_columns(trace: PassTrace, before: Reading, after: Reading) -> dict[str, Any]:
    """CPU seconds of the server's processes over the wall time of the pass."""
    wall_s = (trace.end_ns - trace.start_ns) / 1e9
    if wall_s <= 0 or before.cpu_s is None or after.cpu_s is None:
        return {}
    shares = [(new - old) / wall_s for old, new in zip(before.cpu_s, after.cpu_s, strict=True)]
    if min(shares) < 0:  # a process is gone, and its CPU seconds with it
        return {}
    return {"front_end_cpu_share": shares[0], "engine_cpu_share": shares[1]}


def other_columns(before: Reading, after: Reading) -> dict[str, Any]:
    """CPU time that neither the server's processes nor the client used."""
    if before.cpu_s is None or after.cpu_s is None:
        return {}
    used = [new - old for old, new in zip(before.cpu_s, after.cpu_s, strict=True)]
    share = other_cpu_share(before.load, after.load, sum(used) if min(used) >= 0 else None)
    if share is None or after.load is None:
        return {}
    return {"other_cpu_share": share, "other_cpu_host_share": share / after.load.n_cpus}


def affinity_columns(affinity: Affinity | None) -> dict[str, Any]:
    """Where the server's threads may run."""
    if affinity is None:
        return {}
    return {"server_cpus": format_cpu_list(set(affinity.cpus)), "numa": numa_nodes(affinity.cpus)}


def server_columns(server: AnyServer) -> dict[str, Any]:
    """Columns about the running server."""
    log = server.log_text()
    return {
        "boot_s": server.boot_s,
        "boot_attempts": server.n_boots,
        "server_argv": shown_argv(server.argv),
        "server_env": shown_env(server.env),
        "affinity_by": server.affinity_by,
        "attention_backend": attention_backend(log),
    }


def unfit_prompts(
    server: AnyServer, prompts: Sequence[Prompt], cell: Cell, largest_k: int, max_model_len: int
) -> str | None:
    """What to say when prompts do not leave room for output and drafts; None when all fit.

    prompt + max_tokens + 2K + 2 <= max_model_len, with the largest K of the sweep and the served
    tokenizer: near the limit one request turns every request's draft into zeros.
    """
    room = max_model_len - cell.load.max_tokens - 2 * largest_k - 2
    deadline = time.monotonic() + LENGTHS_S
    long = []
    for prompt in prompts:
        n = server.endpoint.prompt_tokens(prompt.messages()) if time.monotonic() < deadline else None
        if n is not None and n > room:
            long.append((n, prompt.prompt_id))
    if not long:
        return None
    longest, prompt_id = max(long)
    limits = f"max_model_len {max_model_len} - max_tokens {cell.load.max_tokens} - 2 x K {largest_k} - 2"
    return (
        f"{len(long)} of {len(prompts)} prompts do not fit: {prompt_id} has {longest} tokens, "
        f"there is room for {room} ({limits}); lower max_tokens or raise server.max_model_len"
    )


def raw_files(before: Reading, after: Reading) -> dict[str, bytes]:
    """The snapshots themselves, kept beside the rows."""
    files = {}
    for name, reading in (("before", before), ("after", after)):
        if reading.metrics is not None:
            files[f"metrics_{name}.txt"] = reading.metrics.encode()
        if reading.status is not None:
            files[f"status_{name}.json"] = json.dumps(reading.status).encode()
    return files
