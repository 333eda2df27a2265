"""One trial on a running server: check, warm up, empty the caches, measure, judge, store.

Between the two snapshots stands nothing but the measured pass. Every trial leaves a row.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpad_bench.bootlog import attention_backend, graph_downgrade
from kpad_bench.config import Arm, Resolved
from kpad_bench.corpus import FrozenCorpus
from kpad_bench.counters import Deltas, StepDeltas, delta, snapshot, step_deltas
from kpad_bench.drive import Limits, Target, run, run_pass
from kpad_bench.drive import Progress as PassProgress
from kpad_bench.errors import ServerError
from kpad_bench.hostcpu import parse_cpu_list
from kpad_bench.launch import shown_env
from kpad_bench.metrics import request_rows, trial_columns
from kpad_bench.plan import Boot, Cell, Trial, plan_warnings, suffix_settings
from kpad_bench.progress import Progress
from kpad_bench.prompt import Prompt
from kpad_bench.provenance import numa_nodes
from kpad_bench.schema import FAILED, INVALID, SCHEMA_VERSION
from kpad_bench.server import AttachedServer, Server
from kpad_bench.store import RunFolder
from kpad_bench.stream import PassTrace
from kpad_bench.verdict import Evidence, verdict

#: The server books a request's last tokens shortly after it has sent them; a dying one takes longer.
SETTLE_TRIES, DEATH_TRIES, TRY_S = 20, 100, 0.05
WARMUP_MAX_TOKENS = 64

AnyServer = Server | AttachedServer


@dataclass(frozen=True)
class Reading:
    """The server's counters and CPU seconds at one moment."""

    metrics: str | None
    status: list[dict[str, Any]] | None
    cpu_s: tuple[float, float] | None


class TrialRunner:
    """Runs trials of one sweep and stores their rows."""

    def __init__(
        self,
        resolved: Resolved,
        corpora: Mapping[str, FrozenCorpus],
        folder: RunFolder,
        facts: Mapping[str, Any],
        progress: Progress,
        save_text: bool,
    ) -> None:
        self.resolved, self.corpora, self.folder = resolved, corpora, folder
        self.facts, self.progress, self.save_text = facts, progress, save_text

    def run(self, block_id: str, boot: Boot, trial: Trial, server: AnyServer) -> dict[str, Any]:
        """One trial, stored. Returns its row; ``server`` may be dead afterwards."""
        started_at = dt.datetime.now(dt.UTC)
        outcome, requests, raw = self._measure(trial, server)
        row = (
            self._base(block_id, boot, trial) | {"started_at": started_at} | server_columns(server) | outcome
        )
        self.folder.write_trial(row, [self._ids(trial) | r for r in requests], raw)
        self.progress.ended(trial, row)
        return row

    def save_failure(self, block_id: str, boot: Boot, trial: Trial, failure: Mapping[str, Any]) -> None:
        """The row of a trial that never came to a pass."""
        row = self._base(block_id, boot, trial) | dict(failure)
        self.folder.write_trial(row, [], None)
        self.progress.ended(trial, row)

    def _measure(
        self, trial: Trial, server: AnyServer
    ) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, bytes]]:
        cell, corpus = trial.cell, self.corpora[trial.cell.corpus]
        prompts = corpus.measured[: cell.load.n_prompts]
        too_long = unfit_prompts(
            server, prompts, cell, self._largest_k(), self.resolved.config.server.max_model_len
        )
        if too_long:
            return {"status": INVALID, "reason": "invalid_workload", "detail": too_long}, [], {}
        self.progress.warming(trial)
        cache_state = self._prepare(server, cell, corpus.warmup[: cell.load.n_warmup])
        before = read(server)
        self.progress.passing(trial)
        trace = self._pass(server, prompts, cell)
        after = self._settled(server, before, trace)
        outcome = self._judge(trial, server, trace, before, after)
        outcome["cache_state"] = cache_state
        outcome["warnings"] = self._warnings(cell, len(prompts), outcome)
        return outcome, request_rows(trace, save_text=self.save_text), raw_files(before, after)

    def _prepare(self, server: AnyServer, cell: Cell, warmup: Sequence[Prompt]) -> str | None:
        """Warm up with disjoint prompts, then empty both caches. Returns the true cache state."""
        if warmup:
            load = cell.load.model_copy(update={"max_tokens": min(cell.load.max_tokens, WARMUP_MAX_TOKENS)})
            run(run_pass(target_of(server), warmup, load, self._limits(cell)))
        emptied = server.endpoint.worker_call("kpad_empty_cache") or []
        server.endpoint.reset_prefix_cache()
        if cell.k is None or server.is_attached:
            return None
        if emptied and all(answer.get("emptied") for answer in emptied):
            return "cold"
        return f"primed({len(warmup)})" if warmup else "cold"

    def _pass(self, server: AnyServer, prompts: Sequence[Prompt], cell: Cell) -> PassTrace:
        def tick(now: PassProgress) -> None:
            self.progress.tick(None, now.n_done, len(prompts))

        return run(run_pass(target_of(server), prompts, cell.load, self._limits(cell), tick))

    def _settled(self, server: AnyServer, before: Reading, trace: PassTrace) -> Reading:
        """The counters once the server has booked the last request; what there is when it never does."""
        expected = sum(request.completion_tokens or 0 for request in trace.requests)
        for _ in range(SETTLE_TRIES):
            after = read(server)
            tokens = delta(snapshot(before.metrics), snapshot(after.metrics)).generation_tokens
            if tokens is None or tokens >= expected:
                break
            time.sleep(TRY_S)
        return after

    def _judge(
        self, trial: Trial, server: AnyServer, trace: PassTrace, before: Reading, after: Reading
    ) -> dict[str, Any]:
        deltas, steps = deltas_of(before, after)
        workers = after.status or before.status or []
        columns = trial_columns(trace, deltas, steps, has_graphs(workers))
        columns |= status_columns(workers) | cpu_columns(trace, before, after)
        if is_dead(server, trace):
            server.is_dead = True
            return columns | failed_row(server.death())
        evidence = Evidence(
            pads=self._arm(trial.cell).pad,
            k=trial.cell.k,
            statuses=workers,
            n_workers=self.resolved.models[trial.cell.model].tensor_parallel,
            is_attached=server.is_attached,
            deltas=deltas,
            steps=steps,
        )
        judged = verdict(columns, trace, self.resolved.config.thresholds, evidence)
        return columns | judged._asdict()

    def _warnings(self, cell: Cell, n_prompts: int, outcome: Mapping[str, Any]) -> list[str]:
        doubts = plan_warnings(self._arm(cell), cell.k)
        if n_prompts < cell.load.n_prompts:
            doubts.append(f"{cell.corpus} has {n_prompts} prompts, {cell.load.n_prompts} were asked for")
        if outcome.get("prefix_hits") and cell.load.n_prompts:
            doubts.append(f"{outcome['prefix_hits']} prompt tokens came from the prefix cache")
        target = self.resolved.config.server.vllm_version
        if outcome.get("vllm_version") not in (None, target):
            doubts.append(f"vLLM is {outcome['vllm_version']}, the configuration is for {target}")
        return doubts + list(outcome.get("warnings") or [])

    def _largest_k(self) -> int:
        ks = [arm.k for arm in self.resolved.arms.values() if isinstance(arm.k, int)]
        return max([*ks, *self.resolved.config.k])

    def _limits(self, cell: Cell) -> Limits:
        stalled_s = self.resolved.models[cell.model].stalled_s or self.resolved.config.thresholds.stalled_s
        return Limits(idle_timeout_s=stalled_s, stalled_s=stalled_s)

    def _arm(self, cell: Cell) -> Arm:
        return self.resolved.arms.get(cell.arm) or self.resolved.arms[cell.arm_at_k]

    def _ids(self, trial: Trial) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "run_id": self.folder.run_id, "trial_id": trial.trial_id}

    def _base(self, block_id: str, boot: Boot, trial: Trial) -> dict[str, Any]:
        """What is known of a trial before anything ran."""
        cell, entry = trial.cell, self.resolved.models[trial.cell.model]
        config, load = self.resolved.config, trial.cell.load
        identity = self._ids(trial) | dict(self.facts)
        identity |= {
            "sweep": config.sweep, "block_id": block_id, "boot_id": boot.boot_id, "cell_id": cell.cell_id,
            "round": trial.round, "repeat": trial.repeat, "order_index": trial.order_index,
        }  # fmt: skip
        what = {
            "model": cell.model, "model_revision": entry.revision, "family": entry.family,
            "tensor_parallel": entry.tensor_parallel, "arm": cell.arm, "k": cell.k, "corpus": cell.corpus,
            "corpus_digest": cell.corpus_digest, "concurrency": load.concurrency,
            "n_prompts": min(load.n_prompts, len(self.corpora[cell.corpus].measured)),
            "max_tokens": load.max_tokens, "max_model_len": config.server.max_model_len,
            "temperature": load.temperature, "seed": load.seed, "isolation": config.isolation,
            "server_argv": list(boot.argv), "server_env": shown_env(dict(boot.env)),
        }  # fmt: skip
        return identity | what | suffix_settings(self._arm(cell))


def failed_row(error: ServerError, started_at: dt.datetime | None = None) -> dict[str, Any]:
    """Outcome columns of a server that did not boot or died."""
    where = f" (log: {error.log_path})" if error.log_path else ""
    row = {
        "status": FAILED,
        "reason": error.cause,
        "detail": f"{error.detail}{where}",
        "server_rc": error.returncode,
    }
    return row | ({} if started_at is None else {"started_at": started_at})


def target_of(server: AnyServer) -> Target:
    """Where the client sends to."""
    endpoint = server.endpoint
    uds = None if endpoint.socket_path is None else str(endpoint.socket_path)
    return Target(endpoint.base_url, endpoint.served_name, uds)


def read(server: AnyServer) -> Reading:
    """The server's counters now."""
    return Reading(
        server.endpoint.metrics(), server.endpoint.worker_call("kpad_status"), server.cpu_seconds()
    )


def deltas_of(before: Reading, after: Reading) -> tuple[Deltas, StepDeltas | None]:
    """What rose between two readings."""
    deltas = delta(snapshot(before.metrics), snapshot(after.metrics))
    if before.status is None or after.status is None:
        return deltas, None
    return deltas, step_deltas(before.status, after.status)


def has_graphs(status: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the platform replays CUDA graphs; None when no worker has said."""
    return bool(status[0].get("has_graphs")) if status else None


def is_dead(server: AnyServer, trace: PassTrace) -> bool:
    """Whether the server, or its engine behind a living API process, died in the pass.

    Only asked twice when requests lost it: a dying server takes a moment to be gone.
    """
    kinds = {request.error_kind for request in trace.requests}
    lost = trace.stopped_early is not None or kinds & {"connection", "cut", "server_error"}
    for _ in range(DEATH_TRIES if lost else 1):
        if server.poll() is not None or server.endpoint.health() == 503:
            return True
        time.sleep(TRY_S if lost else 0)
    return server.endpoint.health() is None


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


def server_columns(server: AnyServer) -> dict[str, Any]:
    """Columns about the running server."""
    cpus, log = server.cpus(), server.log_text()
    downgrade = graph_downgrade(log)
    return {
        "boot_s": server.boot_s,
        "server_argv": list(server.argv),
        "server_env": shown_env(server.env),
        "server_cpus": cpus,
        "affinity_by": server.affinity_by,
        "numa": None if cpus is None else numa_nodes(parse_cpu_list(cpus, "affinity")),
        "attention_backend": attention_backend(log),
        "warnings": [downgrade] if downgrade else [],
    }


def unfit_prompts(
    server: AnyServer, prompts: Sequence[Prompt], cell: Cell, largest_k: int, max_model_len: int
) -> str | None:
    """What to say when prompts do not leave room for output and drafts; None when all fit.

    prompt + max_tokens + 2K + 2 <= max_model_len, with the largest K of the sweep and the served
    tokenizer: near the limit one request turns every request's draft into zeros.
    """
    room = max_model_len - cell.load.max_tokens - 2 * largest_k - 2
    lengths = [server.endpoint.prompt_tokens(messages(prompt)) for prompt in prompts]
    long = [
        (n, prompt.prompt_id)
        for n, prompt in zip(lengths, prompts, strict=True)
        if n is not None and n > room
    ]
    if not long:
        return None
    longest, prompt_id = max(long)
    limits = f"max_model_len {max_model_len} - max_tokens {cell.load.max_tokens} - 2 x K {largest_k} - 2"
    return (
        f"{len(long)} of {len(prompts)} prompts do not fit: {prompt_id} has {longest} tokens, "
        f"there is room for {room} ({limits}); lower max_tokens or raise server.max_model_len"
    )


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """A prompt as chat messages."""
    system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
    return [*system, {"role": "user", "content": prompt.text}]


def raw_files(before: Reading, after: Reading) -> dict[str, bytes]:
    """The snapshots themselves, kept beside the rows."""
    files = {}
    for name, reading in (("before", before), ("after", after)):
        if reading.metrics is not None:
            files[f"metrics_{name}.txt"] = reading.metrics.encode()
        if reading.status is not None:
            files[f"status_{name}.json"] = json.dumps(reading.status).encode()
    return files
