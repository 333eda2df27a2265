"""One trial on a running server: check, warm up, empty the caches, measure, judge, store.

Between the two snapshots stands nothing but the measured pass. Every trial leaves a row.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kpad_bench.argv import suffix_settings
from kpad_bench.attempts import Measured, keep_undisturbed
from kpad_bench.bootlog import graph_downgrade
from kpad_bench.cells import Cell
from kpad_bench.config import Arm, Load, Resolved
from kpad_bench.corpus import FrozenCorpus
from kpad_bench.corpus_pins import truncation
from kpad_bench.counters import counter_doubts
from kpad_bench.doubts import plan_doubts, row_doubts
from kpad_bench.drive import Limits, Target, run, run_pass, with_endpoint
from kpad_bench.drive import Progress as PassProgress
from kpad_bench.errors import ServerError
from kpad_bench.gpu import server_gpus
from kpad_bench.launch import shown_argv, shown_env
from kpad_bench.loops import loop_share
from kpad_bench.metrics import request_rows, trial_columns
from kpad_bench.plan import Boot, Trial
from kpad_bench.progress import Progress
from kpad_bench.prompt import Prompt, assert_distinct
from kpad_bench.reading import (
    AnyServer,
    Reading,
    affinity_columns,
    cpu_columns,
    deltas_of,
    front_end_steps,
    has_graphs,
    other_columns,
    raw_files,
    read,
    server_columns,
    settled,
    status_columns,
    text_ends,
    unfit_prompts,
)
from kpad_bench.schema import FAILED, INVALID, SCHEMA_VERSION
from kpad_bench.slots import Beside
from kpad_bench.store import RunFolder
from kpad_bench.stream import PassTrace
from kpad_bench.telemetry import Watch, flagged, gpu_columns
from kpad_bench.verdict import Evidence, verdict
from kpad_bench.warmup import WarmUp

#: A dying server takes a moment to be gone.
DEATH_S, TRY_S = 5.0, 0.05
WARMUP_MAX_TOKENS = 64


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
        self.beside = Beside()

    def run(
        self, block_id: str, boot: Boot, trial: Trial, server: AnyServer, warm_up: WarmUp
    ) -> dict[str, Any]:
        """One trial, stored. Returns its row; ``server`` may be dead afterwards.

        A throttled or disturbed one is measured again where the configuration says so and the caches can
        be emptied.
        """

        def measure() -> Measured:
            return self._attempt(block_id, boot, trial, server, warm_up)

        n_more = 0 if server.is_attached else self.resolved.config.thresholds.repeat_disturbed
        row = keep_undisturbed(measure, self.folder.write_trial, n_more, self.progress.note)
        self.progress.ended(trial, row)
        return row

    def _attempt(
        self, block_id: str, boot: Boot, trial: Trial, server: AnyServer, warm_up: WarmUp
    ) -> Measured:
        started_at, others = dt.datetime.now(dt.UTC), self.beside.watch()
        outcome, requests, raw = self._measure(trial, server, warm_up)
        outcome["neighbours"] = neighbours = self.beside.since(others)
        if neighbours:
            text = f"measured beside {', '.join(neighbours)}: servers side by side share the host"
            outcome["warnings"] = [*(outcome.get("warnings") or []), text]
        outcome["warnings"] = [*server.earlier, *(outcome.get("warnings") or [])]
        row = (
            self._base(block_id, boot, trial) | {"started_at": started_at} | server_columns(server) | outcome
        )
        return Measured(row, [self._ids(trial) | one for one in requests], raw)

    def save_failure(
        self, block_id: str, boot: Boot, trial: Trial, failure: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The row of a trial that never came to a pass."""
        neighbours = self.beside.since(self.beside.watch())
        row = self._base(block_id, boot, trial) | {"neighbours": neighbours} | dict(failure)
        self.folder.write_trial(row, [], None)
        self.progress.ended(trial, row)
        return row

    def _measure(
        self, trial: Trial, server: AnyServer, warm_up: WarmUp
    ) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, bytes]]:
        cell, corpus = trial.cell, self.corpora[trial.cell.corpus]
        prompts, load, limits = corpus.measured[: cell.load.n_prompts], cell.load, self._limits(cell)
        assert_distinct([*corpus.warmup[: load.n_warmup], *corpus.priming[: load.n_primed], *prompts])
        too_long = unfit_prompts(
            server, prompts, cell, self._largest_k(), self.resolved.config.server.max_model_len
        )
        if too_long:
            return {"status": INVALID, "reason": "invalid_workload", "detail": too_long}, [], {}
        self.progress.warming(trial)
        target = run(with_endpoint(target_of(server), load.endpoint))
        fillers = self._fillers(server, cell) if load.fill else []
        warm_up_prompts = warm_up.take(corpus, load.n_warmup)
        cache_state = self._prepare(server, target, cell, warm_up_prompts, limits)
        with Watch(self._gpus(cell, server)) as watch:
            before = read(server)
            self.progress.passing(trial)
            trace = self._pass(target, prompts, load, fillers, limits)
        after = settled(server, before, trace)
        outcome = self._judge(trial, server, trace, before, after)
        outcome["cache_state"] = cache_state
        outcome |= gpu_columns(watch, trace.start_ns, trace.end_ns) | other_columns(before, after)
        outcome |= flagged(outcome, watch, trace, self.resolved.config.thresholds)
        mode = (after.status or [{}])[0].get("cudagraph_mode")
        outcome["warnings"] = [
            *self._doubts(cell, server, outcome, mode),
            *warm_up.doubts(corpus),
            *(outcome.get("warnings") or []),
        ]
        return outcome, request_rows(trace, save_text=self.save_text), raw_files(before, after)

    def _gpus(self, cell: Cell, server: AnyServer) -> tuple[int, ...]:
        """The GPUs of a server that we started; nobody knows those of another one."""
        if server.is_attached or self.resolved.config.server.platform != "cuda":
            return ()
        return server_gpus(server.env, self.resolved.models[cell.model].tensor_parallel)

    def _fillers(self, server: AnyServer, cell: Cell) -> list[Prompt]:
        """Prompts that no pass of this load measures, at most as many as it measures; those that fit."""
        n, limit, k = cell.load.n_prompts, self.resolved.config.server.max_model_len, self._largest_k()
        others = self.corpora[cell.corpus].measured[n : 2 * n]
        return [prompt for prompt in others if unfit_prompts(server, [prompt], cell, k, limit) is None]

    def _prepare(
        self, server: AnyServer, target: Target, cell: Cell, warm_up: Sequence[Prompt], limits: Limits
    ) -> str | None:
        """Warm up, empty both caches, prime if asked to; all with disjoint prompts, unless the pass is to
        be warm: then it follows one like it.

        Returns the state of the suffix cache; None where there is none, or it is not known.
        """
        corpus, load = self.corpora[cell.corpus], cell.load
        short = load.model_copy(update={"max_tokens": min(load.max_tokens, WARMUP_MAX_TOKENS)})
        _answer(target, warm_up, short, limits)
        if server.is_attached:  # somebody else's caches are not ours to empty
            return None
        emptied = server.endpoint.worker_call("kpad_empty_cache") or []
        server.endpoint.reset_prefix_cache()
        primers = corpus.priming[: load.n_primed]
        _answer(target, primers, load, limits)
        if load.warm:
            _answer(target, corpus.measured[: load.n_prompts], load, limits)
        # Without an answer the plugin is missing, and the trial is invalid: its state is not known.
        if cell.k is None or not emptied or not all(answer.get("emptied") for answer in emptied):
            return None
        if load.warm:
            return "warm"
        return f"primed({len(primers)})" if primers else "cold"

    def _pass(
        self,
        target: Target,
        prompts: Sequence[Prompt],
        load: Load,
        fillers: Sequence[Prompt],
        limits: Limits,
    ) -> PassTrace:
        def tick(now: PassProgress) -> None:
            self.progress.tick(now.output_tok_per_s, now.n_done, len(prompts), now.n_failed)

        return run(run_pass(target, prompts, load, limits, tick, fillers))

    def _judge(
        self, trial: Trial, server: AnyServer, trace: PassTrace, before: Reading, after: Reading
    ) -> dict[str, Any]:
        deltas, steps = deltas_of(before, after)
        workers = after.status or before.status or []
        shown = steps or front_end_steps(before, after)
        columns: dict[str, Any] = trial_columns(trace, deltas, shown, has_graphs(workers))
        columns |= status_columns(workers) | cpu_columns(trace, before, after)
        if is_dead(server, trace):
            server.is_dead = True
            return columns | failed_row(server.death())
        affinity = server.affinity()
        columns |= affinity_columns(affinity)
        columns["loop_share"] = loop_share(trace, text_ends(server, trace))
        columns["warnings"] += counter_doubts(deltas, trial.cell.k, server.log_text())
        evidence = Evidence(
            pads=self._arm(trial.cell).pad,
            k=trial.cell.k,
            statuses=workers,
            n_workers=self.resolved.models[trial.cell.model].tensor_parallel,
            is_attached=server.is_attached,
            deltas=deltas,
            steps=steps,
            strays=() if affinity is None else affinity.strays,
        )
        judged = verdict(columns, trace, self.resolved.config.thresholds, evidence)
        return columns | judged._asdict()

    def _doubts(
        self, cell: Cell, server: AnyServer, columns: Mapping[str, Any], mode: str | None
    ) -> list[str]:
        """Everything a reader has to know beside the number."""
        corpus, load, arm = self.corpora[cell.corpus], cell.load, self._arm(cell)
        found = plan_doubts(arm, cell.k, self.resolved.config.server, load.concurrency)
        for name, prompts, wanted in (
            ("prompts", corpus.measured, load.n_prompts),
            ("priming prompts", corpus.priming, load.n_primed),
        ):
            if len(prompts) < wanted:
                found.append(f"{cell.corpus} has {len(prompts)} {name}, {wanted} were asked for")
        found += [text for text in (truncation(corpus.lock), graph_downgrade(server.log_text())) if text]
        return found + row_doubts(arm, self.resolved.config.server, columns, mode)

    def _largest_k(self) -> int:
        ks = [arm.k for arm in self.resolved.arms.values() if isinstance(arm.k, int)]
        return max([*ks, *self.resolved.config.k])

    def _limits(self, cell: Cell) -> Limits:
        """How long a trial that begins now may wait for tokens, and last."""
        thresholds = self.resolved.config.thresholds
        stalled_s = self.resolved.models[cell.model].stalled_s or thresholds.stalled_s
        deadline_s = thresholds.trial_deadline_s or cell.load.default_deadline_s
        ends_ns = time.monotonic_ns() + round(deadline_s * 1e9)
        return Limits(idle_timeout_s=stalled_s, stalled_s=stalled_s, ends_ns=ends_ns)

    def _arm(self, cell: Cell) -> Arm:
        return self.resolved.arm_of(cell.arm, cell.arm_at_k)

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
            "is_sentinel": trial.is_sentinel,
        }  # fmt: skip
        what = {
            "model": cell.model, "model_revision": entry.revision, "family": entry.family,
            "tensor_parallel": entry.tensor_parallel, "arm": cell.arm, "k": cell.k, "corpus": cell.corpus,
            "corpus_digest": cell.corpus_digest, "concurrency": load.concurrency,
            "corpus_truncated": self.corpora[cell.corpus].lock.truncated,
            "n_prompts": min(load.n_prompts, len(self.corpora[cell.corpus].measured)),
            "max_tokens": load.max_tokens, "max_model_len": config.server.max_model_len,
            "temperature": load.temperature, "seed": load.seed, "design": str(config.rounds),
            "isolation": "boot" if trial.is_sentinel else config.isolation,
            "server_argv": shown_argv(boot.argv), "server_env": shown_env(dict(boot.env)),
        }  # fmt: skip
        return identity | what | suffix_settings(self._arm(cell))


def _answer(target: Target, prompts: Sequence[Prompt], load: Load, limits: Limits) -> None:
    """Have prompts answered that are not measured."""
    if prompts:
        run(run_pass(target, prompts, load, limits))


def failed_row(error: ServerError, started_at: dt.datetime | None = None) -> dict[str, Any]:
    """Outcome columns of a server that did not boot or died."""
    where = f" (log: {error.log_path})" if error.log_path else ""
    row = {
        "status": FAILED,
        "reason": error.cause,
        "detail": f"{error.detail}{where}",
        "server_rc": error.returncode,
        "boot_attempts": error.n_boots,
        "warnings": list(error.earlier),
    }
    return row | ({} if started_at is None else {"started_at": started_at})


def target_of(server: AnyServer) -> Target:
    """Where the client sends to."""
    endpoint = server.endpoint
    uds = None if endpoint.socket_path is None else str(endpoint.socket_path)
    return Target(endpoint.base_url, endpoint.served_name, uds)


def is_dead(server: AnyServer, trace: PassTrace) -> bool:
    """Whether the server, or its engine behind a living API process, died in the pass.

    Only waited for when requests lost it: a dying server takes a moment to be gone.
    """
    kinds = {request.error_kind for request in trace.requests}
    stop = None if trace.stopped_early is None else trace.stopped_early.reason
    is_lost = stop not in (None, "all_requests_refused", "deadline")
    is_lost |= bool(kinds & {"connection", "cut", "server_error"})
    deadline = time.monotonic() + DEATH_S
    while server.poll() is None:
        health = server.endpoint.health()
        is_alive = health not in (None, 503)
        if health == 503 or (is_alive and not is_lost) or time.monotonic() >= deadline:
            return not is_alive
        time.sleep(TRY_S)
    return True
