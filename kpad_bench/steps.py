"""What the plugin counted during a pass, where vLLM dispatches each step; and the columns it fills.

Pure: two reads of every worker in, differences and shares out. What is missing is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

#: Bins of the plugin's step-time histogram per factor of e (padding/tally.py).
BINS_PER_E = 100
#: How the plugin's stat logger names its samples (padding/frontend.py).
FRONT_PREFIX = "kpad:front_"
WORKER, FRONT_END = "worker", "front_end"


@dataclass(frozen=True, slots=True)
class StepDeltas:
    """What the plugin counted in a pass; None for what it does not count.

    ``source``: the worker that is the output rank, or the front end (the API process). ``decode_*`` are
    steps in which every request was past its prompt. ``timed_*`` are steps whose end is known to be the
    start of the next one; their times are ns, and ``decode_bins`` is a histogram: bin -> steps of about
    e^(bin / BINS_PER_E) ns. ``disagree`` names counters on which the ranks differ, ``backwards`` those
    that fell.
    """

    steps: int | None = None
    decode_steps: int | None = None
    uniform_decode_steps: int | None = None
    decode_requests: int | None = None
    mode_full: int | None = None
    mode_piecewise: int | None = None
    mode_none: int | None = None
    full_decode_steps: int | None = None
    graph_padding_tokens: int | None = None
    real_draft_tokens: int | None = None
    pad_tokens: int | None = None
    pad_hits: int | None = None
    timed_ns: int | None = None
    timed_full_ns: int | None = None
    timed_piecewise_ns: int | None = None
    timed_none_ns: int | None = None
    timed_decode_steps: int | None = None
    timed_decode_ns: int | None = None
    decode_bins: Mapping[int, int] = field(default_factory=dict)
    disagree: tuple[str, ...] = ()
    backwards: tuple[str, ...] = ()
    source: str = WORKER


COUNTERS = tuple(f.name for f in fields(StepDeltas) if f.type == "int | None")
#: Ranks do the same steps, each at its own clock.
SAME_IN_ALL_RANKS = tuple(name for name in COUNTERS if not name.startswith("timed_"))

Status = Mapping[str, Any]


def step_deltas(before: Sequence[Status], after: Sequence[Status]) -> StepDeltas | None:
    """The difference of two reads of every worker's status (``rank``, ``is_output_rank``, ``counters``).

    None when the output rank has no counters in either read, as with a runner the plugin does not know.
    """
    old, new = _by_rank(before), _by_rank(after)
    rises = {rank: _rises(status, new.get(rank)) for rank, status in old.items()}
    output = next((s["rank"] for s in after if s.get("is_output_rank", len(after) == 1)), None)
    ours = rises.get(output) if output is not None else None
    if ours is None or output is None:
        return None
    disagree = tuple(
        name
        for name in SAME_IN_ALL_RANKS
        if any((rise or {}).get(name) != ours.get(name) for rise in rises.values())
    )
    backwards = tuple(name for name, rise in ours.items() if rise < 0)
    kept: dict[str, Any] = {name: rise for name, rise in ours.items() if rise >= 0}
    bins = _bins(old[output], new[output])
    return StepDeltas(**kept, decode_bins=bins, disagree=disagree, backwards=backwards)


def front_end_deltas(
    before: Iterable[tuple[str, Any, float]], after: Iterable[tuple[str, Any, float]]
) -> StepDeltas | None:
    """What the plugin's stat logger counted between two dumps of ``/metrics``; None where it did not.

    Each dump as (name, labels, value), labels ignored. Steps that brought output, of all engines, as the
    API process was told of them. Pads and real drafts are not known there. A counter that is first there
    in the second dump rose from 0.
    """
    old, new = _front_counts(before), _front_counts(after)
    if not new or "steps" not in old:
        return None
    rises = {name: count - old.get(name, 0) for name, count in new.items()}
    if "mode_full" in rises or "mode_piecewise" in rises or "mode_none" in rises:
        rises = dict.fromkeys(("mode_full", "mode_piecewise", "mode_none"), 0) | rises
    kept: dict[str, Any] = {name: rise for name, rise in rises.items() if rise >= 0}
    return StepDeltas(
        **kept,
        source=FRONT_END,
        backwards=tuple(name for name, rise in rises.items() if rise < 0),
    )


def _front_counts(samples: Iterable[tuple[str, Any, float]]) -> dict[str, int]:
    """Counter by our name, summed over engines."""
    ours = {f"{FRONT_PREFIX}{name}_total": name for name in COUNTERS}
    counts: dict[str, int] = {}
    for sample_name, _, value in samples:
        if (name := ours.get(sample_name)) is not None:
            counts[name] = counts.get(name, 0) + round(value)
    return counts


def _by_rank(statuses: Sequence[Status]) -> dict[int, Status]:
    return {status["rank"]: status for status in statuses}


def _rises(old: Status, new: Status | None) -> dict[str, int] | None:
    first, last = old.get("counters"), (new or {}).get("counters")
    if first is None or last is None:
        return None
    return {name: last[name] - first[name] for name in COUNTERS if name in first and name in last}


def _bins(old: Status, new: Status) -> dict[int, int]:
    """Rises of the histogram. Its keys went through JSON, so they are text."""
    first = {int(place): count for place, count in (old.get("decode_bins") or {}).items()}
    last = {int(place): count for place, count in (new.get("decode_bins") or {}).items()}
    rises = {place: count - first.get(place, 0) for place, count in last.items()}
    return {place: rise for place, rise in sorted(rises.items()) if rise > 0}


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole; None when either is not known or whole is 0."""
    return None if part is None or not whole else part / whole


def uniform_share_decode(steps: StepDeltas) -> float | None:
    """Share of decode-only steps in which every request had exactly 1+K tokens."""
    return ratio(steps.uniform_decode_steps, steps.decode_steps)


def mean_batch(steps: StepDeltas) -> float | None:
    """Requests per decode-only step. P / decode steps would count the decodes of mixed steps as well:
    24 % too many for K-pad on an H200, 7 % without speculation."""
    return ratio(steps.decode_requests, steps.decode_steps)


def step_time_mean(steps: StepDeltas) -> float | None:
    """Mean time of a decode-only step, start to start, seconds. R is its ratio between two arms."""
    mean_ns = ratio(steps.timed_decode_ns, steps.timed_decode_steps)
    return None if mean_ns is None else mean_ns / 1e9


def step_time_p50(steps: StepDeltas) -> float | None:
    """Median time of a decode-only step, seconds, to the 1 % that a bin is wide."""
    half, seen = sum(steps.decode_bins.values()) / 2, 0
    for place, count in sorted(steps.decode_bins.items()):
        seen += count
        if seen >= half:
            return math.exp((place + 0.5) / BINS_PER_E) / 1e9
    return None


def step_columns(steps: StepDeltas) -> dict[str, object]:
    """Engine steps, their time, drafts and pads."""
    return {
        "steps_source": None if steps.steps is None else steps.source,
        "n_steps": steps.steps,
        "n_decode_steps": steps.decode_steps,
        "uniform_share_decode": uniform_share_decode(steps),
        "mean_batch": mean_batch(steps),
        "step_time_mean": step_time_mean(steps),
        "step_time_p50": step_time_p50(steps),
        "real_draft_tokens": steps.real_draft_tokens,
        "pad_tokens": steps.pad_tokens,
        "pad_hits": steps.pad_hits,
    }


def graph_columns(steps: StepDeltas, has_graphs: bool | None) -> dict[str, object]:
    """Shares of steps by graph mode; null with a reason where there are no graphs or no count."""
    shown = StepDeltas() if has_graphs is False else steps
    full_share = ratio(shown.mode_full, shown.steps)
    reason = "no_graphs" if has_graphs is False else "not_counted"
    return {
        "full_share": full_share,
        "full_share_reason": reason if full_share is None else None,
        "full_share_decode": ratio(shown.full_decode_steps, shown.decode_steps),
        "full_share_time": ratio(shown.timed_full_ns, shown.timed_ns),
        "piecewise_share_time": ratio(shown.timed_piecewise_ns, shown.timed_ns),
        "none_share_time": ratio(shown.timed_none_ns, shown.timed_ns),
        "piecewise_share": ratio(shown.mode_piecewise, shown.steps),
        "none_share": ratio(shown.mode_none, shown.steps),
        "graph_padding_tokens": shown.graph_padding_tokens,
    }
