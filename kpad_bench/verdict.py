"""Whether a trial may be believed: ok, failed or invalid, with the first reason that applies.

Failed: the pass itself did not work. Invalid: it worked, but its number is not what the row says it
is. A low share of FULL graphs is neither: the number is right, and ``reduce`` leaves that K out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kpad_bench.config import Thresholds
from kpad_bench.counters import Deltas
from kpad_bench.schema import FAILED, INVALID, OK
from kpad_bench.steps import StepDeltas
from kpad_bench.stream import PassTrace, RequestTrace


class Verdict(NamedTuple):
    """Status, reason and detail of a trial row; reason and detail are None when ok."""

    status: str
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict looks at besides the pass and its columns.

    ``pads`` and ``k`` are what the arm asks for. ``statuses``: the plugin's status of every worker (keys
    ``marker``, ``k``, ``pads``), empty when none answered. ``n_workers``: how many there must be.
    ``is_attached``: the server is not ours, so only a padded arm needs the marker.
    ``strays``: processes of the server that may run outside its CPU set, in words.
    """

    pads: bool
    k: int | None
    statuses: Sequence[Mapping[str, Any]] = ()
    n_workers: int = 1
    is_attached: bool = False
    deltas: Deltas | None = None
    steps: StepDeltas | None = None
    strays: Sequence[str] = ()


#: A padded arm below it was not padded, whatever its settings say. Above it and under 95 % is a doubt.
LEAST_UNIFORM_SHARE = 0.5

#: column, which has a limit of the same name -> reason above it, and the way out
BOUNDS = {
    "client_cpu_share": (
        "client_bound",
        "the client is one process, which more cores do not help; lower load.concurrency",
    ),
    "loop_lag_p99_ms": (
        "client_bound",
        "the client was kept from running; give it CPUs that nothing else uses (cpus.client)",
    ),
    "front_end_cpu_share": (
        "front_end_bound",
        "vLLM's API process is one process, which more cores do not help; lower load.concurrency",
    ),
    "chunk_merge_share": (
        "front_end_bound",
        "vLLM's API process fell behind and sent the tokens of several steps at once; "
        "give the server more CPUs (cpus.server) or lower load.concurrency",
    ),
}

Columns = Mapping[str, Any]
Reason = tuple[str, str]


def verdict(columns: Columns, trace: PassTrace, thresholds: Thresholds, evidence: Evidence) -> Verdict:
    """The status of a trial. ``columns`` holds what was measured; what is missing is not judged."""
    for reason, detail in _failures(trace):
        return Verdict(FAILED, reason, detail)
    for doubts in (
        _engine_doubts(columns, evidence),
        _place_doubts(evidence),
        _count_doubts(columns, evidence),
        _request_doubts(thresholds, trace),
        _bound_doubts(columns, thresholds),
    ):
        for reason, detail in doubts:
            return Verdict(INVALID, reason, detail)
    return Verdict(OK)


def _failures(trace: PassTrace) -> Iterator[Reason]:
    if trace.stopped_early is not None:
        yield trace.stopped_early.reason, trace.stopped_early.detail
    failed = [request for request in trace.requests if not request.is_ok]
    if not trace.requests:
        yield "no_requests", "the pass sent no request"
    elif len(failed) == len(trace.requests):
        yield _all_failed(failed), f"all {len(failed)} requests failed: {failed[0].error}"
    elif not any(request.completion_tokens for request in trace.requests if request.is_ok):
        yield "no_output", "no request brought an output token"


def _all_failed(failed: Sequence[RequestTrace]) -> str:
    kinds = {request.error_kind or "" for request in failed}
    return "all_requests_refused" if all(map(_is_refusal, kinds)) else "all_requests_failed"


def _is_refusal(kind: str | None) -> bool:
    return kind is not None and kind.startswith("http_4")


def _engine_doubts(columns: Columns, evidence: Evidence) -> Iterator[Reason]:
    """Is the server in the state that the arm asks for?"""
    marked = [worker for worker in evidence.statuses if worker.get("marker")]
    needs_marker = evidence.pads or not evidence.is_attached
    if needs_marker and (len(marked) < evidence.n_workers or len(marked) < len(evidence.statuses)):
        yield "no_marker", f"the plugin answered from {len(marked)} of {evidence.n_workers} workers"
    ks = {worker.get("k") for worker in marked} - {evidence.k}
    if ks:
        yield "k_not_applied", f"asked for k={evidence.k}, a worker has k={ks.pop()}"
    positions = columns.get("accepted_per_position")
    if evidence.k is not None and positions is not None and len(positions) != evidence.k:
        yield "k_not_applied", f"asked for k={evidence.k}, the server counts {len(positions)} positions"
    if any(bool(worker.get("pads")) != evidence.pads for worker in marked):
        yield "padding_not_applied", f"asked for pad={evidence.pads}, a worker says {not evidence.pads}"
    share = columns.get("uniform_share_decode")
    if evidence.pads and isinstance(share, float) and share < LEAST_UNIFORM_SHARE:
        yield "padding_not_applied", f"only {share:.1%} of decode-only steps were uniform in a padded arm"
    if evidence.pads and evidence.steps is None:
        yield "not_counted", "the plugin's counters could not be read around the pass: padding is not proved"


def _place_doubts(evidence: Evidence) -> Iterator[Reason]:
    """Did the server run where the configuration says?"""
    if evidence.strays:
        yield "affinity", f"outside the server's CPU set: {'; '.join(evidence.strays)}"


def _count_doubts(columns: Columns, evidence: Evidence) -> Iterator[Reason]:
    """Do the server's counts hang together?"""
    backwards = [*(evidence.deltas or Deltas()).backwards, *(evidence.steps or StepDeltas()).backwards]
    if backwards:
        yield "counters_backwards", f"fell during the pass: {', '.join(backwards)}"
    disagree = (evidence.steps or StepDeltas()).disagree
    if disagree:
        yield "ranks_disagree", f"the workers counted differently: {', '.join(disagree)}"
    if columns.get("tokens_reconciled") is False:
        counted = evidence.deltas.generation_tokens if evidence.deltas else None
        yield (
            "tokens_not_reconciled",
            f"usage says {columns.get('output_tokens')} tokens, the server counted {counted}",
        )


def _request_doubts(thresholds: Thresholds, trace: PassTrace) -> Iterator[Reason]:
    """Did the server take the prompts?"""
    failed = [request for request in trace.requests if not request.is_ok]
    refused = [request for request in failed if _is_refusal(request.error_kind)]
    if len(refused) > thresholds.refused_share * trace.n_prompts:
        yield (
            "invalid_workload",
            f"{len(refused)} of {trace.n_prompts} requests were refused, above thresholds.refused_share "
            f"{thresholds.refused_share:g}: {refused[0].error}",
        )
    n_ok = len(trace.requests) - len(failed)
    if n_ok < thresholds.success_share * trace.n_prompts:
        first = failed[0].error if failed else "not all were sent"
        yield (
            "low_success_share",
            f"{n_ok} of {trace.n_prompts} requests ended well, below thresholds.success_share "
            f"{thresholds.success_share:g}; first failure: {first}",
        )


def _bound_doubts(columns: Columns, thresholds: Thresholds) -> Iterator[Reason]:
    """Was the engine measured, or the client or the server's front end?"""
    for name, (reason, way_out) in BOUNDS.items():
        value, limit = columns.get(name), getattr(thresholds, name)
        if value is not None and value > limit:
            yield reason, f"{name} {value:.3g} is above thresholds.{name} {limit:g}: {way_out}, or raise it"
