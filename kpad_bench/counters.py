"""What the server counted during a pass, from its Prometheus samples.

Pure: text in, differences out. A sample is matched by its exact name, because
counters have ``_created`` twins and ``_per_pos_total`` cousins that share their prefix. What is
missing is None, never zero. The log's own summary of drafts is only told, never counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Our name -> sample names of vLLM's generations, newest first; the first one present is used.
#: P (decode_events) is one per request and decode step; older vLLM called it time_per_output_token.
ALIASES: dict[str, tuple[str, ...]] = {
    "generation_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "first_tokens": ("vllm:time_to_first_token_seconds_count",),
    "decode_events": (
        "vllm:inter_token_latency_seconds_count",
        "vllm:time_per_output_token_seconds_count",
    ),
    "prompt_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "n_drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted_tokens": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
    ),
    "accepted_per_position": (
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    ),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ),
}
CACHE_CONFIG = "vllm:cache_config_info"

_SAMPLE = re.compile(
    r'([a-zA-Z_:][\w:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*(?:#.*)?'
)
_LOG_LINE = re.compile(r"SpecDecoding metrics: (.*)")
_LOG_COUNT = re.compile(r"\b(Accepted|Drafted): (\d+) tokens")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One line of a Prometheus text dump."""

    name: str
    labels: Labels
    value: float


def parse_samples(text: str) -> Iterator[Sample]:
    """Samples of a dump. A last line without its line end was cut and is left out, as is NaN."""
    for line in text.split("\n")[:-1]:
        match = _SAMPLE.fullmatch(line.rstrip("\r"))
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(match[1], _labels(match[2] or ""), value)


def _labels(text: str) -> Labels:
    return tuple(
        sorted(
            (name, re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), value))
            for name, value in _LABEL.findall(text)
        )
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The server's counters at one moment.

    ``series``: our name -> labels -> value, only of counters that the dump has. ``found``: our name
    -> the sample name it was read from. ``num_gpu_blocks``: KV cache blocks over all engines.
    """

    series: dict[str, dict[Labels, float]] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    num_gpu_blocks: int | None = None

    def total(self, name: str) -> float | None:
        """One counter summed over engines; None when the dump lacks it."""
        return sum(self.series[name].values()) if name in self.series else None


def snapshot(text: str | None) -> Snapshot:
    """Read a dump of ``/metrics``; None (there was no answer) gives a snapshot without counters."""
    by_name: dict[str, dict[Labels, float]] = {}
    for sample in parse_samples(text or ""):
        by_name.setdefault(sample.name, {})[sample.labels] = sample.value
    found = {
        ours: present[0]
        for ours, theirs in ALIASES.items()
        if (present := [name for name in theirs if name in by_name])
    }
    series = {ours: by_name[theirs] for ours, theirs in found.items()}
    return Snapshot(series, found, _gpu_blocks(by_name.get(CACHE_CONFIG, {})))


def _gpu_blocks(infos: Mapping[Labels, float]) -> int | None:
    blocks = [dict(labels).get("num_gpu_blocks", "") for labels in infos]
    counts = [int(count) for count in blocks if count.isdigit()]
    return sum(counts) if counts else None


@dataclass(frozen=True, slots=True)
class Deltas:
    """What the counters rose by in a pass; None for what either snapshot lacks.

    ``generation_tokens`` is G, ``first_tokens`` F and ``decode_events`` P of the metric definitions.
    ``backwards`` names counters that fell: the server restarted, and nothing here can be trusted.
    """

    generation_tokens: int | None = None
    first_tokens: int | None = None
    decode_events: int | None = None
    prompt_tokens: int | None = None
    n_drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: list[int] | None = None
    preemptions: int | None = None
    prefix_hits: int | None = None
    num_gpu_blocks: int | None = None
    backwards: tuple[str, ...] = ()


def delta(before: Snapshot, after: Snapshot) -> Deltas:
    """The difference of two snapshots. A counter that fell is None and listed in ``backwards``."""
    rises = {name: _rises(before, after, name) for name in ALIASES}
    backwards = tuple(name for name, rise in rises.items() if rise and min(rise.values()) < 0)
    known = {name: rise for name, rise in rises.items() if rise and name not in backwards}
    positions = known.pop("accepted_per_position", None)
    totals = {name: round(sum(rise.values())) for name, rise in known.items()}
    return Deltas(
        **totals,
        accepted_per_position=None if positions is None else _by_position(positions),
        num_gpu_blocks=after.num_gpu_blocks,
        backwards=backwards,
    )


def _rises(before: Snapshot, after: Snapshot, name: str) -> dict[Labels, float] | None:
    """Rise per series; None unless both snapshots have the same series (a cut dump has fewer).

    A dump that was cut before the newer of two names has only the older one, and counts of two names are
    not subtracted.
    """
    old, new = before.series.get(name), after.series.get(name)
    is_same = before.found.get(name) == after.found.get(name)
    if old is None or new is None or not is_same or old.keys() != new.keys():
        return None
    return {labels: new[labels] - old[labels] for labels in new}


def _by_position(rises: Mapping[Labels, float]) -> list[int] | None:
    by_position: dict[int, float] = {}
    for labels, rise in rises.items():
        position = dict(labels).get("position", "")
        if not position.isdigit():
            return None
        by_position[int(position)] = by_position.get(int(position), 0.0) + rise
    if sorted(by_position) != list(range(len(by_position))):
        return None
    return [round(by_position[position]) for position in range(len(by_position))]


class LoggedDrafts(NamedTuple):
    """Draft tokens by the log's summaries: intervals of the log, which are not those of a pass."""

    accepted: int
    drafted: int


def logged_drafts(log: str) -> LoggedDrafts | None:
    """Sum over the ``SpecDecoding metrics`` lines of a log; None when no line tells both counts.

    vLLM has worded the line in three ways (pull requests 15902 and 24127, and 0.25.1): other fields, in
    another order, a rate that may be ``nan%``. So the two counts are found by their names.
    """
    lines = [dict(_LOG_COUNT.findall(line)) for line in _LOG_LINE.findall(log)]
    told = [line for line in lines if {"Accepted", "Drafted"} <= line.keys()]
    if not told:
        return None
    return LoggedDrafts(
        sum(int(line["Accepted"]) for line in told), sum(int(line["Drafted"]) for line in told)
    )


def counter_doubts(deltas: Deltas, k: int | None, log: str) -> list[str]:
    """What to say beside a row whose counters are missing; of one that fell the verdict speaks."""
    if deltas.backwards:
        return []
    if deltas.generation_tokens is None:
        missing = "/metrics was missing or cut: what follows from its counters is null"
    elif k is not None and deltas.draft_tokens is None:
        missing = "/metrics tells nothing of drafts: their counts are null"
    else:
        return []
    logged = None if k is None else logged_drafts(log)
    if logged is None:
        return [missing]
    accepted = f"{logged.accepted} of {logged.drafted} draft tokens since the boot were accepted"
    return [f"{missing}; by the log {accepted}"]
